//! Empty volumes: their owner, limits and removal.

use integration::api::pid;
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::loop_devices;
use integration::request::{ATTACKERS, RequestBuilder, sh};
use integration::rootfs::Rootfs;
use integration::wait;

use super::{new, refused, said, with};

const DISK: i32 = 0;
const MEMORY: i32 = 1;
const LIMIT: u64 = 16 << 20;

/// A volume is empty at the start and belongs to the process's user, with the requested mode. Mounts are nosuid and
/// nodev. Programs in a volume can be executed, even if the volume is mounted in another volume. Programs on a tmpfs
/// that is not a volume can be executed only if the request allows it.
#[test]
fn empty_volume_is_new_and_user_owned() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    let script = "for dir in /disk /mem /mem/deep /disk/below/it; do stat -c '%u %g %a' $dir; ls $dir | wc -l; \
        cp /bin/busybox $dir/ls && $dir/ls / >/dev/null && echo runs; done; \
        grep -E ' (/disk|/mem|/mem/deep) ' /proc/self/mountinfo | grep -c 'nosuid,nodev'; \
        cp /bin/busybox /scratch/ls; /scratch/ls / 2>/dev/null || echo no exec; stat -c '%a %u' /scratch";
    let mut request = sh(&script.replace("cp ", "busybox cp ")).rootfs(&rootfs.reference()).user("app");
    request.tmpfs = vec![executor_proto::v1::Tmpfs { path: "/scratch".into(), uid: 7, ..Default::default() }];
    // Inner volumes are listed first; they are mounted in the order of their paths.
    let volumes = [
        new("/mem/deep", DISK, 0),
        new("/disk", DISK, 0),
        new("/mem", MEMORY, 8 << 20),
        new("/disk/below/it", MEMORY, 0),
    ];
    let each = "1234 1234 1777\n0\nruns\n";
    let first = "1234 1234 1777\n1\nruns\n"; // one entry: the mount point of the inner volume
    let text = said(&daemon, with(&volumes, request));
    assert_eq!(text, format!("{first}{first}{each}{each}3\nno exec\n1777 7\n"));
    daemon.wait_until_back_at(&before);
}

/// A write beyond the limit of a volume fails for every user, data within the limit is written, and other volumes are
/// not full. As a control, a volume without any limit accepts all of the data.
#[test]
fn volume_limits_are_enforced() {
    let daemon = Setup::default().disk(256 << 20).config("[policy]\nallow_host_userns = true\n").start();
    let rootfs = Rootfs::busybox();
    let before = daemon.footprint();
    let script = "for dir in /disk /mem /free; do dd if=/dev/zero of=$dir/big bs=64k count=640 2>&1 | grep -o 'No space.*'; \
        stat -c '%s bytes' $dir/big; done; echo x >/free/small";
    for attacker in ATTACKERS {
        let request = sh(script).rootfs(&rootfs.reference()).memory(96 << 20).by(attacker);
        let volumes = [new("/disk", DISK, LIMIT), new("/mem", MEMORY, LIMIT), new("/free", DISK, 0)];
        let text = said(&daemon, with(&volumes, request));
        let sizes: Vec<u64> = text.lines().filter_map(|line| line.strip_suffix(" bytes")?.parse().ok()).collect();
        assert!(sizes[0] < LIMIT && sizes[0] > LIMIT / 2 && sizes[1] == LIMIT, "{attacker:?}: {text}");
        assert_eq!((sizes[2], text.matches("No space left").count()), (40 << 20, 2), "{attacker:?}: {text}");
    }
    daemon.wait_until_back_at(&before);
    loop_devices::wait_until_free(&daemon);
}

/// A volume on the disk without its own limit shares the limit of its container. This also holds for `host`, whose root
/// is never written to. Sizes count against the node's capacity.
#[test]
fn volume_shares_the_containers_limit() {
    let daemon = Setup::default().disk(256 << 20).config(&format!("[capacity]\ndisk_bytes = {}\n", 3 * LIMIT)).start();
    let rootfs = Rootfs::busybox();
    for (reference, path) in [(rootfs.reference(), "/disk"), ("host".to_owned(), "/tmp/in/it")] {
        let script = format!(
            "cd {path}; dd if=/dev/zero of=big bs=64k count=640 2>&1 | grep -o 'No space.*'; stat -c '%s bytes' big"
        );
        let mut request = with(&[new(path, DISK, 0)], sh(&script).rootfs(&reference));
        request.limits.get_or_insert_default().disk_bytes = LIMIT;
        let text = said(&daemon, request);
        let size: u64 = text.lines().find_map(|line| line.strip_suffix(" bytes")?.parse().ok()).unwrap();
        assert!(text.contains("No space left") && size < LIMIT && size > LIMIT / 2, "{reference}: {text}");
    }
    let left = || daemon.api.info().remaining.unwrap().disk_bytes;
    let sleeps = sh("exec sleep 100000").id("one").rootfs(&rootfs.reference());
    daemon.api.started(with(&[new("/a", DISK, LIMIT), new("/b", DISK, LIMIT), new("/c", MEMORY, LIMIT)], sleeps));
    assert_eq!(left(), LIMIT);
    daemon.api.delete("one", true).unwrap();
    assert_eq!(left(), 3 * LIMIT);
    loop_devices::wait_until_free(&daemon);
}

/// Volumes are removed with their container, even if one of the executor's processes is killed.
#[test]
fn volumes_go_however_the_container_ends() {
    let (mut daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    let start = |daemon: &Daemon, id: &str| {
        let script = "echo x >/a/x; echo x >/b/x; echo ready; exec sleep 100000";
        let request = sh(script).id(id).rootfs(&rootfs.reference());
        let container = daemon.api.started(with(&[new("/a", DISK, LIMIT), new("/b", DISK, 0)], request));
        wait::until("the volumes are written to", || daemon.api.logs_so_far(id).contains("ready").then_some(()));
        pid(&container)
    };
    start(&daemon, "shim");
    assert_eq!(loop_devices::below(daemon.setup().home()).len(), 1, "control failed");
    kill(daemon.record("shim").shim.pid, 9);
    daemon.api.wait("shim").unwrap();
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
    for id in ["shim", "all"] {
        daemon.api.delete(id, false).unwrap();
    }
    let left = daemon.footprint();
    assert_eq!((left.mounts, left.files), (before.mounts, before.files));
}

#[test]
fn invalid_empty_volumes_are_refused() {
    let daemon = Daemon::start();
    let script = || sh("true");
    let bad = [new("/a", DISK, 1), new("/b", MEMORY, 1), new("/c", 7, 0), super::read_only(new("/d", DISK, 0))];
    let (code, violations) = refused(&daemon, with(&bad, script()));
    let fields: Vec<&str> = violations.iter().map(|(field, _)| &**field).collect();
    let expected = [
        "volumes[2].empty.medium",
        "volumes[0].empty.size_bytes",
        "volumes[1].empty.size_bytes",
        "volumes[3].read_only",
    ];
    assert_eq!((code, &*fields), (tonic::Code::InvalidArgument, &expected[..]), "{violations:?}");
}
