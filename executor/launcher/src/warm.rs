//! The places of shells: what a shell has on the host beside its processes, and how that is found and removed.
//!
//! ```text
//! RUN_DIR/skeleton/          0711   root file system of every shell: empty directories for what is mounted there
//! RUN_DIR/shells/NAME/       0750   libcontainer's, and then the container's run directory, until that gets its name
//! STATE_DIR/shells/NAME/     0750   the container's state directory, until that gets its name
//! CGROUP_PARENT/.shell-NAME         cgroup of the shell, and later of its container
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

pub(crate) use premade::{Opened, Premade};

/// Directory of the skeleton on which the container's root is put.
pub(crate) const STAGE: &str = "new";
/// Directories of the skeleton, and of every root, whose mounts the container keeps.
pub(crate) const KEPT: [&str; 3] = ["dev", "proc", "sys"];
/// Prefix of the name of a shell's cgroup. No container's id begins so.
const PREFIX: &str = ".shell-";
/// Time that the kernel is given to let go of a cgroup whose processes were killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The place of one shell.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Cgroup, relative to each hierarchy's mount.
    pub(crate) cgroup: PathBuf,
    /// Directory below RUN_DIR.
    pub(crate) dir: PathBuf,
    /// Directory below STATE_DIR.
    pub(crate) state: PathBuf,
}

impl Place {
    /// Returns the place of the shell of this name.
    pub(crate) fn from_object(host: &Host, name: &str) -> Self {
        Self {
            cgroup: host.cgroup_parent.join(format!("{PREFIX}{name}")),
            dir: host.warm_pool().join(name),
            state: host.warm_state().join(name),
        }
    }

    /// Makes the directory below RUN_DIR.
    ///
    /// # Errors
    /// `AlreadyExists`; a full disk.
    pub(crate) fn make(&self) -> io::Result<()> {
        make_dir(&self.dir, 0o700, None)
    }

    /// Removes what libcontainer left in the directory, and needs no more.
    ///
    /// # Errors
    /// The file system of the run directory.
    pub(crate) fn empty(&self) -> io::Result<()> {
        fs::read_dir(&self.dir)?.try_for_each(|entry| remove_tree(&entry?.path()))
    }

    /// Tells whether anything is left under the shell's name. A container that was a shell has its directories, and with them the
    /// cgroup.
    pub(crate) fn is_there(&self) -> bool {
        self.dir.exists() || self.state.exists()
    }

    /// Removes the directories.
    fn remove_dirs(&self) -> io::Result<()> {
        remove_tree(&self.state).and_then(|()| remove_tree(&self.dir))
    }

    /// Ends what is in the cgroup, and removes it and the directories. Faults are told in the log.
    pub(crate) fn clear(&self, host: &Host) {
        let removed = host.hierarchies.remove(&self.cgroup, PATIENCE).and_then(|()| self.remove_dirs());
        if let Err(error) = removed {
            log::line(Level::Error, "", format_args!("a shell was not removed: {error}"));
        }
    }
}

/// Makes the directories that shells need.
///
/// # Errors
/// The file system of the run directory.
pub(crate) fn make_dirs(host: &Host) -> io::Result<()> {
    ensure_dir(&host.warm_pool(), 0o700)?;
    let skeleton = host.skeleton();
    ensure_dir(&skeleton, 0o711)?;
    KEPT.iter().chain([&STAGE]).try_for_each(|name| ensure_dir(&skeleton.join(name), 0o755))
}

/// Removes what shells of earlier launchers left, whose processes have ended; `used` gives the cgroups of containers, where
/// something is left.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn sweep(host: &Host, used: impl FnOnce() -> BTreeSet<PathBuf>) -> io::Result<()> {
    // The two have the same names; after a start of the machine there are those of the state directory alone.
    let left: BTreeSet<_> = names(&host.warm_pool())?.into_iter().chain(names(&host.warm_state())?).collect();
    let used = if left.is_empty() { BTreeSet::new() } else { used() };
    for name in left {
        let place = Place::from_object(host, &name);
        if used.contains(&place.cgroup) {
            place.remove_dirs()?;
        } else {
            place.clear(host);
        }
    }
    Ok(())
}
