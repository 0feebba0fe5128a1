//! Giving up what a process may do, for good.
//!
//! For processes of one thread: capabilities belong to threads, and a thread made later has those of its maker.

use std::io;

use nix::sys::mman::{MlockAllFlags, mlockall, munlockall};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, getgroups, getresgid, getresuid, setgroups, setresgid, setresuid};

use crate::capabilities::{self, Bounding, Capability, CapsHashSet};

/// Credentials that a process has in its container.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// User, as the container numbers it.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permitted, effective and bounding capabilities.
    pub capabilities: CapsHashSet,
    /// Set where the capabilities are inheritable and ambient, too.
    pub ambient: bool,
}

/// Becomes this user with this group and no other, without any capability, and unable to get one back.
///
/// # Errors
/// The caller is not root, or something is left afterwards that should not be: then the caller must end.
pub fn drop_to(uid: u32, gid: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setgroups(&[])?;
    // Before the user changes, because it takes CAP_SETPCAP. Without that (a container's root) the set stays as
    // it is, and no_new_privs below makes it meaningless.
    let none = CapsHashSet::new();
    capabilities::limit_bounding_set(&none, Bounding::IfAllowed)?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    capabilities::retain(&none, false)?;
    nix::sys::prctl::set_no_new_privs()?;
    verify(user, group, &none)
}

/// Becomes a user with its groups, to read what it may read and nothing else: without any capability, but for root,
/// who keeps what a container's root has too, that the permission bits of a file do not stop it from reading. For good,
/// and no other process of that user may look into this one.
///
/// # Errors
/// As [`drop_to`].
pub fn read_as(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setgroups(&groups.iter().copied().map(Gid::from_raw).collect::<Vec<_>>())?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    let kept: CapsHashSet = user.is_root().then_some(Capability::CAP_DAC_READ_SEARCH).into_iter().collect();
    capabilities::retain(&kept, false)?;
    nix::sys::prctl::set_no_new_privs()?;
    crate::process::forbid_dumps()?;
    verify(user, group, &kept)
}

/// Becomes what a process of a container is, from all the privilege that there is over it: user and groups, these
/// capabilities and no others in any set, none to be had back, and no process of that user may look into this one.
///
/// # Errors
/// As [`drop_to`].
pub fn become_within(credentials: &Credentials) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(credentials.uid), Gid::from_raw(credentials.gid));
    let held = &credentials.capabilities;
    // Before the user changes, because it takes CAP_SETPCAP.
    capabilities::limit_bounding_set(held, Bounding::Required)?;
    setgroups(&credentials.groups.iter().copied().map(Gid::from_raw).collect::<Vec<_>>())?;
    capabilities::keep_over_change_of_user(true)?; // what is held stays when the user changes; what is not goes below
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    capabilities::keep_over_change_of_user(false)?;
    capabilities::retain(held, credentials.ambient)?;
    nix::sys::prctl::set_no_new_privs()?;
    crate::process::forbid_dumps()?; // the kernel may have allowed them again when the user changed
    let (uids, gids) = (getresuid()?, getresgid()?);
    let user = [uids.real, uids.effective, uids.saved].iter().all(|uid| *uid == user);
    let group = [gids.real, gids.effective, gids.saved].iter().all(|gid| *gid == group);
    if user && group && capabilities::is_limited_to(held)? && capabilities::effective()? == *held {
        return Ok(());
    }
    Err(io::Error::other("privileges are left that the container does not have"))
}

/// Does something with this effective user and group, and with the capabilities that the caller has; then the caller is who
/// it was. What the kernel makes meanwhile belongs to that user. The caller looks into no file of others meanwhile.
///
/// # Errors
/// The error of what was done; no privilege to become the user, or to come back: then the caller must end.
pub(crate) fn acting_as<T>(id: u32, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let (users, groups, held) = (getresuid()?, getresgid()?, capabilities::effective()?);
    let become_effective = |user: Uid, group: Gid| -> io::Result<()> {
        // The group while the capability to change it is in effect: leaving user 0 takes the effective ones away.
        setresgid(groups.real, group, groups.saved)?;
        setresuid(users.real, user, users.saved)?;
        capabilities::set_effective(&held)
    };
    let acted = become_effective(Uid::from_raw(id), Gid::from_raw(id)).and_then(|()| act());
    become_effective(users.effective, groups.effective)?;
    crate::process::forbid_dumps()?; // a change of the user is one that others of that user may look into
    acted
}

/// Does something as a user with its group and no other, and without any capability in effect; then the caller is root
/// again. For what root has to do in a directory that this user can write to: no link there leads further than the user
/// itself can go, and what is made belongs to it.
///
/// # Errors
/// The error of what was done; the caller is not root, or cannot be again: then the caller must end.
pub fn as_user<T>(uid: u32, gid: u32, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let (users, groups, others) = (getresuid()?, getresgid()?, getgroups()?);
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setgroups(&[])?;
    // Leaving user 0 takes the effective capabilities away, and the way back brings them again.
    let begun = setresgid(groups.real, group, groups.saved).and_then(|()| setresuid(users.real, user, users.saved));
    let acted = begun.map_err(io::Error::from).and_then(|()| act());
    setresuid(users.real, users.effective, users.saved)?;
    setresgid(groups.real, groups.effective, groups.saved)?;
    setgroups(&others)?;
    crate::process::forbid_dumps()?; // a change of the user is one that others of that user may look into
    acted
}

/// Stays root with these capabilities alone, for good: to do one thing with what root owns.
///
/// # Errors
/// As [`drop_to`].
pub fn keep_root_with(kept: &CapsHashSet) -> io::Result<()> {
    capabilities::limit_bounding_set(&CapsHashSet::new(), Bounding::IfAllowed)?; // as in `drop_to`
    capabilities::retain(kept, false)?;
    nix::sys::prctl::set_no_new_privs()?;
    if capabilities::is_limited_to(kept)? {
        return Ok(());
    }
    Err(io::Error::other("privileges are left after they were dropped"))
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
    Err(io::Error::other(format!("privileges are left after they were dropped to user {user}, group {group}")))
}

/// Leaves no copy of this process' memory behind: no core file, no ptrace by others.
///
/// # Errors
/// None in practice.
pub fn forbid_core_files() -> io::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    crate::process::forbid_dumps()
}

/// Keeps this process's memory out of swap, now and in future, page by page as it is touched. Gives whether it is:
/// a process that will not keep CAP_IPC_LOCK needs an infinite limit on locked memory, because what counts there is
/// address space, and a later allocation beyond the limit would fail. To be asked for before privileges are dropped:
/// they may lift the limit.
///
/// # Errors
/// The kernel refused.
pub fn keep_out_of_swap(stays_privileged: bool) -> io::Result<bool> {
    if !(stays_privileged && capabilities::is_effective(Capability::CAP_IPC_LOCK)?) {
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY); // the limit tells
        if getrlimit(Resource::RLIMIT_MEMLOCK)?.0 != RLIM_INFINITY {
            return Ok(false);
        }
    }
    mlockall(
        MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE | MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT),
    )?;
    Ok(true)
}

/// Lets this process's memory be swapped again: pages that are locked cannot be given back.
///
/// # Errors
/// None in practice.
pub fn allow_swap() -> io::Result<()> {
    Ok(munlockall()?)
}

/// Has this process get SIGTERM when the thread that made it ends; at once, where that has ended already. To be
/// asked for after the user was changed, because the kernel forgets it then. `parent` is the parent at the start.
///
/// # Errors
/// None in practice.
pub fn end_with_parent(parent: i32) -> io::Result<()> {
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

    /// Where it is allowed, every page that is touched from then on is locked; where not, nothing changes. The
    /// test program runs itself again, because it concerns the whole process.
    #[test]
    fn memory_is_locked_as_it_is_touched_where_that_is_allowed() {
        const ALONE: &str = "EXECUTOR_SYS_TEST_LOCKED";
        let Some(privileged) = std::env::var_os(ALONE) else {
            for privileged in ["privileged", "unprivileged"] {
                let mut again = std::process::Command::new("/proc/self/exe");
                again.args([
                    "--include-ignored",
                    "--exact",
                    "privileges::tests::memory_is_locked_as_it_is_touched_where_that_is_allowed",
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

    /// What is done as a user is done with what that user may, whatever else the process is; afterwards it is root again.
    #[test]
    #[ignore = "needs root"]
    fn what_is_done_as_a_user_is_done_by_that_user() {
        const ALONE: &str = "EXECUTOR_SYS_TEST_AS_USER";
        if std::env::var_os(ALONE).is_none() {
            let mut again = std::process::Command::new("/proc/self/exe");
            again
                .args([
                    "--include-ignored",
                    "--exact",
                    "privileges::tests::what_is_done_as_a_user_is_done_by_that_user",
                ])
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
        let read = as_user(12_345, 54_321, || {
            assert!(capabilities::effective()?.is_empty() && getgroups()?.is_empty());
            std::fs::write(&made, "x")?;
            Ok(std::fs::read(&secret).map_err(|error| error.kind()))
        });
        assert_eq!(read.unwrap(), Err(io::ErrorKind::PermissionDenied));
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&made).unwrap());
        assert_eq!((owner, nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()), (12_345, 0, 0));
        assert_eq!(held(), before);
        assert!(std::fs::read(&secret).is_ok());
        assert!(as_user(12_345, 54_321, || Err::<(), _>(io::ErrorKind::Other.into())).is_err());
        assert!(nix::unistd::geteuid().is_root());
    }

    /// A process that dropped its privileges has none to run other tests with: the test program runs itself
    /// again, with this one alone.
    #[test]
    #[ignore = "needs root"]
    fn nothing_is_left_of_root() {
        const ALONE: &str = "EXECUTOR_SYS_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let mut again = std::process::Command::new("/proc/self/exe");
            again.args(["--include-ignored", "--exact", "privileges::tests::nothing_is_left_of_root"]).env(ALONE, "1");
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

    /// What reads for a user reads what that user may, and root of a container what permission bits keep from others.
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
        read_as(uid.parse().unwrap(), gid.parse().unwrap(), &groups).unwrap();
        assert_eq!(std::fs::File::open(path).is_ok(), reads == "true");
        assert!(std::fs::File::options().write(true).open(path).is_err() || uid == "77", "it only reads");
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
    }
}
