//! The daemon's directories, and the lock that keeps a second daemon off them.

use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, lchown,
};
use std::path::Path;

use super::{Account, BootError};
use crate::paths::Paths;

/// Makes what is missing. Directories that are there keep their owners and modes, but for the ledger's and
/// the images', which are the daemon's alone.
///
/// # Errors
/// They cannot be made, or the account cannot come to them.
pub(super) fn prepare(paths: &Paths, account: &Account, root: bool) -> Result<(), BootError> {
    for dir in [&paths.run_dir, &paths.state_dir] {
        make(dir, 0o755)?;
        if root {
            reachable(dir, account)?;
        }
    }
    let (ledger, runtime, images) = (paths.ledger(), paths.runtime_dir(), paths.images());
    make(&ledger, 0o700)?;
    make(&images, 0o700)?;
    if root {
        // Without root the launcher makes it, or systemd.
        make(&runtime, 0o755)?;
        own(&runtime, account)?;
        own(&ledger, account)?;
        let failed = |what| move |source| BootError::Path { what, path: paths.ledger(), source };
        std::fs::set_permissions(&ledger, Permissions::from_mode(0o700)).map_err(failed("set the mode of"))?;
        // Files of an earlier daemon that served as another user.
        for entry in std::fs::read_dir(&ledger).map_err(failed("read"))? {
            own(&entry.map_err(failed("read"))?.path(), account)?;
        }
        own_images(&images, account)?;
    }
    Ok(())
}

/// The images' directory, its directories, and the files in them.
fn own_images(dir: &Path, account: &Account) -> Result<(), BootError> {
    let failed = |source| BootError::Path { what: "read", path: dir.to_owned(), source };
    own(dir, account)?;
    for sub in std::fs::read_dir(dir).map_err(failed)? {
        let sub = sub.map_err(failed)?;
        // What is below belongs to the same user: it was made in one go.
        if sub.metadata().map_err(failed)?.uid() == account.uid {
            continue;
        }
        own(&sub.path(), account)?;
        if sub.file_type().map_err(failed)?.is_dir() {
            for entry in std::fs::read_dir(sub.path()).map_err(failed)? {
                let path = entry.map_err(failed)?.path();
                lchown(&path, Some(account.uid), Some(account.gid)).map_err(|source| BootError::Path {
                    what: "change the owner of",
                    path,
                    source,
                })?;
            }
        }
    }
    Ok(())
}

fn make(path: &Path, mode: u32) -> Result<(), BootError> {
    if path.is_dir() {
        return Ok(());
    }
    let failed = |source| BootError::Path { what: "make directory", path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed)?;
    // The caller's umask may have taken more than it should.
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)
}

fn own(path: &Path, account: &Account) -> Result<(), BootError> {
    chown(path, Some(account.uid), Some(account.gid)).map_err(|source| BootError::Path {
        what: "change the owner of",
        path: path.to_owned(),
        source,
    })
}

/// Told at the start rather than as a puzzle later: a directory above may be closed to whom the daemon will be.
fn reachable(path: &Path, account: &Account) -> Result<(), BootError> {
    if account.uid == 0 {
        return Ok(());
    }
    for at in path.ancestors() {
        let metadata =
            at.metadata().map_err(|source| BootError::Path { what: "look at", path: at.to_owned(), source })?;
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

/// Takes the lock. It goes with the process, however that ends.
///
/// # Errors
/// Another daemon has it.
pub(super) fn lock(paths: &Paths, account: &Account, root: bool) -> Result<File, BootError> {
    let path = paths.ledger().join("lock");
    let failed = |source| BootError::Path { what: "lock", path: path.clone(), source };
    let options = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let mut file = options.open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut who = String::new();
            let _ = (&mut file).take(32).read_to_string(&mut who);
            let who = if who.is_empty() { "pid unknown".to_owned() } else { format!("pid {}", who.trim_end()) };
            return Err(BootError::Locked { who, dir: paths.state_dir.clone() });
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    if root {
        own(&path, account)?;
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
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
    fn a_second_daemon_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        prepare(&paths, &here(), false).unwrap();
        prepare(&paths, &here(), false).unwrap();
        assert_eq!(paths.ledger().metadata().unwrap().mode() & 0o777, 0o700);
        let held = lock(&paths, &here(), false).unwrap();
        let told = lock(&paths, &here(), false).unwrap_err().to_string();
        assert!(told.contains(&format!("pid {}", std::process::id())), "{told}");
        drop(held);
        lock(&paths, &here(), false).unwrap();
    }

    #[test]
    fn a_closed_way_is_told_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        let other = Account { name: "other".into(), uid: 4242, gid: 4242 };
        let told = reachable(dir.path(), &other).unwrap_err().to_string();
        assert!(told.contains("closed to user other") && told.contains("700"), "{told}");
        reachable(Path::new("/usr"), &other).unwrap();
    }
}
