//! A container's exit is reported as soon as no secret is left, no process runs and the result is written. Host
//! resources are released after the report. Resources that are not yet released are counted, and Delete waits for their
//! release. Nothing is left, even if one of the executor's processes is killed during the removal.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use executor_proto::v1::{Container, RunRequest};
use integration::api::{ending, exit};
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::footprint;
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;
use integration::wait;

/// Number of files in a writable layer. With so many files, the removal takes much longer than the report of an exit.
const FILES: usize = 20_000;
/// Number of containers. At least one should be caught during its removal.
const TRIES: usize = 10;

/// Builds a request for a container with so many files that its removal takes a while.
fn full(id: &str, rootfs: &Rootfs) -> RunRequest {
    let script = format!(
        "trap 'go=1' USR1; echo up; while [ ! $go ]; do sleep 0.01; done; mkdir /srv/d; i=0; \
         while [ $i -lt {FILES} ]; do >/srv/d/$i; i=$((i+1)); done; exit 3"
    );
    sh(&script).id(id).rootfs(&rootfs.reference()).file("key", b"canary-of-the-removal")
}

/// Runs a container with many files to its exit. Returns the container and the pid of its shim.
fn run_full(daemon: &Daemon, id: &str, rootfs: &Rootfs) -> (Container, i32) {
    daemon.api.up(full(id, rootfs));
    let shim = daemon.record(id).shim.pid;
    daemon.api.signal(id, 10).unwrap();
    (daemon.api.wait(id).unwrap(), shim)
}

/// Checks the guarantees that hold when the exit is reported.
fn assert_ended(daemon: &Daemon, container: &Container) {
    assert_eq!(exit(container), Ok(3));
    let wipe = ending(container).wipe.clone().unwrap();
    assert!(wipe.verified && wipe.files == 1, "{wipe:?}");
    let procs = footprint::cgroups(&daemon.setup().run_dir()).into_iter().map(|dir| dir.join("cgroup.procs"));
    let running: Vec<String> = procs.filter_map(|path| fs::read_to_string(path).ok()).collect();
    assert!(running.iter().all(String::is_empty), "a process of the container runs: {running:?}");
}

fn is_there(daemon: &Daemon, id: &str) -> bool {
    daemon.setup().run_dir().join("containers").join(id).exists()
}

/// The writable layer is removed after the exit record of the container is written.
#[test]
fn end_is_reported_before_the_removal() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let (ended, _) = run_full(&daemon, "one", &rootfs);
    assert_ended(&daemon, &ended);
    daemon.wait_until_removed("one");
    let time = |path: &Path, changed: bool| {
        let meta = fs::metadata(path).unwrap();
        if changed { (meta.ctime(), meta.ctime_nsec()) } else { (meta.mtime(), meta.mtime_nsec()) }
    };
    let state = daemon.setup().state_dir().join("containers/one");
    assert!(!state.join("upper").exists());
    assert!(
        time(&state, false) > time(&state.join("exit.json"), true),
        "the writable layer was removed after the exit record was written"
    );
    let usage = ending(&ended).usage.unwrap();
    assert!(usage.memory.is_some() && usage.cpu.is_some(), "the counters are read while there is a cgroup: {usage:?}");
}

/// Resources that are not yet released are counted. A request that needs them waits and is not refused.
#[test]
fn capacity_is_counted_until_it_is_free() {
    let rootfs = Rootfs::busybox();
    let daemon = Setup::default().config("[capacity]\ncontainers = 1\n").start();
    let mut met = 0;
    for round in 0..TRIES {
        let (first, second) = (format!("first{round}"), format!("second{round}"));
        assert_ended(&daemon, &run_full(&daemon, &first, &rootfs).0);
        let remaining = daemon.api.info().remaining.unwrap().containers;
        if is_there(&daemon, &first) {
            met += 1;
            assert_eq!(remaining, 0, "the container keeps its capacity");
        }
        assert_eq!(exit(&daemon.api.run_to_end(sh("exit 4").id(&second))), Ok(4));
        assert!(!is_there(&daemon, &first), "the capacity of the container is free after its removal");
    }
    assert!(met > 0, "control failed: no removal took longer than a response");
}

/// If Delete is called right after the exit, nothing is left when it returns.
#[test]
fn deletion_waits_for_the_removal() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    for round in 0..3 {
        assert_ended(&daemon, &run_full(&daemon, "same", &rootfs).0);
        daemon.api.delete("same", false).unwrap();
        let left = daemon.footprint();
        assert_eq!(
            (&left.files, &left.cgroups, &left.mounts),
            (&before.files, &before.cgroups, &before.mounts),
            "{round}"
        );
        assert_eq!(left.remaining, before.remaining, "{round}");
    }
    daemon.wait_until_back_at(&before);
}

/// After a kill of any of the executor's processes during a removal, the reported result stays, and nothing is left.
#[test]
fn kill_during_removal_leaves_nothing() {
    let (mut daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    for victims in ["shim", "launcher", "daemon", "shim and launcher", "all"] {
        let mut met = 0;
        for _ in 0..TRIES {
            let (reported, shim) = run_full(&daemon, "one", &rootfs);
            let mut killed = Vec::new();
            let is_meant = |who: &str| victims == "all" || victims.contains(who);
            if is_meant("launcher") {
                killed.extend(daemon.launcher());
            }
            if is_meant("shim") {
                killed.push(shim);
            }
            killed.iter().for_each(|pid| kill(*pid, 9));
            if is_meant("daemon") {
                daemon.kill();
            }
            killed.iter().for_each(|pid| wait::until("the process has exited", || has_ended(*pid).then_some(())));
            met += usize::from(is_there(&daemon, "one"));
            if is_meant("launcher") && !is_meant("daemon") {
                daemon.kill(); // the next daemon starts a launcher
            }
            if is_meant("launcher") || is_meant("daemon") {
                daemon.start_again();
            }
            assert_eq!(ending(&daemon.api.wait("one").unwrap()), ending(&reported), "{victims}");
            daemon.api.delete("one", false).unwrap();
            let left = daemon.footprint();
            assert_eq!((&left.files, &left.cgroups), (&before.files, &before.cgroups), "{victims}");
            assert_eq!((&left.mounts, &left.remaining), (&before.mounts, &before.remaining), "{victims}");
            if met > 0 {
                break;
            }
        }
        assert!(met > 0, "control failed: no kill of {victims} came before the removal was complete");
    }
}

/// If both the exit record and the ledger entry of a container are gone, the container is listed as lost while its
/// directory exists. This holds with and without a running launcher.
#[test]
fn container_without_records_is_listed_lost() {
    let mut daemon = Daemon::start();
    for with_launcher in [true, false] {
        let id = format!("lost-{with_launcher}");
        daemon.api.run_to_end(sh("exit 3").id(&id));
        daemon.wait_until_removed(&id);
        let launcher = daemon.launcher().unwrap();
        daemon.terminate();
        if !with_launcher {
            kill(launcher, 9);
            wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
        }
        let state = daemon.setup().state_dir();
        fs::remove_file(state.join("containers").join(&id).join("exit.json")).unwrap();
        fs::remove_file(state.join("ledger/executord.redb")).unwrap();
        daemon.start_again();
        let container = wait::until_ok("the container is found", || daemon.api.wait(&id));
        let lost = ending(&container);
        assert!(lost.exit.is_none() && lost.failure.is_some(), "{container:?}");
        assert_eq!(daemon.api.ids(), [&*id]);
        assert!(container.spec.is_some(), "the request of the container is known");
        daemon.api.delete(&id, false).unwrap();
        assert!(!state.join("containers").join(&id).exists());
    }
}

/// Records are not synced to disk. If a record is damaged, the ledger has the result. Without both, no result is
/// invented.
#[test]
fn damaged_record_is_no_result() {
    let mut daemon = Daemon::start();
    for (round, ledger) in [true, false].into_iter().enumerate() {
        let id = format!("torn{round}");
        daemon.api.run_to_end(sh("exit 3").id(&id));
        daemon.wait_until_removed(&id);
        let launcher = daemon.launcher().unwrap();
        daemon.terminate(); // writes the ledger
        kill(launcher, 9);
        wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
        let record = daemon.setup().state_dir().join("containers").join(&id).join("exit.json");
        let length = fs::metadata(&record).unwrap().len();
        fs::write(&record, vec![0; usize::try_from(length).unwrap()]).unwrap();
        if !ledger {
            fs::remove_file(daemon.setup().state_dir().join("ledger/executord.redb")).unwrap();
        }
        daemon.start_again();
        let container = wait::until_ok("the container is found", || daemon.api.wait(&id));
        assert!(daemon.setup().logged().contains("ignoring the exit record"), "the message is logged");
        if ledger {
            assert_eq!(exit(&container), Ok(3), "the ledger has the exit code");
        } else {
            assert!(ending(&container).exit.is_none() && ending(&container).failure.is_some(), "{container:?}");
        }
        daemon.api.delete(&id, false).unwrap();
    }
}

/// `retention.bytes` includes logs. A running container is kept, regardless of the size of its log.
#[test]
fn completed_containers_stay_within_bytes() {
    let daemon = Setup::default().config("[retention]\nbytes = 500000\n").start();
    let rootfs = Rootfs::busybox();
    let filled = |script: &str| format!("dd if=/dev/zero bs=1000 count=200 2>/dev/null | tr '\\0' x; echo; {script}");
    daemon.api.up(sh(&filled("echo up; exec sleep 100000")).id("running").rootfs(&rootfs.reference()));
    for id in ["first", "second", "third"] {
        daemon.api.started(sh(&filled("true")).id(id).rootfs(&rootfs.reference()));
        assert_eq!(exit(&daemon.api.wait(id).unwrap()), Ok(0));
    }
    wait::until("retention deletes the oldest", || daemon.api.get("first").is_err().then_some(()));
    // Retention continues: the fourth container causes only the deletion of the second.
    daemon.api.started(sh(&filled("true")).id("fourth").rootfs(&rootfs.reference()));
    assert_eq!(exit(&daemon.api.wait("fourth").unwrap()), Ok(0));
    wait::until("retention deletes the next one", || daemon.api.get("second").is_err().then_some(()));
    assert!(daemon.api.get("third").is_ok() && daemon.api.get("fourth").is_ok());
    assert!(daemon.api.get("running").is_ok());
    assert!(daemon.setup().logged().contains("retention.bytes"));
}
