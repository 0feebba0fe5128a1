//! Removing trees that others made: of any depth, with no name followed and a fixed number of descriptors.
//!
//! The standard library's way takes a descriptor and a stack frame for each level, and whoever may make directories in
//! directories chooses how many levels there are. So the way up is `..` here, and whoever may write to the tree can move a
//! directory of it into another place while it is emptied. What `..` leads to is therefore compared with the directory that
//! the way down led through, before anything is removed there; where it is another one, the walk begins again at the top.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx, unlinkat};
use rustix::io::Errno;

/// Walks from the top, where directories are moved while they are emptied.
const WALKS_MAX: usize = 100;

/// Removes what is called `name` in a directory, with all that is in it, whoever changes the tree meanwhile: nothing is
/// removed that is not in it. What is not there is no error.
///
/// # Errors
/// Something is mounted in it (`CrossesDevices`); its directories are moved again and again (`ResourceBusy`); the disk.
pub fn remove(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_encoded_bytes())?;
    for _ in 0..WALKS_MAX {
        if remove_once(dir, &name)? {
            return Ok(());
        }
    }
    let why = format!("its directories were moved {WALKS_MAX} times while it was removed");
    Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
}

/// Tells whether it is gone.
fn remove_once(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    match remove_one(dir, name) {
        Ok(true) | Err(Errno::NOENT) => return Ok(true),
        Ok(false) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(mut walk) = Walk::start(dir, name)? else { return Ok(false) };
    loop {
        match walk.step()? {
            Step::On => {}
            Step::Done => return Ok(true),
            Step::Moved => return Ok(false),
        }
    }
}

/// Identity of a directory, also against one that has its number after it is gone.
#[derive(PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    inode: u64,
    /// Time of its making, where the file system knows: seconds and nanoseconds.
    born: Option<(i64, u32)>,
}

impl Identity {
    fn from_certificate(dir: &OwnedFd) -> io::Result<Self> {
        let found = statx(dir, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME)?;
        let knows = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        Ok(Self {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born: knows.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
        })
    }
}

/// A way from the top down, and what comes next on it.
struct Walk<'a> {
    top: BorrowedFd<'a>,
    /// Each directory on the way, the current one last: what it is, and its name in the one before.
    way: Vec<(Identity, CString)>,
    current: OwnedFd,
}

/// Result of a step.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// More is to be done.
    On,
    /// The tree is gone.
    Done,
    /// Somebody else changed the tree: the current directory may be anywhere.
    Moved,
}

impl<'a> Walk<'a> {
    /// Begins a walk; `None` where the name is not a directory any more.
    fn start(top: BorrowedFd<'a>, name: &CStr) -> io::Result<Option<Self>> {
        let Some(current) = open_below(top, name)? else { return Ok(None) };
        Ok(Some(Self { top, way: vec![(Identity::from_certificate(&current)?, name.to_owned())], current }))
    }

    /// Empties the current directory, and goes down into the first directory that has something in it, or up where none
    /// has.
    fn step(&mut self) -> io::Result<Step> {
        if let Some(full) = empty(&self.current)? {
            let Some(next) = open_below(self.current.as_fd(), &full)? else { return Ok(Step::Moved) };
            self.way.push((Identity::from_certificate(&next)?, full));
            self.current = next;
            return Ok(Step::On);
        }
        let Some((_, name)) = self.way.pop() else { return Ok(Step::Done) };
        let Some((expected, _)) = self.way.last() else {
            return removed(unlinkat(self.top, &name, AtFlags::REMOVEDIR), Step::Done);
        };
        let above = open(self.current.as_fd(), c"..")?;
        if Identity::from_certificate(&above)? != *expected {
            return Ok(Step::Moved);
        }
        let step = removed(unlinkat(&above, &name, AtFlags::REMOVEDIR), Step::On);
        self.current = above;
        step
    }
}

/// The step that a directory's removal was, where nobody put another thing into its place, or anything into it.
fn removed(result: Result<(), Errno>, step: Step) -> io::Result<Step> {
    match result {
        Ok(()) => Ok(step),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(Step::Moved),
        Err(error) => Err(error.into()),
    }
}

/// Removes what is in a directory, up to the first directory that has something in it, which it gives.
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

/// Removes a file or an empty directory. Tells whether it is gone: a directory may have something in it.
fn remove_one(dir: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            // Another thing stands there by now: it is looked at again.
            Err(Errno::NOTDIR) => Ok(false),
            result => result.map(|()| true),
        },
        result => result.map(|()| true),
    }
}

/// Opens a directory in another one; nothing where there is none of that name.
fn open_below(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
    match open(dir, name) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a single name. Not with `BENEATH`: one that is moved away in the same moment would be refused like a mount.
fn open(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    loop {
        // The kernel asks for another try when a rename raced with the look-up.
        match openat2(dir, name, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
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

    /// Deeper than there are descriptors, and than a path can be long; links in it lead nowhere.
    #[test]
    fn a_tree_of_any_depth_goes_and_nothing_else() {
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

    /// A directory that is moved into another place while it is emptied takes nobody along: neither that place nor what is
    /// above it loses anything, and what is left of the tree goes all the same.
    #[test]
    fn a_directory_that_is_moved_away_takes_nobody_along() {
        for depth in 0..3 {
            let home = tempfile::tempdir().unwrap();
            let (tree, other) = (home.path().join("tree"), home.path().join("other"));
            fs::create_dir_all(tree.join("a/b/c/d")).unwrap();
            fs::create_dir_all(tree.join("later/on")).unwrap();
            fs::create_dir_all(other.join("above/kept")).unwrap();
            fs::write(other.join("above/kept/file"), "x").unwrap();
            fs::write(other.join("kept"), "x").unwrap();
            let dir = open_dir(home.path()).unwrap();
            let mut walk = Walk::start(dir.as_fd(), c"tree").unwrap().unwrap();
            // Down to `d`, wherever the walk passes first.
            while walk.way.last().is_none_or(|(_, name)| name != c"c") {
                assert_eq!(walk.step().unwrap(), Step::On);
            }
            let moved = ["a/b/c", "a/b", "a"][depth];
            let to = other.join("above").join(Path::new(moved).file_name().unwrap());
            fs::rename(tree.join(moved), &to).unwrap();
            let end = loop {
                match walk.step().unwrap() {
                    Step::On => {}
                    end => break end,
                }
            };
            assert_eq!(end, Step::Moved, "{moved}");
            drop(walk);
            remove(dir.as_fd(), OsStr::new("tree")).unwrap();
            assert!(!tree.exists(), "{moved}");
            assert!(other.join("above/kept/file").exists() && other.join("kept").exists(), "{moved}");
            assert!(to.exists(), "{moved}: what was moved away is not in the tree any more");
        }
    }

    /// The same without a step in between: one moves directories out and in without pause, while trees are removed.
    #[test]
    fn nobody_is_taken_along_by_a_race() {
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

    /// What is mounted in a tree is not a part of it.
    #[test]
    #[ignore = "needs root"]
    fn what_is_mounted_in_a_tree_is_left_alone() {
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
