//! Plans that cannot be executed are refused with the name of the field. Nothing is left after the refusal.

use executor_core::lifecycle::State;
use executor_core::plan::{Plan, Rootfs as Reference};
use executor_core::protocol::{Reason, Refused};
use executor_core::validate::{Draft, Policy, validate};
use integration::footprint;
use integration::launcher::{Launcher, Payload};
use integration::rootfs::Rootfs;

fn plan(draft: Draft<'_>) -> Plan {
    validate(&Draft { id: "bad", path: "/bin/true", memory_bytes: 64 << 20, ..draft }, &Policy::default()).unwrap()
}

/// Launches a plan that must be refused, and checks for leftovers.
fn refused(launcher: &Launcher, plan: &Plan, payload: &Payload<'_>) -> Refused {
    let before = footprint::inventory_of(&launcher.run_dir());
    let refused = launcher.launch(plan, payload).unwrap().reach(State::Running).unwrap_err();
    for dir in [launcher.run_dir(), launcher.state_dir()] {
        assert_eq!(std::fs::read_dir(dir.join("containers")).unwrap().count(), 0, "{refused:?}");
    }
    assert_eq!(footprint::inventory_of(&launcher.run_dir()), before, "{refused:?}");
    refused
}

fn assert_refusal(refused: &Refused, reason: Reason, field: &str, words: &str) {
    assert_eq!(refused.reason, reason as i32, "{refused:?}");
    assert_eq!(refused.violations.first().map_or("", |violation| &violation.field), field, "{refused:?}");
    assert!(refused.message.contains(words), "{refused:?}");
}

#[test]
fn missing_rootfs_entries_are_named() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let reference = rootfs.reference();
    let none = Payload::default();
    let unknown = refused(&launcher, &plan(Draft { rootfs: &reference, user: "nobodyx", ..Draft::default() }), &none);
    assert_refusal(&unknown, Reason::Precondition, "action.run.user", "user `nobodyx` not found");
    let group =
        refused(&launcher, &plan(Draft { rootfs: &reference, user: "app:nogroupx", ..Draft::default() }), &none);
    assert_refusal(&group, Reason::Precondition, "action.run.user", "group `nogroupx` not found");
    let missing = refused(&launcher, &plan(Draft { rootfs: "dir:/no/such/rootfs", ..Draft::default() }), &none);
    assert_refusal(&missing, Reason::Precondition, "rootfs", "`dir:/no/such/rootfs`: No such file or directory");
    let file = refused(&launcher, &plan(Draft { rootfs: "dir:/etc/passwd", ..Draft::default() }), &none);
    assert_refusal(&file, Reason::Precondition, "rootfs", "Not a directory");
}

/// The operator's `rootfs_dirs` also apply to the target of a link.
#[test]
fn rootfs_link_outside_allowed_directories_is_refused() {
    let (allowed, outside) = (tempfile::tempdir().unwrap(), Rootfs::busybox());
    let config = allowed.path().join("executor.toml");
    std::fs::write(&config, format!("[policy]\nrootfs_dirs = [{:?}]\n", allowed.path())).unwrap();
    let launcher = Launcher::start(&["--config", config.to_str().unwrap()]);
    std::os::unix::fs::symlink(outside.path(), allowed.path().join("link")).unwrap();
    let reference = format!("dir:{}/link", allowed.path().display());
    let refused = refused(&launcher, &plan(Draft { rootfs: &reference, ..Draft::default() }), &Payload::default());
    assert_refusal(&refused, Reason::Precondition, "rootfs", "is not below one of the configured rootfs_dirs");
    std::fs::rename(outside.path(), allowed.path().join("inside")).unwrap();
    let reference = format!("dir:{}/inside", allowed.path().display());
    let control =
        launcher.launch(&plan(Draft { rootfs: &reference, ..Draft::default() }), &Payload::default()).unwrap();
    control.reach(State::Completed).unwrap();
}

/// A root file system whose `/dev` is a link is refused: libcontainer 0.7.0 would create and delete files on the host
/// before it pivots.
#[test]
fn linked_kernel_directories_in_rootfs_are_refused() {
    let launcher = Launcher::start(&[]);
    let victim = tempfile::tempdir().unwrap();
    std::fs::write(victim.path().join("null"), "precious").unwrap();
    for name in ["dev", "proc", "sys"] {
        let rootfs = Rootfs::busybox();
        rootfs.replace_by_link(name, victim.path().to_str().unwrap());
        let reference = rootfs.reference();
        let refused = refused(&launcher, &plan(Draft { rootfs: &reference, ..Draft::default() }), &Payload::default());
        assert_refusal(&refused, Reason::Precondition, "rootfs", &format!("/{name} is a symbolic link"));
    }
    assert_eq!(std::fs::read_dir(victim.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(victim.path().join("null")).unwrap(), "precious");
}

#[test]
fn file_path_through_rootfs_link_is_refused() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), rootfs.path().join("link")).unwrap();
    let reference = rootfs.reference();
    let files = vec![
        ("f[0]".to_owned(), "/link/secret", 1).into(),
        ("f[1]".to_owned(), "/bin/busybox/x", 1).into(),
        ("f[2]".to_owned(), "/srv", 1).into(),
    ];
    let payload = Payload { files: vec![b"S", b"S", b"S"], ..Payload::default() };
    let refused = refused(&launcher, &plan(Draft { rootfs: &reference, files, ..Draft::default() }), &payload);
    assert_refusal(&refused, Reason::Precondition, "f[0].path", "/link is a symbolic link");
    assert_eq!(refused.violations.len(), 3, "all violations are reported together: {refused:?}");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

/// The launcher validates a plan again, and refuses a plan that the daemon's validation would not produce.
#[test]
fn invalid_plan_of_compromised_daemon_is_refused() {
    let launcher = Launcher::start(&[]);
    let good = plan(Draft { files: vec![("f".to_owned(), "a", 1).into()], ..Draft::default() });
    let payload = Payload { files: vec![b"S"], ..Payload::default() };
    let forge = |change: fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        plan
    };
    for plan in [
        forge(|plan| plan.rootfs = Reference::Dir("/proc/self/root".into())),
        forge(|plan| plan.files[0].path = "/etc/../../proc/x".into()),
        forge(|plan| plan.network = executor_core::plan::Network::Host),
    ] {
        assert_eq!(refused(&launcher, &plan, &payload).reason, Reason::Invalid as i32);
    }
    let wrong_size = forge(|plan| plan.files[0].size = 2);
    assert!(refused(&launcher, &wrong_size, &payload).message.contains("do not match the plan"));
}

/// Secret files count against the container's own memory limit. Files that do not fit are refused with the name of the
/// limit. As a control, files that fit are accepted.
#[test]
fn files_exceeding_memory_limit_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("executor.toml");
    std::fs::write(&config, "[policy]\nfiles_bytes_max = 40000000\n").unwrap();
    let launcher = Launcher::start(&["--config", config.to_str().unwrap()]);
    let content = vec![b'x'; 32 << 20];
    let draft = |memory_bytes| Draft {
        id: "bad",
        path: "/bin/true",
        memory_bytes,
        files: vec![("f".to_owned(), "a", content.len() as u64).into()],
        ..Draft::default()
    };
    let policy = Policy { files_bytes_max: 40_000_000, ..Policy::default() };
    let payload = Payload { files: vec![&content], ..Payload::default() };
    let small = validate(&draft(16 << 20), &policy).unwrap();
    let refused = refused(&launcher, &small, &payload);
    assert_refusal(&refused, Reason::Precondition, "limits.memory_bytes", "the 33554432 bytes of secret files");
    let enough = validate(&draft(64 << 20), &policy).unwrap();
    launcher.launch(&enough, &payload).unwrap().reach(State::Completed).unwrap();
    assert_eq!(launcher.exit("bad").wipe.unwrap().bytes, 32 << 20);
}

#[test]
fn id_in_use_is_refused_without_effect() {
    let launcher = Launcher::start(&[]);
    let plan = plan(Draft { path: "/bin/sleep", ..Draft::default() });
    let payload = Payload { args: vec![b"1000"], ..Payload::default() };
    let mut plan = plan;
    plan.processes[0].path = "/bin/sleep".into();
    let first = launcher.launch(&plan, &payload).unwrap();
    first.reach(State::Running).unwrap();
    let second = launcher.launch(&plan, &payload).err().unwrap();
    assert_eq!(second.reason, Reason::Exists as i32);
    assert!(launcher.record("bad").is_some());
}
