//! Manages the files and cgroups of warm containers on the host, and removes leftovers.
//!
//! ```text
//! RUN_DIR/skeleton/          0711   root file system of every warm container: empty directories as mount points
//! RUN_DIR/shells/NAME/       0750   libcontainer's files; renamed to the run directory of the launched container
//! STATE_DIR/shells/NAME/     0750   renamed to the state directory of the launched container
//! CGROUP_PARENT/.shell-NAME         cgroup of the warm container, which the launched container keeps
//! ```

mod premade;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::files::{ensure_dir, make_dir, names, remove_tree};
use crate::host::Host;
use crate::log::{self, Level};

pub(crate) use premade::{Premade, PremadeFiles};

/// Directory of the skeleton on which the container's root is mounted.
pub(crate) const STAGE: &str = "new";
/// Directories of the skeleton, and of every root, whose mounts the container keeps.
pub(crate) const KEPT: [&str; 3] = ["dev", "proc", "sys"];
/// Prefix of the name of a warm container's cgroup. No container id begins with a dot.
const PREFIX: &str = ".shell-";
/// Time limit for the kernel to release a cgroup whose processes were killed.
const CGROUP_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct WarmPaths {
    /// Cgroup, relative to each hierarchy's mount.
    pub(crate) cgroup: PathBuf,
    /// The warm container's directory below RUN_DIR.
    pub(crate) dir: PathBuf,
    /// The warm container's directory below STATE_DIR.
    pub(crate) state: PathBuf,
}

impl WarmPaths {
    /// Returns the paths of the warm container with this name.
    pub(crate) fn from_name(host: &Host, name: &str) -> Self {
        Self {
            cgroup: host.cgroup_parent.join(format!("{PREFIX}{name}")),
            dir: host.warm_pool().join(name),
            state: host.warm_state().join(name),
        }
    }

    /// Returns the name of the warm container.
    pub(crate) fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Creates the directory below RUN_DIR.
    ///
    /// # Errors
    /// Returns `AlreadyExists` if the directory exists, or an error if the directory cannot be created.
    pub(crate) fn make(&self) -> io::Result<()> {
        make_dir(&self.dir, 0o700, None)
    }

    /// Removes libcontainer's files, which are no longer needed, from the directory below RUN_DIR.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read or a file cannot be removed.
    pub(crate) fn empty(&self) -> io::Result<()> {
        fs::read_dir(&self.dir)?.try_for_each(|entry| remove_tree(&entry?.path()))
    }

    /// Returns true if a directory with the warm container's name exists. After a launch, the directories have other
    /// names, and the directories and the cgroup belong to the container.
    pub(crate) fn is_there(&self) -> bool {
        self.dir.exists() || self.state.exists()
    }

    fn remove_dirs(&self) -> io::Result<()> {
        remove_tree(&self.state).and_then(|()| remove_tree(&self.dir))
    }

    /// Detaches the warm container from its network, kills the processes in the cgroup, and removes the cgroup and the
    /// directories. Errors are logged.
    pub(crate) fn clear(&self, host: &Host) {
        crate::network::detach_warm(host, &self.name());
        let removed = host.hierarchies.remove(&self.cgroup, CGROUP_TIMEOUT).and_then(|()| self.remove_dirs());
        if let Err(error) = removed {
            log::line(Level::Error, "", format_args!("a warm container was not removed: {error}"));
        }
    }
}

/// Creates the parent directory of warm containers below RUN_DIR, and the skeleton.
///
/// # Errors
/// Returns an error if a directory cannot be created.
pub(crate) fn make_dirs(host: &Host) -> io::Result<()> {
    ensure_dir(&host.warm_pool(), 0o700)?;
    let skeleton = host.skeleton();
    ensure_dir(&skeleton, 0o711)?;
    KEPT.iter().chain([&STAGE]).try_for_each(|name| ensure_dir(&skeleton.join(name), 0o755))
}

/// Removes leftovers of earlier launchers' warm containers, whose processes have exited. `used` returns the cgroups of
/// containers, and is called only if there are leftovers.
///
/// # Errors
/// Returns an error if a directory cannot be read or removed.
pub(crate) fn sweep(host: &Host, used: impl FnOnce() -> BTreeSet<PathBuf>) -> io::Result<()> {
    // A warm container uses one name for its directories and network. After a reboot only the directory below STATE_DIR
    // exists.
    let on_disk = names(&host.warm_pool())?.into_iter().chain(names(&host.warm_state())?);
    let left: BTreeSet<_> = on_disk.chain(crate::network::warm_names(host)).collect();
    let used = if left.is_empty() { BTreeSet::new() } else { used() };
    for name in left {
        let place = WarmPaths::from_name(host, &name);
        if used.contains(&place.cgroup) {
            place.remove_dirs()?;
        } else {
            place.clear(host);
        }
    }
    Ok(())
}
