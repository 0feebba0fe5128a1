//! Processes of a paused container do not run. A paused container can be stopped like other containers, and can be
//! resumed.

use std::path::Path;

use executor_proto::v1::{
    Action, Check, Checks, Container, ExecStart, HttpCheck, PauseRequest, ResumeRequest, RunRequest, SerialAction,
    State, TimeoutAction, Tmpfs, TryAction, check, event, failure,
};
use integration::api::{Api, ending, exit, pid};
use integration::cli;
use integration::daemon::{Daemon, kill};
use integration::request::{RequestBuilder as _, sh, sleeper, update};
use integration::rootfs::Rootfs;
use integration::streams::executed;
use integration::{host, wait};
use tonic::{Code, Status};

const SIGSTOP: i32 = 19;

fn pause(api: &Api, id: &str) -> Result<Container, Status> {
    let request = PauseRequest { id: id.into() };
    api.block_on(api.rpc().pause(request)).map(|answer| answer.into_inner().container.unwrap())
}

fn resume(api: &Api, id: &str) -> Result<Container, Status> {
    let request = ResumeRequest { id: id.into() };
    api.block_on(api.rpc().resume(request)).map(|answer| answer.into_inner().container.unwrap())
}

/// Returns one value per process of a container: true if the process is stopped. A process with a pending SIGSTOP
/// counts as stopped: it may wait in the kernel for a child of vfork, and stops before it returns to user space.
fn stopped(daemon: &Daemon, id: &str) -> Vec<bool> {
    let cgroup = daemon.record(id).cgroup;
    let root = Path::new("/sys/fs/cgroup");
    let files = [root.join("memory").join(&cgroup), root.join(&cgroup)].map(|dir| dir.join("cgroup.procs"));
    let procs = files.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap();
    let pids = procs.lines().map(|pid| pid.parse().unwrap());
    let is_stopped = |pid: i32| {
        let pending = host::status(pid, "ShdPnd").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        let waits = pending.is_some_and(|mask| mask & 1 << (SIGSTOP - 1) != 0);
        host::status(pid, "State").map(|state| state.starts_with('T') || waits)
    };
    pids.filter_map(is_stopped).collect()
}

/// Processes that constantly fork are also paused and resumed.
#[test]
fn every_process_stops_and_goes_on() {
    let daemon = Daemon::start();
    let script = "for n in 1 2 3; do while :; do /bin/true; done & done; while echo alive; do sleep 0.01; done";
    daemon.api.started(sh(script).id("c"));
    wait::until("the container prints", || daemon.api.logs_so_far("c").contains("alive").then_some(()));
    assert!(stopped(&daemon, "c").contains(&false), "control failed");
    let cursor = daemon.api.info().cursor;
    let paused = pause(&daemon.api, "c").unwrap();
    assert_eq!((paused.paused, paused.ready, paused.state()), (true, false, State::Running));
    let all = stopped(&daemon, "c");
    assert!(all.len() >= 4 && !all.contains(&false), "{all:?}");
    let printed = daemon.api.logs_so_far("c").len();
    assert!(pause(&daemon.api, "c").unwrap().paused, "a second pause fails");
    let exec = ExecStart { id: "c".into(), path: "/bin/true".into(), ..ExecStart::default() };
    let refused = executed(&daemon.api, exec).err().expect("Exec is refused");
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains("paused"), "{refused:?}");
    assert_eq!(daemon.api.signal("c", 18).unwrap_err().code(), Code::FailedPrecondition, "SIGCONT");
    assert_eq!(daemon.api.logs_so_far("c").len(), printed);
    assert!(!resume(&daemon.api, "c").unwrap().paused);
    wait::until("the container prints again", || (daemon.api.logs_so_far("c").len() > printed).then_some(()));
    let kinds: Vec<event::Kind> = daemon
        .api
        .events_after(cursor)
        .until(|answer| answer.event.as_ref().is_some_and(|event| event.kind() == event::Kind::Resumed))
        .iter()
        .filter_map(|answer| Some(answer.event.as_ref()?.kind()))
        .collect();
    assert_eq!(kinds, [event::Kind::Paused, event::Kind::Resumed]);
}

/// A paused container can be stopped with a grace period and by force. Nothing is left after the stop.
#[test]
fn paused_containers_end() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let orderly = "trap 'echo in order; exit 3' TERM; echo up; while :; do sleep 0.05; done";
    daemon.api.started(sh(orderly).id("stopped").file("key", b"secret"));
    daemon.api.started(sleeper("killed").file("key", b"secret"));
    daemon.api.started(sleeper("deleted").file("key", b"secret"));
    wait::until("the handler is installed", || daemon.api.logs_so_far("stopped").contains("up").then_some(()));
    for id in ["stopped", "killed", "deleted"] {
        pause(&daemon.api, id).unwrap();
    }
    daemon.api.stop("stopped", Some(20_000)).unwrap();
    let ended = daemon.api.wait("stopped").unwrap();
    assert_eq!(exit(&ended), Ok(3));
    assert!(!ended.paused && ended.result.unwrap().wipe.unwrap().verified);
    daemon.api.signal("killed", 9).unwrap();
    let killed = daemon.api.wait("killed").unwrap();
    assert!(killed.result.unwrap().wipe.unwrap().verified);
    daemon.api.delete("deleted", true).unwrap();
    for id in ["stopped", "killed"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// If executord is killed and restarted, the container stays paused and can be resumed. If the shim is killed during a
/// pause, the secret files are wiped.
#[test]
fn pause_survives_executord() {
    let mut daemon = Daemon::start();
    daemon.api.started(sh("while echo alive; do sleep 0.01; done").id("c").file("key", b"one"));
    pause(&daemon.api, "c").unwrap();
    daemon.kill();
    daemon.start_again();
    assert!(wait::until("the container is known", || daemon.api.get("c").ok()).paused);
    wait::until("the shim is connected", || daemon.api.update(update("c", &[("key", b"two")])).ok());
    assert!(!stopped(&daemon, "c").contains(&false), "files are replaced in a paused container");
    let printed = daemon.api.logs_so_far("c").len();
    resume(&daemon.api, "c").unwrap();
    wait::until("the container prints again", || (daemon.api.logs_so_far("c").len() > printed).then_some(()));
    pause(&daemon.api, "c").unwrap();
    let shim = daemon.record("c").shim.pid;
    kill(shim, 9);
    let ended = daemon.api.wait("c").unwrap();
    assert!(ended.result.unwrap().wipe.unwrap().verified, "the shim was killed");
}

/// Checks are suspended while a container is paused. As a control, the container is killed as unhealthy if the server
/// is stopped without a pause.
#[test]
fn checks_are_suspended_during_pause() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let served = |id: &str| {
        let script = "mkdir /tmp/www; echo yes > /tmp/www/live; exec busybox httpd -f -p 8080 -h /tmp/www";
        let tmpfs = vec![Tmpfs { path: "/tmp".into(), exec: true, ..Tmpfs::default() }];
        let http = HttpCheck { port: 8080, path: "/live".into(), ..HttpCheck::default() };
        let time = |millis: i32| Some(prost_types::Duration { seconds: 0, nanos: millis * 1_000_000 });
        let kind = Some(check::Kind::Http(http));
        let live = Check { kind, interval: time(500), timeout: time(500), unhealthy_threshold: 1, ..Check::default() };
        let checks = Checks {
            startup: vec![Check { unhealthy_threshold: 0, ..live.clone() }],
            liveness: vec![live],
            ..Checks::default()
        };
        RunRequest { tmpfs, checks: Some(checks), ..sh(script).id(id).rootfs(&rootfs.reference()).grace_ms(0) }
    };
    let ready = |id: &str| wait::until("the container is ready", || daemon.api.get(id).unwrap().ready.then_some(()));
    for id in ["paused", "control"] {
        daemon.api.started(served(id));
        ready(id);
    }
    assert!(!pause(&daemon.api, "paused").unwrap().ready);
    kill(pid(&daemon.api.get("control").unwrap()), SIGSTOP);
    let ended = daemon.api.wait("control").unwrap();
    assert_eq!(ending(&ended).failure.as_ref().unwrap().kind(), failure::Kind::Unhealthy);
    assert!(daemon.api.get("paused").unwrap().paused, "the pause outlives the control");
    resume(&daemon.api, "paused").unwrap();
    ready("paused");
}

/// During a pause the time limit of a step is suspended, and the next step does not start. As a control, a step with
/// the same limit that starts later times out earlier.
#[test]
fn steps_are_suspended_during_pause() {
    let daemon = Daemon::start();
    let limited = |id: &str| {
        let run = |script: &str| Action { run: Some(sh(script).action.unwrap().run.unwrap()), ..Action::default() };
        let timeout = TimeoutAction {
            timeout_ms: 2000,
            action: Some(Box::new(run("echo one; sleep 1000"))),
            ..TimeoutAction::default()
        };
        let timeout = Action { timeout: Some(Box::new(timeout)), ..Action::default() };
        let first = TryAction { action: Some(Box::new(timeout)), ..TryAction::default() };
        let actions = vec![Action { r#try: Some(Box::new(first)), ..Action::default() }, run("echo two")];
        let serial = SerialAction { actions, ..SerialAction::default() };
        let action = Action { serial: Some(serial), ..Action::default() };
        RunRequest { action: Some(action), ..RunRequest::default() }.id(id).memory(64 << 20)
    };
    daemon.api.started(limited("paused"));
    wait::until("the container prints", || daemon.api.logs_so_far("paused").contains("one").then_some(()));
    wait::until("the container is paused", || pause(&daemon.api, "paused").ok());
    assert!(!stopped(&daemon, "paused").contains(&false));
    daemon.api.run_to_end(limited("control"));
    assert!(daemon.api.output("control").text().contains("two"));
    assert!(!daemon.api.logs_so_far("paused").contains("two") && daemon.api.get("paused").unwrap().paused);
    resume(&daemon.api, "paused").unwrap();
    assert_eq!(exit(&daemon.api.wait("paused").unwrap()), Ok(0));
    assert!(daemon.api.output("paused").text().contains("two"));
}

#[test]
fn commands_pause_several_containers() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    for id in ["one", "two"] {
        daemon.api.started(sleeper(id));
    }
    let paused = cli::run(&socket, &["pause", "one", "two"]);
    assert_eq!((paused.status, &*paused.stdout), (0, "one\ntwo\n"), "{}", paused.stderr);
    let shown = cli::run(&socket, &["ps", "--filter", "status=paused"]).stdout;
    assert!(shown.contains("one") && shown.contains("running (paused)"), "{shown}");
    assert!(!cli::run(&socket, &["ps", "--filter", "status=running"]).stdout.contains("one"));
    assert_eq!(cli::run(&socket, &["unpause", "--json", "one"]).json()[0]["paused"], false);
    let shown = cli::run(&socket, &["ps", "--filter", "status=paused"]).stdout;
    assert!(!shown.contains("one") && shown.contains("two"), "{shown}");
    assert_ne!(cli::run(&socket, &["pause", "nothing"]).status, 0);
}
