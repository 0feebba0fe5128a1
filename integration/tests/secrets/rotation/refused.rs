//! If an update is refused, the files are unchanged.

use std::fs;

use executor_proto::v1::{Container, UpdateFilesRequest};
use integration::api::ending;
use integration::daemon::{Daemon, Setup};
use integration::footprint;
use integration::request::{RequestBuilder, program, sleeper, update};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::rotation::{ROOT, content, names, wait_for_single_generation};

fn first_field(status: &Status) -> String {
    let details = status.get_error_details();
    details.bad_request().and_then(|bad| bad.field_violations.first()).map(|v| v.field.clone()).unwrap_or_default()
}

/// Checks that nothing has changed, and that no part of the update exists.
fn as_before(daemon: &Daemon, before: &Container) {
    assert_eq!(daemon.api.get(&before.id).unwrap(), *before);
    assert_eq!(content(before, &format!("{ROOT}/a")).as_deref(), Some("old"));
    assert_eq!(wait_for_single_generation(before), "..gen1");
    assert_eq!(names(before, ROOT), ["a"]);
}

#[test]
fn invalid_update_is_reported_without_effect() {
    let daemon = Daemon::start();
    let before = daemon.api.started(sleeper("c").file("a", b"old").file("/etc/executor-key", b"key"));
    let big = vec![b'x'; (1 << 20) + 1];
    let removed = |path: &str| UpdateFilesRequest { removed_paths: vec![path.into()], ..update("c", &[("a", b"new")]) };
    let table = [
        (update("c", &[]), Code::InvalidArgument, "files", "nothing to update"),
        (update("c", &[("../x", b"")]), Code::InvalidArgument, "files[0].path", "contains `..`"),
        (update("c", &[("a", b""), ("a", b"")]), Code::InvalidArgument, "files[1].path", "also the path of files[0]"),
        (update("c", &[("a/b", b"")]), Code::InvalidArgument, "files[0].path", "to be a directory"),
        (update("c", &[("a", &big)]), Code::InvalidArgument, "files", "the maximum is 1048576"),
        (removed("nope"), Code::InvalidArgument, "removed_paths[0]", "not one of the container's secret files"),
        (removed("a"), Code::InvalidArgument, "removed_paths[0]", "is also in `files`"),
        (removed("/etc/executor-key"), Code::FailedPrecondition, "removed_paths", "mounted as a single file"),
        (update("c", &[("/srv/x", b"")]), Code::FailedPrecondition, "files[0].path", ROOT),
        (UpdateFilesRequest { signal: 65, ..update("c", &[("a", b"")]) }, Code::InvalidArgument, "signal", "is 65"),
    ];
    for (request, code, field, words) in table {
        let refused = daemon.api.update(request).unwrap_err();
        assert_eq!((refused.code(), first_field(&refused)), (code, field.to_owned()), "{refused}");
        assert!(refused.message().contains(words), "{refused}");
        as_before(&daemon, &before);
    }
    let both = daemon.api.update(update("c", &[("x//y", b""), ("/proc/x", b"")])).unwrap_err();
    assert_eq!(both.get_error_details().bad_request().unwrap().field_violations.len(), 2, "violations");
    assert_eq!(daemon.api.update(update("nope", &[("a", b"")])).unwrap_err().code(), Code::NotFound);
    assert_eq!(daemon.api.update(update("c", &[("a", b"new")])).unwrap().files_generation, 2, "control failed");

    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    let ended = daemon.api.update(update("c", &[("a", b"late")])).unwrap_err();
    assert_eq!(ended.code(), Code::FailedPrecondition);
    assert!(ended.message().contains("is completed: its files can be replaced only while it runs"), "{ended}");
    daemon.api.started(sleeper("bare"));
    let bare = daemon.api.update(update("bare", &[("a", b"new")])).unwrap_err();
    assert!(bare.code() == Code::FailedPrecondition && bare.message().contains("no directory"), "{bare}");
}

/// Policy that allows more file data than fits into the memory of a test container.
pub(crate) const MANY: &str = "[policy]\nfiles_bytes_max = 40000000\n[server]\nmessage_bytes_max = 50000000\n";

/// Files count against the container's own memory limit. If an update does not fit, it is refused with the name of the
/// limit, and the process continues. As a control, an update that fits succeeds.
#[test]
fn update_beyond_memory_limit_is_refused() {
    let daemon = Setup::default().config(MANY).start();
    // Uses most of the memory, then prints a line.
    let script = "import time\nheld = bytearray(40 << 20)\nprint('up', flush=True)\ntime.sleep(100000)";
    let request = program("/usr/bin/python3", &["-c", script]).id("c").memory(64 << 20).file("a", b"old");
    let before = daemon.api.up(request);
    let refused = daemon.api.update(update("c", &[("a", &vec![b'x'; 32 << 20])])).unwrap_err();
    assert_eq!(
        (refused.code(), &*first_field(&refused)),
        (Code::ResourceExhausted, "limits.memory_bytes"),
        "{refused}"
    );
    as_before(&daemon, &before);
    assert_eq!(daemon.api.update(update("c", &[("a", &vec![b'x'; 2 << 20])])).unwrap().files_generation, 2);
    daemon.api.stop("c", Some(0)).unwrap();
    let ended = daemon.api.wait("c").unwrap();
    assert!(!ending(&ended).oom_killed, "{ended:?}");
}

/// If the cgroup becomes full while files are written, only the update fails: the kernel kills the helper and not the
/// container's process, the old files stay, and the container is not reported as out of memory.
#[test]
fn full_cgroup_fails_only_update() {
    let daemon = Setup::default().config(MANY).start();
    let before = daemon.api.started(sleeper("c").memory(64 << 20).file("a", b"old"));
    // The limit is set on the parent of the container's cgroup. The check of the free memory does not consider it.
    let cgroup = daemon.record("c").cgroup;
    let parent = footprint::cgroup_roots(&daemon.setup().run_dir())
        .into_iter()
        .find(|root| root.join("memory.limit_in_bytes").exists() || root.join("memory.max").exists())
        .unwrap();
    assert!(parent.join(cgroup.file_name().unwrap()).is_dir());
    let file = |old: &str, new: &str| if parent.join(old).exists() { parent.join(old) } else { parent.join(new) };
    let usage = fs::read_to_string(file("memory.usage_in_bytes", "memory.current")).unwrap();
    let tight: u64 = usage.trim().parse::<u64>().unwrap() + (4 << 20);
    let limit = file("memory.limit_in_bytes", "memory.max");
    fs::write(&limit, tight.to_string()).unwrap();
    let refused = daemon.api.update(update("c", &[("a", &vec![b'x'; 32 << 20])])).unwrap_err();
    fs::write(&limit, if limit.ends_with("memory.max") { "max" } else { "-1" }).unwrap();
    assert_eq!(
        (refused.code(), &*first_field(&refused)),
        (Code::ResourceExhausted, "limits.memory_bytes"),
        "{refused}"
    );
    as_before(&daemon, &before);
    assert_eq!(
        daemon.api.update(update("c", &[("a", &vec![b'x'; 32 << 20])])).unwrap().files_generation,
        2,
        "control failed"
    );
    daemon.api.stop("c", Some(0)).unwrap();
    let ended = daemon.api.wait("c").unwrap();
    assert!(!ending(&ended).oom_killed, "the helper was killed, not the container: {ended:?}");
}
