//! Prepares directories for a container that is not known yet. A warm container creates them in advance, with
//! everything that does not depend on the request, and two renames give them the container's names.
//!
//! Each container gets new directories. The directories appear among the directories of containers only when their
//! records are complete.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use executor_core::record::ContainerRecord;
use executor_sys::seqpacket::SeqpacketListener;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::WarmPaths;
use crate::dirs::{Dirs, EXIT_ROOM_AHEAD};
use crate::errors::at;
use crate::host::Host;
use crate::rootfs::etc;

/// Directories and files with a warm container's names.
pub(crate) struct Premade {
    dirs: Dirs,
    /// Record files: one in the state directory and one in the run directory.
    records: [File; 2],
    opened: PremadeFiles,
}

/// Open files and sockets in the premade directories.
pub(crate) struct PremadeFiles {
    /// The empty log.
    pub(crate) log: File,
    /// Socket on which the shim listens for daemons.
    pub(crate) listener: SeqpacketListener,
}

impl Premade {
    /// Creates the directories for a container. `root` is the host user id and group id of the container's root.
    ///
    /// # Errors
    /// Returns an error if the disk is full.
    pub(crate) fn make(host: &Host, place: &WarmPaths, root: u32) -> io::Result<Self> {
        let dirs = Dirs::from_warm(host, place.dir.clone(), place.state.clone());
        dirs.share_dir(&dirs.run)?;
        dirs.make_shared_dir(&dirs.state)?;
        let records = [dirs.open_new(&dirs.record_ahead())?, dirs.open_new(&dirs.record())?];
        let opened = PremadeFiles { log: dirs.open_new(&dirs.log())?, listener: dirs.listen()? };
        dirs.reserve_default_exit_space()?;
        dirs.private(&dirs.staging())?;
        let (upper, work) = dirs.layers();
        dirs.private(&upper)?;
        dirs.private(&work)?;
        std::os::unix::fs::lchown(&upper, Some(root), Some(root))?;
        fs::set_permissions(&upper, fs::Permissions::from_mode(0o755))?;
        etc::make_ahead(&upper, root)?;
        Ok(Self { dirs, records, opened })
    }

    /// Writes the container's record, and renames the directories to the container's names.
    ///
    /// # Errors
    /// Returns `AlreadyExists` if the container already has a directory; then nothing is renamed. Returns an error if
    /// the disk is full.
    pub(crate) fn move_to(self, dirs: &Dirs, record: &ContainerRecord) -> io::Result<PremadeFiles> {
        let bytes = serde_json::to_vec(record)?;
        if Dirs::exit_room(record, bytes.len()) > EXIT_ROOM_AHEAD {
            self.dirs.grow_exit_space(record)?;
        }
        for mut file in self.records {
            file.write_all(&bytes).map_err(|error| at(&dirs.state, &error))?;
        }
        rename(&self.dirs.run, &dirs.run)?;
        rename(&self.dirs.state, &dirs.state).inspect_err(|_| drop(fs::rename(&dirs.run, &self.dirs.run)))?;
        Ok(self.opened)
    }
}

/// Renames a directory to a name that must not exist.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let renamed = match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // This file system does not support the flag. Claim the name with an empty directory, which the rename
        // replaces.
        Err(rustix::io::Errno::INVAL) => fs::create_dir(to).and_then(|()| fs::rename(from, to)),
        renamed => renamed.map_err(Into::into),
    };
    renamed.map_err(|error| at(to, &error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn premade_directory_is_renamed_without_replacing() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        for name in ["from", "taken"] {
            fs::create_dir(path(name)).unwrap();
        }
        let inode = fs::metadata(path("from")).unwrap().ino();
        let refused = rename(&path("from"), &path("taken")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "even of an empty directory: {refused}");
        rename(&path("from"), &path("free")).unwrap();
        assert_eq!(fs::metadata(path("free")).unwrap().ino(), inode);
        assert!(!path("from").exists());
    }
}
