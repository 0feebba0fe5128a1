//! Attempts to escape from a volume. The control of each test shows that the test would detect an escape.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use executor_core::lifecycle::State;
use executor_core::plan::{HostVolume, Plan, Volume, VolumeSource};
use executor_core::protocol::Reason;
use executor_core::validate::{Draft, Policy, validate};
use integration::launcher::{Launcher, Payload};
use integration::mount::OwnMount;
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;
use tonic::Code;

use super::{Lent, below, named, names, new, refused, said, with};

/// Links that a container creates in a shared volume do not lead a later container out of the volume, neither by a
/// sub-path nor by a mount in the volume. As a control, the same paths are mounted without links.
#[test]
fn planted_links_stay_inside_volume() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let daemon = lent.daemon("");
    let run = |script: &str| sh(script).rootfs(&rootfs.reference());
    let plant = "cd /data; mkdir real real/dir; busybox ln -s /etc out; busybox ln -s ../.. up; busybox ln -s real in; \
        busybox ln -s /proc/1/root magic; echo x >file";
    said(&daemon, with(&[named("shared", "/data")], run(plant)));
    let before = daemon.footprint();
    for sub_path in ["out", "up", "in", "in/dir", "magic", "up/etc", "out/ssl"] {
        let (code, violations) = refused(&daemon, with(&[below(sub_path, named("shared", "/data"))], run("true")));
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[0].sub_path"), "{sub_path}");
        assert!(violations[0].1.contains("the path contains a symbolic link"), "{violations:?}");
        // The same holds if the path is the mount point of another volume within the shared volume.
        let target = format!("/data/{sub_path}");
        let nested = [named("shared", "/data"), new(&target, 1, 0)];
        let (code, violations) = refused(&daemon, with(&nested, run("true")));
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[1].path"), "{sub_path}");
    }
    for sub_path in ["..", "real/../..", "/etc", "./real", "real/", "real//dir", "a\0b"] {
        let (code, violations) = refused(&daemon, with(&[below(sub_path, named("shared", "/data"))], run("true")));
        assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "volumes[0].sub_path"), "{sub_path}");
    }
    let (_, violations) = refused(&daemon, with(&[below("file/x", named("shared", "/data"))], run("true")));
    assert!(violations[0].1.contains("Not a directory"), "{violations:?}");
    // Missing paths are not created in a host volume.
    let missing = [named("shared", "/data"), new("/data/made/by/root", 1, 0)];
    let (_, violations) = refused(&daemon, with(&missing, run("true")));
    assert!(violations[0].1.contains("does not exist in the enclosing volume"), "{violations:?}");
    assert_eq!(names(&lent.path("shared")), ["file", "in", "magic", "out", "real", "up"]);
    daemon.wait_until_back_at(&before);
    let nested = [below("real", named("shared", "/data")), new("/data/dir", 1, 0)];
    assert_eq!(said(&daemon, with(&nested, run("echo x >/data/dir/x; ls /data"))), "dir\n", "control failed");
    assert_eq!(names(&lent.path("shared/real/dir")), [""; 0]);
}

/// If the image has a link at a mount point or at a directory above it, the mount is refused. If the operator's path
/// contains a link, which an attacker may have created, the mount is refused as well.
#[test]
fn volume_mount_point_links_are_refused() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let daemon = lent.daemon("");
    rootfs.replace_by_link("srv", "/etc");
    for path in ["/srv", "/srv/below"] {
        for volume in [named("shared", path), new(path, 0, 0), new(path, 1, 0)] {
            let (code, violations) = refused(&daemon, with(&[volume], sh("true").rootfs(&rootfs.reference())));
            assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[0].path"), "{path}");
            assert!(violations[0].1.contains("/srv is a symbolic link"), "{violations:?}");
        }
    }
    fs::rename(lent.path("shared"), lent.path("moved")).unwrap();
    symlink("/etc", lent.path("shared")).unwrap();
    let request = || with(&[named("shared", "/data")], sh("ls /data").rootfs(&rootfs.reference()));
    let (code, violations) = refused(&daemon, request());
    assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[0].host.name"));
    assert!(violations[0].1.contains("the path contains a symbolic link"), "{violations:?}");
    fs::remove_file(lent.path("shared")).unwrap();
    fs::rename(lent.path("moved"), lent.path("shared")).unwrap();
    said(&daemon, request());
}

/// Root of a container can leave a set-user-ID program of host root in a writable volume. Therefore a writable volume
/// is offered only if no other host user can access it, or if the bit has no effect there. As a control, the program
/// exists with its bit in another directory.
#[test]
fn host_users_cannot_reach_setuid_programs() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let plant = || {
        let script = "busybox cp -f /bin/busybox /data/root; chmod 4755 /data/root";
        with(&[named("shared", "/data")], sh(script).rootfs(&rootfs.reference()))
    };
    let home = lent.path("shared").parent().unwrap().to_owned();
    let allow = |mode| fs::set_permissions(&home, fs::Permissions::from_mode(mode)).unwrap();
    let mount = OwnMount::from_dir(&home);
    mount.honour_set_user_id(true);
    let daemon = lent.daemon("");
    for mode in [0o755, 0o711, 0o701] {
        allow(mode);
        let (code, violations) = refused(&daemon, plant());
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[0].host.name"), "{mode:o}");
        assert!(violations[0].1.contains("setuid-root programs"), "{violations:?}");
        let volume = super::read_only(named("shared", "/data"));
        said(&daemon, with(&[volume], sh("ls /data").rootfs(&rootfs.reference())));
    }
    allow(0o700);
    said(&daemon, plant());
    let planted = fs::metadata(lent.path("shared/root")).unwrap();
    assert_eq!((planted.mode() & 0o7777, planted.uid()), (0o4755, 0), "control failed");
    drop(daemon);
    allow(0o755);
    mount.honour_set_user_id(false);
    said(&lent.daemon(""), plant());
}

/// A mount that would hide another mount, secret files, or files of the executor is refused. A secret file in an empty
/// volume is mounted over the volume.
#[test]
fn volumes_that_hide_files_are_refused() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let daemon = lent.daemon("");
    let run = || sh("cat /app/conf/key; ls /app").rootfs(&rootfs.reference()).unmasked();
    for (volumes, file, field) in [
        (vec![named("shared", "/a"), new("/a", 0, 0)], "/k", "volumes[1].path"),
        (vec![named("shared", "/app")], "/app/conf/key", "volumes[0].path"),
        (vec![named("shared", "/app/conf")], "/app/conf/key", "volumes[0].path"),
        (vec![new("/app/conf/key", 0, 0)], "/app/conf/key", "volumes[0].path"),
        (vec![new("/app", 0, 0), named("shared", "/app/conf/x")], "/app/conf/key", "volumes[1].path"),
        (vec![named("shared", "/etc")], "/k", "volumes[0].path"),
        (vec![named("shared", "/")], "/k", "volumes[0].path"),
        (vec![named("shared", "/proc/x")], "/k", "volumes[0].path"),
        (vec![named("shared", "/dev/shm")], "/k", "volumes[0].path"),
        (vec![named("shared", "/a/../etc")], "/k", "volumes[0].path"),
    ] {
        let (code, violations) = refused(&daemon, with(&volumes, run().file(file, b"secret")));
        assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, field), "{volumes:?}: {violations:?}");
    }
    let (_, violations) = refused(&daemon, with(&[named("shared", "/run")], run().runtime_token("token")));
    assert_eq!(&*violations[0].0, "volumes[0].path", "{violations:?}");
    let text = said(&daemon, with(&[new("/app", 0, 0)], run().file("/app/conf/key", b"secret\n")));
    assert_eq!(text, "secret\nconf\n");
    assert_eq!(names(&lent.path("shared")), [""; 0]);
}

/// The launcher's own configuration limits a compromised executord: unlisted directories, and writes to a directory
/// that is read-only there, are refused. As a control, a listed directory is mounted.
#[test]
fn launcher_has_its_own_list() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let config = lent.path("executor.toml");
    fs::write(&config, lent.tables()).unwrap();
    let launcher = Launcher::start(&["--config", config.to_str().unwrap()]);
    let of_daemon = |name: &str, read_only| HostVolume { name: name.into(), path: "/etc".into(), read_only };
    // The policy of a daemon that falsely allows more.
    let policy = Policy { volumes: vec![of_daemon("etc", false), of_daemon("deps", false)], ..Policy::default() };
    let reference = rootfs.reference();
    let plan = |id: &str, name: &str, read_only| -> Plan {
        let source = VolumeSource::Host(name.into());
        let volumes = vec![Volume { path: "/data".into(), source, sub_path: "".into(), read_only }];
        let draft =
            Draft { id, path: "/bin/true", rootfs: &reference, memory_bytes: 64 << 20, volumes, ..Draft::default() };
        validate(&draft, &policy).unwrap()
    };
    for (name, field) in [("etc", "volumes[0].host.name"), ("deps", "volumes[0].read_only")] {
        let shim = launcher.launch(&plan(name, name, false), &Payload::default()).unwrap();
        let refused = shim.reach(State::Running).unwrap_err();
        assert_eq!((refused.reason, &*refused.violations[0].field), (Reason::Invalid as i32, field), "{refused:?}");
    }
    let wide = Policy { host_paths: vec![PathBuf::from("/etc").into()], ..Policy::default() };
    let source = VolumeSource::HostPath(PathBuf::from("/etc/shadow").into());
    let volumes = vec![Volume { path: "/data".into(), source, sub_path: "".into(), read_only: true }];
    let draft = Draft {
        id: "path",
        path: "/bin/true",
        rootfs: &reference,
        memory_bytes: 64 << 20,
        volumes,
        ..Draft::default()
    };
    let of_path = validate(&draft, &wide).unwrap();
    let refused = launcher.launch(&of_path, &Payload::default()).unwrap().reach(State::Running).unwrap_err();
    assert_eq!(&*refused.violations[0].field, "volumes[0].host_path.path", "{refused:?}");
    let mut forged = plan("forged", "deps", true);
    forged.volumes[0].sub_path = "../../etc".into();
    let refused = launcher.launch(&forged, &Payload::default()).unwrap().reach(State::Running).unwrap_err();
    assert_eq!(&*refused.violations[0].field, "volumes[0].sub_path", "{refused:?}");
    let shim = launcher.launch(&plan("control", "deps", true), &Payload::default()).unwrap();
    shim.reach(State::Completed).unwrap();
}
