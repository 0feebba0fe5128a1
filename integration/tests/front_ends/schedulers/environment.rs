//! The environment of a container's process is kept for processes that are executed later.

use executor_proto::v1::{
    Action, Check, Checks, EnvironmentVariable, ExecCheck, ExecStart, RunAction, RunRequest, SerialAction, check,
};
use integration::cli;
use integration::daemon::{Daemon, kill};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::streams::{executed, script, start};
use integration::wait;
use tonic::Code;

const SECRET: &str = "canary-of-an-environment-52e1";

fn keeping(request: RunRequest) -> RunRequest {
    RunRequest { keep_environment: true, ..request }
}

fn with_container_env(start: ExecStart) -> ExecStart {
    ExecStart { container_environment: true, ..start }
}

fn printed(daemon: &Daemon, id: &str) -> String {
    executed(&daemon.api, with_container_env(script(id, "echo $OPEN,$PW,$SHARED"))).unwrap().text()
}

#[test]
fn exec_gets_environment_if_requested() {
    let daemon = Daemon::start();
    let request = sleeper("c").env("OPEN", "seen").env("TZ", "a").secret_env("PW", SECRET).user("1000:1000");
    daemon.api.started(keeping(request));
    assert!(daemon.api.get("c").unwrap().spec.unwrap().keep_environment);
    assert_eq!(printed(&daemon, "c"), format!("seen,{SECRET},\n"));
    // As a control, executed processes get no variables without the option.
    assert_eq!(executed(&daemon.api, script("c", "echo $OPEN,$PW")).unwrap().text(), ",\n");
    // Variables of the executed process take precedence, each name appears once, and HOME belongs to the process's
    // user.
    let own = EnvironmentVariable { name: "OPEN".into(), value: "own".into(), ..EnvironmentVariable::default() };
    let env = ExecStart { env: vec![own], user: "root".into(), ..start("c", "/usr/bin/env", &[]) };
    let reported = executed(&daemon.api, with_container_env(env)).unwrap().text();
    let mut lines: Vec<&str> = reported.lines().collect();
    lines.sort_unstable();
    let names: Vec<&str> = lines.iter().filter_map(|line| line.split('=').next()).collect();
    assert_eq!(names, ["HOME", "OPEN", "PATH", "PW", "TZ"], "{reported}");
    assert!(lines.contains(&"OPEN=own") && lines.contains(&"HOME=/root"), "{reported}");
    let output = cli::run(&daemon.socket(), &["exec", "--container-env", "c", "--", "/bin/sh", "-c", "echo $PW"]);
    assert_eq!(output.stdout, format!("{SECRET}\n"));
}

#[test]
fn container_without_kept_environment_reports_it() {
    let daemon = Daemon::start();
    // This container has secret files, so it has a volume.
    daemon.api.started(sleeper("c").secret_env("PW", SECRET).file("key", b"x"));
    let reported = executed(&daemon.api, with_container_env(script("c", "env"))).err().unwrap();
    assert_eq!(reported.code(), Code::FailedPrecondition);
    assert!(
        reported.message().contains("start.container_environment") && reported.message().contains("keep_environment")
    );
    let probe = ExecCheck { path: "/bin/true".into(), container_environment: true, ..ExecCheck::default() };
    let check = Check { kind: Some(check::Kind::Exec(probe)), ..Check::default() };
    let checks = Some(Checks { readiness: vec![check], ..Checks::default() });
    let reported = daemon.api.run(RunRequest { checks, ..sleeper("checked") }).unwrap_err();
    let field = "checks.readiness[0].exec.container_environment";
    assert!(reported.code() == Code::InvalidArgument && reported.message().contains(field), "{reported}");
}

/// If requested, the program of a check gets the environment. As a control, the same container without the option never
/// becomes ready.
#[test]
fn check_gets_environment_if_requested() {
    let daemon = Daemon::start();
    for (id, asked) in [("with", true), ("without", false)] {
        let probe = ExecCheck {
            path: "/bin/sh".into(),
            args: vec!["-c".into(), "test -n \"$PW\"".into()],
            container_environment: asked,
            ..ExecCheck::default()
        };
        let timeout = Some(prost_types::Duration { seconds: 10, nanos: 0 });
        let check = Check { kind: Some(check::Kind::Exec(probe)), timeout, ..Check::default() };
        let checks = Some(Checks { readiness: vec![check], ..Checks::default() });
        daemon.api.started(keeping(RunRequest { checks, ..sleeper(id).secret_env("PW", SECRET) }));
        wait::until("the check was made", || {
            let container = daemon.api.get(id).unwrap();
            let made = container.check_statuses.iter().any(|status| status.checked_at.is_some());
            made.then(|| assert_eq!(container.ready, asked, "{id}"))
        });
    }
}

/// In a tree, executed processes get the variables of the first process of the action and the variables of all
/// processes.
#[test]
fn tree_exec_uses_environment_of_first_process() {
    let daemon = Daemon::start();
    let variable = |name: &str, value: &str| EnvironmentVariable {
        name: name.into(),
        value: value.into(),
        ..EnvironmentVariable::default()
    };
    let run = |open: &str| Action {
        run: Some(RunAction {
            path: "/bin/sleep".into(),
            args: vec!["100000".into()],
            env: vec![variable("OPEN", open)],
            secret_environment: vec![variable("PW", SECRET)],
            ..RunAction::default()
        }),
        ..Action::default()
    };
    let serial = SerialAction { actions: vec![run("first"), run("second")], ..SerialAction::default() };
    let request = RunRequest {
        action: Some(Action { serial: Some(serial), ..Action::default() }),
        environment: vec![variable("SHARED", "all")],
        ..RunRequest::default()
    };
    daemon.api.started(keeping(request.id("tree").memory(64 << 20)));
    assert_eq!(printed(&daemon, "tree"), format!("first,{SECRET},all\n"));
}

/// The environment survives a kill of executord, the launcher or the shim. The remaining processes wipe the environment
/// when the container exits.
#[test]
fn kept_environment_survives_kills() {
    let mut daemon = Daemon::start();
    daemon.api.started(keeping(sleeper("c").env("OPEN", "seen").secret_env("PW", SECRET)));
    let restart = |daemon: &mut Daemon, with_launcher: bool| {
        let launcher = daemon.launcher().filter(|_| with_launcher);
        daemon.kill();
        if let Some(launcher) = launcher {
            kill(launcher, 9);
            wait::until("the launcher has exited", || integration::daemon::has_ended(launcher).then_some(()));
        }
        daemon.start_again();
    };
    for with_launcher in [false, true] {
        restart(&mut daemon, with_launcher);
        assert_eq!(printed(&daemon, "c"), format!("seen,{SECRET},\n"), "launcher killed: {with_launcher}");
    }
    // Shim and launcher are killed. The next launcher finds the memory through the container.
    let shim = daemon.record("c").shim.pid;
    let launcher = daemon.launcher().unwrap();
    daemon.kill();
    kill(launcher, 19);
    kill(shim, 9);
    kill(launcher, 9);
    wait::until("the launcher has exited", || integration::daemon::has_ended(launcher).then_some(()));
    daemon.start_again();
    let wipe = daemon.api.wait("c").unwrap().result.unwrap().wipe.expect("a receipt");
    assert!(wipe.verified && wipe.files == 1 && wipe.bytes > SECRET.len() as u64, "{wipe:?}");
}

/// No process of the container, under any user, can access the stored environment.
#[test]
fn container_cannot_read_stored_environment() {
    let daemon = Daemon::start();
    let look = "ls -A /dev/executor-steps; cat /dev/executor-steps/* 2>/dev/null; \
                umount /dev/executor-steps 2>/dev/null && echo unmounted; ls -A /dev/executor-steps; echo done";
    for (id, user) in [("root", "root"), ("user", "1000:1000")] {
        daemon.api.run_to_end(keeping(sh(look).id(id).user(user).secret_env("PW", SECRET).unmasked()));
        assert_eq!(daemon.api.output(id).text(), "done\n", "{id}");
    }
}
