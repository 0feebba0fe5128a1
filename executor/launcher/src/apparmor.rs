//! Checks and sets AppArmor profiles of container processes.
//!
//! Each process sets its profile shortly before execve, for the program that it executes. libcontainer would set the
//! profile only for the first process and its children, not for processes that are executed later. The profile is
//! written to a file in the container's /proc, which is opened without crossing a mount point: a mount over that file
//! would discard the profile, and the program would run without it (CVE-2019-16884, CVE-2025-52881).

use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use executor_core::validate::FieldFault;
use executor_core::validate::ViolationReason::{NotFound, Unsupported};
use executor_sys::mount::open_dir;
use executor_sys::open::open_resolved;
use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs};

/// File that contains `Y` if AppArmor is in force.
const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
/// File that lists the loaded profiles, one `NAME (MODE)` per line.
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
/// File below /proc for the profile of the program that the process executes next.
const ON_EXEC: &str = "self/attr/apparmor/exec";

/// Checks that AppArmor is enabled on this host and that the profile is loaded. `unconfined` requires only that
/// AppArmor is enabled.
pub(crate) fn check(profile: &str) -> Result<(), FieldFault> {
    let enabled = std::fs::read_to_string(ENABLED).unwrap_or_default();
    // If securityfs is not mounted, only `set_on_exec` detects a missing profile.
    evaluate(profile, &enabled, std::fs::read_to_string(PROFILES).ok().as_deref())
}

fn evaluate(profile: &str, enabled: &str, loaded: Option<&str>) -> Result<(), FieldFault> {
    if enabled.trim() != "Y" {
        return Err(Unsupported.because(format!("{profile:?} cannot be set: AppArmor is not enabled on this host")));
    }
    let name = |line: &str| line.rsplit_once(" (").map(|(name, _)| name.to_owned());
    let is_loaded = |loaded: &str| loaded.lines().filter_map(name).any(|name| name == profile);
    if profile == "unconfined" || loaded.is_none_or(is_loaded) {
        return Ok(());
    }
    Err(NotFound.because(format!("the profile {profile:?} is not loaded on this host (see apparmor_parser(8))")))
}

/// Sets the profile of the program that the calling process executes next.
///
/// # Errors
/// Returns an error if the kernel has no such profile or /proc is not a proc file system.
pub(crate) fn set_on_exec(profile: &str) -> io::Result<()> {
    let proc = open_dir(Path::new("/proc"))?;
    if fstatfs(&proc)?.f_type != PROC_SUPER_MAGIC {
        return Err(io::Error::other("/proc is not a proc file system"));
    }
    write(proc.as_fd(), profile)
}

fn write(proc: BorrowedFd<'_>, profile: &str) -> io::Result<()> {
    // `self` is a link within this file system.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let file = open_resolved(proc, ON_EXEC, OFlags::WRONLY, Mode::empty(), resolve)?;
    std::fs::File::from(file).write_all(format!("exec {profile}").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_profile_must_be_loaded() {
        let loaded = "executor-default (enforce)\n/usr/bin/man (complain)\na b (c) (enforce)\n";
        let evaluate =
            |profile: &str, enabled: &str| evaluate(profile, enabled, Some(loaded)).map_err(|fault| fault.reason);
        for profile in ["executor-default", "/usr/bin/man", "a b (c)", "unconfined"] {
            assert_eq!(evaluate(profile, "Y\n"), Ok(()), "{profile}");
            assert_eq!(evaluate(profile, "N\n"), Err(Unsupported), "{profile}");
            assert_eq!(evaluate(profile, ""), Err(Unsupported), "{profile}");
        }
        assert_eq!(evaluate("executor", "Y"), Err(NotFound));
        assert_eq!(super::evaluate("executor", "Y", None), Ok(()), "the list cannot be read");
    }

    #[test]
    fn apparmor_profile_is_written_in_kernel_format() {
        let dir = tempfile::tempdir().unwrap();
        let attributes = dir.path().join("17/attr/apparmor");
        fs::create_dir_all(&attributes).unwrap();
        fs::write(attributes.join("exec"), "").unwrap();
        symlink("17", dir.path().join("self")).unwrap();
        let root = open_dir(dir.path()).unwrap();
        write(root.as_fd(), "executor-default").unwrap();
        assert_eq!(fs::read_to_string(attributes.join("exec")).unwrap(), "exec executor-default");
        // Control: a link that escapes the directory is not followed.
        let elsewhere = tempfile::tempdir().unwrap();
        fs::create_dir_all(elsewhere.path().join("attr/apparmor")).unwrap();
        fs::write(elsewhere.path().join("attr/apparmor/exec"), "").unwrap();
        fs::remove_file(dir.path().join("self")).unwrap();
        symlink(elsewhere.path(), dir.path().join("self")).unwrap();
        assert!(write(root.as_fd(), "executor-default").is_err());
    }
}
