//! The places of shells: what a shell has on the host beside its processes, and how that is found and removed.
//!
//! ```text
//! RUN_DIR/skeleton/          0711   root file system of every shell: empty directories for what is mounted there
//! RUN_DIR/shells/NAME/       0700   libcontainer's, until a container's record names the cgroup
//! CGROUP_PARENT/.shell-NAME         cgroup of the shell, and later of its container
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::files::{ensure_dir, make_dir, remove_tree};
use crate::host::Host;
use crate::log::{self, Level};

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
    /// Directory.
    pub(crate) dir: PathBuf,
}

impl Place {
    /// Returns the place of the shell of this name.
    pub(crate) fn of(host: &Host, name: &str) -> Self {
        Self { cgroup: host.cgroup_parent.join(format!("{PREFIX}{name}")), dir: host.shells().join(name) }
    }

    /// Makes the directory.
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

    /// Removes the directory: a container's record has the cgroup from now on.
    ///
    /// # Errors
    /// The file system of the run directory.
    pub(crate) fn hand_over(&self) -> io::Result<()> {
        fs::remove_dir(&self.dir)
    }

    /// Ends what is in the cgroup, and removes it and the directory. Faults are told in the log.
    pub(crate) fn clear(&self, host: &Host) {
        let removed = host.hierarchies.remove(&self.cgroup, PATIENCE).and_then(|()| remove_tree(&self.dir));
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
    ensure_dir(&host.shells(), 0o700)?;
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
    let left = fs::read_dir(host.shells())?.collect::<io::Result<Vec<_>>>()?;
    let used = if left.is_empty() { BTreeSet::new() } else { used() };
    for entry in left {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let place = Place::of(host, name);
        if used.contains(&place.cgroup) {
            remove_tree(&place.dir)?;
        } else {
            place.clear(host);
        }
    }
    Ok(())
}
