//! Creates a missing working directory in a container.
//!
//! A process changes to its working directory as the container user, who may lack write access there. If the directory
//! does not exist, the process sends a request over its start socket ([`request`]). Its supervisor, which is root on
//! the host, lets a helper create the directory ([`Within::create_and_reply`]): in the container's mount namespace, as
//! the container's root, with mode 0755. Container content is untrusted, so the path is opened as if the container's
//! root were `/`.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use executor_sys::mount::{Follow, open_dir, open_in_root};
use executor_sys::process::{self, ChildExit, Fork};
use executor_sys::seqpacket::Seqpacket;
use rustix::fs::{Mode, OFlags, mkdirat};
use rustix::io::Errno;

/// Prefix of a request. The prefix differs from all error numbers, so a request is not mistaken for a failure.
const REQUEST: &[u8] = b"workdir:";

/// Asks the supervisor to create a directory, and waits for the result.
///
/// # Errors
/// Returns an error if the directory was not created or the socket failed.
pub(crate) fn request(supervisor: &Seqpacket, dir: &CStr) -> io::Result<()> {
    supervisor.send(&[REQUEST, dir.to_bytes()].concat(), &[])?;
    let mut reply = [0; 4];
    let (length, _) = supervisor.recv(&mut reply)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    match reply[..length].try_into().map(i32::from_le_bytes) {
        Ok(0) => Ok(()),
        Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the directory that a message requests.
pub(crate) fn requested(message: &[u8]) -> Option<&Path> {
    message.strip_prefix(REQUEST).map(|dir| Path::new(OsStr::from_bytes(dir)))
}

/// Container in which a directory is created.
pub(crate) struct Within<'a> {
    /// pidfd of the container's init.
    pub(crate) init: BorrowedFd<'a>,
    /// True if the container has its own user namespace.
    pub(crate) is_mapped: bool,
    /// Root file system in the calling process's mount namespace. The root file system is writable even if the
    /// container's root is read-only.
    pub(crate) stage: Option<&'a Path>,
}

impl Within<'_> {
    /// Creates a directory and its missing parents, and sends the result to the process that requested it.
    pub(crate) fn create_and_reply(&self, dir: &Path, requester: &Seqpacket) {
        let errno = match self.create(dir) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
        };
        let _ = requester.send(&errno.to_le_bytes(), &[]); // the requester may have exited
    }

    /// Creates a directory in a helper process.
    fn create(&self, dir: &Path) -> io::Result<()> {
        let parent = std::process::id();
        match process::fork()? {
            Fork::Child => {
                let created = process::die_with(parent).and_then(|()| self.create_here(dir));
                // An error number fits into an exit status.
                process::exit_now(created.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0))
            }
            Fork::Parent(helper) => match process::wait_for(helper)? {
                ChildExit::Code(0) => Ok(()),
                ChildExit::Code(errno) => Err(io::Error::from_raw_os_error(errno)),
                ChildExit::Signal(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
            },
        }
    }

    /// Enters the container permanently, and creates a directory there.
    fn create_here(&self, dir: &Path) -> io::Result<()> {
        let stage = self.stage.map(open_dir).transpose()?;
        process::enter_namespaces(self.init, true, false)?;
        if self.is_mapped {
            process::become_root_of(self.init)?;
        }
        let root = open_dir(Path::new("/"))?;
        match (create_below(root.as_fd(), dir), stage) {
            (Err(error), Some(stage)) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                // Open the directory in the container, too: a mount such as its /sys could hide the new directory.
                create_below(stage.as_fd(), dir).and_then(|()| open(root.as_fd(), dir).map(drop)).map_err(|_| error)
            }
            (created, _) => created,
        }
    }
}

/// Creates a directory and its missing parents below a root.
fn create_below(root: BorrowedFd<'_>, dir: &Path) -> io::Result<()> {
    let mut parents: Vec<&Path> = dir.ancestors().collect();
    parents.reverse();
    for path in parents {
        match (open(root, path), path.parent(), path.file_name()) {
            (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
                match mkdirat(open(root, parent)?, name, Mode::from_raw_mode(0o755)) {
                    // The name is a dangling link, or another process has created the directory meanwhile.
                    Err(Errno::EXIST) => drop(open(root, path)?),
                    created => created?,
                }
            }
            (opened, ..) => drop(opened?),
        }
    }
    Ok(())
}

/// Opens a directory below a root, following links within the root.
fn open(root: BorrowedFd<'_>, dir: &Path) -> io::Result<OwnedFd> {
    open_in_root(root, dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), Follow::LinksWithinRoot)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn create_below_root_stays_inside() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let root = open_dir(dir.path()).unwrap();
        let create = |path: &str| create_below(root.as_fd(), Path::new(path));
        fs::create_dir_all(dir.path().join("var/real")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        symlink("/var/real", dir.path().join("absolute")).unwrap();
        symlink(outside.path(), dir.path().join("out")).unwrap();
        symlink("../../../..", dir.path().join("up")).unwrap();
        for (path, created) in [
            ("/a/b/c", "a/b/c"),
            ("/", ""),
            ("/a/../d", "d"),
            ("/../../e/", "e"),
            ("/absolute/f", "var/real/f"),
            ("/up/g", "g"),
        ] {
            create(path).unwrap();
            assert!(dir.path().join(created).is_dir(), "{path}");
        }
        for (path, errno) in
            [("/file/x", libc::ENOTDIR), ("/out", libc::ENOENT), ("/out/x", libc::ENOENT), ("/file", libc::ENOTDIR)]
        {
            assert_eq!(create(path).unwrap_err().raw_os_error(), Some(errno), "{path}");
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn request_is_answered_with_error_number() {
        let (supervisor, theirs) = Seqpacket::pair().unwrap();
        for (errno, expected) in [(0, None), (libc::EROFS, Some(libc::EROFS))] {
            theirs.set_nonblocking(false);
            supervisor.send(&i32::to_le_bytes(errno), &[]).unwrap();
            let replied = request(&theirs, c"/work");
            let mut message = [0; 64];
            let (length, _) = supervisor.recv(&mut message).unwrap().unwrap();
            assert_eq!(requested(&message[..length]), Some(Path::new("/work")));
            assert_eq!(replied.err().and_then(|error| error.raw_os_error()), expected);
        }
        assert_eq!(requested(b"tty"), None);
    }
}
