//! Given ranges of host ids, and sysctls with the host's ids (CRI rules G5, C18 and C19 of docs/guides/cri-rules.md).

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use executor_core::idmap::RANGE_IDS;
use executor_proto::v1::{CreatePodRequest, IdMapping, RunRequest, UserNamespace};
use integration::api::pid;
use integration::daemon::{Daemon, Setup};
use integration::host::status;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::wait;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// First host id of the given range, which is outside of all id pools.
const FIRST: u32 = 0x5000_0000;
const CONFIG: &str = "[policy]\nallow_host_userns = true\ngiven_id_ranges = [\"1342177280-1343225855\"]\n";

fn mapping(host_id: u32) -> IdMapping {
    IdMapping { container_id: 0, host_id, length: RANGE_IDS }
}

fn given(host_id: u32, request: RunRequest) -> RunRequest {
    RunRequest { id_map: Some(mapping(host_id)), ..request }
}

fn refused(daemon: &Daemon, request: RunRequest) -> (Code, String, String) {
    let status: Status = daemon.api.run(request).unwrap_err();
    let details = status.get_details_bad_request().unwrap_or_else(|| panic!("no BadRequest: {status:?}"));
    let violation = &details.field_violations[0];
    (status.code(), violation.field.clone(), violation.description.clone())
}

#[test]
fn users_and_files_have_given_ids() {
    let daemon = Setup::default().config(CONFIG).start();
    let before = daemon.footprint();
    let script = "touch /tmp/a; exec sleep 100000";
    let check = |start: u32, request: RunRequest| {
        let container = daemon.api.started(request.user("1000:1001"));
        let file = format!("/proc/{}/root/tmp/a", pid(&container));
        let found = wait::until("the file exists", || fs::metadata(&file).ok());
        assert_eq!(container.id_range_start, start);
        assert_eq!(
            status(pid(&container), "Uid").unwrap().split_whitespace().next(),
            Some(&*(start + 1000).to_string())
        );
        assert_eq!((found.uid(), found.gid()), (start + 1000, start + 1001));
        container.spec.unwrap().id_map
    };
    assert_eq!(check(FIRST, given(FIRST, sh(script).id("given"))), Some(mapping(FIRST)));
    let pod = CreatePodRequest { id: "p".into(), id_map: Some(mapping(FIRST + RANGE_IDS)), ..Default::default() };
    let pods = daemon.api.client().pods();
    let (pod, _) = daemon.api.block_on(pods.create(&pod)).unwrap();
    assert_eq!((pod.id_range_start, pod.spec.unwrap().id_map), (FIRST + RANGE_IDS, Some(mapping(FIRST + RANGE_IDS))));
    check(FIRST + RANGE_IDS, RunRequest { pod: "p".into(), ..sh(script).id("member") });
    let other = daemon.api.started(sleeper("pool"));
    assert!(other.id_range_start >= 0x7000_0000 && other.spec.unwrap().id_map.is_none(), "control failed");
    daemon.api.block_on(pods.delete("p", true)).unwrap();
    for id in ["given", "pool"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

#[test]
fn given_ids_are_listed_and_free() {
    let closed = Daemon::start();
    let (code, field, why) = refused(&closed, given(FIRST, sh("true")));
    assert_eq!((code, &*field), (Code::InvalidArgument, "id_map.host_id"), "{why}");
    assert!(why.contains("given_id_ranges"), "{why}");
    drop(closed);
    let first = 0x5004_0000;
    let daemon = Setup::default().config(CONFIG).start();
    let other = Setup::default().config(CONFIG).start();
    daemon.api.started(given(first, sleeper("uses")));
    for start in [first, first + 1, first - RANGE_IDS + 1] {
        let (code, field, why) = refused(&daemon, given(start, sh("true")));
        assert_eq!((code, &*field), (Code::FailedPrecondition, "id_map.host_id"), "{start}: {why}");
        assert!(why.contains("in use"), "{why}");
    }
    let (code, _, why) = refused(&other, given(first, sh("true")));
    assert!(code == Code::FailedPrecondition && why.contains("another launcher"), "{code:?} {why}");
    for start in [1000, FIRST - 1, 0x6000_0000] {
        let (_, field, why) = refused(&daemon, given(start, sh("true")));
        assert_eq!(field, "id_map.host_id", "{start}: {why}");
    }
    let host = RunRequest { user_namespace: UserNamespace::Host.into(), ..given(first, sh("true")) };
    assert_eq!(refused(&daemon, host).1, "id_map");
    daemon.api.run_to_end(given(first + RANGE_IDS, sh("true").id("beside")));
    daemon.api.delete("uses", true).unwrap();
    daemon.api.run_to_end(given(first, sh("true").id("again")));
}

#[test]
fn sysctls_with_host_ids_stay_inside() {
    let config = "[policy]\nallow_host_userns = true\nhost_ids_sysctls = true\n";
    let (open, closed) = (Setup::default().config(config).start(), Setup::default().config(CONFIG).start());
    let host = |name: &str| fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).unwrap();
    let names = ["kernel.shmmni", "net.core.somaxconn"];
    let before = names.map(host);
    let sysctls: HashMap<String, String> = names.iter().map(|name| ((*name).to_owned(), "321".to_owned())).collect();
    let script = "cat /proc/sys/kernel/shmmni /proc/sys/net/core/somaxconn";
    let asked = RunRequest { user_namespace: UserNamespace::Host.into(), sysctls, ..sh(script).id("asked") };
    let (_, field, why) = refused(&closed, asked.clone());
    assert!(field.starts_with("sysctls[") && why.contains("host_ids_sysctls"), "{field}: {why}");
    open.api.run_to_end(asked.clone());
    assert_eq!(open.api.output("asked").text(), "321\n321\n");
    assert_eq!(names.map(host), before, "the host's are unchanged");
    let sysctls = [("kernel.core_pattern".to_owned(), "x".to_owned())].into();
    assert_eq!(refused(&open, RunRequest { sysctls, ..asked.id("global") }).1, "sysctls[kernel.core_pattern]");
}
