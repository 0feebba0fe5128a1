//! Host volumes: owners of files, sharing, and read-only volumes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use executor_proto::v1::RunRequest;
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;
use tonic::Code;

use super::{Lent, below, named, names, of_path, read_only, refused, said, with};

/// Files that a container writes belong to the container user on the host's disk and in the next container, regardless
/// of the containers' id ranges. Nothing is left on the host.
#[test]
fn shared_host_volume_has_container_user_ownership() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let daemon = lent.daemon("");
    let before = daemon.footprint();
    let run = |script: &str| sh(script).rootfs(&rootfs.reference()).user("app");
    let script = "mkdir /data/dir; echo one >/data/dir/file; stat -c '%u' /data/dir/file; \
        grep -E ' /data ' /proc/self/mountinfo | grep -c 'rw,nosuid,nodev'";
    assert_eq!(said(&daemon, with(&[named("shared", "/data")], run(script))), "1234\n1\n");
    let file = lent.path("shared/dir/file");
    assert_eq!((fs::metadata(&file).unwrap().uid(), fs::read_to_string(&file).unwrap()), (1234, "one\n".into()));
    let again = "cat /mnt/here/file; echo two >/mnt/here/file; ls /mnt/here/..";
    let volume = below("dir", named("shared", "/mnt/here"));
    assert_eq!(said(&daemon, with(&[volume], run(again))), "one\nhere\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "two\n");
    assert_eq!(names(&lent.path("shared")), ["dir"]);
    daemon.wait_until_back_at(&before);
}

/// If the request or the configuration makes a volume read-only, no process can write to it: neither root, nor a
/// privileged container that remounts it. As a control, the same write succeeds on a writable volume, and a privileged
/// container can mount.
#[test]
fn read_only_volumes_cannot_be_written() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    fs::write(lent.path("deps/lib"), "library\n").unwrap();
    let daemon = lent.daemon("[policy]\nallow_privileged = true\n");
    let script = "cat /deps/lib; for dir in /deps /shared; do mount -o remount,bind,rw $dir 2>/dev/null; \
        mount -o remount,rw $dir 2>/dev/null; echo x 2>/dev/null >$dir/new || echo $dir no; umount $dir 2>/dev/null && echo gone; \
        done; mkdir /mnt; mount -t tmpfs t /mnt && mount -o remount,bind,ro /mnt && mount -o remount,bind,rw /mnt && echo can mount";
    let volumes = [read_only(named("deps", "/deps")), read_only(named("shared", "/shared"))];
    let request = |privileged| RunRequest { privileged, ..sh(script).rootfs(&rootfs.reference()) };
    let expected = "library\n/deps no\n/shared no\n";
    let text = said(&daemon, with(&volumes, request(true)));
    assert_eq!(text, format!("{expected}can mount\n"), "privileged");
    let container = daemon.api.run_to_end(with(&volumes, request(false)));
    assert_eq!(daemon.api.output(&container.id).stdout, expected.as_bytes());
    assert_eq!((names(&lent.path("deps")), names(&lent.path("shared"))), (vec!["lib".to_owned()], vec![]));
    let writable = [named("shared", "/shared")];
    said(&daemon, with(&writable, sh("echo x >/shared/new").rootfs(&rootfs.reference())));
    assert_eq!(names(&lent.path("shared")), ["new"], "control failed");
    let (code, violations) = refused(&daemon, with(&[named("deps", "/deps")], sh("true")));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "volumes[0].read_only"), "{violations:?}");
}

/// An executed process also has the volumes. They survive a restart of executord, and Info and Get report them.
#[test]
fn executed_processes_have_the_volumes() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let mut daemon = lent.daemon("");
    let sleeps = sh("exec sleep 100000").id("c").rootfs(&rootfs.reference());
    daemon.api.started(with(&[named("shared", "/data"), read_only(named("deps", "/deps"))], sleeps));
    daemon.kill();
    daemon.start_again();
    let socket = daemon.socket();
    let ran = integration::cli::run(&socket, &["exec", "c", "--", "/bin/sh", "-c", "echo x >/data/executed"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(names(&lent.path("shared")), ["executed"]);
    let spec = daemon.api.get("c").unwrap().spec.unwrap();
    assert_eq!(spec.volumes, [named("shared", "/data"), read_only(named("deps", "/deps"))]);
    let reported = daemon.api.info().volumes;
    let listed: Vec<_> = reported.iter().map(|one| (&*one.name, &*one.path, one.read_only)).collect();
    let (shared, deps) = (lent.path("shared"), lent.path("deps"));
    let expected = [("shared", shared.to_str().unwrap(), false), ("deps", deps.to_str().unwrap(), true)];
    assert_eq!(listed, expected);
    daemon.api.delete("c", true).unwrap();
}

/// An unknown volume name is refused with the list of known names. If the directory is missing, the error names it.
#[test]
fn unknown_volume_name_is_refused() {
    let lent = Lent::new();
    let daemon = lent.daemon("");
    let (code, violations) = refused(&daemon, with(&[named("share", "/a")], sh("true")));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "volumes[0].host.name"));
    assert!(violations[0].1.contains("shared, deps"), "{violations:?}");
    fs::remove_dir(lent.path("shared")).unwrap();
    let (code, violations) = refused(&daemon, with(&[named("shared", "/a")], sh("true")));
    assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[0].host.name"));
    assert!(violations[0].1.contains("shared: No such file or directory"), "{violations:?}");
    let (_, violations) = refused(&daemon, with(&[below("x/y", read_only(named("deps", "/a")))], sh("true")));
    assert_eq!(&*violations[0].0, "volumes[0].sub_path", "{violations:?}");
}

/// Directories and single files below `policy.host_paths` can be mounted, including from a named volume. By default
/// they are refused.
#[test]
fn paths_below_a_listed_directory() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    fs::create_dir(lent.path("shared/dir")).unwrap();
    fs::write(lent.path("shared/dir/app.conf"), "one\n").unwrap();
    fs::write(lent.path("deps/lib"), "library\n").unwrap();
    let (dir, file) = (lent.path("shared/dir"), lent.path("shared/dir/app.conf"));
    let closed = lent.daemon("");
    let (code, violations) = refused(&closed, with(&[of_path(&dir, "/a")], sh("true")));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "volumes[0].host_path.path"), "{violations:?}");
    assert!(violations[0].1.contains("policy.host_paths, which is empty"), "{violations:?}");
    drop(closed);
    let daemon = lent.daemon(&format!("[policy]\nhost_paths = ['{}']\n", lent.path("shared").display()));
    let before = daemon.footprint();
    let script = "cat /etc/app.conf /a/app.conf /srv/lib; echo two >/a/new; \
        echo three 2>/dev/null >/etc/app.conf || echo no; stat -c %F /etc/app.conf";
    let volumes = [
        of_path(&dir, "/a"),
        read_only(of_path(&file, "/etc/app.conf")),
        read_only(below("lib", named("deps", "/srv/lib"))),
    ];
    let text = said(&daemon, with(&volumes, sh(script).rootfs(&rootfs.reference())));
    assert_eq!(text, "one\none\nlibrary\nno\nregular file\n");
    assert_eq!(names(&dir), ["app.conf", "new"]);
    let write = with(&[of_path(&file, "/etc/app.conf")], sh("echo four >/etc/app.conf").rootfs(&rootfs.reference()));
    said(&daemon, write);
    assert_eq!(fs::read_to_string(&file).unwrap(), "four\n", "control: a file that is not read-only");
    daemon.wait_until_back_at(&before);
    // agent-cli resolves the path.
    let (volume, socket) = (format!("{}:/app.conf:ro", file.display()), daemon.socket());
    let reference = rootfs.reference();
    let ran =
        integration::cli::run(&socket, &["run", "-v", &volume, "--rootfs", &reference, "--", "/bin/cat", "/app.conf"]);
    assert_eq!((ran.status, &*ran.stdout), (0, "four\n"), "{ran:?}");
    assert_eq!(daemon.api.info().host_paths, [lent.path("shared").display().to_string()]);
}

/// A host path must be below the listed directory, and no part of it may be a link.
#[test]
fn host_paths_do_not_leave_the_list() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let shared = lent.path("shared");
    fs::write(lent.path("deps/secret"), "secret\n").unwrap();
    fs::create_dir(lent.path("shared-not")).unwrap();
    std::os::unix::fs::symlink(lent.path("deps"), shared.join("link")).unwrap();
    std::os::unix::fs::symlink(lent.path("deps/secret"), shared.join("file")).unwrap();
    let daemon = lent.daemon(&format!("[policy]\nhost_paths = ['{}']\n", shared.display()));
    let field = "volumes[0].host_path.path";
    for (path, expected) in [
        (lent.path("deps"), Code::InvalidArgument),
        (lent.path("shared-not"), Code::InvalidArgument),
        (shared.join("../deps"), Code::InvalidArgument),
        (shared.join("link"), Code::FailedPrecondition),
        (shared.join("link/secret"), Code::FailedPrecondition),
        (shared.join("file"), Code::FailedPrecondition),
        (shared.join("missing"), Code::FailedPrecondition),
    ] {
        let request = with(&[read_only(of_path(&path, "/a"))], sh("cat /a").rootfs(&rootfs.reference()));
        let (code, violations) = refused(&daemon, request);
        assert_eq!((code, &*violations[0].0), (expected, field), "{}: {violations:?}", path.display());
    }
    // A file cannot be mounted on a directory of the root file system, and vice versa.
    fs::write(shared.join("conf"), "x").unwrap();
    for (path, target) in [(shared.join("conf"), "/bin"), (shared.clone(), "/bin/busybox")] {
        let request = with(&[read_only(of_path(&path, target))], sh("true").rootfs(&rootfs.reference()));
        let (code, violations) = refused(&daemon, request);
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[0].path"), "{violations:?}");
    }
}
