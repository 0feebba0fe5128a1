//! Validates privileges, capabilities and seccomp profiles.

use std::collections::BTreeSet;

use super::ViolationReason::{Conflict, NotAllowed, TooLong, TooMany, UnknownValue};
use super::{Policy, Report, id_map, shorten};
use crate::plan::{Isolation, UserNamespace};

/// Every capability of Linux 6.18, in the order of their numbers.
pub const CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];
/// Largest seccomp profile of a request, in bytes.
pub const SECCOMP_PROFILE_MAX: usize = 256 << 10;
/// Name that means every capability.
const ALL: &str = "ALL";

/// Checks the requested isolation, and returns it in canonical spelling.
pub(super) fn check(isolation: &Isolation, policy: &Policy, report: &mut Report) -> Isolation {
    let refused = |key: &str| format!("is not allowed by this daemon's configuration ({key})");
    if isolation.privileged && !policy.allow_privileged {
        report.add("privileged", NotAllowed.because(refused("allow_privileged")));
    }
    if isolation.user_namespace == UserNamespace::Host && !policy.allow_host_userns {
        report.add("user_namespace", NotAllowed.because(format!("`host` {}", refused("allow_host_userns"))));
    }
    let shared = [
        ("host_pid", isolation.host_pid, policy.allow_host_pid, "allow_host_pid"),
        ("host_ipc", isolation.host_ipc, policy.allow_host_ipc, "allow_host_ipc"),
    ];
    for (field, _, is_allowed, key) in shared.into_iter().filter(|(_, is_set, ..)| *is_set) {
        if !is_allowed {
            report.add(field, NotAllowed.because(refused(key)));
        }
        // The kernel mounts the file systems of a namespace only for its owner.
        if isolation.user_namespace == UserNamespace::Own {
            let why = "needs `user_namespace: host`, which owns the host's namespaces";
            report.add(field, Conflict.because(why));
        }
    }
    if let Some(mapping) = isolation.id_map {
        id_map::check(mapping, isolation.user_namespace, policy, report);
    }
    if isolation.docker_socket && policy.docker_socket.as_os_str().is_empty() {
        report.add("docker_socket", NotAllowed.because(refused("docker_socket")));
    }
    // Owner and group of the socket are host ids.
    if isolation.docker_socket && isolation.user_namespace == UserNamespace::Own {
        let why = "needs `user_namespace: host`, because the socket belongs to users of the host";
        report.add("docker_socket", Conflict.because(why));
    }
    if !isolation.seccomp_profile.is_empty() {
        let bytes = isolation.seccomp_profile.len();
        if bytes > SECCOMP_PROFILE_MAX {
            report.add("seccomp_profile", TooLong.because(format!("has {bytes} bytes; at most {SECCOMP_PROFILE_MAX}")));
        }
        if !policy.allow_seccomp_profile {
            report.add("seccomp_profile", NotAllowed.because(refused("allow_seccomp_profile")));
        }
        if isolation.privileged {
            let why = "has no effect with `privileged`; only one may be set";
            report.add("seccomp_profile", Conflict.because(why));
        }
    }
    let added = names("capabilities.add", &isolation.capabilities_added, report);
    let dropped = names("capabilities.drop", &isolation.capabilities_dropped, report);
    let allowed = |name: &String| policy.capabilities_allowed.iter().any(|one| one == name || one == ALL);
    for name in added.iter().filter(|name| !allowed(name)) {
        report.add("capabilities.add", NotAllowed.because(format!("{name} {}", refused("capabilities_allowed"))));
    }
    Isolation { capabilities_added: added, capabilities_dropped: dropped, ..isolation.clone() }
}

/// Converts names of capabilities to the kernel's spelling, sorted, without duplicates.
fn names(field: &str, asked: &[String], report: &mut Report) -> Vec<String> {
    if asked.len() > CAPABILITIES.len() {
        report.add(field, TooMany.because(format!("has {} entries; at most {}", asked.len(), CAPABILITIES.len())));
        return Vec::new();
    }
    let mut names = BTreeSet::new();
    for (index, name) in asked.iter().enumerate() {
        let upper = name.to_ascii_uppercase();
        let full = if upper == ALL || upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
        if full == ALL || CAPABILITIES.contains(&&*full) {
            names.insert(full);
        } else {
            let why = format!("\"{}\" is not a capability", shorten(name));
            report.add(format!("{field}[{index}]"), UnknownValue.because(why));
        }
    }
    names.into_iter().collect()
}
