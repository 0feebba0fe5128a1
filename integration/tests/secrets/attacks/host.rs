//! Attacks on the host and its kernel.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use executor_proto::v1::Limits;
use serde_json::{Value, json};

use crate::attacks::attackers::{Attacks, Unguarded, daemon, evaluate};

/// The attacks. Each group lists the guard that is missing in its control.
const TABLE: &[(Unguarded, &[&str])] = &[
    (
        Unguarded::Privileged,
        &[
            "call: add_key",
            "call: io_setup",
            "call: io_uring_setup",
            "call: the host name",
            "host: another root",
            "host: chroot",
            "mount: /sys writable",
            "mount: a tmpfs",
            "mount: a tmpfs by descriptor",
            "mount: another proc",
            "mount: another sys",
            "mount: cgroups, version 2",
            "mount: over a masked directory",
            "namespace: mounts of init",
            "namespace: network of init",
            "namespace: of mounts",
            "namespace: of users",
            "network: an interface",
            "network: any packet",
            "network: any protocol",
            "write: /proc/sys, the network",
            "write: /sys",
        ],
    ),
    (
        Unguarded::Capable,
        &[
            "call: bpf",
            "call: perf_event_open",
            "device: make a disk",
            "device: make memory",
            "host: open by handle",
            "mount: the root writable",
            "read: the log of the kernel",
            "mount: a read-only path taken away",
        ],
    ),
    (
        Unguarded::Host,
        &[
            "call: userfaultfd",
            "device: open a made disk",
            "device: the log of the kernel",
            "host: a descriptor that leaked",
            "host: directory of init",
            "host: root of init",
            "mount: the agent of cgroups",
            "process: a signal",
            "process: environment",
            "process: memory",
            "process: trace",
            "read: /proc/keys",
            "read: /proc/timer_list",
            "write: /proc/irq",
            "write: /proc/sys, a program for cores",
            "write: /proc/sys, the host name",
            "write: cgroups",
        ],
    ),
];

const REASONS: [&str; 9] = ["EACCES", "EBADF", "EBUSY", "ENODATA", "ENOENT", "ENOSYS", "EPERM", "EROFS", "ESRCH"];

/// Script that prints the type and the bytes of a file handle.
const HANDLE: &str = "import ctypes, os, sys
handle = ctypes.create_string_buffer((128).to_bytes(4, 'little') + bytes(132), 136)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.name_to_handle_at(-100, sys.argv[1].encode(), handle, ctypes.byref(ctypes.c_int()), 0) == 0
length, kind = (int.from_bytes(handle.raw[at:at + 4], 'little') for at in (0, 4))
print(kind, handle.raw[8:8 + length].hex())";

fn handle(path: &str) -> Value {
    assert_eq!(fs::metadata(path).unwrap().dev(), fs::metadata("/usr").unwrap().dev(), "{path} and /usr");
    let output = Command::new("/usr/bin/python3").args(["-c", HANDLE, path]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let (kind, number) = printed.trim().split_once(' ').unwrap();
    json!([kind.parse::<i32>().unwrap(), number])
}

/// Returns the device numbers of a host disk that the host itself can open.
fn disk() -> Value {
    let names = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().file_name());
    let name = names.filter(|name| fs::File::open(Path::new("/dev").join(name)).is_ok()).min().unwrap();
    let numbers = fs::read_to_string(Path::new("/sys/block").join(name).join("dev")).unwrap();
    let (major, minor) = numbers.trim().split_once(':').unwrap();
    json!([major.parse::<u32>().unwrap(), minor.parse::<u32>().unwrap()])
}

/// A host process.
struct Stranger(Child);

impl Stranger {
    fn new() -> Self {
        Self(Command::new("sleep").arg("100000").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nothing_of_the_host_is_reached() {
    let daemon = daemon();
    let marker = daemon.setup().home().join("marker");
    fs::write(&marker, "of the host").unwrap();
    let stranger = Stranger::new();
    let first = fs::metadata("/sys/fs/cgroup/memory/cgroup.procs").is_ok();
    let facts = json!({
        "marker": marker, "stranger": stranger.0.id(), "handle": handle("/etc/passwd"), "disk": disk(),
        "hierarchy": if first { "memory" } else { "none,name=attacked" },
        "cgroup": if first { "/sys/fs/cgroup/memory/cgroup.procs" } else { "/sys/fs/cgroup/cgroup.procs" },
    });
    let limits = Limits { memory_bytes: 128 << 20, ..Limits::default() };
    let attacks = Attacks::new(include_str!("probes/host.py"), facts, limits);
    evaluate(&daemon, &attacks, "exec 7</;", TABLE, &REASONS);
}
