use std::time::Duration;

use super::*;
use executor_client::v1::{Capacity, ContainerSpec, ExitStatus, Failure, Result as Ending, exit_status};
use prost_types::Timestamp;

fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 0 })
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
}

fn ended(result: Ending) -> Container {
    Container { result: Some(result), ..Container::default() }
}

fn signaled(signal: i32) -> Ending {
    Ending { exit: Some(ExitStatus { status: Some(exit_status::Status::Signal(signal)) }), ..Ending::default() }
}

#[test]
fn endings() {
    let failed = |kind: failure::Kind, errno| {
        ended(Ending { failure: Some(Failure { kind: kind.into(), errno, ..Failure::default() }), ..Ending::default() })
    };
    let table = [
        (Container::default(), "-"),
        (ended(signaled(15)), "SIGTERM"),
        (ended(Ending { oom_killed: true, ..signaled(9) }), "SIGKILL (oom)"),
        (failed(failure::Kind::Exec, 2), "not found"),
        (failed(failure::Kind::Exec, 13), "not executable"),
        (failed(failure::Kind::SupervisorLost, 0), "lost"),
        (ended(Ending::default()), "unknown"),
    ];
    for (container, text) in table {
        assert_eq!(ending(&container), text);
    }
}

#[test]
fn ps_table_has_expected_columns() {
    let running = Container {
        id: "web-1".into(),
        state: State::Running.into(),
        spec: Some(ContainerSpec {
            rootfs: "host".into(),
            path: "/bin/sh".into(),
            labels: [("b".to_owned(), "2".to_owned()), ("a".to_owned(), "\u{1b}[2J".to_owned())].into(),
            ..ContainerSpec::default()
        }),
        created_at: at(999_880),
        ..Container::default()
    };
    let done =
        Container { id: "j".into(), state: State::Completed.into(), created_at: at(999_999), ..ended(signaled(9)) };
    assert_eq!(
        containers(&[running, done], now(), Style::PLAIN, None),
        "ID      STATE       ROOTFS   COMMAND   AGE   EXIT      ADDRESS   PORTS   LABELS\n\
         web-1   running     host     /bin/sh   2m    -         -         -       a=\\u{1b}[2J,b=2\n\
         j       completed                      1s    SIGKILL   -         -\n"
    );
}

/// The table of `ps` fits a terminal of 60 columns.
#[test]
fn ps_fits_narrow_terminals() {
    let spec = ContainerSpec {
        rootfs: "docker://registry.example/team/application:1".into(),
        path: "/usr/local/bin/application".into(),
        labels: [("a".to_owned(), "b".repeat(100))].into(),
        pod: "pod-1".into(),
        ..ContainerSpec::default()
    };
    let with = |id: &str| Container {
        id: id.into(),
        spec: Some(spec.clone()),
        state: State::Running.into(),
        ..ended(signaled(9))
    };
    let all = [with("3f0c5f3e-7a34-4c5e-9a43-0d1e2f3a4b5c"), with("a-name-that-the-user-chose")];
    let table = containers(&all, now(), Style::PLAIN, Some(60));
    assert!(table.lines().all(|line| line.chars().count() <= 60), "{table}");
    let firsts: Vec<&str> = table.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(firsts, ["ID", "3f0c5f3e-7a34", "a-name-that-the-user-chose"]);
    assert!(table.contains("STATE") && table.contains("running") && !table.contains("LABELS"), "{table}");
    assert!(containers(&all, now(), Style::PLAIN, None).contains("0d1e2f3a4b5c"), "the control");
}

#[test]
fn info_and_events() {
    let answer = InfoResponse {
        version: "0.1.0".into(),
        total: Some(Capacity { memory_bytes: 8 << 30, pids: 4096, containers: 250, disk_bytes: 100 << 30 }),
        remaining: Some(Capacity { memory_bytes: 3 << 30, pids: 4000, containers: 249, disk_bytes: 90 << 30 }),
        allocated: Some(Capacity { memory_bytes: 5 << 30, pids: 96, containers: 1, disk_bytes: 10 << 30 }),
        reserved: Some(Capacity { memory_bytes: 1 << 30, ..Capacity::default() }),
        health: Some(v1::Health { reasons: vec!["drained".into(), "self-test: no".into()], ..v1::Health::default() }),
        containers: [("running".to_owned(), 1)].into(),
        secret_mount_kind: MountKind::TmpfsNoswap.into(),
        launcher_connected: true,
        launcher_pid: 41,
        pid: 42,
        started_at: at(0),
        image_policy: Some(v1::ImagePolicy::default()),
        ..InfoResponse::default()
    };
    let text = info(&answer, "/run/x.sock", now(), Style::PLAIN);
    for line in [
        "executord 0.1.0\n",
        "  launcher          connected, pid 41\n",
        "  serves as         uid 0, pid 42\n",
        "  secret files on   tmpfs_noswap\n",
        "  images            every image may run: the configuration sets no policy (images.allow)\n",
        "  containers        1 running\n",
        "  health            NOT healthy: drained; self-test: no\n",
        "  CAPACITY     TOTAL     ALLOCATED   RESERVED   LEFT\n",
        "  memory       8 GiB     5 GiB       1 GiB      3 GiB\n",
        "  disk         100 GiB   10 GiB      0 bytes    90 GiB\n",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    let allow = vec!["docker.io/library/*".into(), "r.example/**".into()];
    let signed =
        vec![v1::SignedImages { images: vec!["r.example/**".into()], keys: vec!["0a".into()], repository: true }];
    let policy = v1::ImagePolicy { set: true, allow, allow_import: true, allow_archives: false, signed };
    let text = info(&InfoResponse { image_policy: Some(policy), ..answer.clone() }, "/s", now(), Style::PLAIN);
    assert!(text.contains("  images            docker.io/library/*, r.example/**; imports; no archives\n"), "{text}");
    assert!(text.contains("  signed            r.example/** by 1 key, for their own repository\n"), "{text}");
    let policy = v1::ImagePolicy { set: true, ..v1::ImagePolicy::default() };
    let text = info(&InfoResponse { image_policy: Some(policy), ..answer }, "/s", now(), Style::PLAIN);
    assert!(text.contains("  images            no repository; no imports; no archives\n"), "{text}");
    let completed = Event {
        cursor: 7,
        time: at(5),
        container_id: "web-1".into(),
        kind: event::Kind::Completed.into(),
        result: Some(signaled(9)),
        files_generation: 0,
        step: None,
        restart: None,
        egress_generation: 0,
        limits_generation: 0,
        quarantine_phase: 0,
    };
    assert_eq!(event(&completed, Style::PLAIN), "       7  1970-01-01T00:00:05.000Z  completed       web-1  SIGKILL\n");
    let kind = event::Kind::FilesUpdated.into();
    let updated = Event { kind, result: None, files_generation: 3, ..completed };
    assert_eq!(
        event(&updated, Style::PLAIN),
        "       7  1970-01-01T00:00:05.000Z  files_updated   web-1  generation 3\n"
    );
}
