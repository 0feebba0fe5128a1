//! Validates tmpfs file systems, sysctls and host names.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use super::ViolationReason::{
    Conflict, Duplicate, InvalidFormat, NotAllowed, NotUtf8, OutOfRange, Required, Reserved, TooMany,
};
use super::{FieldFault, Report, check_path, shorten};
use crate::limits::{TMPFS_MAX, TMPFS_MIN};
use crate::plan::{Isolation, Limits, Network, SHM_BYTES_DEFAULT, Surroundings, Tmpfs, UserNamespace};
use crate::token::RUNTIME_DIR;

/// Error for a tmpfs or volume size of 0 (which means "as large as the memory limit") if the container has no memory
/// limit.
pub(super) const NO_LIMIT: &str = "is 0; a size is required if limits.unlimited_memory is set";

/// Maximum number of tmpfs file systems.
const TMPFS_COUNT_MAX: usize = 64;
/// Maximum number of sysctls.
const SYSCTLS_MAX: usize = 64;
/// Maximum length of the name or value of a sysctl, in bytes.
const SYSCTL_MAX: usize = 256;
/// Maximum number of additional lines in /etc/hosts.
const HOSTS_MAX: usize = 256;
/// Maximum length of a host name, in bytes.
const HOST_MAX: usize = 253;
/// Sysctls that belong to an IPC namespace.
const OF_IPC: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
];

/// Checks the requested settings, and fills in defaults.
pub(super) fn check(
    surroundings: &Surroundings,
    (network, host_ids_sysctls): (Network, bool),
    isolation: &Isolation,
    limits: &Limits,
    with_token: bool,
    report: &mut Report,
) -> Surroundings {
    let Surroundings { tmpfs, shm_bytes, sysctls, extra_hosts, init } = surroundings;
    if tmpfs.len() > TMPFS_COUNT_MAX {
        report.add(
            "tmpfs",
            TooMany.because(format!("has {} entries; at most {TMPFS_COUNT_MAX} are allowed", tmpfs.len())),
        );
    } else {
        check_tmpfs(tmpfs, isolation, with_token, report);
    }
    if limits.memory_bytes == 0 {
        for (index, _) in tmpfs.iter().enumerate().take(TMPFS_COUNT_MAX).filter(|(_, one)| one.bytes == 0) {
            report.add(format!("tmpfs[{index}].size_bytes"), Required.because(NO_LIMIT));
        }
    }
    size("shm_bytes", *shm_bytes, report);
    if isolation.host_ipc && !matches!(*shm_bytes, 0 | SHM_BYTES_DEFAULT) {
        report.add("shm_bytes", Conflict.because("cannot be combined with `host_ipc`: /dev/shm is the host's"));
    }
    if sysctls.len() > SYSCTLS_MAX {
        report.add(
            "sysctls",
            TooMany.because(format!("has {} entries; at most {SYSCTLS_MAX} are allowed", sysctls.len())),
        );
    } else {
        for (name, value) in sysctls {
            let field = || format!("sysctls[{}]", shorten(name));
            match sysctl(name, value, network, isolation.host_ipc) {
                Err(why) => report.add(field(), why),
                // The kernel does not confine host root to the sysctls of its own namespaces; only this check of the
                // names does.
                Ok(()) if isolation.user_namespace == UserNamespace::Host && !host_ids_sysctls => {
                    let why = "needs `user_namespace: own`, or policy.host_ids_sysctls in this daemon's configuration";
                    report.add(field(), NotAllowed.because(why));
                }
                Ok(()) => {}
            }
        }
    }
    if extra_hosts.len() > HOSTS_MAX {
        report.add(
            "extra_hosts",
            TooMany.because(format!("has {} entries; at most {HOSTS_MAX} are allowed", extra_hosts.len())),
        );
    } else {
        for (index, host) in extra_hosts.iter().enumerate() {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
            if host.name.is_empty() || host.name.len() > HOST_MAX || !host.name.bytes().all(plain) {
                let why = format!(
                    "\"{}\" is not a valid host name: use 1 to {HOST_MAX} letters, digits, `.`, `-` and `_`",
                    shorten(&host.name)
                );
                report.add(format!("extra_hosts[{index}].name"), InvalidFormat.because(why));
            }
        }
    }
    let or = |bytes: u64, default: u64| if bytes == 0 { default } else { bytes };
    let mut tmpfs: Vec<Tmpfs> =
        tmpfs.iter().map(|one| Tmpfs { bytes: or(one.bytes, limits.memory_bytes), ..one.clone() }).collect();
    tmpfs.sort_by(|one, other| one.path.cmp(&other.path));
    Surroundings {
        tmpfs,
        shm_bytes: or(*shm_bytes, SHM_BYTES_DEFAULT),
        sysctls: sysctls.clone(),
        extra_hosts: extra_hosts.clone(),
        init: *init,
    }
}

fn size(field: &str, bytes: u64, report: &mut Report) {
    if bytes != 0 && !(TMPFS_MIN..=TMPFS_MAX).contains(&bytes) {
        report.add(field, OutOfRange.because(format!("is {bytes}; {TMPFS_MIN} to {TMPFS_MAX} is allowed")));
    }
}

fn check_tmpfs(asked: &[Tmpfs], isolation: &Isolation, with_token: bool, report: &mut Report) {
    let mut seen = BTreeSet::new();
    for (index, one) in asked.iter().enumerate() {
        let field = |name: &str| format!("tmpfs[{index}].{name}");
        match mount_point(&one.path, with_token) {
            Err(why) => report.add(field("path"), why),
            Ok(()) if !seen.insert(&one.path) => {
                report.add(field("path"), Duplicate.because("is given twice"));
            }
            Ok(()) => {}
        }
        size(&field("size_bytes"), one.bytes, report);
        if one.mode > 0o7777 {
            let why = format!("is {:o}; permission bits are at most 7777", one.mode);
            report.add(field("mode"), OutOfRange.because(why));
        }
        for (name, id) in [("uid", one.uid), ("gid", one.gid)] {
            let most = match isolation.user_namespace {
                UserNamespace::Own => crate::idmap::RANGE_IDS - 1,
                UserNamespace::Host => crate::limits::ID_MAX,
            };
            if id > most {
                report.add(field(name), OutOfRange.because(format!("is {id}; at most {most} is allowed")));
            }
        }
    }
}

/// Checks that a path is absolute and in canonical form, in which paths are compared and mounted.
pub(super) fn plain_path(path: &Path) -> Result<(), FieldFault> {
    let text = path.to_str().ok_or_else(|| NotUtf8.because("is not UTF-8"))?;
    check_path(text)?;
    let normal: std::path::PathBuf = path.components().filter(|part| !matches!(part, Component::CurDir)).collect();
    if !path.is_absolute() || normal.as_os_str() != path.as_os_str() {
        let why = format!(
            "`{}` is not valid: it must be an absolute path without `.`, `//` or a `/` at its end",
            shorten(text)
        );
        return Err(InvalidFormat.because(why));
    }
    if path.parent().is_none() {
        return Err(Reserved.because("is the root directory"));
    }
    Ok(())
}

/// Checks the path of a mount in a container.
pub(super) fn mount_point(path: &Path, with_token: bool) -> Result<(), FieldFault> {
    plain_path(path)?;
    let text = path.to_str().unwrap_or_default();
    if let Some(bad) = ["/proc", "/sys", "/dev"].iter().find(|bad| path.starts_with(bad)) {
        let advice = if text == "/dev/shm" { "; set the size of /dev/shm with shm_bytes" } else { "" };
        return Err(Reserved.because(format!("`{}` is under {bad}{advice}", shorten(text))));
    }
    let runtime = Path::new(RUNTIME_DIR);
    if with_token && (runtime.starts_with(path) || path.starts_with(runtime)) {
        let why = format!("`{}` would hide {RUNTIME_DIR}, which a container with a runtime token needs", shorten(text));
        return Err(Reserved.because(why));
    }
    Ok(())
}

/// Checks that a sysctl belongs to the container's own namespaces.
fn sysctl(name: &str, value: &str, network: Network, host_ipc: bool) -> Result<(), String> {
    let plain =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if name.len() > SYSCTL_MAX || !name.split('.').all(plain) {
        return Err("is not the name of a sysctl, such as net.core.somaxconn".into());
    }
    if value.len() > SYSCTL_MAX || value.is_empty() || value.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
        return Err(format!("has a value of {} bytes; use 1 to {SYSCTL_MAX} visible characters", value.len()));
    }
    let of_network = name.starts_with("net.");
    if !of_network && !OF_IPC.contains(&name) && !name.starts_with("fs.mqueue.") {
        return Err("is not namespaced; use net.*, kernel.shm*, kernel.msg*, kernel.sem or fs.mqueue.*".into());
    }
    if of_network && !matches!(network, Network::None | Network::Cni) {
        return Err("can only be set if the container has its own network".into());
    }
    if !of_network && host_ipc {
        return Err("cannot be set with `host_ipc`, because the host's value applies".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ExtraHost;
    use crate::validate::{Draft, Policy, validate};

    fn tmpfs(path: &str) -> Tmpfs {
        Tmpfs { path: path.into(), bytes: 0, mode: 0o1777, uid: 0, gid: 0, exec: false }
    }

    fn draft(surroundings: Surroundings) -> Draft<'static> {
        Draft { id: "a", path: "/a", memory_bytes: 64 << 20, surroundings, ..Draft::default() }
    }

    fn fields(draft: &Draft<'_>) -> Vec<String> {
        let reported =
            validate(draft, &Policy { allow_host_network: true, allow_host_userns: true, ..Policy::default() });
        reported.err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn defaults_are_filled_in() {
        let sysctls = [("net.core.somaxconn", "1024"), ("kernel.shmmax", "1"), ("fs.mqueue.msg_max", "9")];
        let asked = Surroundings {
            tmpfs: vec![tmpfs("/run/lock"), Tmpfs { bytes: 4096, ..tmpfs("/run") }],
            sysctls: sysctls.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            extra_hosts: vec![ExtraHost { name: "db_1.example".into(), address: "::1".parse().unwrap() }],
            ..Surroundings::default()
        };
        let plan = validate(&draft(asked), &Policy::default()).unwrap();
        let sizes: Vec<_> = plan.surroundings.tmpfs.iter().map(|one| (one.path.to_str().unwrap(), one.bytes)).collect();
        assert_eq!(sizes, [("/run", 4096), ("/run/lock", 64 << 20)]);
        assert_eq!(plan.surroundings.shm_bytes, 64 << 20);
        crate::validate::recheck(&plan, &Policy::default()).unwrap();
    }

    #[test]
    fn invalid_surroundings_are_reported_by_field() {
        let bad = ["", "relative", "/", "/a/", "/a/../b", "/proc/x", "/dev/shm", "/sys", "/a//b", "/a/./b"];
        for path in bad {
            let asked = Surroundings { tmpfs: vec![tmpfs(path)], ..Surroundings::default() };
            assert_eq!(fields(&draft(asked)), ["tmpfs[0].path"], "{path}");
        }
        let asked = Surroundings {
            tmpfs: vec![
                tmpfs("/a"),
                tmpfs("/a"),
                Tmpfs { bytes: 1, mode: 0o10000, uid: 65_536, gid: 65_536, ..tmpfs("/b") },
            ],
            shm_bytes: 1,
            extra_hosts: vec![ExtraHost { name: "a b".into(), address: "::1".parse().unwrap() }],
            ..Surroundings::default()
        };
        let expected = ["tmpfs[1].path", "tmpfs[2].size_bytes", "tmpfs[2].mode", "tmpfs[2].uid", "tmpfs[2].gid"];
        assert_eq!(fields(&draft(asked)), [&expected[..], &["shm_bytes", "extra_hosts[0].name"]].concat());
        for path in ["/run", "/run/executor", "/run/executor/x"] {
            let asked = Surroundings { tmpfs: vec![tmpfs(path)], ..Surroundings::default() };
            assert_eq!(fields(&Draft { token_path: "/t", ..draft(asked) }), ["tmpfs[0].path"], "{path}");
        }
    }

    #[test]
    fn only_settings_of_its_own_namespaces() {
        let of = |name: &str, value: &str| Surroundings {
            sysctls: [(name.to_owned(), value.to_owned())].into(),
            ..Surroundings::default()
        };
        let bad = [
            ("kernel.hostname", "x"),
            ("kernel.shm_next_id", "1"),
            ("kernel.core_pattern", "|x"),
            ("vm.overcommit_memory", "1"),
            ("fs.file-max", "1"),
            ("net", "1"),
            ("net..x", "1"),
            ("net./etc", "1"),
            ("net.x/../../y", "1"),
            ("", "1"),
            ("net.a", ""),
            ("net.a", "1\n2"),
        ];
        for (name, value) in bad {
            assert_eq!(fields(&draft(of(name, value))), [format!("sysctls[{name}]")], "{name}={value}");
        }
        let host = Draft { network: Some(Network::Host), ..draft(of("net.a", "1")) };
        assert_eq!(fields(&host), ["sysctls[net.a]"]);
        let mut shared = draft(of("net.a", "1"));
        shared.isolation.user_namespace = UserNamespace::Host;
        assert_eq!(fields(&shared), ["sysctls[net.a]"]);
        let mut policy = Policy { allow_host_userns: true, allow_host_ipc: true, ..Policy::default() };
        policy.host_ids_sysctls = true;
        shared.surroundings = of("kernel.sem", "1");
        let plan = validate(&shared, &policy).unwrap();
        let closed = Policy { host_ids_sysctls: false, ..policy.clone() };
        assert_eq!(crate::validate::recheck(&plan, &closed).unwrap_err()[0].field, "sysctls[kernel.sem]");
        shared.isolation.host_ipc = true;
        assert_eq!(validate(&shared, &policy).unwrap_err()[0].field, "sysctls[kernel.sem]");
        (shared.isolation.host_ipc, shared.surroundings) = (false, of("vm.overcommit_memory", "1"));
        assert_eq!(validate(&shared, &policy).unwrap_err()[0].field, "sysctls[vm.overcommit_memory]");
    }
}
