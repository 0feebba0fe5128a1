//! Responses and effects of Run, Get, Wait, Stop, Signal, Delete and Info.

use executor_proto::v1::{Container, MountKind, Network, RunRequest, SecretFile, State, failure};
use integration::api::{ending, exit, pid};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder, program, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::{host, wait};
use tonic::Code;

/// The description of a container contains no secrets, while it runs and afterwards.
#[test]
fn container_is_reported_without_its_secrets() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    let request = sleeper("web-1")
        .rootfs(&rootfs.reference())
        .user("app:web")
        .env("TOKEN", "canary-env")
        .file("db/password", b"canary-file")
        .label("app", "web")
        .grace_ms(1500)
        .memory(32 << 20)
        .action(|run| {
            run.dir = "/srv".into();
            run.log_source = "APP".into();
        });
    let response = daemon.api.run(request).unwrap();
    assert!(response.created);
    let running = response.container.unwrap();
    assert_eq!(running.state(), State::Running);
    assert_eq!(daemon.api.get("web-1").unwrap(), running);
    check_spec(&running, &rootfs);
    let file = SecretFile {
        path: "/etc/cf-service-bindings/db/password".into(),
        size: 11,
        mode: 0o600,
        uid: 1234,
        gid: 80,
        mount_point: "/etc/cf-service-bindings".into(),
        mount_kind: MountKind::TmpfsNoswap.into(),
        mount_options: "ro,nosuid,nodev,noexec".into(),
        public: false,
    };
    assert_eq!(running.files, [file]);
    assert_eq!(host::status(pid(&running), "Name").as_deref(), Some("sleep"));
    assert!(running.created_at.is_some() && running.started_at.is_some());
    assert!(running.finished_at.is_none() && running.result.is_none());

    let stopped = daemon.api.stop("web-1", None).unwrap();
    assert!(stopped.state() >= State::Stopping, "{stopped:#?}");
    let ended = daemon.api.wait("web-1").unwrap();
    let result = ending(&ended);
    assert!(result.stopped && !result.oom_killed && result.failure.is_none(), "{result:?}");
    let wipe = result.wipe.as_ref().unwrap();
    assert_eq!((wipe.files, wipe.bytes, wipe.verified, &*wipe.wiped_by), (1, 11, true, "shim"));
    let timings = result.timings.unwrap();
    for phase in [timings.prepare, timings.start, timings.run, timings.finish] {
        let phase = phase.unwrap();
        assert!((phase.seconds, phase.nanos) > (0, 0) && phase.seconds < 60, "{timings:?}");
    }
    assert_eq!((ended.processes[0].pid, ended.spec.as_ref()), (0, running.spec.as_ref()));
    assert!(!format!("{running:?}{ended:?}").contains("canary"));

    daemon.api.delete("web-1", false).unwrap();
    assert_eq!(daemon.api.get("web-1").unwrap_err().code(), Code::NotFound);
    daemon.wait_until_back_at(&before);
}

fn check_spec(container: &Container, rootfs: &Rootfs) {
    let spec = container.spec.as_ref().unwrap();
    assert_eq!((&*spec.rootfs, &*spec.path, spec.argument_count), (&*rootfs.reference(), "/bin/sleep", 1));
    assert_eq!((&*spec.dir, &*spec.user, spec.uid, spec.gid), ("/srv", "app:web", Some(1234), Some(80)));
    assert_eq!(spec.environment_names, ["TOKEN"]);
    assert_eq!(spec.limits.as_ref().unwrap().memory_bytes, 32 << 20);
    assert_eq!((spec.limits.as_ref().unwrap().pids, spec.nofile), (1024, 16_384));
    assert_eq!(spec.grace_period.unwrap(), prost_types::Duration { seconds: 1, nanos: 500_000_000 });
    assert_eq!((spec.network(), spec.labels["app"].as_str(), &*spec.log_source), (Network::None, "web", "APP"));
}

/// All kinds of exit can be distinguished: exit code, signal, memory limit, and each reason of a failed start.
#[test]
fn every_kind_of_exit_is_reported() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let busybox = rootfs.reference();
    let code = |script: &str| exit(&daemon.api.run_to_end(sh(script)));
    assert_eq!((code("exit 0"), code("exit 7"), code("exit 255")), (Ok(0), Ok(7), Ok(255)));
    assert_eq!(code("kill -USR1 $$; exit 1"), Ok(1), "PID 1 of a pid namespace receives no signal from itself");

    daemon.api.started(sleeper("signalled"));
    daemon.api.signal("signalled", 9).unwrap();
    let signalled = daemon.api.wait("signalled").unwrap();
    assert_eq!((exit(&signalled), ending(&signalled).oom_killed, ending(&signalled).stopped), (Err(9), false, false));

    let hungry = sh("exec dd if=/dev/zero of=/dev/null bs=60M count=1").rootfs(&busybox).memory(16 << 20);
    let hungry = daemon.api.run_to_end(hungry);
    assert!(ending(&hungry).oom_killed);
    // The wording is Diego's, as for a process of a tree.
    let words = |container: &Container| ending(container).failure.as_ref().map(|failure| failure.message.clone());
    assert_eq!(words(&hungry).unwrap(), "Exited with status 137 (out of memory)");
    assert_eq!(words(&signalled).unwrap(), "Exited with status 137");
    let sourced = RunRequest { log_source: "APP".into(), ..sh("exit 7") };
    let failed = daemon.api.run_to_end(sourced);
    assert_eq!(words(&failed).unwrap(), "APP: Exited with status 7");
    assert_eq!(ending(&failed).failure.as_ref().unwrap().kind(), failure::Kind::Action);
    assert_eq!(words(&daemon.api.run_to_end(sh("exit 0"))), None);

    for (path, dir, errno, words) in [
        ("/nope", "", 2, "exec /nope: No such file or directory"),
        ("nope", "", 2, "exec nope: No such file or directory"),
        ("/etc/passwd", "", 13, "exec /etc/passwd: Permission denied"),
        ("/bin/true", "/etc/passwd", 20, "chdir /etc/passwd: Not a directory"),
    ] {
        let request = program(path, &[]).rootfs(&busybox).file("a", b"x").action(|run| run.dir = dir.into());
        let container = daemon.api.run_to_end(request);
        let failure = ending(&container).failure.as_ref().unwrap();
        assert_eq!((failure.kind(), failure.errno, &*failure.message), (failure::Kind::Exec, errno, words));
        assert!(ending(&container).exit.is_none());
        assert!(ending(&container).wipe.as_ref().is_some_and(|wipe| wipe.files == 1 && wipe.verified));
        let output = daemon.api.output(&container.id);
        assert_eq!(String::from_utf8_lossy(&output.executor).trim_end(), words);
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}

const SCRIPTS: [(&str, Option<i64>, Result<i32, i32>); 3] = [
    // The signal handler has enough time to exit normally.
    ("trap 'echo got it; exit 5' TERM; echo up; while :; do sleep 0.05; done", None, Ok(5)),
    // The container's own grace period of 200 ms expires.
    ("trap '' TERM; echo up; while :; do sleep 0.05; done", None, Err(9)),
    // The caller's grace period takes precedence over the container's.
    ("trap 'exit 6' TERM; echo up; sleep 100000 & wait; wait", Some(60_000), Ok(6)),
];

#[test]
fn stop_sends_term_then_kill_after_grace() {
    let daemon = Daemon::start();
    for (number, (script, grace, expected)) in SCRIPTS.into_iter().enumerate() {
        let id = format!("stop{number}");
        let own_grace = if expected == Err(9) { 200 } else { 50_000 };
        daemon.api.up(sh(script).id(&id).grace_ms(own_grace));
        daemon.api.stop(&id, grace).unwrap();
        let ended = daemon.api.wait(&id).unwrap();
        assert_eq!((exit(&ended), ending(&ended).stopped), (expected, true), "{script}");
        // Stopping a completed container is no error and changes nothing.
        assert_eq!(daemon.api.stop(&id, None).unwrap(), ended);
    }
}

#[test]
fn signals_are_delivered_and_invalid_ones_refused() {
    let daemon = Daemon::start();
    let handler = "trap 'echo usr1' USR1; trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done";
    daemon.api.started(sh(handler).id("sig"));
    let mut log = daemon.api.follow("sig");
    log.until(|entry| entry.data == b"up\n");
    daemon.api.signal("sig", 10).unwrap();
    log.until(|entry| entry.data == b"usr1\n");
    for (signal, words) in [(0, "is 0"), (65, "is 65")] {
        let status = daemon.api.signal("sig", signal).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(words), "{status:?}");
    }
    daemon.api.signal("sig", 15).unwrap();
    assert_eq!(exit(&daemon.api.wait("sig").unwrap()), Ok(9));
    assert_eq!(daemon.api.signal("sig", 15).unwrap_err().code(), Code::FailedPrecondition);
}

#[test]
fn delete_of_running_container_requires_force() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let running = daemon.api.started(sleeper("one").file("a", b"secret"));
    let status = daemon.api.delete("one", false).unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("one is running"), "{status:?}");
    assert_eq!(daemon.api.get("one").unwrap(), running, "control: the container still runs");
    daemon.api.delete("one", true).unwrap();
    assert!(host::status(pid(&running), "Name").is_none_or(|name| name != "sleep"));
    daemon.wait_until_back_at(&before);
    // The id is free again.
    assert!(daemon.api.run(sleeper("one")).unwrap().created);
    daemon.api.delete("one", true).unwrap();
}

#[test]
fn calls_report_missing_container_as_not_found() {
    let api = Daemon::start();
    let api = &api.api;
    let statuses = [
        api.get("no-such").unwrap_err(),
        api.wait("no-such").unwrap_err(),
        api.stop("no-such", None).unwrap_err(),
        api.signal("no-such", 15).unwrap_err(),
        api.delete("no-such", true).unwrap_err(),
        api.logs(executor_proto::v1::StreamLogsRequest { id: "no-such".into(), ..Default::default() }).err().unwrap(),
    ];
    for status in statuses {
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().contains("no-such"), "{status:?}");
    }
}

#[test]
fn info_reports_setup_and_available_capacity() {
    let daemon = Daemon::start();
    let before = daemon.api.info();
    assert!(before.launcher_connected && before.uid != 0 && before.started_at.is_some());
    assert_eq!(before.secret_mount_kind(), MountKind::TmpfsNoswap);
    assert!(["v1", "hybrid", "v2"].contains(&&*before.cgroups), "{before:?}");
    assert_eq!(before.kernel, std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim());
    assert_eq!(before.total, before.remaining);
    daemon.api.started(sleeper("one").memory(100 << 20));
    daemon.api.run_to_end(program("/bin/true", &[]).id("two"));
    let held = || {
        let info = daemon.api.info();
        info.total.unwrap().memory_bytes - info.remaining.unwrap().memory_bytes
    };
    wait::until("the completed container holds no capacity", || (held() == 100 << 20).then_some(()));
    let during = daemon.api.info();
    let (total, remaining) = (during.total.unwrap(), during.remaining.unwrap());
    assert_eq!((total.containers - remaining.containers, total.pids - remaining.pids), (1, 1024));
    let counted = [("running".to_owned(), 1), ("completed".to_owned(), 1)].into();
    assert_eq!(during.containers, counted);
    assert!(during.cursor > before.cursor);
}

/// A connection stays usable after a call with secrets, for every kind of call that follows.
#[test]
fn connection_serves_on_after_secrets() {
    let daemon = Daemon::start();
    let sockets = || {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().flatten();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).collect::<std::collections::BTreeSet<_>>()
    };
    let before = sockets();
    for number in 0..50 {
        let id = format!("c{number}");
        daemon.api.started(sh("exit 0").id(&id).env("TOKEN", "x").file("a", b"secret"));
        assert_eq!(daemon.api.get(&id).unwrap().id, id);
        daemon.api.wait(&id).unwrap();
    }
    assert!(sockets().is_superset(&before), "the same connection all the time");
}
