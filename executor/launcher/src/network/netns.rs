//! Mounts a container's network namespace at a path: RUN_DIR/netns/ID, in the host's own mount namespace.
//!
//! Plugins use this path. The mount keeps the namespace after init's exit, so that a later process can undo a plugin's
//! changes there. No other mount of a container is in the host's mount namespace.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use executor_core::ident::ContainerId;
use executor_sys::mount;
use executor_sys::process::{self, ChildExit, Fork};

use crate::files;
use crate::host::Host;

pub(super) fn path(host: &Host, id: &ContainerId) -> PathBuf {
    host.run_dir.join("netns").join(id.as_str())
}

pub(super) fn make_dir(host: &Host) -> io::Result<()> {
    files::ensure_dir(&host.run_dir.join("netns"), 0o700)
}

/// Mounts the network namespace of process `init` at the container's path.
pub(super) fn pin(host: &Host, id: &ContainerId, init: i32) -> io::Result<()> {
    let path = path(host, id);
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)?;
    // The path is valid in the host's mount namespace too, because both namespaces have the host's /proc.
    in_host_mounts(host, || Ok(rustix::mount::mount_bind(format!("/proc/{init}/ns/net"), &path)?))
}

/// Returns true if a network namespace is mounted at the path.
pub(super) fn is_pinned(host: &Host, id: &ContainerId) -> bool {
    let path = path(host, id);
    in_host_mounts(host, || {
        let kind = rustix::fs::statfs(&path)?.f_type;
        if kind == libc::NSFS_MAGIC { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    })
    .is_ok()
}

/// Removes the path. The kernel frees the namespace if no process uses it.
pub(super) fn unpin(host: &Host, id: &ContainerId) -> io::Result<()> {
    let path = path(host, id);
    in_host_mounts(host, || {
        while mount::detach(&path).is_ok() {}
        // Removing the file also removes mounts on it in other mount namespaces.
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    })
}

/// Runs `act` in a process that sees the host's mounts.
fn in_host_mounts(host: &Host, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    in_child(|| {
        process::enter_namespaces(host.mounts.as_fd(), true, false)?;
        act()
    })
}

/// Runs `act` in a child process and returns the error of `act`, which the child passes in its exit status.
fn in_child(act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let parent = std::process::id();
    let child = match process::fork()? {
        Fork::Parent(child) => child,
        Fork::Child => {
            let done = process::die_with(parent).and_then(|()| act());
            process::exit_now(done.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0))
        }
    };
    match process::wait_for(child)? {
        ChildExit::Code(0) => Ok(()),
        ChildExit::Code(errno) => Err(io::Error::from_raw_os_error(errno)),
        ChildExit::Signal(signal) => Err(io::Error::other(format!("a helper was killed by signal {signal}"))),
    }
}
