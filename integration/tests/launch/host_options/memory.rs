//! Swap in addition to memory, and memory protected by the kernel for a container.

use std::path::Path;

use executor_proto::v1::{Limits, RunRequest};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh, sleeper};
use tonic::Code;

use super::refused;

const MEMORY: u64 = 64 << 20;

fn with(swap_bytes: Option<i64>, memory_reservation_bytes: u64, request: RunRequest) -> RunRequest {
    let limits = Limits { memory_bytes: MEMORY, swap_bytes, memory_reservation_bytes, ..Limits::default() };
    RunRequest { limits: Some(limits), ..request }
}

/// The cgroup has the requested limits. As a control, a container without a swap limit can use no swap beyond its
/// memory limit.
#[test]
fn swap_is_limited_as_asked() {
    let daemon = Setup::default().config("[policy]\nswap_bytes_max = -1\n").start();
    for (id, swap, reservation) in
        [("none", None, 0), ("zero", Some(0), 4096), ("some", Some(8 << 20), MEMORY), ("any", Some(-1), 0)]
    {
        let container = daemon.api.started(with(swap, reservation, sleeper(id)));
        let limits = container.spec.unwrap().limits.unwrap();
        assert_eq!((limits.swap_bytes, limits.memory_reservation_bytes), (swap, reservation), "{id}");
        let cgroup = daemon.record(id).cgroup;
        let v1 = Path::new("/sys/fs/cgroup/memory").join(&cgroup);
        if v1.exists() {
            let read = |file: &str| std::fs::read_to_string(v1.join(file)).ok().map(|text| text.trim().to_owned());
            if let Some(together) = read("memory.memsw.limit_in_bytes") {
                let together: u64 = together.parse().unwrap();
                match swap {
                    Some(-1) => assert!(together > 1 << 60, "{together}"),
                    swap => assert_eq!(together, MEMORY + swap.unwrap_or(0).unsigned_abs(), "{id}"),
                }
            }
            let swappiness = read("memory.swappiness").unwrap();
            assert_eq!(swappiness == "0", swap == Some(0), "{id}: {swappiness}");
            if reservation > 0 {
                assert_eq!(read("memory.soft_limit_in_bytes").unwrap(), reservation.to_string(), "{id}");
            }
        } else {
            let v2 = Path::new("/sys/fs/cgroup").join(&cgroup);
            let read = |file: &str| std::fs::read_to_string(v2.join(file)).ok().map(|text| text.trim().to_owned());
            if let Some(most) = read("memory.swap.max") {
                let expected = if swap == Some(-1) { "max".to_owned() } else { swap.unwrap_or(0).to_string() };
                assert_eq!(most, expected, "{id}");
            }
            assert_eq!(read("memory.low").unwrap(), reservation.to_string(), "{id}");
        }
    }
}

#[test]
fn swap_beyond_the_policy_is_refused() {
    let daemon = Daemon::start();
    for swap in [1, -1] {
        let (code, violations) = refused(&daemon, with(Some(swap), 0, sh("true").id("a")));
        assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "limits.swap_bytes"));
        assert!(violations[0].1.contains("swap_bytes_max"), "{violations:?}");
    }
    let (_, violations) = refused(&daemon, with(Some(-2), MEMORY + 1, sh("true").id("b")));
    assert_eq!((&*violations[0].0, &*violations[1].0), ("limits.memory_reservation_bytes", "limits.swap_bytes"));
    daemon.api.started(with(Some(0), 0, sleeper("c")));
}
