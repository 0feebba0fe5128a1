//! A container that turns against its own secret files, as root and as an ordinary user: whatever would make them
//! writable, hide them, replace them, or show them to somebody else fails. The control does the same on the host,
//! where all of it works.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

use std::collections::BTreeMap;
use std::process::Command;

use executor_core::lifecycle::State;
use executor_core::plan::Plan;
use executor_core::validate::{Draft, Policy, validate};
use integration::launcher::{Launcher, Payload};

/// Tries one thing after the other, and prints what became of each. The first argument is a directory that holds the
/// file `password`, on a mount of its own that is read-only; the second a directory that can be written to.
const ATTACKS: &str = include_str!("secret_mount/attacks.py");

fn outcomes(printed: &str) -> BTreeMap<String, String> {
    let lines = printed.lines().filter_map(|line| line.split_once(" => "));
    lines
        .map(|(attack, outcome)| (attack.rsplit(" F ").next().unwrap_or(attack).to_owned(), outcome.to_owned()))
        .collect()
}

fn attacked(launcher: &Launcher, id: &str, user: &str) -> BTreeMap<String, String> {
    let args = ["-c", ATTACKS, "/etc/cf-service-bindings/db", "/tmp"];
    let files = vec![("f".to_owned(), "db/password", 6).into()];
    let draft = Draft { id, path: "/usr/bin/python3", memory_bytes: 128 << 20, user, files, ..Draft::default() };
    let plan: Plan = validate(&draft, &Policy::default()).unwrap();
    let payload = Payload { args: args.map(str::as_bytes).to_vec(), files: vec![b"s3cr3t"], ..Payload::default() };
    launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
    let wiped = launcher.exit(id).wipe.unwrap();
    assert!(wiped.verified && (wiped.files, wiped.bytes) == (1, 6), "it is wiped as if nothing had been: {wiped:?}");
    let log = launcher.log(id);
    assert!(!log.contains("Traceback"), "{log}");
    outcomes(&log)
}

#[test]
fn nothing_that_a_container_does_to_its_secret_files_goes_through() {
    let control = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec"])
        .arg(
            "mount -t tmpfs scratch /mnt; mkdir -p /mnt/db /mnt/scratch; mount -t tmpfs x /mnt/db; \
            (umask 077; printf s3cr3t >/mnt/db/password); mount -o remount,ro,bind /mnt/db; \
            exec /usr/bin/python3 -c \"$0\" /mnt/db /mnt/scratch",
        )
        .arg(ATTACKS)
        .output()
        .unwrap();
    let printed = String::from_utf8(control.stdout).unwrap();
    let control = outcomes(&printed);
    assert!(control.len() > 30, "{printed}");
    for (attack, outcome) in &control {
        assert_eq!(outcome, "went through", "the control: on the host, {attack} works: {printed}");
    }
    let launcher = Launcher::start(&[]);
    for (id, user) in [("as-root", "root"), ("as-vcap", "vcap")] {
        let outcomes = attacked(&launcher, id, user);
        assert!(outcomes.keys().eq(control.keys()), "everything was tried as {user}: {outcomes:?}");
        for (attack, outcome) in &outcomes {
            // Where the file could not be taken away, it is still there. ramfs has no handles to open by.
            let reason = ["EPERM", "EACCES", "EROFS", "ENOENT", "EEXIST", "ENOTSUP"].contains(&outcome.as_str());
            assert!(reason, "{attack} as {user}: {outcome}");
        }
    }
}

/// A process of a container that is of another user than its first reaches neither the secret files nor the first process:
/// not its memory, environment, descriptors or root, nor as its tracer. The control: one of the same user does, and finds
/// the root of the container there, not the host's.
#[test]
fn another_user_of_the_same_container_reaches_nothing() {
    let launcher = Launcher::start(&[]);
    let path = "/etc/cf-service-bindings/db/password";
    let draft = Draft {
        id: "around",
        path: "/usr/bin/python3",
        memory_bytes: 128 << 20,
        files: vec![("f".to_owned(), "db/password", 6).into()],
        ..Draft::default()
    };
    let plan = validate(&draft, &Policy::default()).unwrap();
    let args = ["-c", include_str!("secret_mount/around.py"), path].map(str::as_bytes).to_vec();
    let payload = Payload { args, files: vec![b"s3cr3t"], ..Payload::default() };
    launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
    let log = launcher.log("around");
    let outcomes = outcomes(&log);
    assert_eq!(outcomes.len(), 14, "{log}");
    for (way, outcome) in &outcomes {
        let same_user = way.starts_with("0 ");
        assert_eq!(outcome == "went through", same_user, "{way}: {outcome}");
        assert!(same_user || ["EPERM", "EACCES"].contains(&outcome.as_str()), "{way}: {outcome}");
    }
    assert!(log.contains("root of init is the same") && !log.contains("another\n"), "{log}");
}
