//! The way of a container with a runtime token to the daemon: one directory with one socket.
//!
//! RUN_DIR/runtime is the daemon's, who listens in it; such containers get to see it, read-only, at /run/executor. The
//! directory is mounted and not the socket, so that a daemon that is started later is found as well. Its place on the
//! host is fixed by this process's own settings, and no request can name another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use executor_core::plan::Plan;
use executor_core::protocol::{Reason, Refused};
use executor_core::spec;
use executor_core::token::{RUNTIME_DIR, RUNTIME_SOURCE};
use executor_core::validate::Violation;
use executor_sys::mount::{self, Attributes, Follow, clone_tree, open_dir, open_in_root, set_attributes};
use rustix::fs::{Mode, OFlags, mkdirat};

use crate::files::ensure_dir;
use crate::host::Host;
use crate::rootfs::Tree;

/// Attributes of the mount in a container: sockets in it can be connected to, and nothing else.
const SHOWN: Attributes = Attributes { read_only: true, no_suid: true, no_dev: true, no_exec: true, recursive: false };

/// Makes the directory in the run directory, which the daemon is to listen in.
pub(crate) fn make_source(host: &Host) -> io::Result<()> {
    let path = host.run_dir.join(RUNTIME_SOURCE);
    ensure_dir(&path, 0o755)?;
    std::os::unix::fs::lchown(&path, Some(host.daemon_uid), Some(host.daemon_gid))
}

/// A detached view of the directory, as the host has it.
pub(crate) fn view(host: &Host) -> io::Result<OwnedFd> {
    let run = open_dir(&host.run_dir)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let source = open_in_root(run.as_fd(), Path::new(RUNTIME_SOURCE), flags, Mode::empty(), Follow::NoLinks)?;
    let view = clone_tree(source.as_fd(), Path::new(""), false)?;
    set_attributes(view.as_fd(), SHOWN)?;
    Ok(view)
}

/// Mounts what is given at the directory's place, one over the other, with the container's root as `/`.
pub(crate) fn place(root: BorrowedFd<'_>, views: &[OwnedFd]) -> io::Result<()> {
    let (parent, name) = parent_and_name();
    let above = open_in_root(root, parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), Follow::NoLinks)?;
    match mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    for view in views {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let target = open_in_root(root, Path::new(RUNTIME_DIR), flags, Mode::empty(), Follow::NoLinks)?;
        mount::attach(view.as_fd(), target.as_fd())?;
    }
    Ok(())
}

impl Tree {
    /// Makes what the directory is mounted on, where the container does not get that empty.
    ///
    /// # Errors
    /// The tree has something else in its place: a violation of `runtime_token_path`.
    pub(crate) fn make_runtime_dir(&self, plan: &Plan) -> Result<(), Refused> {
        let (parent, _) = parent_and_name();
        if spec::fresh_mounts(plan).iter().any(|fresh| fresh == parent) {
            return Ok(());
        }
        for path in [parent, Path::new(RUNTIME_DIR)] {
            if let Some(what) = self.require_dir(path)? {
                let why = format!("{} is {what} in the rootfs; the runtime socket goes there", path.display());
                return Err(Refused::from_fields(Reason::Precondition, &[Violation::new("runtime_token_path", why)]));
            }
        }
        Ok(())
    }
}

fn parent_and_name() -> (&'static Path, &'static str) {
    let (parent, name) = RUNTIME_DIR.rsplit_once('/').unwrap_or(("", RUNTIME_DIR));
    (Path::new(parent), name)
}
