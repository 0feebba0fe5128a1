//! kill -9 of each of the executor's processes, as seen at the interface: containers continue to run if possible, their
//! outcome is known, and nothing is lost or reported twice.

use executor_proto::v1::event::Kind;
use executor_proto::v1::{RunRequest, State, failure};
use integration::api::{ending, exit, pid};
use integration::daemon::{Daemon, has_ended, kill};
use integration::request::{RequestBuilder, sh, sleeper};
use integration::{host, wait};
use tonic::Code;
use tonic_types::StatusExt as _;

/// Prints increasing numbers, one per line, until it gets SIGTERM.
const COUNTER: &str = "n=0; trap 'echo last; exit 7' TERM; while :; do n=$((n+1)); echo $n; sleep 0.005; done";

/// Checks that lines count 1, 2, 3, ... without a gap or a repetition. Returns the number of lines.
fn counts(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().filter(|line| *line != "last").collect();
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(*line, (index + 1).to_string(), "after {:?}", &lines[..index].last());
    }
    lines.len()
}

#[test]
fn containers_outlive_the_daemon() {
    let mut daemon = Daemon::start();
    let before = daemon.footprint();
    let counter = daemon.api.started(sh(COUNTER).id("counter").file("a", b"secret").label("app", "web"));
    let sleeping = daemon.api.started(sleeper("sleeps").user("vcap").env("TOKEN", "x"));
    let soon = "trap 'exit 9' USR1; echo up; while :; do sleep 0.02; done";
    let ends = pid(&daemon.api.up(sh(soon).id("ends")));
    daemon.api.started(sh("exit 3").id("done"));
    daemon.api.wait("done").unwrap();
    daemon.api.follow("counter").until(|entry| entry.data == b"20\n");
    let launcher = daemon.launcher();

    daemon.kill();
    assert_eq!(host::status(pid(&counter), "Name").as_deref(), Some("sh"), "the container runs on");
    // This container exits while no daemon is running.
    kill(ends, 10);
    wait::until("the process has exited", || has_ended(ends).then_some(()));
    daemon.start_again();

    assert_eq!(daemon.launcher(), launcher, "the launcher keeps running");
    assert_eq!(daemon.api.ids(), ["counter", "done", "ends", "sleeps"]);
    assert_eq!(daemon.api.get("sleeps").unwrap(), sleeping, "Get returns the same as before");
    assert_eq!(daemon.api.get("counter").unwrap(), counter);
    assert_eq!(exit(&daemon.api.wait("done").unwrap()), Ok(3));
    assert_eq!(exit(&daemon.api.wait("ends").unwrap()), Ok(9), "the exit code is returned despite the restart");

    // The log continues, and is complete from the first line to the last.
    let seen = counts(&daemon.api.logs_so_far("counter"));
    let more = format!("{}\n", seen + 50);
    daemon.api.follow("counter").until(|entry| entry.data == more.as_bytes());
    daemon.api.stop("counter", None).unwrap();
    assert_eq!(exit(&daemon.api.wait("counter").unwrap()), Ok(7));
    let log = daemon.api.output("counter").text();
    assert!(counts(&log) >= seen + 50 && log.ends_with("last\n"), "{} lines", counts(&log));
    let wipe = ending(&daemon.api.get("counter").unwrap()).wipe.clone().unwrap();
    assert_eq!((wipe.files, wipe.verified, &*wipe.wiped_by), (1, true, "shim"));

    for id in daemon.api.ids() {
        daemon.api.delete(&id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// The daemon is killed at every state of a container's lifecycle. Every call that has returned is durable, and the
/// next daemon knows all running containers.
#[test]
fn daemon_can_be_killed_in_any_state() {
    let mut daemon = Daemon::start();
    let stays = daemon.api.started(sleeper("stays").file("a", b"secret"));
    let before = daemon.footprint();
    let states = [Kind::Reserved, Kind::Initializing, Kind::Created, Kind::Running, Kind::Completed];
    for (round, state) in states.into_iter().enumerate() {
        let request = |index| match index {
            // Two containers would run for a long time.
            0 | 1 => sleeper(&format!("r{round}-{index}")).file("a", b"secret"),
            _ => sh(&format!("exit {index}")).id(&format!("r{round}-{index}")).file("a", b"secret"),
        };
        let mut events = daemon.api.events_after(daemon.api.info().cursor);
        let mut tasks = Vec::new();
        for index in 0..6 {
            let (mut rpc, request) = (daemon.api.rpc(), request(index));
            tasks.push(daemon.api.spawn(async move { rpc.run(request).await }));
        }
        // Kill the daemon when the first container reaches this state.
        events.until(|response| {
            let event = response.event.as_ref().unwrap();
            event.container_id != "stays" && event.kind() == state
        });
        daemon.kill();
        let answered: Vec<String> = tasks
            .into_iter()
            .filter_map(|task| Some(daemon.api.block_on(task).unwrap().ok()?.into_inner().container?.id))
            .collect();
        daemon.start_again();
        let there = daemon.api.ids();
        assert!(answered.iter().all(|id| there.contains(id)), "{answered:?} of {there:?}");
        for index in 0..6 {
            look_after(&daemon, &format!("r{round}-{index}"), index, &answered);
        }
        assert_eq!(daemon.api.get("stays").unwrap(), stays);
        daemon.wait_until_back_at(&before);
    }
}

/// Checks that a container exists if its Run has returned. If Run has not returned, the container may exist. In both
/// cases the id is free at the end.
fn look_after(daemon: &Daemon, id: &str, index: i32, answered: &[String]) {
    let was_answered = answered.iter().any(|answered| answered == id);
    if index > 1 {
        match daemon.api.wait(id) {
            Ok(ended) if ending(&ended).exit.is_some() => assert_eq!(exit(&ended), Ok(index), "{id}"),
            other => assert!(!was_answered, "{id}: {other:?}"),
        }
    }
    match daemon.api.delete(id, true) {
        Err(status) if !was_answered && status.code() == Code::NotFound => {}
        deleted => deleted.expect("Delete"),
    }
    assert_eq!(exit(&daemon.api.run_to_end(sh("exit 8").id(id))), Ok(8), "{id}");
    daemon.api.delete(id, false).expect("Delete");
}

/// The effect of a call that returned just before the kill is durable: a completion, a deletion, a stop.
#[test]
fn answered_calls_survive_kill() {
    let mut daemon = Daemon::start();
    for round in 0..4 {
        let [ended, gone, stopped] = ["ended", "gone", "stopped"].map(|name| format!("{name}{round}"));
        daemon.api.run_to_end(sh("exit 2").id(&gone));
        daemon.api.started(sleeper(&stopped));
        let result = daemon.api.run_to_end(sh("echo kept; exit 5").id(&ended)).result;
        daemon.api.delete(&gone, false).unwrap();
        daemon.api.stop(&stopped, None).unwrap();
        daemon.kill();
        daemon.start_again();
        assert_eq!(daemon.api.get(&ended).unwrap().result, result);
        assert_eq!(daemon.api.output(&ended).text(), "kept\n");
        assert_eq!(daemon.api.get(&gone).unwrap_err().code(), Code::NotFound, "a deleted container stays deleted");
        let stopped = daemon.api.wait(&stopped).unwrap();
        assert!(ending(&stopped).stopped && ending(&stopped).exit.is_some(), "{stopped:#?}");
    }
}

#[test]
fn repeated_request_is_recognized_after_restart() {
    let mut daemon = Daemon::start();
    let request = || sleeper("same").env("TOKEN", "one").file("a", b"one");
    daemon.api.started(request());
    daemon.kill();
    daemon.start_again();
    assert!(!daemon.api.run(request()).unwrap().created);
    let other = request().action(|run| run.env[0].value = "two".into());
    assert_eq!(daemon.api.run(other).unwrap_err().code(), Code::AlreadyExists);
    let with_nonce = |nonce: &str| RunRequest { nonce: nonce.into(), ..sleeper("once") };
    daemon.api.started(with_nonce("a"));
    assert!(!daemon.api.run(with_nonce("a")).unwrap().created);
    assert_eq!(daemon.api.run(with_nonce("b")).unwrap_err().code(), Code::AlreadyExists);
    let long = daemon.api.run(with_nonce(&"a".repeat(129))).unwrap_err();
    assert_eq!(long.get_details_bad_request().unwrap().field_violations[0].field, "nonce");
}

#[test]
fn cursors_never_go_back() {
    let mut daemon = Daemon::start();
    let mut newest = 0;
    for (round, crash) in [true, false, true].into_iter().enumerate() {
        let id = format!("e{round}");
        daemon.api.run_to_end(sh("true").id(&id));
        let completed = |kind: Kind| kind == Kind::Completed;
        let reported = daemon.api.events_after(newest).until(|response| {
            let event = response.event.as_ref().unwrap();
            event.container_id == id && completed(event.kind())
        });
        let cursors: Vec<u64> = reported.iter().map(|response| response.event.as_ref().unwrap().cursor).collect();
        assert!(cursors[0] > newest && cursors.is_sorted_by(|a, b| a < b), "{cursors:?} after {newest}");
        newest = daemon.api.info().cursor;
        if crash {
            daemon.kill();
        } else {
            assert!(daemon.terminate().success());
        }
        daemon.start_again();
        assert!(daemon.api.info().cursor >= newest);
    }
}

/// Waits until the ledger contains every event so far: a write of the cell's health also writes everything before it.
fn sync_ledger(daemon: &Daemon) {
    for reason in [Some("ledger"), None] {
        daemon.api.block_on(daemon.api.client().cell().set_unhealthy(reason)).unwrap();
    }
}

/// Returns true if the first response after a cursor reports a gap, and the cursor of the response.
fn first_after(daemon: &Daemon, cursor: u64, id: &str) -> (bool, u64) {
    daemon.api.run_to_end(sh("true").id(id));
    let first = daemon.api.events_after(cursor).until(|_| true).remove(0);
    (first.gap, first.event.unwrap().cursor)
}

/// After a kill, a gap is reported only if events were lost. The first two kills lose no event. As a control, the
/// ledger is restored from an older copy after the third kill, which loses events.
#[test]
fn kill_is_gap_only_if_events_lost() {
    let mut daemon = Daemon::start();
    daemon.api.run_to_end(sh("true").id("one"));
    sync_ledger(&daemon);
    let newest = daemon.api.info().cursor;
    for _ in 0..2 {
        daemon.kill();
        daemon.start_again();
        assert_eq!(daemon.api.info().cursor, newest);
    }
    assert_eq!(first_after(&daemon, newest, "two"), (false, newest + 1));

    sync_ledger(&daemon);
    let newest = daemon.api.info().cursor;
    let ledger = daemon.setup().state_dir().join("ledger/executord.redb");
    let before = std::fs::read(&ledger).unwrap();
    daemon.api.run_to_end(sh("true").id("three"));
    daemon.api.delete("three", false).unwrap();
    sync_ledger(&daemon);
    daemon.kill();
    std::fs::write(&ledger, before).unwrap();
    daemon.start_again();
    let (gap, cursor) = first_after(&daemon, newest, "four");
    assert!(gap && cursor > newest + 1, "{gap} {cursor}");
}

/// If a daemon gets SIGTERM, it completes pending calls, exits, and leaves its containers running.
#[test]
fn terminated_daemon_leaves_containers_running() {
    let mut daemon = Daemon::start();
    let sleeping = daemon.api.started(sleeper("sleeps"));
    let api = daemon.api.clone();
    let waiting =
        daemon.api.spawn(async move { api.rpc().wait(executor_proto::v1::WaitRequest { id: "sleeps".into() }).await });
    let mut events = daemon.api.events_after(daemon.api.info().cursor);
    assert!(daemon.terminate().success());
    // A waiting client gets a retryable error, or its connection is closed.
    assert!(daemon.api.block_on(waiting).unwrap().is_err());
    assert!(events.message().is_err());
    daemon.start_again();
    assert_eq!(daemon.api.get("sleeps").unwrap(), sleeping);
}

/// If a shim is killed, its container is killed as well, the launcher wipes the files, and the result reports the exit
/// status as unknown.
#[test]
fn killed_shim_is_reported_as_supervisor_lost() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let running = daemon.api.started(sleeper("lost").file("a", b"canary-of-the-lost"));
    let kept = std::fs::File::open(format!("/proc/{}/root/etc/cf-service-bindings/a", pid(&running))).unwrap();
    let mut bytes = [1; 18];
    std::os::unix::fs::FileExt::read_exact_at(&kept, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"canary-of-the-lost", "control failed");
    kill(daemon.record("lost").shim.pid, 9);
    let lost = daemon.api.wait("lost").unwrap();
    let result = ending(&lost);
    let failure = result.failure.as_ref().unwrap();
    assert_eq!((failure.kind(), result.exit), (failure::Kind::SupervisorLost, None));
    let wipe = result.wipe.as_ref().unwrap();
    assert_eq!((wipe.files, wipe.bytes, &*wipe.wiped_by), (1, 18, "launcher"));
    std::os::unix::fs::FileExt::read_exact_at(&kept, &mut bytes, 0).unwrap();
    assert_eq!(bytes, [0; 18], "overwritten, also in an open descriptor");
    drop(kept);
    assert!(has_ended(pid(&running)));
    daemon.api.delete("lost", false).unwrap();
    daemon.wait_until_back_at(&before);
}

/// If the daemon, the launcher and the shim of a container are all killed at the same time, the next daemon completes
/// the container.
#[test]
fn daemon_launcher_and_shim_are_all_killed() {
    let mut daemon = Daemon::start();
    let before = daemon.footprint();
    let running = daemon.api.started(sleeper("swept").file("a", b"canary-of-the-swept"));
    let survivor = daemon.api.started(sleeper("survivor"));
    let (shim, launcher) = (daemon.record("swept").shim.pid, daemon.launcher().unwrap());
    daemon.kill();
    for pid in [launcher, shim] {
        kill(pid, 9);
        wait::until("the killed process has exited", || has_ended(pid).then_some(()));
    }
    assert_eq!(
        host::status(pid(&running), "Name").as_deref(),
        Some("sleep"),
        "the container runs without the executor's processes"
    );
    daemon.start_again();
    let swept = daemon.api.wait("swept").unwrap();
    assert_eq!(ending(&swept).failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
    assert_eq!(ending(&swept).wipe.as_ref().unwrap().bytes, 19);
    assert!(has_ended(pid(&running)));
    assert_eq!(daemon.api.get("survivor").unwrap(), survivor, "a container with its shim is unaffected");
    assert_eq!(survivor.state(), State::Running);
    for id in ["swept", "survivor"] {
        daemon.api.delete(id, true).unwrap();
    }
    let now = daemon.footprint();
    assert_eq!((now.files, now.remaining, now.mounts), (before.files, before.remaining, before.mounts));
}
