//! The disk limit is enforced in the container and protects the host. The container's storage is removed after every
//! kind of exit. If the limit cannot be enforced, the request is refused, or there is a warning.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use executor_core::lifecycle::State;
use executor_core::protocol::Reason;
use executor_core::validate::{Draft, Policy, validate};
use executor_proto::v1::{Limits, RunRequest, UserNamespace};
use integration::api::{exit, pid};
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::launcher::{Launcher, Payload};
use integration::loop_devices;
use integration::quota::{Project, project};
use integration::request::{ATTACKERS, RequestBuilder, sh};
use integration::rootfs::Rootfs;
use integration::wait;
use tonic::Code;

const LIMIT: u64 = 16 << 20;

fn limited(request: RunRequest, disk_bytes: u64) -> RunRequest {
    let limits = Limits { disk_bytes, ..request.limits.unwrap_or_default() };
    RunRequest { limits: Some(limits), ..request }
}

/// A write beyond the limit fails with ENOSPC for every user, and data within the limit is written. The host loses no
/// more space than the limit, and gets all of it back. As a control, the same write succeeds without a limit.
#[test]
fn disk_limit_is_enforced_and_space_returned() {
    let daemon = Setup::default().disk(256 << 20).config("[policy]\nallow_host_userns = true\n").start();
    let rootfs = Rootfs::busybox();
    fs::set_permissions(rootfs.path().join("srv"), fs::Permissions::from_mode(0o777)).unwrap();
    let before = daemon.footprint();
    let script = "dd if=/dev/zero of=/srv/big bs=64k count=640 2>&1; stat -c '%s bytes' /srv/big; \
        echo x >/srv/small && echo small is there; cat /etc/passwd >>/etc/group && echo copied up; \
        >/srv/ready; exec sleep 100000";
    for (attacker, disk_bytes) in ATTACKERS.into_iter().flat_map(|one| [(one, LIMIT), (one, 0)]) {
        let request = sh(script).id("c").rootfs(&rootfs.reference()).by(attacker);
        daemon.api.started(limited(request, disk_bytes));
        let so_far = || Some(daemon.api.logs_so_far("c")).filter(|text| text.contains(" bytes\n"));
        let reported = wait::until("dd has exited", so_far);
        let size = reported.lines().find_map(|line| line.strip_suffix(" bytes")?.parse::<u64>().ok()).unwrap();
        if disk_bytes == 0 {
            assert_eq!(size, 40 << 20, "control failed: the size is limited: {attacker:?}: {reported}");
        } else {
            assert!(reported.contains("No space left on device"), "{attacker:?}: {reported}");
            assert!(size < LIMIT && size > LIMIT / 2, "{attacker:?}: {reported}");
        }
        daemon.api.stop("c", Some(0)).unwrap();
        daemon.api.wait("c").unwrap();
        daemon.api.delete("c", false).unwrap();
    }
    daemon.wait_until_back_at(&before);
    loop_devices::wait_until_free(&daemon);
}

/// Project quotas enforce the limits of bytes and files without a loop device. Root of the container cannot leave its
/// project. Usage and limit are removed after the exit, even if one of the executor's processes is killed. As controls,
/// the same write succeeds without a limit, and a container with host ids, which could leave its project, gets its own
/// file system. Most kernels and file systems have no project quotas, so this test runs in `cargo xtask vm-test`. That
/// command enables project quotas at `EXECUTOR_QUOTA_DIR`.
#[test]
#[ignore = "needs a file system with project quotas at EXECUTOR_QUOTA_DIR: see integration/vm/checks/14-quota.sh"]
fn project_quota_enforces_disk_limit() {
    let at = PathBuf::from(std::env::var_os("EXECUTOR_QUOTA_DIR").unwrap());
    let (own, open) = (File::create(at.join("own")).unwrap(), "[policy]\nallow_host_userns = true\n");
    drop(own);
    let daemon = Setup::default().config(open).state_below(&at).start();
    let before = daemon.footprint();
    // chattr comes from the machine's own programs. Changes go to the upper layer.
    let script = "exec 2>&1; cd /opt; dd if=/dev/zero of=big bs=64k count=640; stat -c '%s bytes' big; \
        chattr -p 0 big || echo stays in its project; rm big; mkdir many; i=0; \
        while [ $i -lt 6000 ] && true >many/$i; do i=$((i + 1)); done; echo $i files; exec sleep 100000";
    for (id, disk_bytes, ids) in [
        ("limited", LIMIT, UserNamespace::Own),
        ("control", 0, UserNamespace::Own),
        ("host", LIMIT, UserNamespace::Host),
    ] {
        let request = RunRequest { user_namespace: ids.into(), ..sh(script).id(id).rootfs("dir:/").memory(256 << 20) };
        let container = daemon.api.started(limited(request, disk_bytes));
        let so_far = || Some(daemon.api.logs_so_far(id)).filter(|text| text.contains(" files\n"));
        let reported = wait::until("the container has written as much as it can", so_far);
        let number =
            |unit: &str| reported.lines().find_map(|line| line.strip_suffix(unit)?.parse::<u64>().ok()).unwrap();
        let (bytes, files, of_it) = (number(" bytes"), number(" files"), || project(&at, container.id_range_start));
        println!("{id}: {bytes} bytes, {files} files, {:?}", of_it());
        if id == "limited" {
            // ext4 and XFS print different messages.
            assert!(
                reported.contains("Disk quota exceeded") || reported.contains("No space left on device"),
                "{reported}"
            );
            assert!(bytes <= LIMIT && bytes > LIMIT - (1 << 20), "{reported}");
            assert!(reported.contains("stays in its project"), "{reported}");
            let used = of_it();
            assert_eq!((used.blocks_max, used.inodes_max, used.inodes), (LIMIT >> 10, 4096, 4096), "{reported}");
            assert!(files < 4096 && files > 4000, "{reported}");
        } else if id == "control" {
            assert_eq!((bytes, files, of_it()), (40 << 20, 6000, Project::default()), "{reported}");
        } else {
            assert!(bytes < LIMIT && reported.contains("No space left on device"), "{reported}");
        }
        let images = loop_devices::below(daemon.setup().home()).len() + loop_devices::below(&at.join("")).len();
        assert_eq!(images, usize::from(id == "host"), "file systems of their own");
        // The shim is killed, so the launcher cleans up.
        if id == "limited" {
            kill(daemon.record(id).shim.pid, 9);
        } else {
            daemon.api.stop(id, Some(0)).unwrap();
        }
        daemon.api.wait(id).unwrap();
        daemon.api.delete(id, false).unwrap();
        wait::until_ok("usage and limit are gone", || match of_it() {
            // Files without a project belong to project 0, so its usage is not checked.
            _ if container.id_range_start == 0 => Ok(()),
            left if left == Project::default() => Ok(()),
            left => Err(format!("{left:?}")),
        });
    }
    daemon.wait_until_back_at(&before);
    let mut chattr = Command::new("chattr");
    assert!(
        chattr.args(["-p", "1"]).arg(at.join("own")).status().unwrap().success(),
        "control: a process outside of the container can change the project"
    );
    fs::remove_file(at.join("own")).unwrap();
}

/// A disk limit counts against the capacity, and Info reports the disk capacity.
#[test]
fn disk_is_a_part_of_the_capacity() {
    let daemon = Setup::default().config(&format!("[capacity]\ndisk_bytes = {}\n", 3 * LIMIT)).start();
    let rootfs = Rootfs::busybox();
    let sleeps = |id: &str| sh("exec sleep 100000").id(id).rootfs(&rootfs.reference());
    let left = || daemon.api.info().remaining.unwrap().disk_bytes;
    assert_eq!((daemon.api.info().total.unwrap().disk_bytes, left()), (3 * LIMIT, 3 * LIMIT));
    daemon.api.started(limited(sleeps("one"), 2 * LIMIT));
    assert_eq!(left(), LIMIT);
    let refused = daemon.api.run(limited(sleeps("two"), 2 * LIMIT)).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("not enough disk"), "{refused:?}");
    daemon.api.started(limited(sleeps("three"), LIMIT));
    daemon.api.stop("one", Some(0)).unwrap();
    daemon.api.wait("one").unwrap();
    wait::until("the disk of the completed container is free", || (left() == 2 * LIMIT).then_some(()));
    let default = Setup::default().start();
    let size = rustix::fs::statvfs(default.setup().state_dir()).unwrap();
    assert_eq!(default.api.info().total.unwrap().disk_bytes, size.f_blocks * size.f_frsize, "the file system's size");
}

/// After a kill of any of the executor's processes, the file system is unmounted, its device is free, and its backing
/// file is removed.
#[test]
fn disk_is_removed_after_any_process_kill() {
    let (mut daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    let start = |daemon: &Daemon, id: &str| {
        let script = "dd if=/dev/zero of=/srv/big bs=64k count=64 2>/dev/null; echo up; exec sleep 100000";
        let container = daemon.api.up(limited(sh(script).id(id).rootfs(&rootfs.reference()), LIMIT));
        let devices = loop_devices::below(daemon.setup().home());
        assert_eq!(devices.len(), 1, "control: one loop device is in use: {devices:?}");
        assert!(devices[0].ends_with("(deleted)") || devices[0].contains('#'), "without a name: {devices:?}");
        pid(&container)
    };
    start(&daemon, "shim");
    kill(daemon.record("shim").shim.pid, 9);
    daemon.api.wait("shim").unwrap();
    loop_devices::wait_until_free(&daemon);
    start(&daemon, "init");
    daemon.api.signal("init", 9).unwrap();
    assert_eq!(exit(&daemon.api.wait("init").unwrap()), Err(9));
    loop_devices::wait_until_free(&daemon);
    let init = start(&daemon, "all");
    let (shim, launcher) = (daemon.record("all").shim.pid, daemon.launcher().unwrap());
    for process in [launcher, shim, daemon.pid()] {
        kill(process, 9);
    }
    for process in [launcher, shim] {
        wait::until("the killed process has exited", || has_ended(process).then_some(()));
    }
    daemon.kill();
    daemon.start_again();
    daemon.api.wait("all").unwrap();
    assert!(has_ended(init));
    loop_devices::wait_until_free(&daemon);
    for id in ["shim", "init", "all"] {
        daemon.api.delete(id, false).unwrap();
    }
    let left = daemon.footprint();
    assert_eq!((left.mounts, left.files), (before.mounts, before.files));
}

/// If no file system can be created for the limit, the request is refused with the field's name and nothing is left. If
/// the operator prefers a warning, the container runs with a warning. In this test the host has neither loop devices
/// nor project quotas.
#[test]
fn unenforceable_disk_limit_is_refused_or_reported() {
    let (home, rootfs) = (tempfile::tempdir().unwrap(), Rootfs::busybox());
    for (name, report) in [("refuse", false), ("report", true)] {
        let config = home.path().join("executor.toml");
        fs::write(&config, format!("[policy]\nunenforceable_limits = \"{name}\"\n")).unwrap();
        let launcher = Launcher::start_by(&format!(
            "exec unshare --mount sh -c 'mount --bind /dev/null /dev/loop-control; exec \"$@\"' sh \"$@\" --config {};",
            config.display()
        ));
        let reference = rootfs.reference();
        let draft = Draft {
            id: "c",
            path: "/bin/true",
            rootfs: &reference,
            memory_bytes: 64 << 20,
            disk_bytes: LIMIT,
            ..Draft::default()
        };
        let plan = validate(&draft, &Policy::default()).unwrap();
        let shim = launcher.launch(&plan, &Payload::default()).unwrap();
        if report {
            shim.reach(State::Completed).unwrap();
            let warnings = launcher.exit("c").container.prepared.unwrap().warnings;
            assert!(warnings.iter().any(|warning| warning.contains("limits.disk_bytes")), "{warnings:?}");
        } else {
            let refused = shim.reach(State::Running).unwrap_err();
            assert_eq!(refused.reason, Reason::Precondition as i32, "{refused:?}");
            let violation = &refused.violations[0];
            assert!(
                violation.field == "limits.disk_bytes" && violation.description.contains("loop device"),
                "{violation:?}"
            );
            for dir in [launcher.run_dir(), launcher.state_dir()] {
                assert_eq!(fs::read_dir(dir.join("containers")).unwrap().count(), 0, "nothing is left");
            }
        }
    }
}
