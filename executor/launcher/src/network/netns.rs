//! A name for a container's network namespace: RUN_DIR/netns/ID, in the host's own mount namespace.
//!
//! Plugins are given it as a path, and it holds the namespace when init is gone: what a plugin made in there can be
//! taken back, whoever of us is left. It is the one thing that a container has mounted on the host.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use executor_core::ident::ContainerId;
use executor_sys::mount;
use executor_sys::process::{self, Ended, Fork};

use crate::files;
use crate::host::Host;

/// Path.
pub(super) fn path(host: &Host, id: &ContainerId) -> PathBuf {
    host.run_dir.join("netns").join(id.as_str())
}

/// Makes the directory.
pub(super) fn make_dir(host: &Host) -> io::Result<()> {
    files::ensure_dir(&host.run_dir.join("netns"), 0o700)
}

/// Gives the network namespace of a process its name.
pub(super) fn pin(host: &Host, id: &ContainerId, init: i32) -> io::Result<()> {
    let path = path(host, id);
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)?;
    // By the same path in the other mount namespace: it is the host's /proc in both.
    in_host_mounts(host, || Ok(rustix::mount::mount_bind(format!("/proc/{init}/ns/net"), &path)?))
}

/// Returns whether there is a namespace behind the name.
pub(super) fn is_pinned(host: &Host, id: &ContainerId) -> bool {
    let path = path(host, id);
    in_host_mounts(host, || {
        let kind = rustix::fs::statfs(&path)?.f_type;
        if kind == libc::NSFS_MAGIC { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    })
    .is_ok()
}

/// Takes the name away, and with it the namespace, unless somebody lives in it.
pub(super) fn unpin(host: &Host, id: &ContainerId) -> io::Result<()> {
    let path = path(host, id);
    in_host_mounts(host, || {
        while mount::detach(&path).is_ok() {}
        // With the file, mounts on it that other mount namespaces were copied with go too.
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    })
}

/// Does something in a process that sees the mounts of the host.
fn in_host_mounts(host: &Host, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    in_child(|| {
        process::enter_namespaces(host.mounts.as_fd(), true, false)?;
        act()
    })
}

/// Does something in a process whose network namespace is the container's.
pub(super) fn inside(host: &Host, id: &ContainerId, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    in_host_mounts(host, || {
        let namespace = fs::File::open(path(host, id))?;
        process::enter_namespaces(namespace.as_fd(), false, true)?;
        act()
    })
}

/// Does something in a child, which tells its error by its exit status.
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
        Ended::Code(0) => Ok(()),
        Ended::Code(errno) => Err(io::Error::from_raw_os_error(errno)),
        Ended::Signal(signal) => Err(io::Error::other(format!("a helper was ended by signal {signal}"))),
    }
}
