//! Removes untrusted directory trees of any depth, without following links and with a fixed number of descriptors.
//!
//! The standard library uses a descriptor and a stack frame per level, so an attacker who nests directories could
//! exhaust both. This walk goes up through `..` instead. However, a process with write access can move a directory
//! elsewhere while the walk empties it. Therefore, after each step through `..`, the walk compares the reached
//! directory with the parent through which it came down. If they differ, the walk restarts at the top.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, StatxFlags, statx, unlinkat};
use rustix::io::Errno;

use crate::open::open_resolved;

/// Maximum number of walks from the top, if directories are moved concurrently.
const WALKS_MAX: usize = 100;

/// Removes `name` in `dir` with its content, safely against concurrent changes: nothing outside the tree is removed.
/// Does nothing if the name does not exist.
///
/// # Errors
/// Returns `CrossesDevices` if something is mounted in the tree, `ResourceBusy` if its directories are moved too often,
/// and otherwise I/O errors.
pub fn remove(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_encoded_bytes())?;
    for _ in 0..WALKS_MAX {
        if remove_once(dir, &name)? {
            return Ok(());
        }
    }
    let why = format!("directories of the tree were moved {WALKS_MAX} times during the removal");
    Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
}

/// Tries to remove the tree. Returns true if the tree no longer exists.
fn remove_once(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    match remove_one(dir, name) {
        Ok(true) | Err(Errno::NOENT) => return Ok(true),
        Ok(false) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(mut walk) = RemovalWalk::start(dir, name)? else { return Ok(false) };
    loop {
        match walk.step()? {
            WalkStep::On => {}
            WalkStep::Done => return Ok(true),
            WalkStep::Moved => return Ok(false),
        }
    }
}

/// Identity of a directory. The identity differs if an inode number was reused.
#[derive(PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    inode: u64,
    /// Birth time in seconds and nanoseconds, if the file system records it.
    born: Option<(i64, u32)>,
}

impl Identity {
    fn from_dir(dir: &OwnedFd) -> io::Result<Self> {
        let found = statx(dir, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME)?;
        let knows = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        Ok(Self {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born: knows.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
        })
    }
}

/// One attempt to remove a tree, which starts at the top of the tree.
struct RemovalWalk<'a> {
    top: BorrowedFd<'a>,
    /// Directories from the top to the current directory, each with its identity and its name in the parent.
    way: Vec<(Identity, CString)>,
    current: OwnedFd,
}

#[derive(Debug, PartialEq, Eq)]
enum WalkStep {
    /// The tree still exists, and the walk continues.
    On,
    /// The tree no longer exists.
    Done,
    /// Another process changed the tree, so the current directory may be anywhere.
    Moved,
}

impl<'a> RemovalWalk<'a> {
    /// Starts a walk. Returns `None` if the name is no longer a directory.
    fn start(top: BorrowedFd<'a>, name: &CStr) -> io::Result<Option<Self>> {
        let Some(current) = open_below(top, name)? else { return Ok(None) };
        Ok(Some(Self { top, way: vec![(Identity::from_dir(&current)?, name.to_owned())], current }))
    }

    /// Removes entries up to the first non-empty subdirectory, and descends into it. Goes up if there is none.
    fn step(&mut self) -> io::Result<WalkStep> {
        if let Some(full) = empty(&self.current)? {
            let Some(next) = open_below(self.current.as_fd(), &full)? else { return Ok(WalkStep::Moved) };
            self.way.push((Identity::from_dir(&next)?, full));
            self.current = next;
            return Ok(WalkStep::On);
        }
        let Some((_, name)) = self.way.pop() else { return Ok(WalkStep::Done) };
        let Some((expected, _)) = self.way.last() else {
            return removed(unlinkat(self.top, &name, AtFlags::REMOVEDIR), WalkStep::Done);
        };
        let above = open(self.current.as_fd(), c"..")?;
        if Identity::from_dir(&above)? != *expected {
            return Ok(WalkStep::Moved);
        }
        let step = removed(unlinkat(&above, &name, AtFlags::REMOVEDIR), WalkStep::On);
        self.current = above;
        step
    }
}

/// Converts the result of removing a directory. Returns `step`, or `Moved` if another process replaced or refilled the
/// directory.
fn removed(result: Result<(), Errno>, step: WalkStep) -> io::Result<WalkStep> {
    match result {
        Ok(()) => Ok(step),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(WalkStep::Moved),
        Err(error) => Err(error.into()),
    }
}

/// Removes the entries of a directory up to the first non-empty subdirectory, and returns the name of that directory.
fn empty(dir: &OwnedFd) -> io::Result<Option<CString>> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match remove_one(dir.as_fd(), name) {
            Ok(true) | Err(Errno::NOENT) => {}
            Ok(false) => return Ok(Some(name.to_owned())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Removes a file or an empty directory. Returns false if the entry still exists, such as a non-empty directory.
fn remove_one(dir: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            // The entry was replaced by an entry of another type, so it must be checked again.
            Err(Errno::NOTDIR) => Ok(false),
            result => result.map(|()| true),
        },
        result => result.map(|()| true),
    }
}

/// Opens a subdirectory. Returns `None` if there is no directory with this name.
fn open_below(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
    match open(dir, name) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a single name. `BENEATH` is not used: it would refuse a directory that is moved during the call with the error
/// for a mount.
fn open(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    open_resolved(dir, name, flags, Mode::empty(), ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags, mkdirat, renameat_with};

    use super::*;
    use crate::mount::open_dir;

    fn down(dir: BorrowedFd<'_>, name: &CStr) -> OwnedFd {
        open_below(dir, name).unwrap().unwrap()
    }

    /// A tree that is deeper than the descriptor limit and the longest path is removed, and its links are not followed.
    #[test]
    fn tree_of_any_depth_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kept"), "x").unwrap();
        fs::create_dir(dir.path().join("other")).unwrap();
        fs::write(dir.path().join("other/kept"), "x").unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        let mut current = down(open_dir(dir.path()).unwrap().as_fd(), c"tree");
        for level in 0..3000 {
            rustix::fs::symlinkat("../../other", &current, format!("link{level}")).unwrap();
            mkdirat(&current, "empty", Mode::RWXU).unwrap();
            mkdirat(&current, "a-name-of-some-length", Mode::RWXU).unwrap();
            current = down(current.as_fd(), c"a-name-of-some-length");
        }
        let fd = open_dir(dir.path()).unwrap();
        remove(fd.as_fd(), OsStr::new("tree")).unwrap();
        remove(fd.as_fd(), OsStr::new("tree")).unwrap();
        assert!(!dir.path().join("tree").exists());
        assert!(dir.path().join("other/kept").exists());
        remove(fd.as_fd(), OsStr::new("kept")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// If a directory is moved elsewhere while it is emptied, nothing is removed at its new location or above it, and
    /// the rest of the tree is removed.
    #[test]
    fn moved_directory_is_not_removed_elsewhere() {
        for depth in 0..3 {
            let home = tempfile::tempdir().unwrap();
            let (tree, other) = (home.path().join("tree"), home.path().join("other"));
            fs::create_dir_all(tree.join("a/b/c/d")).unwrap();
            fs::create_dir_all(tree.join("later/on")).unwrap();
            fs::create_dir_all(other.join("above/kept")).unwrap();
            fs::write(other.join("above/kept/file"), "x").unwrap();
            fs::write(other.join("kept"), "x").unwrap();
            let dir = open_dir(home.path()).unwrap();
            let mut walk = RemovalWalk::start(dir.as_fd(), c"tree").unwrap().unwrap();
            // Walk down to `d`. The walk may pass other directories first.
            while walk.way.last().is_none_or(|(_, name)| name != c"c") {
                assert_eq!(walk.step().unwrap(), WalkStep::On);
            }
            let moved = ["a/b/c", "a/b", "a"][depth];
            let to = other.join("above").join(Path::new(moved).file_name().unwrap());
            fs::rename(tree.join(moved), &to).unwrap();
            let end = loop {
                match walk.step().unwrap() {
                    WalkStep::On => {}
                    end => break end,
                }
            };
            assert_eq!(end, WalkStep::Moved, "{moved}");
            drop(walk);
            remove(dir.as_fd(), OsStr::new("tree")).unwrap();
            assert!(!tree.exists(), "{moved}");
            assert!(other.join("above/kept/file").exists() && other.join("kept").exists(), "{moved}");
            assert!(to.exists(), "{moved}: the moved directory is no longer in the tree");
        }
    }

    /// Repeats the moves of the previous test as a race: if one thread keeps moving directories out and in while trees
    /// are removed, nothing outside the trees is removed.
    #[test]
    fn concurrent_moves_remove_nothing_outside_tree() {
        let home = tempfile::tempdir().unwrap();
        let (tree, other, ended) = (home.path().join("tree"), home.path().join("other"), AtomicBool::new(false));
        fs::create_dir_all(other.join("spare/x/y")).unwrap();
        fs::write(other.join("kept"), "x").unwrap();
        let dir = open_dir(home.path()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let _ = renameat_with(CWD, tree.join("a/b"), CWD, other.join("b"), RenameFlags::NOREPLACE);
                    let _ = renameat_with(CWD, other.join("b"), CWD, tree.join("a/b"), RenameFlags::NOREPLACE);
                    let _ = renameat_with(CWD, other.join("spare"), CWD, tree.join("a"), RenameFlags::EXCHANGE);
                }
            });
            let removed = (0..50).map(|_| {
                let _ = fs::create_dir_all(tree.join("a/b/c/d"));
                remove(dir.as_fd(), OsStr::new("tree"))
            });
            let failed = removed.filter_map(Result::err).find(|error| error.kind() != io::ErrorKind::ResourceBusy);
            ended.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
        remove(dir.as_fd(), OsStr::new("tree")).unwrap();
        assert!(other.join("kept").exists() && !tree.exists());
    }

    /// If a file system is mounted in a tree, its content is not removed.
    #[test]
    #[ignore = "needs root"]
    fn mounted_file_system_is_not_removed() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = home.path().join("tree/mounted");
        fs::create_dir_all(&at).unwrap();
        fs::write(other.path().join("kept"), "x").unwrap();
        rustix::mount::mount_bind(other.path(), &at).unwrap();
        let removed = remove(open_dir(home.path()).unwrap().as_fd(), OsStr::new("tree"));
        crate::mount::detach(&at).unwrap();
        assert!(removed.is_err());
        assert!(other.path().join("kept").exists());
    }
}
