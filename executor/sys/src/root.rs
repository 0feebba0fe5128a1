//! The exchange of a process's root for another one, within its own mount namespace.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use rustix::fs::{Mode, OFlags};

use crate::mount::{Follow, attach, detach, open_dir, open_in_root};

/// Puts a detached mount in the place of the root of the calling process's mount namespace. `stage` is a directory for it below
/// the present root; the mounts at `kept`, names of directories below both roots, come along. What was mounted elsewhere is
/// detached. A name that is a symbolic link in the new root is refused, so that nothing is mounted outside of it.
///
/// # Errors
/// No privilege over the mount namespace; a name of `kept` that is not a directory, or not a mount.
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
    detach(Path::new("."))?; // the old root, which lies on the new one now
    rustix::process::chdir("/")?;
    // What the new root shows of the host's mounts tells the host of nothing that happens here.
    mount(None::<&Path>, "/", None::<&Path>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&Path>)?;
    Ok(())
}

/// Sets the host name of the calling process's UTS namespace.
///
/// # Errors
/// No privilege over it; longer than 64 bytes.
pub fn set_host_name(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}
