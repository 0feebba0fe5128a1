//! `agent-cli audit` with the real daemon, and with a daemon that wipes nothing.

use std::os::unix::process::CommandExt;

use integration::cli::{command, finish, local, run};
use integration::daemon::{Daemon, Setup};
use integration::rootfs::Rootfs;
use serde_json::Value;

const KINDS: [&str; 8] = [
    "file",
    "file_before_rotation",
    "file_after_rotation",
    "secret_variable",
    "secret_argument",
    "plain_variable",
    "plain_argument",
    "runtime_token",
];

/// Returns whether a kind of secret was found in a place: first while the container ran, then after its exit.
fn was_found(document: &Value, kind: &str, place: &str) -> (bool, bool) {
    let named = |list: &Value, key: &str, name: &str| -> Value {
        list.as_array().unwrap().iter().find(|one| one[key] == name).cloned().unwrap_or_default()
    };
    let place = named(&named(&document["kinds"], "kind", kind)["places"], "place", place);
    (place["while_running"].as_bool().unwrap(), place["after"].as_bool().unwrap())
}

#[test]
fn audit_finds_nothing_left() {
    let private = local(&["audit", "--json"]);
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let rootfs = Rootfs::busybox();
    let large = ["audit", "--json", "--size", "450000", "--user", "app", "--rootfs", &rootfs.reference()];
    let small = ["audit", "--json", "--size", "64", "--journal"];
    for ran in [private, run(&daemon.socket(), &large), run(&daemon.socket(), &small)] {
        assert_eq!((ran.status, &*ran.stderr), (0, ""), "{}", ran.stdout);
        let document = ran.json();
        assert_eq!(document["clean"], true);
        for kind in KINDS {
            let reported = document["kinds"].as_array().unwrap().iter().find(|one| one["kind"] == kind).unwrap();
            assert_eq!((&reported["offered"], &reported["proven"]), (&true.into(), &true.into()), "{kind}");
            for place in ["executord_memory", "run_directory", "state_directory", "logs", "environ", "cmdline"] {
                assert_eq!(was_found(&document, kind, place), (false, false), "{kind} {place}");
            }
        }
        assert_eq!(was_found(&document, "secret_argument", "container"), (true, false));
        assert_eq!(was_found(&document, "secret_argument", "shim_memory"), (true, false), "the shim masks the log");
        assert_eq!(
            was_found(&document, "file", "launcher_memory"),
            (true, false),
            "the launcher has a handle on the secret files"
        );
        assert_eq!(was_found(&document, "file_before_rotation", "launcher_memory"), (false, false), "old, and wiped");
        assert!(document["searched"]["processes"].as_u64().unwrap() >= 2);
        assert!(document["searched"]["files"].as_u64().unwrap() > 3);
    }
    daemon.wait_until_back_at(&before);

    let table = run(&daemon.socket(), &["audit"]);
    assert_eq!(table.status, 0, "{table:?}");
    assert!(table.stdout.lines().take(20).all(|line| line.len() < 80 || !line.starts_with("  ")), "{}", table.stdout);
    assert!(table.stdout.contains("\nNot searched: the journal (--journal)\n"), "{}", table.stdout);
    assert!(table.stdout.ends_with("\nNothing is left.\n"), "{}", table.stdout);
}

#[test]
fn audit_reports_leftover_secrets() {
    let daemon = Setup::default().control().start();
    let ran = run(&daemon.socket(), &["audit", "--json"]);
    assert_eq!(ran.status, 1, "{ran:?}");
    let document = ran.json();
    assert_eq!(document["clean"], false);
    let left = document["left"].as_array().unwrap();
    assert!(left.iter().any(|hit| hit["place"].as_str().unwrap().starts_with("memory of executord ")), "{left:?}");
    let table = run(&daemon.socket(), &["audit"]).stdout;
    assert!(table.contains(" LEFT ") && table.contains("\nLeft after the exit:\n  "), "{table}");
    assert!(table.ends_with("\nA canary is left.\n"), "{table}");
    assert_eq!(daemon.api.ids(), [""; 0], "the daemon stops its containers");
}

#[test]
fn audit_without_root_or_shell_fails() {
    let daemon = Setup::default().arguments(&["--allow-group", "games"]).start();
    let refused = finish(command(Some(&daemon.socket()), &["audit"]).uid(4242).gid(60).spawn().unwrap());
    assert!(refused.status == 125 && refused.stderr.contains("sudo agent-cli audit"), "{refused:?}");
    let empty = tempfile::tempdir().unwrap();
    for dir in ["dev", "etc", "proc", "sys"] {
        std::fs::create_dir(empty.path().join(dir)).unwrap();
    }
    let reference = format!("dir:{}", empty.path().display());
    let ended = run(&daemon.socket(), &["audit", "--rootfs", &reference]);
    assert!(ended.status == 125 && ended.stderr.contains("exec /bin/sh: No such file"), "{ended:?}");
    assert_eq!(daemon.api.ids(), [""; 0]);
}
