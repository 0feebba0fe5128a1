//! The daemon's directories, and the lock that excludes a second daemon.
//!
//! This code runs as root in directories that the daemon's user can write to. An attacker with that user's rights may
//! have planted symlinks, hard links or pipes there. Therefore each directory is opened once, beneath a directory that
//! only root can write to and without following links; owners are changed through descriptors; and the lock is taken
//! with the user's rights.

use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use executor_core::shortage::{self, Shortage};
use executor_core::token::RUNTIME_HOST_DIR;
use executor_sys::mount::open_dir;
use executor_sys::privileges::with_user;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, RawMode, Uid, chownat, fchmod, fchown, flock, fstat,
    mkdirat, openat,
};
use rustix::io::Errno;

use super::{Account, BootError};
use crate::paths::{IMAGES, LEDGER, Paths, TRANSFERS};

const LOCK: &str = "lock";
/// Time limit for the lock. The kernel needs a moment to tear down a killed daemon with many connections.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two attempts to lock.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Creates missing directories. Existing directories keep their owners and modes, except that root makes the account
/// the owner of the directories of the ledger, the images, the downloads and the runtime socket. Returns the ledger's
/// directory.
///
/// # Errors
/// Returns an error if a directory cannot be created, or if the account cannot reach it.
pub(super) fn prepare(paths: &Paths, account: &Account, root: bool) -> Result<OwnedFd, BootError> {
    for dir in [&paths.run_dir, &paths.state_dir] {
        make(dir, 0o755)?;
        if root {
            check_reachable(dir, account)?;
        }
    }
    let (run, state) = (open(&paths.run_dir)?, open(&paths.state_dir)?);
    let failed = |what, path: std::path::PathBuf| move |source| BootError::Path { what, path: path.clone(), source };
    let ledger = make_below(&state, LEDGER, 0o700).map_err(failed("make directory", paths.ledger()))?;
    // If the disk is full, skip these directories, which a state directory of an older version may lack. The next start
    // creates them.
    let others = |name: &str, path: std::path::PathBuf| match make_below(&state, name, 0o700) {
        Err(error) if is_disk_full(&error) => Ok(None),
        made => made.map(Some).map_err(failed("make directory", path)),
    };
    let images = others(IMAGES, paths.images())?;
    let transfers = others(TRANSFERS, paths.transfers())?;
    if root {
        // Without root the launcher or systemd creates this directory.
        let runtime =
            make_below(&run, RUNTIME_HOST_DIR, 0o755).map_err(failed("make directory", paths.runtime_dir()))?;
        let handed = |dir: &OwnedFd, levels, path| {
            change_owners(dir, levels, account).map_err(failed("change the owners of the files in", path))
        };
        handed(&runtime, None, paths.runtime_dir())?;
        handed(&ledger, Some(0), paths.ledger())?;
        images.map_or(Ok(()), |images| handed(&images, Some(1), paths.images()))?;
        transfers.map_or(Ok(()), |transfers| handed(&transfers, Some(0), paths.transfers()))?;
        fchmod(&ledger, Mode::RWXU).map_err(|error| failed("set the mode of", paths.ledger())(error.into()))?;
    }
    Ok(ledger)
}

/// Returns true if the disk has no free block or no free inode.
fn is_disk_full(error: &io::Error) -> bool {
    shortage::find(error) == Some(Shortage::Disk)
}

fn open(path: &Path) -> Result<OwnedFd, BootError> {
    open_dir(path).map_err(|source| BootError::Path { what: "open directory", path: path.to_owned(), source })
}

/// Opens a subdirectory of a directory that only root can write to. Creates the subdirectory if it is missing.
fn make_below(dir: &OwnedFd, name: &str, mode: RawMode) -> io::Result<OwnedFd> {
    let made = match mkdirat(dir, name, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) => false,
        result => result.map(|()| true)?,
    };
    let opened = open_one(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    if made {
        fchmod(&opened, Mode::from_raw_mode(mode))?; // the caller's umask may have cleared bits of the mode
    }
    Ok(opened)
}

/// Opens a directory entry that is not a symbolic link. The sandbox of the daemon's unit denies openat2 (ENOSYS),
/// because seccomp filters cannot inspect the arguments of openat2 (systemd's RestrictSUIDSGID).
fn open_one(dir: &OwnedFd, name: impl rustix::path::Arg, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    Ok(openat(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)?)
}

/// Makes the account the owner of a directory and of its files, down to `levels` directory levels; `None` changes only
/// the directory. An earlier daemon may have created the files as another user. Entries whose owner differs from the
/// directory's, and files with several hard links, were not created by a daemon and stay unchanged.
fn change_owners(dir: &OwnedFd, levels: Option<usize>, account: &Account) -> io::Result<()> {
    let before = fstat(dir)?;
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    if before.st_uid != account.uid
        && let Some(levels) = levels
    {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let open = |flags| open_one(dir, name, flags, Mode::empty());
            let Ok(seen) = open(OFlags::PATH) else { continue };
            let found = fstat(&seen)?;
            match FileType::from_raw_mode(found.st_mode) {
                _ if found.st_uid != before.st_uid || found.st_dev != before.st_dev => {}
                FileType::Directory if levels > 0 => {
                    change_owners(&open(OFlags::RDONLY | OFlags::DIRECTORY)?, Some(levels - 1), account)?;
                }
                FileType::RegularFile if found.st_nlink == 1 => {
                    chownat(&seen, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
                }
                _ => {}
            }
        }
    }
    // Change the directory last, so that the next start repeats an interrupted change.
    Ok(fchown(dir, Some(uid), Some(gid))?)
}

fn make(path: &Path, mode: u32) -> Result<(), BootError> {
    if path.is_dir() {
        return Ok(());
    }
    let failed = |source| BootError::Path { what: "make directory", path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed)?;
    // The caller's umask may have cleared bits of the mode.
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)
}

/// Checks that the account can enter all parent directories, so that a failed start reports the reason.
fn check_reachable(path: &Path, account: &Account) -> Result<(), BootError> {
    if account.uid == 0 {
        return Ok(());
    }
    for at in path.ancestors() {
        let metadata = at.metadata().map_err(|source| BootError::Path {
            what: "read the status of",
            path: at.to_owned(),
            source,
        })?;
        let shift = match () {
            () if metadata.uid() == account.uid => 6,
            () if metadata.gid() == account.gid => 3,
            () => 0,
        };
        if (metadata.mode() >> shift) & 0o1 == 0 {
            return Err(BootError::Closed {
                at: at.to_owned(),
                mode: metadata.mode() & 0o7777,
                user: account.name.clone(),
                path: path.to_owned(),
            });
        }
    }
    Ok(())
}

/// Lock that excludes a second daemon from a state directory. The kernel releases the lock on exit.
#[derive(Debug)]
pub struct Lock {
    /// The ledger's directory. Locking it needs no disk space.
    _dir: OwnedFd,
    /// File with the holder's pid; `None` if there was no disk space for it. Older daemons lock only this file.
    _file: Option<File>,
}

/// Takes the lock. Waits up to [`LOCK_TIMEOUT`] for another daemon to exit.
///
/// # Errors
/// Returns [`BootError::Locked`] if another daemon holds the lock.
pub(super) fn lock(paths: &Paths, ledger: OwnedFd, account: &Account, root: bool) -> Result<Lock, BootError> {
    let path = paths.ledger().join(LOCK);
    let failed = |source| BootError::Path { what: "lock", path: path.clone(), source };
    let take = || -> io::Result<Result<Option<File>, String>> {
        let file = match open_lock(&ledger) {
            Err(error) if is_disk_full(&error) => None,
            file => Some(file?),
        };
        let taken = match file.as_ref().map_or(Ok(()), File::try_lock) {
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => false,
            Ok(()) => match flock(&ledger, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => false,
                locked => locked.map(|()| true)?,
            },
        };
        if taken {
            file.iter().for_each(write_pid);
            return Ok(Ok(file));
        }
        let mut who = String::new();
        let _ = file.map(|file| file.take(32).read_to_string(&mut who));
        let who = who.trim_end();
        Ok(Err(if who.is_empty() { "pid unknown".to_owned() } else { format!("pid {who}") }))
    };
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let mut logged = false;
    loop {
        let taken = if root && account.uid != 0 { with_user(account.uid, account.gid, take) } else { take() };
        match taken.map_err(failed)? {
            Ok(file) => return Ok(Lock { _dir: ledger, _file: file }),
            Err(who) if Instant::now() >= deadline => {
                return Err(BootError::Locked { who, dir: paths.state_dir.clone() });
            }
            Err(who) if !std::mem::replace(&mut logged, true) => {
                let (dir, seconds) = (paths.state_dir.display(), LOCK_TIMEOUT.as_secs());
                tracing::warn!("another executord ({who}) has locked {dir}; waiting up to {seconds} s for it to exit");
            }
            Err(_) => std::thread::sleep(LOCK_RETRY_DELAY), // flock has no timeout
        }
    }
}

fn open_lock(ledger: &OwnedFd) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open_one(ledger, LOCK, flags, Mode::RUSR | Mode::WUSR)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok(file)
}

/// Overwrites the file with the holder's pid. If the write fails because the disk is full, the file is left empty.
fn write_pid(file: &File) {
    let who = format!("{}\n", std::process::id());
    let written = file.write_all_at(who.as_bytes(), 0).map_or(0, |()| who.len() as u64);
    if let Err(error) = file.set_len(written) {
        tracing::warn!(%error, "cannot write this process's pid into the lock file");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Account {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Account { name: "me".into(), uid, gid }
    }

    fn paths(dir: &Path) -> Paths {
        Paths { run_dir: dir.join("run"), state_dir: dir.join("state") }
    }

    #[test]
    fn second_daemon_error_names_first_pid() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        let take = || lock(&paths, prepare(&paths, &here(), false).unwrap(), &here(), false);
        let held = take().unwrap();
        assert_eq!(paths.ledger().metadata().unwrap().mode() & 0o777, 0o700);
        let reported = take().unwrap_err().to_string();
        assert!(reported.contains(&format!("pid {}", std::process::id())), "{reported}");
        drop(held);
        let held = take().unwrap();
        // The lock also holds if the pid file is removed.
        std::fs::remove_file(paths.ledger().join(LOCK)).unwrap();
        assert!(take().unwrap_err().to_string().contains("pid unknown"));
        drop(held);
    }

    #[test]
    fn inaccessible_directory_is_reported_with_mode() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        let other = Account { name: "other".into(), uid: 4242, gid: 4242 };
        let reported = check_reachable(dir.path(), &other).unwrap_err().to_string();
        assert!(reported.contains("user other cannot reach") && reported.contains("700"), "{reported}");
        check_reachable(Path::new("/usr"), &other).unwrap();
    }

    /// The daemon's user has planted symlinks, hard links and pipes in directories that an earlier daemon's user owned.
    /// Files outside these directories stay unchanged, and the earlier daemon's files get the new owner. The test
    /// program re-executes itself, because changing the user affects the whole process.
    #[test]
    #[ignore = "needs root, to act as another user"]
    fn planted_files_are_not_modified() {
        const ALONE: &str = "EXECUTORD_TEST_PLANTED";
        if std::env::var_os(ALONE).is_none() {
            let mut again = std::process::Command::new("/proc/self/exe");
            let name = "boot::dirs::tests::planted_files_are_not_modified";
            again.args(["--include-ignored", "--exact", name]).env(ALONE, "1");
            assert!(again.status().unwrap().success());
            return;
        }
        use std::os::unix::fs::{chown, lchown, symlink};
        let user = Account { name: "user".into(), uid: 4242, gid: 4242 };
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let paths = paths(dir.path());
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
        drop(prepare(&paths, &user, true).unwrap());
        let (ledger, records) = (paths.ledger(), paths.images().join("records"));
        std::fs::create_dir(&records).unwrap();
        std::fs::write(ledger.join("executord.redb"), "").unwrap();
        std::fs::write(records.join("one"), "").unwrap();
        for place in [&ledger, &records] {
            symlink(&victim, place.join("link")).unwrap();
            std::fs::hard_link(&victim, place.join("hard")).unwrap();
        }
        symlink(dir.path(), paths.images().join("outside")).unwrap();
        symlink(&victim, ledger.join(LOCK)).unwrap();
        // Files of an earlier daemon that ran as another user.
        let of_the_other = [ledger.join("executord.redb"), records.join("one"), records.clone(), ledger.clone()];
        for path in of_the_other.iter().chain([&paths.images(), &ledger.join("link"), &records.join("link")]) {
            lchown(path, Some(4243), Some(4243)).unwrap();
        }
        let unchanged = |what: &str| {
            let meta = victim.metadata().unwrap();
            assert_eq!((meta.uid(), meta.mode() & 0o777), (0, 0o600), "{what}");
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious", "{what}");
            assert_eq!(dir.path().metadata().unwrap().uid(), 0, "{what}");
        };
        let opened = prepare(&paths, &user, true).unwrap();
        unchanged("prepare");
        for path in of_the_other {
            assert_eq!(path.metadata().unwrap().uid(), 4242, "{}", path.display());
        }
        lock(&paths, opened, &user, true).unwrap_err();
        unchanged("a link in the lock's place");
        let again = || lock(&paths, prepare(&paths, &user, true).unwrap(), &user, true);
        std::fs::remove_file(ledger.join(LOCK)).unwrap();
        std::fs::hard_link(&victim, ledger.join(LOCK)).unwrap();
        again().unwrap_err();
        unchanged("a hard link in the lock's place");
        std::fs::remove_file(ledger.join(LOCK)).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, ledger.join(LOCK), Mode::RUSR | Mode::WUSR).unwrap();
        chown(ledger.join(LOCK), Some(4242), Some(4242)).unwrap();
        assert!(executor_core::errors::chain(&again().unwrap_err()).contains("not a regular file"));
        std::fs::remove_file(ledger.join(LOCK)).unwrap();
        drop(again().unwrap());
        assert_eq!(ledger.join(LOCK).metadata().unwrap().uid(), 4242);
        // Only root can rename the directories themselves.
        std::fs::rename(&ledger, dir.path().join("away")).unwrap();
        symlink(dir.path().join("away"), &ledger).unwrap();
        prepare(&paths, &user, true).unwrap_err();
        unchanged("a link in the ledger's place");
    }
}
