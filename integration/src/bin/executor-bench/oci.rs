//! The bundle for crun and runc. It is as similar to the executor's own container as config.json allows.

use serde_json::{Value, json};

use crate::rootfs::Rootfs;

/// Capabilities of the container's root: a short list similar to the executor's.
pub(crate) const CAPABILITIES: [&str; 10] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];
/// Memory limit in bytes. All runtimes except bubblewrap have this limit.
pub(crate) const MEMORY_BYTES: u64 = 64 << 20;
pub(crate) const PIDS: u64 = 64;
pub(crate) const CPU_MILLIS: u64 = 1000;

const CPU_PERIOD: u64 = 100_000;

/// Returns the config.json of a container named `id`, with its cgroup below `cgroup`.
pub(crate) fn config(rootfs: &Rootfs, id: &str, cgroup: &str, seccomp: Option<&Value>) -> Value {
    let namespaces = ["pid", "mount", "network", "ipc", "uts", "cgroup"].map(|kind| json!({"type": kind}));
    let mut config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": 1000, "gid": 1000},
            "args": ["/bin/true"],
            "env": ["PATH=/bin", "HOME=/"],
            "cwd": "/",
            "capabilities": {"bounding": CAPABILITIES, "permitted": [], "effective": []},
            "noNewPrivileges": true,
        },
        "root": {"path": rootfs.path, "readonly": true},
        "hostname": id,
        "mounts": mounts(),
        "linux": {
            "cgroupsPath": format!("{cgroup}/{id}"),
            "namespaces": namespaces,
            "resources": {
                "memory": {"limit": MEMORY_BYTES},
                "pids": {"limit": PIDS},
                "cpu": {"period": CPU_PERIOD, "quota": CPU_PERIOD * CPU_MILLIS / 1000},
            },
            "maskedPaths": [
                "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
                "/proc/timer_list", "/proc/timer_stats", "/sys/firmware",
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    });
    if let Some(seccomp) = seccomp {
        config["linux"]["seccomp"] = seccomp.clone();
    }
    config
}

fn mounts() -> Value {
    let tmpfs = |destination: &str, options: &[&str]| json!({"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": options});
    json!([
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        tmpfs("/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
         "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]},
        tmpfs("/dev/shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
        tmpfs("/run", &["nosuid", "noexec", "nodev", "mode=755", "size=4m"]),
        tmpfs("/tmp", &["nosuid", "nodev", "mode=1777", "size=16m"]),
    ])
}
