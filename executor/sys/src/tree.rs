//! Removing trees that others made: of any depth, with no name followed and a fixed number of descriptors.
//!
//! The standard library's way takes a descriptor and a stack frame for each level, and whoever may make directories in
//! directories chooses how many levels there are.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// Removes what is called `name` in a directory, with all that is in it. What is not there is no error. Nobody else may
/// move what is in it meanwhile.
///
/// # Errors
/// Something is mounted in it; the disk.
pub fn remove(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_encoded_bytes())?;
    match remove_one(dir, &name) {
        Ok(true) | Err(Errno::NOENT) => return Ok(()),
        Ok(false) => {}
        Err(error) => return Err(error.into()),
    }
    let mut current = open(dir, &name)?;
    let mut names = vec![name];
    loop {
        if let Some(full) = empty(&current)? {
            current = open(current.as_fd(), &full)?;
            names.push(full);
            continue;
        }
        let Some(name) = names.pop() else { return Ok(()) };
        if names.is_empty() {
            return Ok(unlinkat(dir, &name, AtFlags::REMOVEDIR)?);
        }
        let above = open(current.as_fd(), c"..")?;
        unlinkat(&above, &name, AtFlags::REMOVEDIR)?;
        current = above;
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
fn remove_one(dir: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<bool, Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            result => result.map(|()| true),
        },
        result => result.map(|()| true),
    }
}

fn open(dir: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::mount::open_dir;

    /// Deeper than there are descriptors, and than a path can be long; links in it lead nowhere.
    #[test]
    fn a_tree_of_any_depth_goes_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kept"), "x").unwrap();
        fs::create_dir(dir.path().join("other")).unwrap();
        fs::write(dir.path().join("other/kept"), "x").unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        let mut current = open(open_dir(dir.path()).unwrap().as_fd(), c"tree").unwrap();
        for level in 0..3000 {
            rustix::fs::symlinkat("../../other", &current, format!("link{level}")).unwrap();
            rustix::fs::mkdirat(&current, "empty", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&current, "a-name-of-some-length", Mode::RWXU).unwrap();
            current = open(current.as_fd(), c"a-name-of-some-length").unwrap();
        }
        let fd = open_dir(dir.path()).unwrap();
        remove(fd.as_fd(), OsStr::new("tree")).unwrap();
        remove(fd.as_fd(), OsStr::new("tree")).unwrap();
        assert!(!dir.path().join("tree").exists());
        assert!(dir.path().join("other/kept").exists());
        remove(fd.as_fd(), OsStr::new("kept")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
