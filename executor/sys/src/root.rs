//! Replaces the root of a process within its own mount namespace.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use rustix::fs::{Mode, OFlags};

use crate::mount::{Follow, attach, detach, open_dir, open_in_root};

/// Makes a detached mount the root of the calling process's mount namespace. The mount is first attached at `stage`, a
/// directory below the current root. `kept` names directories below both roots whose mounts are moved to the new root;
/// all other mounts are detached. A name that is a symbolic link in the new root is refused, so that nothing is mounted
/// outside of the new root.
///
/// # Errors
/// Returns an error if the caller has no privilege over the mount namespace, or a name in `kept` is not a directory or
/// not a mount.
pub fn exchange(root: BorrowedFd<'_>, stage: &Path, kept: &[&str]) -> io::Result<()> {
    attach(root, open_dir(stage)?.as_fd())?;
    let new = open_dir(stage)?;
    for name in kept {
        let moved = open_dir(&Path::new("/").join(name))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let target = open_in_root(new.as_fd(), Path::new(name), flags, Mode::empty(), Follow::NoLinks)?;
        attach(moved.as_fd(), target.as_fd())?;
    }
    rustix::process::fchdir(&new)?;
    nix::unistd::pivot_root(".", ".")?;
    detach(Path::new("."))?; // the old root, which is now mounted on the new root
    rustix::process::chdir("/")?;
    // Host mounts that are visible in the new root must not propagate changes back to the host.
    mount(None::<&Path>, "/", None::<&Path>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&Path>)?;
    Ok(())
}

/// Sets the host name of the calling process's UTS namespace.
///
/// # Errors
/// Returns an error if the caller has no privilege over the namespace or the name is longer than 64 bytes.
pub fn set_host_name(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}
