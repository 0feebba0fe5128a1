//! Restart policies, monitors and sidecars with their own limits, in real containers.

use executor_proto::v1::check::Kind as CheckKind;
use executor_proto::v1::event::Kind;
use executor_proto::v1::restart_policy::Mode;
use executor_proto::v1::{
    Action, Check, Checks, Container, EnvironmentVariable, Event, ExecCheck, ParallelAction, RestartPolicy, RunAction,
    RunRequest, Sidecar, State, Step, StreamLogsRequest, TimeoutAction, WatchEventsRequest, exit_status, failure, step,
};
use integration::api::{ending, exit};
use integration::daemon::{Daemon, has_ended, kill};
use integration::request::{RequestBuilder as _, sh};
use integration::{cli, wait};
use tonic::Code;

const SECRET: &str = "canary-of-a-restart-51c07e";
/// A program that runs until it gets SIGUSR1.
const WAITS: &str = "trap 'exit 4' USR1; echo up; while :; do sleep 0.02; done";

fn millis(millis: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: millis / 1000, nanos: (millis % 1000) as i32 * 1_000_000 })
}

fn policy(mode: Mode, max_retries: u32, min_millis: i64) -> Option<RestartPolicy> {
    Some(RestartPolicy { mode: mode.into(), max_retries, min_delay: millis(min_millis), max_delay: None })
}

fn restarted(request: RunRequest, restart_policy: Option<RestartPolicy>) -> RunRequest {
    RunRequest { restart_policy, ..request }
}

fn run(script: &str) -> Action {
    let run = RunAction { path: "/bin/sh".into(), args: vec!["-c".into(), script.into()], ..RunAction::default() };
    Action { run: Some(run), ..Action::default() }
}

fn count(container: &Container) -> u64 {
    container.restart.as_ref().map_or(0, |restart| restart.count)
}

fn step<'a>(container: &'a Container, path: &str) -> &'a Step {
    container.steps.iter().find(|step| step.path == path).unwrap()
}

fn until(daemon: &Daemon, id: &str, what: &str, fits: impl Fn(&Container) -> bool) -> Container {
    wait::until_ok(what, || {
        let container = daemon.api.get(id).unwrap();
        if fits(&container) { Ok(container) } else { Err(format!("{container:#?}")) }
    })
}

/// Returns the events of a completed container.
fn events(daemon: &Daemon, id: &str) -> Vec<Event> {
    let request = WatchEventsRequest { container_id: id.into(), ..Default::default() };
    let is_last = |event: &Option<Event>| event.as_ref().is_some_and(|event| event.kind() == Kind::Completed);
    let all = daemon.api.events(request).unwrap().until(|response| is_last(&response.event));
    all.into_iter().filter_map(|response| response.event).collect()
}

/// Waits until all runs together have printed `up` this many times. Returns the pid of the current run.
fn running(daemon: &Daemon, id: &str, times: usize) -> i32 {
    wait::until("the container runs", || {
        let runs = daemon.api.logs_so_far(id).matches("up\n").count() == times;
        let pid = step(&daemon.api.get(id).ok()?, "action").pid;
        i32::try_from(pid).ok().filter(|pid| runs && *pid != 0)
    })
}

#[test]
fn failed_run_restarts_with_secrets() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let script = "cat /etc/cf-service-bindings/key; echo $TOKEN $#; trap 'go=1' USR1; echo up; \
                  while [ ! $go ]; do sleep 0.02; done; echo x >>/tmp/runs; [ $(wc -l </tmp/runs) -lt 4 ] && exit 3; exit 0";
    let mut request = sh(script).id("fails").file("key", SECRET.as_bytes()).env("TOKEN", "from-the-environment");
    request = restarted(request.unmasked(), policy(Mode::OnFailure, 5, 100));
    daemon.api.started(request.clone());
    // Each run exits only after executord has read its events, because executord merges events that it reads together.
    for times in 1..=4 {
        until(&daemon, "fails", "the container runs", |container| {
            let ups = daemon.api.logs_so_far("fails").matches("up\n").count() as u64;
            (ups, count(container), step(container, "action").state()) == (times, times - 1, step::State::Running)
        });
        daemon.api.signal("fails", 10).unwrap();
    }
    let ended = daemon.api.wait("fails").unwrap();
    assert_eq!((exit(&ended), &ending(&ended).failure), (Ok(0), &None), "{ended:#?}");
    let restart = ended.restart.clone().unwrap();
    assert_eq!((restart.count, &*restart.last_reason), (3, "Exited with status 3"));
    assert_eq!(restart.last_exit.unwrap().status, Some(exit_status::Status::Code(3)));
    assert!(restart.next_start_at.is_none() && restart.last_started_at.is_some() && restart.started_at.is_some());
    assert_eq!(step(&ended, "action").state(), step::State::Succeeded);
    let output = daemon.api.output("fails").text();
    assert_eq!(output, format!("{SECRET}from-the-environment 0\nup\n").repeat(4));
    let words = String::from_utf8(daemon.api.output("fails").executor).unwrap();
    assert_eq!(
        words,
        "restarting now: Exited with status 3\nrestarting in 100ms: Exited with status 3\n\
         restarting in 200ms: Exited with status 3\n"
    );
    let all = events(&daemon, "fails");
    let of = |kind: Kind| all.iter().filter(|event| event.kind() == kind).count();
    assert_eq!((of(Kind::Restarting), of(Kind::StepStarted)), (3, 4), "{all:#?}");
    let reported = all.iter().find(|event| event.kind() == Kind::Restarting).unwrap().restart.clone().unwrap();
    assert_eq!(reported.last_reason, "Exited with status 3");
    let wipe = ending(&ended).wipe.clone().unwrap();
    assert!((wipe.files, wipe.verified) == (1, true), "{wipe:?}");
    let spec = ended.spec.unwrap();
    assert_eq!((&*spec.path, spec.restart_policy.unwrap().max_delay), ("/bin/sh", millis(300_000)));
    assert!(!daemon.api.run(request.clone()).unwrap().created, "the same request is the same container");
    let other = restarted(request, policy(Mode::OnFailure, 6, 100));
    assert_eq!(daemon.api.run(other).unwrap_err().code(), Code::AlreadyExists);
    daemon.api.delete("fails", false).unwrap();
    daemon.wait_until_back_at(&before);
}

/// After the last restart that a policy permits, the exit is reported as if there were no policy.
#[test]
fn retries_are_limited_and_missing_program_fails() {
    let daemon = Daemon::start();
    let ended = daemon.api.run_to_end(restarted(sh("exit 6").id("six"), policy(Mode::OnFailure, 1, 100)));
    assert_eq!((exit(&ended), count(&ended)), (Ok(6), 1));
    let failure = ending(&ended).failure.clone().unwrap();
    assert_eq!((failure.kind(), &*failure.message), (failure::Kind::Action, "Exited with status 6"));
    let mut absent = sh("").id("absent");
    absent.action =
        Some(Action { run: Some(RunAction { path: "/nope".into(), ..RunAction::default() }), ..Action::default() });
    let absent = daemon.api.run_to_end(restarted(absent, policy(Mode::OnFailure, 2, 100)));
    assert_eq!(count(&absent), 2);
    assert!(absent.restart.unwrap().last_reason.contains("/nope"));
    let never = daemon.api.run_to_end(restarted(sh("exit 1").id("never"), policy(Mode::No, 0, 100)));
    assert!(never.restart.is_none() && never.steps.is_empty(), "{never:#?}");
}

/// Leftovers of a run are gone before the next run starts, as if the container were new.
#[test]
fn no_process_of_earlier_run_remains() {
    let daemon = Daemon::start();
    // Each run prints the number of processes, then leaves a process that ignores signals. A killed process stays in
    // the process table until init reaps it.
    let script = "n=0; while set -- /proc/[0-9]*; [ $# -gt 2 ] && [ $n -lt 500 ]; do n=$((n+1)); sleep 0.01; done; \
                  set -- /proc/[0-9]*; echo $# processes; (trap '' TERM HUP; setsid sleep 1000 </dev/null >/dev/null 2>&1 &); \
                  while :; do set -- /proc/[0-9]*; [ $# -gt 2 ] && break; done; echo and $#; exit 1";
    let ended = daemon.api.run_to_end(restarted(sh(script).id("leaves"), policy(Mode::OnFailure, 2, 100)));
    assert_eq!(count(&ended), 2);
    let output = daemon.api.output("leaves").text();
    let (before, after): (Vec<&str>, Vec<&str>) = output.lines().partition(|line| line.ends_with("processes"));
    assert_eq!(before, ["2 processes"; 3], "{output}");
    assert!(
        after.len() == 3 && after.iter().all(|line| *line != "and 2"),
        "control failed: no process was left behind: {output}"
    );
}

#[test]
fn restarts_go_on_without_executord_and_launcher() {
    let mut daemon = Daemon::start();
    let before = daemon.footprint();
    let request = sh(WAITS).id("alone").file("key", SECRET.as_bytes());
    daemon.api.started(restarted(request, policy(Mode::Always, 0, 3_600_000)));
    let first = running(&daemon, "alone", 1);
    let launcher = daemon.launcher().unwrap();
    daemon.kill();
    kill(launcher, 9);
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    kill(first, 10);
    let log = daemon.setup().state_dir().join("containers/alone/log");
    let ups = || std::fs::read_to_string(&log).unwrap_or_default().matches(" up").count();
    wait::until("the container runs again without executord", || (ups() == 2).then_some(()));
    daemon.start_again();
    let second = running(&daemon, "alone", 2);
    assert_eq!(count(&daemon.api.get("alone").unwrap()), 1);
    // The restart after the second consecutive exit is delayed by an hour. The next executord keeps the delay.
    kill(second, 10);
    let waits = |container: &Container| container.restart.as_ref().is_some_and(|r| r.next_start_at.is_some());
    let waiting = until(&daemon, "alone", "a restart is pending", waits);
    assert_eq!((waiting.state(), waiting.ready, count(&waiting)), (State::Running, false, 1));
    let (next, last) = (waiting.restart.clone().unwrap().next_start_at, waiting.restart.clone().unwrap());
    let (next, ended_at) = (next.unwrap(), last.last_finished_at.unwrap());
    assert_eq!((next.seconds - ended_at.seconds, next.nanos), (3600, ended_at.nanos));
    daemon.kill();
    daemon.start_again();
    assert_eq!(daemon.api.get("alone").unwrap().restart, waiting.restart);
    let shown = cli::run(&daemon.socket(), &["ps"]).stdout;
    assert!(shown.contains("running (restart 2 pending)"), "{shown}");
    let stopped = daemon.api.stop("alone", None).unwrap();
    let stopped = if stopped.result.is_some() { stopped } else { daemon.api.wait("alone").unwrap() };
    assert_eq!((exit(&stopped), ending(&stopped).stopped, &ending(&stopped).failure), (Ok(4), true, &None));
    assert!(!waits(&stopped) && ending(&stopped).wipe.as_ref().unwrap().verified, "{stopped:#?}");
    // After a kill, executord may merge events into one.
    let all = events(&daemon, "alone");
    let reported = all.iter().rfind(|event| event.kind() == Kind::Restarting).unwrap().restart.clone().unwrap();
    assert_eq!((reported.count, &*reported.last_reason), (1, "Exited with status 4"), "{all:#?}");
    daemon.api.delete("alone", false).unwrap();
    daemon.wait_until_back_at(&before);
}

/// If the shim is killed while a restart is pending, the inputs of the run are wiped, and the exit is reported.
#[test]
fn killed_shim_during_restart_leaves_nothing() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let request = sh("exit 1").id("lost").file("key", SECRET.as_bytes()).env("TOKEN", SECRET);
    daemon.api.started(restarted(request, policy(Mode::Always, 0, 3_600_000)));
    until(&daemon, "lost", "a restart is pending", |c| c.restart.as_ref().is_some_and(|r| r.next_start_at.is_some()));
    kill(daemon.record("lost").shim.pid, 9);
    let ended = daemon.api.wait("lost").unwrap();
    assert_eq!(ending(&ended).failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
    assert!(ending(&ended).wipe.as_ref().is_some_and(|wipe| wipe.verified), "{ended:#?}");
    assert!(ended.restart.unwrap().next_start_at.is_none());
    daemon.api.delete("lost", false).unwrap();
    daemon.wait_until_back_at(&before);
}

fn exec(script: &str) -> Check {
    let exec = ExecCheck { path: "/bin/sh".into(), args: vec!["-c".into(), script.into()], ..ExecCheck::default() };
    Check {
        kind: Some(CheckKind::Exec(exec)),
        interval: millis(1000),
        timeout: millis(10_000),
        unhealthy_threshold: 1,
        ..Check::default()
    }
}

#[test]
fn liveness_check_restarts_and_resets() {
    let daemon = Daemon::start();
    let checks = Checks { liveness: vec![exec("test -e /tmp/well")], ..Checks::default() };
    let script = format!("touch /tmp/well; {WAITS}");
    let request = RunRequest { checks: Some(checks), ..sh(&script).id("sick").grace_ms(0) };
    daemon.api.started(restarted(request, policy(Mode::OnFailure, 1, 100)));
    until(&daemon, "sick", "the container is ready", |container| container.ready);
    let spoil = || {
        let done = cli::run(&daemon.socket(), &["exec", "sick", "--", "/bin/rm", "/tmp/well"]);
        assert_eq!(done.status, 0, "{done:?}");
    };
    spoil();
    let again =
        until(&daemon, "sick", "the container is ready again", |container| container.ready && count(container) == 1);
    assert_eq!(again.check_statuses[0].failures, 0, "the failure count is reset");
    assert!(again.restart.unwrap().last_reason.starts_with("Instance became unhealthy: "));
    spoil();
    let ended = daemon.api.wait("sick").unwrap();
    let failure = ending(&ended).failure.clone().unwrap();
    assert_eq!((failure.kind(), count(&ended)), (failure::Kind::Unhealthy, 1), "{failure:?}");
    let kinds: Vec<Kind> = events(&daemon, "sick").iter().map(Event::kind).collect();
    use Kind::{Ready, Restarting, Unhealthy};
    let health = [Ready, Unhealthy, Restarting];
    let seen: Vec<Kind> = kinds.into_iter().filter(|kind| health.contains(kind)).collect();
    assert_eq!(seen, [Ready, Unhealthy, Restarting, Ready, Unhealthy]);
}

#[test]
fn monitor_decides_as_diegos_does() {
    let daemon = Daemon::start();
    let parallel = ParallelAction { actions: vec![run("test -e /tmp/a"), run("test -e /tmp/b")], ..Default::default() };
    let parallel = Action { parallel: Some(parallel), ..Action::default() };
    let limited = TimeoutAction { action: Some(Box::new(parallel)), timeout_ms: 600_000, ..Default::default() };
    let monitor = Action { timeout: Some(Box::new(limited)), ..Action::default() };
    let monitored =
        |id: &str, script: &str| RunRequest { monitor: Some(monitor.clone()), ..sh(script).id(id).grace_ms(0) };
    let touch = |path: &str, how: &str| {
        let done = cli::run(&daemon.socket(), &["exec", "diego", "--", how, path]);
        assert_eq!(done.status, 0, "{done:?}");
    };
    let begun = daemon.api.started(monitored("diego", "touch /tmp/a; exec sleep 1000"));
    assert!(!begun.ready);
    until(&daemon, "diego", "the first part has passed", |c| {
        c.check_statuses.first().is_some_and(|status| status.passing)
    });
    assert!(!daemon.api.get("diego").unwrap().ready, "all parts of the monitor must succeed");
    touch("/tmp/b", "/bin/touch");
    let ready = until(&daemon, "diego", "the container is ready", |container| container.ready);
    assert_eq!(ready.spec.unwrap().checks.unwrap().liveness.len(), 2);
    daemon.api.delete("diego", true).unwrap();
    let mut never = monitored("late", "exec sleep 1000");
    never.checks = Some(Checks { start_timeout: millis(1500), ..Checks::default() });
    let late = daemon.api.run_to_end(never);
    let failure = ending(&late).failure.clone().unwrap();
    assert_eq!(failure.kind(), failure::Kind::Unhealthy);
    assert!(failure.message.starts_with("Instance never healthy after 1.5s: "), "{failure:?}");
}

/// The log has Diego's lines. The lines of a monitor's programs have the log source of their programs, and the failure
/// has every error of a parallel monitor.
#[test]
fn diegos_lines_are_in_the_log() {
    let daemon = Daemon::start();
    let program = |source: &str, script: &str| {
        let mut action = run(script);
        action.run.as_mut().unwrap().log_source = source.into();
        action
    };
    let actions =
        ["ONE", "TWO"].map(|name| program(name, &format!("test -e /tmp/ok || {{ echo {name} says; exit 3; }}")));
    let parallel = ParallelAction { actions: actions.into(), ..Default::default() };
    let monitor = Action { parallel: Some(parallel), ..Action::default() };
    let monitored = |id: &str, script: &str| RunRequest {
        monitor: Some(monitor.clone()),
        checks: Some(Checks { start_timeout: millis(5_000), ..Checks::default() }),
        log_source: "APP".into(),
        ..sh(script).id(id).grace_ms(10_000)
    };
    const ENDS: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let lines = |id: &str| -> Vec<String> {
        let request = StreamLogsRequest { id: id.into(), ..StreamLogsRequest::default() };
        let entries = daemon.api.logs(request).unwrap().rest().into_iter();
        entries
            .map(|entry| format!("{} {}", entry.log_source, String::from_utf8_lossy(&entry.data).trim_end()))
            .collect()
    };
    let ended = daemon.api.run_to_end(monitored("late", ENDS));
    let failure = ending(&ended).failure.clone().unwrap().message;
    let status = "`/bin/sh` exited with status 3";
    assert_eq!(failure, format!("Instance never healthy after 5s: {status}; {status}"));
    let begun = "APP Starting health monitoring of container";
    assert_eq!(lines("late"), [begun, &format!("APP {failure}"), "ONE ONE says", "TWO TWO says", "APP Exit status 0"]);
    daemon.api.started(monitored("healthy", &format!("touch /tmp/ok; {ENDS}")));
    until(&daemon, "healthy", "the container is ready", |container| container.ready);
    wait::until("the health change is in the log", || {
        (lines("healthy") == [begun, "APP Container became healthy"]).then_some(())
    });
    daemon.api.delete("healthy", true).unwrap();
    // As a control, a single run has only its own output.
    let plain = daemon.api.run_to_end(RunRequest { log_source: "APP".into(), ..sh("echo plain") });
    assert_eq!(lines(&plain.id), ["APP plain"]);
}

/// A shell that allocates more than 64 MiB.
const HOG: &str = "a=0123456789abcdef; i=0; while [ $i -lt 22 ]; do a=$a$a; i=$((i+1)); done; echo had enough";

#[test]
fn sidecar_has_limits_of_its_own() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let with = |id: &str, script: &str, sidecar: Sidecar| {
        let sidecars = vec![Sidecar { action: Some(run(script)), ..sidecar }];
        RunRequest { sidecars, ..sh("exec sleep 1000").id(id).memory(256 << 20) }
    };
    let held = daemon.api.run_to_end(with("held", HOG, Sidecar { memory_mb: 32, ..Sidecar::default() }));
    let sidecar = step(&held, "sidecars[0].action");
    assert!(ending(&held).oom_killed, "{held:#?}");
    assert_eq!(sidecar.error, "Exited with status 137 (out of memory)");
    assert_eq!(step(&held, "action").state(), step::State::Cancelled, "the other step was killed");
    let free = daemon.api.run_to_end(with("free", HOG, Sidecar::default()));
    assert!(!ending(&free).oom_killed, "control: the container's limit is not reached");
    assert!(daemon.api.output("free").text().contains("had enough"));
    let many = "for i in 1 2 3 4 5 6 7 8; do sleep 5 & done; echo all";
    let few = daemon.api.run_to_end(with("few", many, Sidecar { pids: 4, ..Sidecar::default() }));
    assert!(!daemon.api.output("few").text().contains("all"), "{few:#?}");
    let enough = daemon.api.run_to_end(with("enough", many, Sidecar::default()));
    assert!(
        daemon.api.output("enough").text().contains("all"),
        "control failed: the default limit is too low: {enough:#?}"
    );
    for id in ["held", "free", "few", "enough"] {
        daemon.api.delete(id, false).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

#[test]
fn sidecar_out_of_memory_is_reported() {
    let daemon = Daemon::start();
    // The shell itself allocates the memory.
    let hog = "a=x; while :; do a=$a$a; done";
    let mut request = sh("exec sleep 1000").id("oom").memory(256 << 20);
    request.sidecars = vec![Sidecar { action: Some(run(hog)), memory_mb: 16, ..Sidecar::default() }];
    let ended = daemon.api.run_to_end(request);
    assert_eq!(step(&ended, "sidecars[0].action").error, "Exited with status 137 (out of memory)", "{ended:#?}");
    assert_eq!(ending(&ended).failure.as_ref().unwrap().message, "Exited with status 137 (out of memory)");
    // Each of two steps has its own cgroup. Only the step that exceeds its limit is killed.
    let mut request = sh("exec sleep 1000").id("two").memory(256 << 20);
    let quiet = Sidecar { action: Some(run("exec sleep 1000")), memory_mb: 16, ..Sidecar::default() };
    request.sidecars = vec![quiet.clone(), Sidecar { action: Some(run(hog)), ..quiet }];
    let ended = daemon.api.run_to_end(request);
    let errors = ["action", "sidecars[0].action", "sidecars[1].action"].map(|path| &*step(&ended, path).error);
    assert_eq!(errors, ["cancelled", "cancelled", "Exited with status 137 (out of memory)"]);
}

#[test]
fn invalid_requests_are_refused_with_every_field() {
    let daemon = Daemon::start();
    let negative = Sidecar { action: Some(run("true")), disk_mb: 5, memory_mb: -1, ..Sidecar::default() };
    let large = Sidecar { action: Some(run("true")), memory_mb: 4096, pids: 1, ..Sidecar::default() };
    let env = vec![EnvironmentVariable { name: "A".into(), value: SECRET.into(), ..EnvironmentVariable::default() }];
    let mut monitor = run("true");
    monitor.run.as_mut().unwrap().env = env;
    let policy =
        RestartPolicy { mode: Mode::Always.into(), max_retries: 3, min_delay: millis(1), max_delay: millis(4_000_000) };
    let mut request = sh("true").id("bad").memory(64 << 20);
    request.sidecars = vec![negative, large];
    (request.monitor, request.restart_policy, request.terminal) = (Some(monitor), Some(policy), true);
    let reported = format!("{:?}", daemon.api.run(request).unwrap_err());
    for part in [
        "sidecars[0].disk_mb",
        "limits.disk_bytes",
        "sidecars[0].memory_mb",
        "sidecars[1].pids",
        "sidecars[1].memory_mb",
        "monitor.run.env",
        "restart_policy.max_retries",
        "restart_policy.min_delay",
        "restart_policy.max_delay",
        "terminal",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert!(!reported.contains(SECRET), "{reported}");
    let reported =
        daemon.api.run(restarted(sh("true"), Some(RestartPolicy { mode: 7, ..Default::default() }))).unwrap_err();
    assert!(reported.message().contains("restart_policy.mode"), "{reported:?}");
    assert_eq!(daemon.api.ids(), Vec::<String>::new());
}

#[test]
fn command_line_restarts_and_shows() {
    let daemon = Daemon::start();
    let script = "echo x >>/tmp/runs; wc -l </tmp/runs; exit 3";
    let flags = ["run", "--keep", "--id", "cli", "--restart", "on-failure:2", "--restart-delay", "100ms"];
    let ran = cli::run(&daemon.socket(), &[&flags[..], &["--", "/bin/sh", "-c", script]].concat());
    assert_eq!((ran.status, &*ran.stdout), (3, "1\n2\n3\n"), "{ran:?}");
    let logged = cli::run(&daemon.socket(), &["logs", "cli"]);
    let whole = format!("{}{}", logged.stdout, logged.stderr);
    assert!(whole.contains("restarting in 100ms: Exited with status 3"), "{logged:?}");
    let shown = cli::run(&daemon.socket(), &["inspect", "cli"]).stdout;
    for part in
        ["command", "/bin/sh with 2 arguments", "on failure, 2 times, after 100.0 ms to 5m", "restarts", "last exit"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let json = cli::run(&daemon.socket(), &["--json", "inspect", "cli"]).json();
    assert_eq!((&json["restart"]["count"], &json["spec"]["restart_policy"]["mode"]), (&2.into(), &"on_failure".into()));
    assert_eq!(json["restart"]["last_exit"]["code"], 3, "{json}");
    let refused = cli::run(&daemon.socket(), &["run", "--restart", "unless-stopped", "--", "/bin/true"]);
    assert!(refused.status != 0 && refused.stderr.contains("use always"), "{refused:?}");
    let tty = cli::run(&daemon.socket(), &["run", "--restart", "always", "--restart-delay", "2h", "--", "/bin/true"]);
    assert!(tty.stderr.contains("--restart-delay: is"), "{tty:?}");
}
