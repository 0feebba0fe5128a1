//! Limits are replaced while a container runs, through the interface and with `agent-cli update`.

use std::path::{Path, PathBuf};

use executor_proto::v1::{Container, Limits, RunRequest, UpdateLimitsRequest, event};
use integration::api::Api;
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::wait;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

const MIB: u64 = 1 << 20;

fn update(api: &Api, id: &str, limits: Limits) -> Result<Container, Status> {
    let request = UpdateLimitsRequest { id: id.into(), limits: Some(limits) };
    api.block_on(api.rpc().update_limits(request)).map(|answer| answer.into_inner().container.unwrap())
}

fn memory(bytes: u64) -> Limits {
    Limits { memory_bytes: bytes, ..Limits::default() }
}

fn limits(container: &Container) -> Limits {
    container.spec.clone().unwrap().limits.unwrap()
}

/// Reads a file of a container's cgroup. The array has the controller and file name for cgroup v1 and v2.
fn read(daemon: &Daemon, id: &str, [version1, version2]: [(&str, &str); 2]) -> String {
    let cgroup = daemon.record(id).cgroup;
    let root = Path::new("/sys/fs/cgroup");
    let files: [PathBuf; 2] =
        [root.join(version1.0).join(&cgroup).join(version1.1), root.join(&cgroup).join(version2.1)];
    let file = files.iter().find(|file| file.exists()).unwrap_or_else(|| panic!("none of {files:?}"));
    std::fs::read_to_string(file).unwrap().trim().to_owned()
}

const MEMORY: [(&str, &str); 2] = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
const PIDS: [(&str, &str); 2] = [("pids", "pids.max"), ("", "pids.max")];

fn processors(daemon: &Daemon, id: &str) -> String {
    let quota = read(daemon, id, [("cpu", "cpu.cfs_quota_us"), ("", "cpu.max")]);
    quota.split(' ').next().unwrap().to_owned()
}

/// Returns the remaining memory of the node in MiB.
fn remaining(daemon: &Daemon) -> u64 {
    daemon.api.info().remaining.unwrap().memory_bytes / MIB
}

#[test]
fn limits_are_raised_and_lowered() {
    let mut daemon = Setup::default().config("[capacity]\nmemory_bytes = \"256M\"\n").start();
    let first = daemon.api.started(RunRequest {
        limits: Some(Limits { memory_bytes: 64 * MIB, pids: 50, cpu_millis: 500, ..Limits::default() }),
        ..sleeper("c")
    });
    assert_eq!((first.limits_generation, remaining(&daemon)), (0, 192));
    let cursor = daemon.api.info().cursor;
    let raised = Limits { memory_bytes: 96 * MIB, cpu_millis: 1500, cpu_weight: 200, ..Limits::default() };
    let container = update(&daemon.api, "c", raised.clone()).unwrap();
    assert_eq!(limits(&container), Limits { pids: 50, ..raised.clone() }, "omitted limits stay");
    assert_eq!((container.limits_generation, remaining(&daemon)), (1, 160));
    assert_eq!(read(&daemon, "c", MEMORY), (96 * MIB).to_string());
    assert_eq!((processors(&daemon, "c"), read(&daemon, "c", PIDS)), ("150000".into(), "50".into()));
    let events = daemon.api.events_after(cursor).until(|answer| answer.event.is_some());
    let event = events[0].event.clone().unwrap();
    assert_eq!((event.kind(), event.limits_generation), (event::Kind::LimitsUpdated, 1));
    assert_eq!(update(&daemon.api, "c", raised).unwrap().limits_generation, 1, "the same limits change nothing");

    // The next executord has the new limits and counts them against the capacity.
    daemon.kill();
    daemon.start_again();
    let kept = wait::until("the container is known", || daemon.api.get("c").ok());
    assert_eq!((limits(&kept).memory_bytes, kept.limits_generation, remaining(&daemon)), (96 * MIB, 1, 160));
    let lowered = Limits { memory_bytes: 32 * MIB, pids: 20, cpu_millis: 100, ..Limits::default() };
    let container = wait::until("the shim is connected", || update(&daemon.api, "c", lowered.clone()).ok());
    assert_eq!((container.limits_generation, remaining(&daemon)), (2, 224));
    assert_eq!(read(&daemon, "c", MEMORY), (32 * MIB).to_string());
    assert_eq!((processors(&daemon, "c"), read(&daemon, "c", PIDS)), ("10000".into(), "20".into()));
    let ended = daemon.api.stop("c", Some(0)).and_then(|_| daemon.api.wait("c")).unwrap();
    assert_eq!(limits(&ended).pids, 20, "the exit record has the new limits");
    assert_eq!(update(&daemon.api, "c", memory(64 * MIB)).unwrap_err().code(), Code::FailedPrecondition);
}

/// If an update is below the memory in use, it is refused: the process continues, and no other part of the update is
/// applied. As a control, a limit above the memory in use is applied.
#[test]
fn memory_in_use_is_kept() {
    let daemon = Daemon::start();
    let script = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); echo held; sleep 1000; echo $x";
    daemon.api.started(sh(script).id("c").memory(128 * MIB));
    wait::until("the memory is held", || daemon.api.logs_so_far("c").contains("held").then_some(()));
    let before = read(&daemon, "c", PIDS);
    let error = update(&daemon.api, "c", Limits { memory_bytes: 16 * MIB, pids: 9, ..Limits::default() }).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error:?}");
    let violations = error.get_details_bad_request().map(|details| details.field_violations).unwrap_or_default();
    assert!(
        violations.iter().any(|one| one.field == "limits.memory_bytes") || error.message().contains("memory"),
        "{error:?}"
    );
    assert_eq!((read(&daemon, "c", MEMORY), read(&daemon, "c", PIDS)), ((128 * MIB).to_string(), before));
    assert_eq!(limits(&daemon.api.get("c").unwrap()).memory_bytes, 128 * MIB);
    update(&daemon.api, "c", memory(100 * MIB)).unwrap();
    assert_eq!(daemon.api.get("c").unwrap().state(), executor_proto::v1::State::Running);
}

/// New limits count against the node's capacity. An update beyond the capacity is refused as a whole and reserves
/// nothing.
#[test]
fn limits_take_capacity() {
    let daemon = Setup::default().config("[capacity]\nmemory_bytes = \"128M\"\n").start();
    daemon.api.started(sleeper("a").memory(32 * MIB));
    daemon.api.started(sleeper("b").memory(32 * MIB));
    let error = update(&daemon.api, "a", memory(97 * MIB)).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error:?}");
    assert!(error.message().contains("not enough memory"), "{error:?}");
    assert_eq!((remaining(&daemon), read(&daemon, "a", MEMORY)), (64, (32 * MIB).to_string()));
    update(&daemon.api, "a", memory(96 * MIB)).unwrap();
    assert_eq!(remaining(&daemon), 0);
    assert_eq!(daemon.api.run(sh("true").id("d").memory(16 * MIB)).unwrap_err().code(), Code::ResourceExhausted);
    daemon.api.delete("a", true).unwrap();
    assert_eq!(remaining(&daemon), 96, "the last limits of the container are released");
}

#[test]
fn wrong_limits_are_all_named() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("c"));
    let violations = |limits: Limits| {
        let error = update(&daemon.api, "c", limits).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
        let details = error.get_details_bad_request().unwrap();
        details.field_violations.into_iter().map(|one| one.field).collect::<Vec<_>>()
    };
    let wrong = Limits { disk_bytes: MIB, cpuset_cpus: "0".into(), pids: 1 << 40, cpu_millis: 1, ..Limits::default() };
    let fields = violations(wrong);
    assert_eq!(fields, ["limits.disk_bytes", "limits.pids", "limits.cpu_millis", "limits.cpuset_cpus"]);
    assert_eq!(violations(Limits::default()), ["limits"]);
    let missing = update(&daemon.api, "nothing", memory(64 * MIB)).unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
}

#[test]
fn command_updates_several_containers() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    for id in ["one", "two"] {
        daemon.api.started(sleeper(id));
    }
    let line = "update --memory 64M --memory-reservation 32M --cpus 0.5 --pids-limit 30 one tw";
    let updated = cli::run(&socket, &line.split(' ').collect::<Vec<_>>());
    assert_eq!((updated.status, &*updated.stdout), (0, "one\ntwo\n"), "{}", updated.stderr);
    let both = ["one", "two"].map(|id| limits(&daemon.api.get(id).unwrap()));
    assert!(both.iter().all(|one| (one.memory_bytes, one.cpu_millis, one.pids) == (64 * MIB, 500, 30)), "{both:?}");
    let json = cli::run(&socket, &["update", "--json", "--pids", "31", "one", "nothing"]);
    let done = json.json();
    assert_eq!((json.status != 0, &done[0]["updated"], &done[1]["updated"]), (true, &true.into(), &false.into()));
    let none = cli::run(&socket, &["update", "one"]);
    assert!(none.status != 0 && none.stderr.contains("--memory"), "{}", none.stderr);
    let wrong = cli::run(&socket, &["update", "--memory", "1", "one"]);
    assert!(wrong.stderr.contains("--memory"), "{}", wrong.stderr);
    let events = cli::run(&socket, &["events", "--after", "0", "--until", "0s"]).stdout;
    assert!(events.contains("limits_updated  one  generation 1"), "{events}");
}
