//! Trees of actions in real containers: order, results, the settings and secrets of each step, and the effects if the
//! executor's processes are killed.

use std::os::unix::fs::FileExt as _;

use executor_proto::v1::{
    Action, CodependentAction, Container, EmitProgressAction, EnvironmentVariable, File, LogStream, ParallelAction,
    ResourceLimits, RunAction, RunRequest, SerialAction, Sidecar, Step, StreamLogsRequest, TimeoutAction, TryAction,
    WatchEventsRequest, event, exit_status, failure, step,
};
use integration::api::{ending, exit};
use integration::daemon::{Daemon, has_ended, kill};
use integration::request::RequestBuilder as _;
use integration::{cli, host, wait};
use tonic::Code;

const SECRET: &[u8] = b"canary-of-a-step-77aa01";

fn run(script: &str) -> RunAction {
    let args = vec!["-c".into(), script.into()];
    RunAction { path: "/bin/sh".into(), args, ..RunAction::default() }
}

fn action_of(run: RunAction) -> Action {
    Action { run: Some(run), ..Action::default() }
}

fn sh(script: &str) -> Action {
    action_of(run(script))
}

fn serial(actions: Vec<Action>) -> Action {
    Action { serial: Some(SerialAction { actions, ..SerialAction::default() }), ..Action::default() }
}

fn parallel(actions: Vec<Action>) -> Action {
    Action { parallel: Some(ParallelAction { actions, ..ParallelAction::default() }), ..Action::default() }
}

fn codependent(actions: Vec<Action>) -> Action {
    Action { codependent: Some(CodependentAction { actions, ..CodependentAction::default() }), ..Action::default() }
}

fn attempt(action: Action) -> Action {
    let attempt = TryAction { action: Some(Box::new(action)), ..TryAction::default() };
    Action { r#try: Some(Box::new(attempt)), ..Action::default() }
}

fn timeout(timeout_ms: i64, action: Action) -> Action {
    let timeout = TimeoutAction { action: Some(Box::new(action)), timeout_ms, ..TimeoutAction::default() };
    Action { timeout: Some(Box::new(timeout)), ..Action::default() }
}

fn progress(action: Action) -> Action {
    let progress = EmitProgressAction {
        action: Some(Box::new(action)),
        start_message: "begins".into(),
        success_message: "is done".into(),
        failure_message_prefix: "has failed".into(),
        log_source: "STG".into(),
    };
    Action { emit_progress: Some(Box::new(progress)), ..Action::default() }
}

fn tree(id: &str, action: Action) -> RunRequest {
    RunRequest { action: Some(action), ..RunRequest::default() }.id(id).memory(64 << 20)
}

fn step<'a>(container: &'a Container, path: &str) -> &'a Step {
    container.steps.iter().find(|step| step.path == path).unwrap_or_else(|| panic!("{path}: {:#?}", container.steps))
}

fn states(container: &Container) -> Vec<step::State> {
    container.steps.iter().map(Step::state).collect()
}

/// Returns the lines of a container's log, each with its log source, stream and text.
fn lines(daemon: &Daemon, id: &str) -> Vec<String> {
    let request = StreamLogsRequest { id: id.into(), ..StreamLogsRequest::default() };
    let entries = daemon.api.logs(request).unwrap().rest();
    let line = |entry: executor_proto::v1::StreamLogsResponse| {
        let stream = match entry.stream() {
            LogStream::Stdout => "out",
            LogStream::Stderr => "err",
            _ => "executor",
        };
        format!("{} {stream} {}", entry.log_source, String::from_utf8_lossy(&entry.data).trim_end())
    };
    entries.into_iter().map(line).collect()
}

/// Creates a file in a container.
fn touch(daemon: &Daemon, id: &str, path: &str) {
    let done = cli::run(&daemon.socket(), &["exec", id, "--", "/bin/touch", path]);
    assert_eq!(done.status, 0, "{done:?}");
}

#[test]
fn each_step_has_its_own_settings() {
    let daemon = Daemon::start();
    let shared = |value: &str| EnvironmentVariable {
        name: "SHARED".into(),
        value: value.into(),
        ..EnvironmentVariable::default()
    };
    let first = RunAction {
        user: "65534:65534".into(),
        dir: "/tmp".into(),
        env: vec![shared("own")],
        log_source: "ONE".into(),
        resource_limits: Some(ResourceLimits { nofile: Some(77), ..ResourceLimits::default() }),
        ..run("echo $(id -u) $(pwd) $SHARED $(ulimit -n); exec >&2; echo to stderr")
    };
    let silent = RunAction { suppress_log_output: true, ..run("echo suppressed") };
    let second =
        run("echo $(id -u) $(pwd) $SHARED; tr '\\0' ' ' </proc/1/comm; ps -e -o pid= 2>/dev/null | wc -l >/dev/null");
    let mut request = tree("own", serial(vec![action_of(first), action_of(silent), action_of(second)]));
    request.environment = vec![shared("of all")];
    request.log_source = "APP".into();
    request.setup = Some(action_of(RunAction { log_source: "SETUP".into(), ..run("echo $SHARED") }));
    let container = daemon.api.run_to_end(request);
    assert_eq!(exit(&container), Ok(0), "{container:#?}");
    assert!(ending(&container).failure.is_none());
    assert!(states(&container).iter().all(|state| *state == step::State::Succeeded), "{:#?}", container.steps);
    let expected = [
        "SETUP out of all",
        "SETUP executor Exit status 0",
        "ONE out 65534 /tmp own 77",
        "ONE err to stderr",
        "ONE executor Exit status 0",
        "APP out 0 / of all",
        "APP out init",
        "APP executor Exit status 0",
    ];
    assert_eq!(lines(&daemon, "own"), expected);
    let paths: Vec<&str> = container.steps.iter().map(|step| &*step.path).collect();
    let list = "action.serial.actions";
    assert_eq!(paths, ["setup", "action", &format!("{list}[0]"), &format!("{list}[1]"), &format!("{list}[2]")]);
    let started = |path: &str| step(&container, path).started_at.unwrap();
    let (one, three) = (started(&format!("{list}[0]")), started(&format!("{list}[2]")));
    assert!((one.seconds, one.nanos) < (three.seconds, three.nanos));
}

#[test]
fn steps_missing_workdirs_are_created() {
    let daemon = Daemon::start();
    let within =
        |dir: &str| action_of(RunAction { dir: dir.into(), user: "vcap".into(), ..run("echo $(pwd; stat -c %u%a .)") });
    for (id, read_only_rootfs) in [("writable", false), ("read-only", true)] {
        let action = serial(vec![within("/srv/one"), parallel(vec![within("/srv/two"), within("/srv/two")])]);
        let request = RunRequest { setup: Some(within("/made/by/setup")), read_only_rootfs, ..tree(id, action) };
        let container = daemon.api.run_to_end(request);
        assert_eq!(exit(&container), Ok(0), "{container:#?}");
        let expected = ["/made/by/setup 0755", "/srv/one 0755", "/srv/two 0755", "/srv/two 0755"];
        let lines = lines(&daemon, id);
        assert!(lines.iter().zip(expected).all(|(line, end)| line.ends_with(end)), "{lines:?}");
    }
}

#[test]
fn failures_are_reported_as_diego_does() {
    let daemon = Daemon::start();
    let named = |source: &str, script: &str| action_of(RunAction { log_source: source.into(), ..run(script) });
    let table: [(&str, Action, i32, &str); 8] = [
        ("run", serial(vec![sh("exit 3"), sh("echo never")]), 3, "Exited with status 3"),
        ("source", serial(vec![named("APP", "exit 4")]), 4, "APP: Exited with status 4"),
        ("signal", serial(vec![sh("kill -9 $$")]), -9, "Exited with status 137"),
        ("timeout", timeout(200, sh("exec sleep 100")), -15, "exceeded 200ms timeout"),
        (
            "both",
            parallel(vec![sh("exit 5"), sh("sleep 0.3; exit 6")]),
            5,
            "Exited with status 5; Exited with status 6",
        ),
        ("codependent", codependent(vec![sh("exit 0"), sh("exec sleep 100")]), -15, "Codependent step exited"),
        (
            "absent",
            serial(vec![action_of(RunAction { path: "/nope".into(), ..RunAction::default() })]),
            0,
            "exec /nope: No such file",
        ),
        ("nested", timeout(60_000, serial(vec![attempt(sh("exit 1")), sh("exit 7")])), 7, "Exited with status 7"),
    ];
    for (id, action, status, message) in table {
        let container = daemon.api.run_to_end(tree(id, action));
        let failure = ending(&container).failure.clone().unwrap();
        assert_eq!(failure.kind(), failure::Kind::Action, "{id}");
        assert!(failure.message.starts_with(message), "{id}: {failure:?}");
        assert_eq!(failure.errno, if id == "absent" { 2 } else { 0 }, "{id}");
        match status {
            0 => assert!(ending(&container).exit.is_none(), "{id}: {container:#?}"),
            code @ 1.. => assert_eq!(exit(&container), Ok(code), "{id}"),
            signal => assert_eq!(exit(&container), Err(-signal), "{id}"),
        }
        assert!(!daemon.api.output(id).text().contains("never"));
    }
    assert_eq!(cli::run(&daemon.socket(), &["wait", "absent"]).status, 127);
    let restart = ["run", "--restart", "on-failure:1", "--", "/etc/passwd"];
    assert_eq!(cli::run(&daemon.socket(), &restart).status, 126);
    let reported = daemon.api.run_to_end(tree("reported", attempt(progress(sh("exit 9")))));
    assert_eq!((exit(&reported), ending(&reported).failure.is_none()), (Ok(0), true));
    assert_eq!(lines(&daemon, "reported"), ["STG out begins", "STG err has failed: Exited with status 9"]);
    daemon.api.run_to_end(tree("well", progress(sh("echo working"))));
    assert_eq!(lines(&daemon, "well"), ["STG out begins", " out working", "STG out is done"]);
}

/// If a step is cancelled before its program runs, it gets the stop signal like a running step. If the signal does not
/// terminate the step, the step gets SIGKILL.
#[test]
fn cancelled_starting_step_receives_stop_signal() {
    let daemon = Daemon::start();
    let file = |number: u32| File { path: number.to_string(), content: SECRET.into(), ..File::default() };
    let last = "action.codependent.actions[2]";
    for (stop_signal, expected) in [(0, 15), (2, 2), (28, 9)] {
        // Processes are created one after the other. The first process exits while the second process receives its
        // files. The exit is nearly always reported before the third process is created.
        let life = (0..50).find(|life| {
            let slow = RunAction { volume_mounted_files: (0..64).map(file).collect(), ..run("exec sleep 100") };
            let tree = tree(
                &format!("made-{stop_signal}-{life}"),
                codependent(vec![sh("exit 0"), action_of(slow), sh("echo runs; exec sleep 100")]),
            );
            let container = daemon.api.run_to_end(RunRequest { stop_signal, ..tree }.grace_ms(200));
            let ran = lines(&daemon, &container.id).iter().any(|line| line.ends_with("runs"));
            if !ran {
                let made = step(&container, last);
                let signal = exit_status::Status::Signal(expected);
                assert_eq!((made.state(), made.exit.unwrap().status), (step::State::Cancelled, Some(signal)));
            }
            !ran
        });
        assert!(life.is_some(), "no step was cancelled while its process was created");
    }
}

#[test]
fn sidecar_ends_with_the_main_action() {
    let daemon = Daemon::start();
    let mut request = tree("side", sh("while [ ! -e /tmp/up ]; do sleep 0.02; done; echo main"));
    request.tmpfs = vec![executor_proto::v1::Tmpfs { path: "/tmp".into(), ..Default::default() }];
    let action = Some(sh("trap 'echo stopped; exit 0' TERM; touch /tmp/up; while :; do sleep 0.05; done"));
    request.sidecars = vec![Sidecar { action, ..Sidecar::default() }];
    let container = daemon.api.run_to_end(request);
    assert_eq!(exit(&container), Ok(0), "{container:#?}");
    assert_eq!(step(&container, "sidecars[0].action").state(), step::State::Cancelled);
    assert_eq!(lines(&daemon, "side"), [" out main", " out stopped"]);
}

/// A step's secret files exist while the step runs, only for this step, and are owned by its user. Afterwards they are
/// zeros, while the container continues. The container's own files exist for all steps, in the same directory.
#[test]
fn step_files_exist_only_during_step() {
    let daemon = Daemon::start();
    let file = |path: &str, content: &[u8]| File { path: path.into(), content: content.into(), ..File::default() };
    let look = "cat own/key; ls -ln /etc/cf-service-bindings/own/key /run/single | cut -c1-10; id -u; ls";
    let first = RunAction {
        user: "1000:1000".into(),
        dir: "/etc/cf-service-bindings".into(),
        volume_mounted_files: vec![file("own/key", SECRET), file("/run/single", SECRET)],
        ..run(&format!("{look}; touch /tmp/up; while [ ! -e /tmp/go ]; do sleep 0.02; done"))
    };
    let second =
        run("cd /etc/cf-service-bindings; ls; ls /run/single; cat all; while [ ! -e /tmp/end ]; do sleep 0.02; done");
    let mut request = tree("files", serial(vec![action_of(first), action_of(second)])).unmasked();
    request.volume_mounted_files = vec![File { mode: Some(0o644), ..file("all", b"for everybody\n") }];
    request.tmpfs = vec![executor_proto::v1::Tmpfs { path: "/tmp".into(), ..Default::default() }];
    daemon.api.started(request);
    let path = "action.serial.actions[0]";
    let running = wait::until("the first step runs", || {
        let container = daemon.api.get("files").ok()?;
        let pid = i32::try_from(step(&container, path).pid).unwrap();
        std::path::Path::new(&format!("/proc/{pid}/root/tmp/up")).exists().then_some(container)
    });
    let first = step(&running, path);
    assert_eq!(first.files, ["/etc/cf-service-bindings/own/key", "/run/single"]);
    let init = daemon.record("files").prepared.unwrap().init.pid;
    let of_step = format!("/proc/{}/root", first.pid);
    let kept = std::fs::File::open(format!("{of_step}/etc/cf-service-bindings/own/key")).unwrap();
    let bytes = |file: &std::fs::File| {
        let mut bytes = vec![1; SECRET.len()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert_eq!(bytes(&kept), SECRET, "control failed");
    // The container's first process sees its own file and not the file of the step.
    let shown = std::fs::read_dir(format!("/proc/{init}/root/etc/cf-service-bindings")).unwrap();
    let names: Vec<_> = shown.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["all"]);
    touch(&daemon, "files", "/tmp/go");
    let later = wait::until("the second step runs", || {
        let container = daemon.api.get("files").ok()?;
        (step(&container, "action.serial.actions[1]").pid != 0).then_some(container)
    });
    assert_eq!(bytes(&kept), vec![0; SECRET.len()], "wiped while the container runs");
    let receipt = step(&later, path).wipe.clone().unwrap();
    assert_eq!((receipt.files, receipt.bytes, receipt.verified), (2, 2 * SECRET.len() as u64, true));
    touch(&daemon, "files", "/tmp/end");
    let container = daemon.api.wait("files").unwrap();
    assert_eq!(exit(&container), Ok(0));
    let total = ending(&container).wipe.clone().unwrap();
    assert_eq!(u64::from(total.files), 3, "{total:?}");
    let output = daemon.api.output("files").text();
    let secret = String::from_utf8_lossy(SECRET);
    assert!(output.starts_with(&format!("{secret}-rw-------\n-rw-------\n1000\nall\nown\n")), "{output}");
    assert!(output.contains("all\nls: cannot access '/run/single'") || output.contains("single"), "{output}");
    assert!(output.ends_with("for everybody\n"), "{output}");
}

#[test]
fn tree_outlives_executord_and_launcher() {
    let mut daemon = Daemon::start();
    let gate = |name: &str| sh(&format!("trap 'exit 0' USR1; echo {name}; while :; do sleep 0.02; done"));
    let request = tree("outlives", serial(vec![gate("one"), gate("two"), sh("exit 6")]));
    daemon.api.started(request);
    daemon.api.follow("outlives").until(|entry| entry.data == b"one\n");
    let first =
        wait::until("the step is recorded", || Some(daemon.record("outlives").steps[1].pid).filter(|pid| *pid != 0));
    let launcher = daemon.launcher().unwrap();
    daemon.kill();
    kill(launcher, 9);
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    // The first step exits and the second step starts while executord is not running.
    kill(first, 10);
    let log = daemon.setup().state_dir().join("containers/outlives/log");
    wait::until("the second step runs", || std::fs::read_to_string(&log).ok()?.contains("two").then_some(()));
    daemon.start_again();
    let container = daemon.api.get("outlives").unwrap();
    assert_eq!(step(&container, "action.serial.actions[0]").state(), step::State::Succeeded);
    assert_eq!(step(&container, "action.serial.actions[1]").state(), step::State::Running);
    daemon.api.signal("outlives", 10).unwrap();
    assert_eq!(exit(&daemon.api.wait("outlives").unwrap()), Ok(6));
    // Every step is reported once, in order, including steps that ran without executord.
    let events =
        daemon.api.events(WatchEventsRequest { container_id: "outlives".into(), ..Default::default() }).unwrap();
    let mut events = events;
    let seen =
        events.until(|response| response.event.as_ref().is_some_and(|event| event.kind() == event::Kind::Completed));
    let of_runs = seen.into_iter().filter_map(|response| {
        let event = response.event?;
        let (kind, step) = (event.kind(), event.step?);
        (step.kind == "run")
            .then(|| format!("{} {}", step.path.trim_start_matches("action.serial."), kind.as_str_name()))
    });
    let expected: Vec<String> = (0..3)
        .flat_map(|index| ["STARTED", "ENDED"].map(|kind| format!("actions[{index}] KIND_STEP_{kind}")))
        .collect();
    assert_eq!(of_runs.collect::<Vec<_>>(), expected);
}

#[test]
fn killed_shim_ends_and_reports_all_steps() {
    let daemon = Daemon::start();
    let secret = RunAction {
        volume_mounted_files: vec![File { path: "key".into(), content: SECRET.into(), ..File::default() }],
        ..run("echo up; exec sleep 1000")
    };
    daemon.api.up(tree("lost", serial(vec![sh("true"), action_of(secret), sh("echo never")])));
    let pid = wait::until("the step is reported", || {
        let container = daemon.api.get("lost").ok()?;
        i32::try_from(step(&container, "action.serial.actions[1]").pid).ok().filter(|pid| *pid != 0)
    });
    let kept = std::fs::File::open(format!("/proc/{pid}/root/etc/cf-service-bindings/key")).unwrap();
    kill(daemon.record("lost").shim.pid, 9);
    let container = daemon.api.wait("lost").unwrap();
    assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
    assert!(ending(&container).wipe.is_some(), "{container:#?}");
    use step::State::{Lost, Pending, Succeeded};
    assert_eq!(states(&container), [Lost, Succeeded, Lost, Pending]);
    wait::until("the step has exited", || {
        host::status(pid, "State").is_none_or(|state| state.starts_with('Z')).then_some(())
    });
    let mut bytes = vec![1; SECRET.len()];
    kept.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, vec![0; SECRET.len()]);
    // If the launcher waited only for init, there would be a deadlock: init waits for the steps, and the steps wait for
    // the launcher.
    let logged = daemon.setup().logged();
    assert!(logged.contains("the shim was lost") && !logged.contains("did not exit within"), "{logged}");
}

/// If the step starter is killed, running steps are killed, no further step starts, and the failure names the step
/// starter.
#[test]
fn without_the_starter_the_tree_ends() {
    let daemon = Daemon::start();
    daemon.api.up(tree("starter", serial(vec![attempt(sh("echo up; exec sleep 1000")), sh("echo never")])));
    let shim = daemon.record("starter").shim.pid;
    let name = |pid: &i32| host::status(*pid, "Name").is_some_and(|name| name == "executor-steps");
    let starter = host::descendants(shim).into_iter().find(name).expect("a starter");
    kill(starter, 9);
    let container = daemon.api.wait("starter").unwrap();
    let failure = ending(&container).failure.clone().unwrap();
    assert!(failure.message.contains("the step starter has exited"), "{failure:?}");
    assert_eq!(step(&container, "action.serial.actions[0].try.action").state(), step::State::Failed);
    assert!(!daemon.api.output("starter").text().contains("never"));
}

#[test]
fn stop_and_signals_reach_the_steps() {
    let daemon = Daemon::start();
    let polite = sh("trap 'echo bye; exit 0' TERM; echo polite; while :; do sleep 0.05; done");
    let stubborn = sh("trap '' TERM; echo stubborn; while :; do sleep 0.05; done");
    daemon.api.started(tree("stop", parallel(vec![polite, stubborn])));
    wait::until("both steps run", || {
        let text = daemon.api.logs_so_far("stop");
        (text.contains("polite") && text.contains("stubborn")).then_some(())
    });
    daemon.api.stop("stop", Some(3_600_000)).unwrap();
    wait::until("the cooperative step has exited", || {
        let container = daemon.api.get("stop").unwrap();
        (step(&container, "action.parallel.actions[0]").state() == step::State::Cancelled).then_some(())
    });
    // A second Stop can only shorten the grace period.
    daemon.api.stop("stop", Some(1)).unwrap();
    let container = daemon.api.wait("stop").unwrap();
    assert!(ending(&container).stopped && ending(&container).failure.is_none(), "{container:#?}");
    assert_eq!(step(&container, "action.parallel.actions[0]").error, "cancelled");
    assert_eq!(step(&container, "action.parallel.actions[1]").error, "exceeded graceful shutdown interval");
    assert!(daemon.api.output("stop").text().contains("bye"));
    // A signal goes to the process whose action has the given path.
    let waiting = |name: &str| sh(&format!("trap 'echo {name}; exit 0' USR1; echo up; while :; do sleep 0.05; done"));
    daemon.api.started(tree("signal", parallel(vec![waiting("a"), waiting("b")])));
    wait::until("both steps run", || (daemon.api.logs_so_far("signal").matches("up").count() == 2).then_some(()));
    let signal = |process_id: &str| {
        let request =
            executor_proto::v1::SignalRequest { id: "signal".into(), signal: 10, process_id: process_id.into() };
        let mut rpc = daemon.api.rpc();
        daemon.api.block_on(rpc.signal(request))
    };
    assert_eq!(signal("action.parallel.actions[7]").unwrap_err().code(), Code::NotFound);
    // The output of a step can arrive before the step is recorded as running.
    wait::until("the second step gets the signal", || signal("action.parallel.actions[1]").ok());
    wait::until("the second step has exited", || daemon.api.logs_so_far("signal").contains("b\n").then_some(()));
    assert!(!daemon.api.logs_so_far("signal").contains("a\n"));
    signal("").unwrap();
    assert_eq!(exit(&daemon.api.wait("signal").unwrap()), Ok(0));
}

/// A step ends in time if its timeout expires before, during or after the creation of its process.
#[test]
fn cancelled_step_ends_in_time() {
    let daemon = Daemon::start();
    // Processes are created one after the other, and each takes some milliseconds.
    for spread in [4, 6, 8, 12] {
        let actions = (1..=80).map(|index| timeout(index * spread, sh("exec sleep 600"))).collect();
        let container = daemon.api.run_to_end(tree(&format!("spread-{spread}"), parallel(actions)));
        let of_runs: Vec<_> = container.steps.iter().filter(|step| step.kind == "run").map(Step::state).collect();
        assert_eq!(of_runs, [step::State::Cancelled; 80]);
    }
}

#[test]
fn invalid_actions_are_refused_with_path() {
    let daemon = Daemon::start();
    let bad_user = action_of(RunAction { user: "nobodyx".into(), ..run("true") });
    let refused = |request: RunRequest| daemon.api.run(request).unwrap_err();
    let unknown = refused(tree("user", serial(vec![sh("true"), bad_user])));
    assert!(format!("{unknown:?}").contains("action.serial.actions[1].run.user"), "{unknown:?}");
    let many = format!("{:?}", refused(tree("many", serial(vec![sh("true"); 300]))));
    assert!(many.contains("action") && many.contains("301 actions") && many.contains("300 run actions"), "{many}");
    let memory = refused(tree("memory", serial(vec![sh("true"); 10_000])));
    assert!(
        memory.code() == Code::ResourceExhausted && memory.message().contains("`action.serial.actions"),
        "{memory}"
    );
    let deep = (0..20).fold(sh("true"), |action, _| serial(vec![action]));
    assert_eq!(refused(tree("deep", deep)).code(), Code::InvalidArgument);
    let mut request =
        tree("all", serial(vec![serial(vec![]), timeout(0, sh("true")), timeout(-1, action_of(RunAction::default()))]));
    request.terminal = true;
    request.setup = Some(Action::default());
    let reported = format!("{:?}", refused(request));
    for field in [
        "setup",
        "action.serial.actions[0].serial.actions",
        "action.serial.actions[1].timeout.timeout_ms",
        "action.serial.actions[2].timeout.timeout_ms",
        "action.serial.actions[2].timeout.action.run.path",
        "terminal",
    ] {
        assert!(reported.contains(field), "{field}: {reported}");
    }
    let same = |path: &str| RunAction {
        volume_mounted_files: vec![File { path: path.into(), content: SECRET.into(), ..File::default() }],
        ..run("true")
    };
    let mut request = tree("twice", serial(vec![action_of(same("x")), action_of(same("x")), action_of(same("x/y"))]));
    request.volume_mounted_files = vec![File { path: "x".into(), ..File::default() }];
    let reported = format!("{:?}", refused(request));
    assert!(reported.contains("action.serial.actions[2].run.volume_mounted_files[0].path"), "{reported}");
    assert_eq!(daemon.api.ids(), Vec::<String>::new(), "refused requests leave nothing");
    // Steps that do not run at the same time may have a file with the same path.
    let container = daemon.api.run_to_end(tree("same", serial(vec![action_of(same("x")), action_of(same("x"))])));
    assert_eq!(exit(&container), Ok(0));
}

#[test]
fn command_line_runs_and_shows_action_trees() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good = file(
        "tree.yaml",
        "setup: {run: {path: /bin/echo, args: [set up]}}\n\
         action:\n  serial:\n    actions:\n    - run: {path: /bin/sh, args: [-c, 'echo $STAGE'], log_source: ONE}\n    \
         - try: {action: {run: {path: /bin/false}}}\n    - run: {path: /bin/sh, args: [-c, 'exit 3']}\n",
    );
    let checked = cli::local(&["action", "check", &good]);
    assert_eq!(checked.status, 0, "{checked:?}");
    assert!(checked.stdout.contains("actions[1]  try"), "{checked:?}");
    let ran = cli::run(&daemon.socket(), &["run", "--keep", "--id", "cli", "--env", "STAGE=test", "--action", &good]);
    assert_eq!((ran.status, &*ran.stdout), (3, "set up\ntest\n"), "{ran:?}");
    assert!(ran.stderr.contains("Exited with status 3"), "{ran:?}");
    let shown = cli::run(&daemon.socket(), &["inspect", "cli"]).stdout;
    assert!(shown.contains("STEPS") && shown.contains("└─ /bin/sh") && shown.contains("failed (3)"), "{shown}");
    let json = cli::run(&daemon.socket(), &["--json", "inspect", "cli"]).json();
    assert_eq!(json["steps"][5]["state"], "failed", "{json}");
    let bad = file("bad.json", r#"{"serial": {"actions": [{"timeout": {}}, {"run": {}}]}}"#);
    let reported = cli::local(&["action", "check", &bad]);
    assert_eq!(reported.status, 125, "{reported:?}");
    assert!(
        reported.stderr.contains("3 faults") && reported.stderr.contains("action.serial.actions[1].run.path"),
        "{reported:?}"
    );
}
