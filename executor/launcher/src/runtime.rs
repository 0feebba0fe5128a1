//! Mounts the socket directory through which a container with a runtime token connects to the daemon.
//!
//! The daemon listens in RUN_DIR/runtime. A container sees this directory read-only at /run/executor. The directory is
//! mounted, not the socket, so that the container can also connect to a later daemon. The host path comes from this
//! process's own settings, and no request can choose another path.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use executor_core::plan::Plan;
use executor_core::protocol::{Reason, Refused};
use executor_core::spec;
use executor_core::token::{RUNTIME_DIR, RUNTIME_HOST_DIR};
use executor_core::validate::Violation;
use executor_sys::mount::{self, Attributes, Follow, clone_tree, open_dir, open_in_root, set_attributes};
use rustix::fs::{Mode, OFlags, mkdirat};

use crate::files::ensure_dir;
use crate::host::Host;
use crate::rootfs::Tree;

/// Attributes of the mount in a container, which permit only connecting to sockets.
const SHOWN: Attributes = Attributes { read_only: true, no_suid: true, no_dev: true, no_exec: true, recursive: false };

/// Creates the directory below the run directory in which the daemon listens.
pub(crate) fn make_source(host: &Host) -> io::Result<()> {
    let path = host.run_dir.join(RUNTIME_HOST_DIR);
    ensure_dir(&path, 0o755)?;
    std::os::unix::fs::lchown(&path, Some(host.daemon_uid), Some(host.daemon_gid))
}

/// Returns a detached mount of the directory, with the host's ids.
pub(crate) fn view(host: &Host) -> io::Result<OwnedFd> {
    let run = open_dir(&host.run_dir)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let source = open_in_root(run.as_fd(), Path::new(RUNTIME_HOST_DIR), flags, Mode::empty(), Follow::NoLinks)?;
    let view = clone_tree(source.as_fd(), Path::new(""), false)?;
    set_attributes(view.as_fd(), SHOWN)?;
    Ok(view)
}

/// Mounts the views at the directory's path, on top of each other. `root` is the container's root.
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
    /// Creates the mount point of the directory, unless a fresh file system will be mounted on its parent.
    ///
    /// # Errors
    /// Returns a violation of `runtime_token_path` if a path there is not a directory.
    pub(crate) fn make_runtime_dir(&self, plan: &Plan) -> Result<(), Refused> {
        let (parent, _) = parent_and_name();
        if spec::fresh_mounts(plan).iter().any(|fresh| fresh == parent) {
            return Ok(());
        }
        for path in [parent, Path::new(RUNTIME_DIR)] {
            if let Some(what) = self.require_dir(path)? {
                let why =
                    format!("{} is {what} in the rootfs; the runtime socket needs a directory there", path.display());
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
