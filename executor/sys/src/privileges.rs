//! Drops privileges permanently.
//!
//! The functions are for single-threaded processes: capabilities are per thread, and a new thread inherits the
//! capabilities of its creator.

use std::io;

use nix::sys::mman::{MlockAllFlags, mlockall, munlockall};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, getgroups, getresgid, getresuid, setgroups, setresgid, setresuid};

use crate::capabilities::{self, Bounding, Capability, CapsHashSet};
use crate::process::require_restored;

/// Credentials of a process in its container.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// User id in the container's user namespace.
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Permitted and effective capabilities.
    pub capabilities: CapsHashSet,
    pub bounding: CapsHashSet,
    /// Inheritable and ambient capabilities.
    pub ambient: CapsHashSet,
    /// True if the process may gain privileges, so that no_new_privs is not set.
    pub new_privileges: bool,
}

/// Permanently switches to this user and group, without supplementary groups and capabilities, and prevents regaining
/// privileges.
///
/// # Errors
/// Returns an error if the caller is not root, or if the process keeps a privilege that it must not keep. The caller
/// must then exit.
pub fn drop_to(uid: u32, gid: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setgroups(&[])?;
    // The bounding set is limited before the change of user, because limiting the set requires CAP_SETPCAP. Without
    // that capability (a container's root) the set stays unchanged, and no_new_privs below makes it irrelevant.
    let none = CapsHashSet::new();
    capabilities::limit_bounding_set(&none, Bounding::IfAllowed)?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    capabilities::retain(&none, &none)?;
    nix::sys::prctl::set_no_new_privs()?;
    verify(user, group, &none)
}

/// Permanently switches to a user and its groups, to read only files that the user may read. Drops all capabilities,
/// except that root keeps CAP_DAC_READ_SEARCH: a container's root may also read files regardless of their permission
/// bits. Other processes of that user cannot inspect this process.
///
/// # Errors
/// Returns the same errors as [`drop_to`].
pub fn drop_to_reader(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setgroups(&groups.iter().copied().map(Gid::from_raw).collect::<Vec<_>>())?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    let kept: CapsHashSet = user.is_root().then_some(Capability::CAP_DAC_READ_SEARCH).into_iter().collect();
    capabilities::retain(&kept, &CapsHashSet::new())?;
    nix::sys::prctl::set_no_new_privs()?;
    crate::process::forbid_dumps()?;
    verify(user, group, &kept)
}

/// Permanently reduces the privileges of this process from full privilege over a container to the credentials of a
/// container process: user, groups, and exactly these capabilities. Other processes of that user cannot inspect this
/// process.
///
/// # Errors
/// Returns the same errors as [`drop_to`].
pub fn drop_to_credentials(credentials: &Credentials) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(credentials.uid), Gid::from_raw(credentials.gid));
    let held = &credentials.capabilities;
    // The bounding set is limited before the change of user, because limiting the set requires CAP_SETPCAP.
    capabilities::limit_bounding_set(&credentials.bounding, Bounding::Required)?;
    setgroups(&credentials.groups.iter().copied().map(Gid::from_raw).collect::<Vec<_>>())?;
    // Keep the permitted set across setresuid; `retain` then drops all other capabilities.
    capabilities::keep_over_change_of_user(true)?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    capabilities::keep_over_change_of_user(false)?;
    capabilities::retain(held, &credentials.ambient)?;
    if !credentials.new_privileges {
        nix::sys::prctl::set_no_new_privs()?;
    }
    crate::process::forbid_dumps()?; // the kernel may have allowed dumps again when the user changed
    let (uids, gids) = (getresuid()?, getresgid()?);
    let user = [uids.real, uids.effective, uids.saved].iter().all(|uid| *uid == user);
    let group = [gids.real, gids.effective, gids.saved].iter().all(|gid| *gid == group);
    if user && group && capabilities::is_limited_to(held)? && capabilities::effective()? == *held {
        return Ok(());
    }
    Err(io::Error::other("the process does not have exactly the requested user, group and capabilities"))
}

/// Permanently reduces the permitted and effective capabilities of this process to `held`, and its ambient
/// capabilities to `ambient`.
///
/// # Errors
/// Returns an error if a seccomp filter denies the calls, or if a capability remains. The caller must then exit.
pub fn keep_capabilities(held: &CapsHashSet, ambient: &CapsHashSet) -> io::Result<()> {
    capabilities::retain(held, ambient)?;
    if capabilities::is_limited_to(held)? {
        return Ok(());
    }
    Err(io::Error::other("the process still has capabilities that the container does not have"))
}

/// Runs `act` with this effective user and group and the caller's capabilities, then restores the caller's ids. Objects
/// that the kernel creates during `act` belong to that user. `act` must not open files of other users. A process that
/// cannot restore its ids exits with status 1.
///
/// # Errors
/// Returns the error of `act`, or an error if the caller cannot become the user.
pub(crate) fn with_effective_ids<T>(id: u32, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let (users, groups, held) = (getresuid()?, getresgid()?, capabilities::effective()?);
    let become_effective = |user: Uid, group: Gid| -> io::Result<()> {
        // The group is changed first, because leaving user 0 drops the effective capability to change it.
        setresgid(groups.real, group, groups.saved)?;
        setresuid(users.real, user, users.saved)?;
        capabilities::set_effective(&held)
    };
    let acted = become_effective(Uid::from_raw(id), Gid::from_raw(id)).and_then(|()| act());
    // The kernel makes the process dumpable again when its ids change.
    let restored = become_effective(users.effective, groups.effective).and_then(|()| crate::process::forbid_dumps());
    require_restored("user and group", restored);
    acted
}

/// Runs `act` as a user with only its primary group and no effective capability, then becomes root again. Root uses
/// this to work in a directory that the user can write to: links in the directory lead only to files that the user can
/// access, and new files belong to the user. A process that cannot become root again exits with status 1.
///
/// # Errors
/// Returns the error of `act`, or an error if the caller is not root.
pub fn with_user<T>(uid: u32, gid: u32, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let (users, groups, others) = (getresuid()?, getresgid()?, getgroups()?);
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setgroups(&[])?;
    // Leaving user 0 drops the effective capabilities; returning to it restores them.
    let begun = setresgid(groups.real, group, groups.saved).and_then(|()| setresuid(users.real, user, users.saved));
    let acted = begun.map_err(io::Error::from).and_then(|()| act());
    let restore = || -> io::Result<()> {
        setresuid(users.real, users.effective, users.saved)?;
        setresgid(groups.real, groups.effective, groups.saved)?;
        setgroups(&others)?;
        crate::process::forbid_dumps() // the kernel makes the process dumpable again when its ids change
    };
    require_restored("user and group", restore());
    acted
}

/// Permanently reduces this process to root with only these capabilities, for one task on files owned by root.
///
/// # Errors
/// Returns the same errors as [`drop_to`].
pub fn keep_root_with(kept: &CapsHashSet) -> io::Result<()> {
    capabilities::limit_bounding_set(&CapsHashSet::new(), Bounding::IfAllowed)?; // as in `drop_to`
    capabilities::retain(kept, &CapsHashSet::new())?;
    nix::sys::prctl::set_no_new_privs()?;
    if capabilities::is_limited_to(kept)? {
        return Ok(());
    }
    Err(io::Error::other("privileges remain after they were dropped"))
}

fn verify(user: Uid, group: Gid, kept: &CapsHashSet) -> io::Result<()> {
    let (uids, gids) = (getresuid()?, getresgid()?);
    let users = [uids.real, uids.effective, uids.saved].iter().all(|uid| *uid == user);
    let groups = [gids.real, gids.effective, gids.saved].iter().all(|gid| *gid == group);
    let bare = capabilities::is_limited_to(kept)?;
    let for_good = user.is_root() || setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_err();
    if users && groups && bare && for_good {
        return Ok(());
    }
    Err(io::Error::other(format!("privileges remain after they were dropped to user {user}, group {group}")))
}

/// Prevents copies of this process's memory: disables core files, and ptrace by other processes.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn forbid_core_files() -> io::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    crate::process::forbid_dumps()
}

/// Keeps this process's present and future memory out of swap; each page is locked when it is first touched. Returns
/// true if locking is in effect. Without CAP_IPC_LOCK a process needs an infinite limit on locked memory: address space
/// counts against the limit, and a later allocation beyond the limit would fail. `stays_privileged` is true if the
/// process keeps its present capabilities. Call this before dropping the privileges that may be needed to raise the
/// limit.
///
/// # Errors
/// Returns the kernel's error if a system call fails.
pub fn keep_out_of_swap(stays_privileged: bool) -> io::Result<bool> {
    if !(stays_privileged && capabilities::is_effective(Capability::CAP_IPC_LOCK)?) {
        // Ignore the error: the limit is read back below.
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
        if getrlimit(Resource::RLIMIT_MEMLOCK)?.0 != RLIM_INFINITY {
            return Ok(false);
        }
    }
    mlockall(
        MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE | MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT),
    )?;
    Ok(true)
}

/// Allows swapping this process's memory again. (Memory that is locked cannot be returned to the kernel.)
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn allow_swap() -> io::Result<()> {
    Ok(munlockall()?)
}

/// Requests SIGTERM for this process when the thread that created it exits. If that thread has already exited, the
/// signal is sent immediately. Call this after a change of user, because the change clears the setting. `parent` is the
/// parent's pid at the start.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn set_parent_death_signal(parent: i32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
    if nix::unistd::getppid().as_raw() != parent {
        nix::sys::signal::raise(Signal::SIGTERM)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use caps::CapSet;

    use super::*;

    /// If locking is permitted, every page that is touched later is locked; otherwise nothing changes. The test runs in
    /// a new process of the test program, because the setting is per process.
    #[test]
    fn memory_is_locked_on_fault_if_permitted() {
        const ALONE: &str = "EXECUTOR_SYS_TEST_LOCKED";
        let Some(privileged) = std::env::var_os(ALONE) else {
            for privileged in ["privileged", "unprivileged"] {
                let mut again = std::process::Command::new("/proc/self/exe");
                again.args([
                    "--include-ignored",
                    "--exact",
                    "privileges::tests::memory_is_locked_on_fault_if_permitted",
                ]);
                assert!(again.env(ALONE, privileged).status().unwrap().success(), "{privileged}");
            }
            return;
        };
        let capable = capabilities::is_effective(Capability::CAP_IPC_LOCK).unwrap();
        let by_capability = privileged == "privileged" && capable;
        let locked = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap().to_owned();
            line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap()
        };
        assert_eq!(locked(), 0);
        let lifted = keep_out_of_swap(privileged == "privileged").unwrap();
        assert_eq!(lifted, by_capability || getrlimit(Resource::RLIMIT_MEMLOCK).unwrap().0 == RLIM_INFINITY);
        let before = locked();
        let touched = vec![1u8; 8 << 20];
        assert_eq!(std::hint::black_box(&touched).len(), 8 << 20);
        assert_eq!(locked() >= before + (8 << 10), lifted, "{before} kB before, {} kB after", locked());
    }

    /// The action has only the user's permissions, regardless of the process's privileges. Then the process is root
    /// again.
    #[test]
    #[ignore = "needs root"]
    fn action_as_user_has_user_permissions_only() {
        const ALONE: &str = "EXECUTOR_SYS_TEST_AS_USER";
        if std::env::var_os(ALONE).is_none() {
            let mut again = std::process::Command::new("/proc/self/exe");
            again
                .args(["--include-ignored", "--exact", "privileges::tests::action_as_user_has_user_permissions_only"])
                .env(ALONE, "1");
            assert!(again.status().unwrap().success());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let (secret, made) = (dir.path().join("secret"), dir.path().join("made"));
        std::fs::write(&secret, "x").unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let sets = [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable];
        let held = || sets.map(|set| caps::read(None, set).unwrap());
        let before = held();
        let read = with_user(12_345, 54_321, || {
            assert!(capabilities::effective()?.is_empty() && getgroups()?.is_empty());
            std::fs::write(&made, "x")?;
            Ok(std::fs::read(&secret).map_err(|error| error.kind()))
        });
        assert_eq!(read.unwrap(), Err(io::ErrorKind::PermissionDenied));
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&made).unwrap());
        assert_eq!((owner, nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()), (12_345, 0, 0));
        assert_eq!(held(), before);
        assert!(std::fs::read(&secret).is_ok());
        assert!(with_user(12_345, 54_321, || Err::<(), _>(io::ErrorKind::Other.into())).is_err());
        assert!(nix::unistd::geteuid().is_root());
    }

    /// A process that cannot become root again exits: it must not continue with the user's ids and root's data. As a
    /// control, a process that can become root again continues.
    #[test]
    #[ignore = "needs root"]
    fn process_that_stays_user_exits() {
        const ALONE: &str = "EXECUTOR_SYS_TEST_STAYS_USER";
        const NAME: &str = "privileges::tests::process_that_stays_user_exits";
        let Some(stays) = std::env::var_os(ALONE) else {
            let run = |stays: &str| {
                let mut again = std::process::Command::new("/proc/self/exe");
                again.args(["--include-ignored", "--exact", NAME]).env(ALONE, stays).output().unwrap()
            };
            let (control, exited) = (run("no"), run("yes"));
            assert_eq!(control.status.code(), Some(0), "control failed: {control:?}");
            assert_eq!(exited.status.code(), Some(1), "{exited:?}");
            assert!(
                String::from_utf8_lossy(&exited.stderr).contains("cannot restore the user and group"),
                "{exited:?}"
            );
            return;
        };
        with_user(12_345, 54_321, || {
            if stays == "yes" {
                let user = Uid::from_raw(12_345);
                setresuid(user, user, user)?;
            }
            Ok(())
        })
        .unwrap();
    }

    /// No root privilege remains. A process without privileges cannot run other tests, so the test program starts
    /// itself again with only this test.
    #[test]
    #[ignore = "needs root"]
    fn no_root_privilege_remains() {
        const ALONE: &str = "EXECUTOR_SYS_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let mut again = std::process::Command::new("/proc/self/exe");
            again
                .args(["--include-ignored", "--exact", "privileges::tests::no_root_privilege_remains"])
                .env(ALONE, "1");
            assert!(again.status().unwrap().success());
            return;
        }
        drop_to(12_345, 54_321).unwrap();
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let lines = [
            "CapInh:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapEff:\t0000000000000000",
            "CapAmb:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Uid:\t12345\t12345\t12345\t12345",
            "Gid:\t54321\t54321\t54321\t54321",
        ];
        for line in lines {
            assert!(status.contains(line), "{line} is not in {status}");
        }
        assert!(status.lines().any(|line| line.trim_end() == "Groups:"), "{status}");
        assert!(drop_to(0, 0).is_err());
    }

    /// A reader has the user's permissions. A reader that is a container's root also ignores permission bits.
    #[test]
    #[ignore = "needs root"]
    fn a_reader_reads_what_its_user_may() {
        const WHO: &str = "EXECUTOR_SYS_TEST_READER";
        let Ok(who) = std::env::var(WHO) else {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::os::unix::fs::chown(file.path(), Some(77), Some(80)).unwrap();
            for (who, mode, reads) in [
                ("77:77:", 0o400, true),
                ("78:78:", 0o400, false),
                ("78:78:", 0o440, false),
                ("78:78:80", 0o440, true),
                ("0:0:", 0o000, true),
            ] {
                std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
                let mut again = std::process::Command::new("/proc/self/exe");
                again.args(["--include-ignored", "--exact", "privileges::tests::a_reader_reads_what_its_user_may"]);
                again.env(WHO, format!("{who}:{reads}:{}", file.path().display()));
                assert!(again.status().unwrap().success(), "{who} {mode:o}");
            }
            return;
        };
        let [uid, gid, groups, reads, path] = who.split(':').collect::<Vec<_>>()[..] else { panic!("{who}") };
        let groups: Vec<u32> = groups.parse().into_iter().collect();
        drop_to_reader(uid.parse().unwrap(), gid.parse().unwrap(), &groups).unwrap();
        assert_eq!(std::fs::File::open(path).is_ok(), reads == "true");
        assert!(
            std::fs::File::options().write(true).open(path).is_err() || uid == "77",
            "the user can only read the file"
        );
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
    }
}
