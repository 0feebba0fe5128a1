//! Validates privileges, capabilities, seccomp profiles, and masked and read-only paths.

use std::collections::BTreeSet;
use std::path::Path;

use super::ViolationReason::{Conflict, NotAllowed, Reserved, TooLong, TooMany, UnknownValue};
use super::surroundings::plain_path;
use super::{FieldFault, Policy, Report, id_map, shorten};
use crate::limits::SYSTEM_PATHS_MAX;
use crate::plan::{Isolation, MASKED, READONLY, UserNamespace};

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
/// Maximum size of a seccomp profile of a request, in bytes.
pub const SECCOMP_PROFILE_MAX: usize = 256 << 10;
/// Name for all capabilities together.
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
        // The kernel mounts the file systems of a namespace only for the owner of the namespace.
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
            report.add(
                "seccomp_profile",
                TooLong.because(format!("is {bytes} bytes; the maximum is {SECCOMP_PROFILE_MAX}")),
            );
        }
        if !policy.allow_seccomp_profile {
            report.add("seccomp_profile", NotAllowed.because(refused("allow_seccomp_profile")));
        }
        if isolation.privileged {
            let why = "has no effect with `privileged`; only one may be set";
            report.add("seccomp_profile", Conflict.because(why));
        }
    }
    if isolation.allow_new_privileges && !policy.allow_new_privileges {
        report.add("allow_new_privileges", NotAllowed.because(refused("allow_new_privileges")));
    }
    if isolation.seccomp_unconfined {
        if !policy.allow_no_seccomp && !isolation.privileged {
            report.add("seccomp_unconfined", NotAllowed.because(refused("allow_no_seccomp")));
        }
        if !isolation.seccomp_profile.is_empty() {
            let why = "cannot be combined with `seccomp_profile`; only one may be set";
            report.add("seccomp_unconfined", Conflict.because(why));
        }
    }
    let may_leave_out = policy.allow_unmasked || isolation.privileged;
    let mut paths = |field: &str, asked: &Option<Vec<String>>, default: &[&str]| {
        asked.as_ref().map(|asked| system_paths(field, asked, default, may_leave_out, report))
    };
    let masked_paths = paths("masked_paths", &isolation.masked_paths, &MASKED);
    let readonly_paths = paths("readonly_paths", &isolation.readonly_paths, &READONLY);
    let added = names("capabilities.add", &isolation.capabilities_added, report);
    let dropped = names("capabilities.drop", &isolation.capabilities_dropped, report);
    let allowed = |name: &String| policy.capabilities_allowed.iter().any(|one| one == name || one == ALL);
    for name in added.iter().filter(|name| !allowed(name)) {
        report.add("capabilities.add", NotAllowed.because(format!("{name} {}", refused("capabilities_allowed"))));
    }
    Isolation {
        capabilities_added: added,
        capabilities_dropped: dropped,
        masked_paths,
        readonly_paths,
        ..isolation.clone()
    }
}

/// Checks a list of masked or read-only paths. Returns the list sorted, without duplicates.
fn system_paths(
    field: &str,
    asked: &[String],
    default: &[&str],
    may_leave_out: bool,
    report: &mut Report,
) -> Vec<String> {
    if asked.len() > SYSTEM_PATHS_MAX {
        let why = format!("has {} entries; at most {SYSTEM_PATHS_MAX} are allowed", asked.len());
        report.add(format!("{field}.paths"), TooMany.because(why));
        return Vec::new();
    }
    for (index, path) in asked.iter().enumerate() {
        if let Err(why) = system_path(path) {
            report.add(format!("{field}.paths[{index}]"), why);
        }
    }
    let covers = |path: &&&str| asked.iter().any(|given| Path::new(path).starts_with(given));
    let missing: Vec<&str> = default.iter().filter(|path| !covers(path)).copied().collect();
    if !missing.is_empty() && !may_leave_out {
        let why = format!(
            "lacks {} of the default list, which is not allowed by this daemon's configuration (allow_unmasked)",
            missing.join(", ")
        );
        report.add(format!("{field}.paths"), NotAllowed.because(why));
    }
    asked.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Checks a masked or read-only path. The executor's processes in the container need /dev and their own part of /proc.
fn system_path(path: &str) -> Result<(), FieldFault> {
    let path = Path::new(path);
    plain_path(path)?;
    let of_process = path.strip_prefix("/proc").ok().and_then(|below| below.components().next());
    let of_process = of_process.is_some_and(|first| {
        let first = first.as_os_str().as_encoded_bytes();
        [&b"self"[..], b"thread-self"].contains(&first) || first.iter().all(u8::is_ascii_digit)
    });
    if of_process || ["/proc", "/dev"].iter().any(|whole| path == Path::new(whole)) {
        let why = format!("`{}` is needed by every process of the container", shorten(&path.display().to_string()));
        return Err(Reserved.because(why));
    }
    Ok(())
}

/// Converts names of capabilities to the kernel's spelling, sorted, without duplicates.
fn names(field: &str, asked: &[String], report: &mut Report) -> Vec<String> {
    if asked.len() > CAPABILITIES.len() {
        report.add(
            field,
            TooMany.because(format!("has {} entries; at most {} are allowed", asked.len(), CAPABILITIES.len())),
        );
        return Vec::new();
    }
    let mut names = BTreeSet::new();
    for (index, name) in asked.iter().enumerate() {
        let upper = name.to_ascii_uppercase();
        let full = if upper == ALL || upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
        if full == ALL || CAPABILITIES.contains(&&*full) {
            names.insert(full);
        } else {
            let why = format!("\"{}\" is not a capability; use a name such as CAP_NET_RAW, or ALL", shorten(name));
            report.add(format!("{field}[{index}]"), UnknownValue.because(why));
        }
    }
    names.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Draft, validate};

    type Fields = Vec<(String, String)>;

    fn checked(isolation: Isolation, policy: &Policy) -> Result<Isolation, Fields> {
        let draft = Draft { id: "c1", path: "/bin/app", rootfs: "dir:/srv", isolation, ..Draft::default() };
        let plan = validate(&draft, policy).map_err(|violations| {
            violations
                .into_iter()
                .map(|violation| (violation.field.to_string(), violation.description))
                .collect::<Fields>()
        });
        plan.map(|plan| plan.isolation)
    }

    fn list(paths: &[&str]) -> Option<Vec<String>> {
        Some(paths.iter().map(|path| (*path).to_owned()).collect())
    }

    fn weakest() -> Isolation {
        Isolation {
            allow_new_privileges: true,
            seccomp_unconfined: true,
            masked_paths: list(&[]),
            readonly_paths: list(&[]),
            ..Isolation::default()
        }
    }

    #[test]
    fn weaker_isolation_needs_its_keys() {
        let closed = checked(weakest(), &Policy::default()).unwrap_err();
        let expected = [
            ("allow_new_privileges", "(allow_new_privileges)"),
            ("seccomp_unconfined", "(allow_no_seccomp)"),
            ("masked_paths.paths", "(allow_unmasked)"),
            ("readonly_paths.paths", "(allow_unmasked)"),
        ];
        assert_eq!(closed.len(), expected.len(), "{closed:?}");
        for ((field, why), (name, key)) in closed.iter().zip(expected) {
            assert!(field == name && why.contains(key), "{field}: {why}");
        }
        let open =
            Policy { allow_new_privileges: true, allow_no_seccomp: true, allow_unmasked: true, ..Policy::default() };
        let isolation = checked(weakest(), &open).unwrap();
        assert!(isolation.masked().is_empty() && isolation.readonly().is_empty());
        let privileged = Isolation { privileged: true, allow_new_privileges: false, ..weakest() };
        assert!(checked(privileged, &Policy { allow_privileged: true, ..Policy::default() }).is_ok());
        let both = Isolation { seccomp_profile: "{}".into(), ..weakest() };
        let both = checked(both, &Policy { allow_seccomp_profile: true, ..open }).unwrap_err();
        assert!(both.len() == 1 && both[0].1.contains("seccomp_profile"), "{both:?}");
    }

    #[test]
    fn more_paths_need_no_key() {
        let with = |paths: &[&str], more: &[&str]| list(&[paths, more].concat());
        let asked = Isolation {
            masked_paths: with(&MASKED, &["/opt/a", "/opt/a"]),
            readonly_paths: with(&READONLY, &["/opt/b"]),
            ..Isolation::default()
        };
        let found = checked(asked, &Policy::default()).unwrap();
        assert_eq!(found.masked().len(), MASKED.len() + 1, "sorted, without duplicates");
        assert_eq!(found.readonly().len(), READONLY.len() + 1);
        let less = Isolation { masked_paths: with(&MASKED[1..], &["/opt/a"]), ..Isolation::default() };
        let why = checked(less, &Policy::default()).unwrap_err();
        assert!(why.len() == 1 && why[0].1.contains(MASKED[0]) && !why[0].1.contains(MASKED[1]), "{why:?}");
        let above = Isolation { masked_paths: with(&MASKED[..9], &["/sys"]), ..Isolation::default() };
        checked(above, &Policy::default()).expect("a directory covers the paths below it");
    }

    #[test]
    fn unfit_system_paths_fail() {
        let open = Policy { allow_unmasked: true, ..Policy::default() };
        let field = |path: &str| {
            let isolation = Isolation { masked_paths: list(&["/a", path]), ..Isolation::default() };
            checked(isolation, &open).map_err(|found| found[0].0.clone())
        };
        for path in ["", "/", "a", "/a/", "/a/../b", "/proc", "/proc/self/attr", "/proc/1", "/dev", "/a\n"] {
            assert_eq!(field(path), Err("masked_paths.paths[1]".into()), "{path}");
        }
        assert!(field("/proc/1x").is_ok() && field("/dev/full").is_ok());
        let many = (0..=SYSTEM_PATHS_MAX).map(|number| format!("/{number}")).collect();
        let isolation = Isolation { readonly_paths: Some(many), ..Isolation::default() };
        assert_eq!(checked(isolation, &open).unwrap_err()[0].0, "readonly_paths.paths");
    }
}
