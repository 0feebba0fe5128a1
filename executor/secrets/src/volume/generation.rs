//! A later generation of the files: written beside the one in force, swapped in, and the old one handed out to be wiped.
//!
//! ```text
//! /files/0/..gen1/db/user, ..gen1/db/password
//!          ..gen2/db/user -> the same inode   what stays is linked, and costs no page
//!          ..gen2/db/password                 what is new is written
//!          ..data_new -> ..gen2               one rename onto `..data`, and all of them have changed
//! /0/db                                       what the container sees: entries come before the swap, and go after it
//! /1, /1..gen2                                a single file: the names are exchanged, its mounts are the caller's
//! ```
//! Within a mount point the swap is one rename. Over several it is one after the other, some microseconds apart, and
//! back again where one fails. Nothing of it is seen before the swap, but for entries that lead nowhere yet.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use executor_core::placement::{IN_FORCE, MountPoint, VolumeSize};
use executor_core::record::VolumeKind;
use executor_core::update::{Change, Next};
use executor_sys::mount::reconfigure;
use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, RenameFlags, openat, readlinkat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::{
    Owner, Pass, Receipt, Volume, generations, make_dir, make_link, make_parents, open_dir, write_below, write_file,
};

/// The successor of the link to the generation in force, for a moment.
const DATA_NEW: &str = "..data_new";

const PATH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A change of generations.
#[derive(Debug)]
pub struct Rotation<'a> {
    volume: &'a Volume,
    number: u64,
    mounts: &'a [MountPoint],
    changes: &'a [Change],
    /// What each change finds.
    before: Vec<Before>,
}

#[derive(Debug)]
enum Before {
    /// The name of the generation's directory.
    Directory(PathBuf),
    /// The file's inode.
    File(u64),
}

/// An old generation. Whoever has just looked it up may read it for as long as it is there.
#[derive(Debug, Default)]
pub struct Replaced(Vec<PathBuf>);

impl Volume {
    /// How large the file system is, and how much of that is used. `None` where it has no limit: ramfs.
    ///
    /// # Errors
    /// None in practice.
    pub fn size(&self) -> io::Result<Option<(VolumeSize, VolumeSize)>> {
        if self.kind == VolumeKind::Ramfs {
            return Ok(None);
        }
        let stat = rustix::fs::fstatvfs(self.handle())?;
        let size = |blocks: u64, inodes| VolumeSize { bytes: blocks * stat.f_frsize, inodes };
        Ok(Some((size(stat.f_blocks, stat.f_files), size(stat.f_blocks - stat.f_bfree, stat.f_files - stat.f_ffree))))
    }

    /// Gives the file system this size. Nothing else of it changes. ramfs has none.
    ///
    /// # Errors
    /// There is more in it.
    pub fn resize(&self, size: VolumeSize) -> io::Result<()> {
        if self.kind == VolumeKind::Ramfs {
            return Ok(());
        }
        let (bytes, inodes) = (size.bytes.to_string(), size.inodes.to_string());
        reconfigure(self.handle(), &[("size", Some(&bytes)), ("nr_inodes", Some(&inodes))])
    }

    /// Overwrites and removes an old generation. What a newer one has too stays.
    ///
    /// # Errors
    /// A file could not be overwritten; what was not removed goes with the whole volume.
    pub fn wipe_replaced(&self, replaced: &Replaced) -> io::Result<Receipt> {
        let mut receipt = Receipt::default();
        let wiped = replaced.0.iter().try_for_each(|path| absent_is_fine(self.wipe_below(path, &mut receipt)));
        self.release();
        wiped.map(|()| receipt)
    }

    /// The directory of a mount point's generations.
    fn top(&self, mount: usize) -> io::Result<OwnedFd> {
        open_dir(self.handle(), generations(mount).as_os_str())
    }

    /// The directory that shows at a mount point.
    fn shown(&self, mount: usize) -> io::Result<OwnedFd> {
        open_dir(self.handle(), mount.to_string().as_ref())
    }
}

impl<'a> Rotation<'a> {
    /// Looks at what is in force. `number` is the new generation's, larger than that of any before it.
    ///
    /// # Errors
    /// A mount point is not as the volume made it.
    pub fn begin(volume: &'a Volume, number: u64, mounts: &'a [MountPoint], changes: &'a [Change]) -> io::Result<Self> {
        let look = |change: &Change| match change.next {
            Next::Directory { .. } => {
                let name = readlinkat(volume.top(change.mount)?, IN_FORCE, Vec::new())?;
                let name = PathBuf::from(OsStr::new(name.to_str().map_err(io::Error::other)?));
                Ok(Before::Directory(name))
            }
            Next::File(_) => Ok(Before::File(inode(volume, change.mount.to_string().as_ref())?)),
        };
        let before = changes.iter().map(look).collect::<io::Result<_>>()?;
        Ok(Self { volume, number, mounts, changes, before })
    }

    /// Writes the new generation, for nobody to see, and passes each new file on. New pages are charged to the cgroup of
    /// the calling process.
    ///
    /// # Errors
    /// No room. What was written is there to be discarded.
    ///
    /// # Panics
    /// Where `contents` or the mount points are fewer than the indices in the changes say: the caller counts them first.
    pub fn write(&self, contents: &[&[u8]], owner: Owner, pass: &mut Pass<'_>) -> io::Result<()> {
        for (change, before) in self.changes.iter().zip(&self.before) {
            match (&change.next, before) {
                (Next::File(index), _) => {
                    let name = self.single(change.mount);
                    pass(write_file(self.volume.handle(), &name, contents[*index], owner)?.as_fd())?;
                }
                (Next::Directory { kept, new }, Before::Directory(before)) => {
                    let top = self.volume.top(change.mount)?;
                    let generation = make_dir(top.as_fd(), self.name().as_ref(), owner)?;
                    let old = open_dir(top.as_fd(), before.as_os_str())?;
                    for path in kept {
                        let (dir, name) = make_parents(generation.as_fd(), path, owner)?;
                        rustix::fs::linkat(&old, path, &dir, name, AtFlags::empty())?;
                    }
                    for (index, path) in new {
                        write_below(generation.as_fd(), path, contents[*index], owner, pass)?;
                    }
                    make_link(self.name().as_ref(), &top, DATA_NEW.as_ref())?;
                    let paths = kept.iter().chain(new.iter().map(|(_, path)| path));
                    let entries: BTreeSet<&OsStr> =
                        paths.filter_map(|path| path.components().next().map(Component::as_os_str)).collect();
                    let (shown, mount) = (self.volume.shown(change.mount)?, &self.mounts[change.mount]);
                    for entry in entries {
                        match make_link(&mount.link(change.mount, entry.as_ref()), &shown, entry) {
                            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                            _ => {}
                        }
                    }
                }
                (Next::Directory { .. }, Before::File(_)) => return Err(io::ErrorKind::InvalidInput.into()),
            }
        }
        Ok(())
    }

    /// The name in the volume of a single file's new content before the swap, and of its old content afterwards.
    pub fn single(&self, mount: usize) -> PathBuf {
        PathBuf::from(format!("{mount}{}", self.name()))
    }

    /// Puts the new generation in force at every mount point, or leaves the old one in force at all of them.
    ///
    /// # Errors
    /// A rename failed.
    pub fn swap(&self) -> io::Result<()> {
        let swapped = self.changes.iter().try_for_each(|change| match change.next {
            Next::File(_) => self.exchange(change.mount),
            Next::Directory { .. } => {
                let top = self.volume.top(change.mount)?;
                Ok(renameat(&top, DATA_NEW, &top, IN_FORCE)?)
            }
        });
        swapped.inspect_err(|_| {
            // Told below if it fails; the error that led here is the one to be told then, too.
            let _ = self.swap_back();
        })
    }

    /// Puts the old generation in force again wherever it is not.
    ///
    /// # Errors
    /// The first mount point at which that failed; others are tried all the same.
    pub fn swap_back(&self) -> io::Result<()> {
        let mut result = Ok(());
        for (change, before) in self.changes.iter().zip(&self.before) {
            result = result.and(match before {
                Before::File(before) => match inode(self.volume, change.mount.to_string().as_ref()) {
                    Ok(now) if now != *before => self.exchange(change.mount),
                    same => same.map(drop),
                },
                Before::Directory(before) => self.link_again(change.mount, before),
            });
        }
        result
    }

    fn link_again(&self, mount: usize, before: &Path) -> io::Result<()> {
        let top = self.volume.top(mount)?;
        if readlinkat(&top, IN_FORCE, Vec::new())?.as_bytes() == before.as_os_str().as_encoded_bytes() {
            return Ok(());
        }
        absent_is_fine(unlinkat(&top, DATA_NEW, AtFlags::empty()))?;
        make_link(before, &top, DATA_NEW.as_ref())?;
        Ok(renameat(&top, DATA_NEW, &top, IN_FORCE)?)
    }

    fn exchange(&self, mount: usize) -> io::Result<()> {
        let (root, single) = (self.volume.handle(), self.single(mount));
        Ok(renameat_with(root, single, root, mount.to_string(), RenameFlags::EXCHANGE)?)
    }

    /// Overwrites and removes what was written of a generation that did not come into force.
    ///
    /// # Errors
    /// A file could not be overwritten.
    pub fn discard(self) -> io::Result<()> {
        let mut result = Ok(());
        for change in self.changes {
            result = result.and(match change.next {
                Next::File(_) => {
                    absent_is_fine(self.volume.wipe_below(&self.single(change.mount), &mut Receipt::default()))
                }
                Next::Directory { .. } => self.discard_directory(change.mount),
            });
        }
        self.volume.release();
        result
    }

    fn discard_directory(&self, mount: usize) -> io::Result<()> {
        let top = self.volume.top(mount)?;
        absent_is_fine(unlinkat(&top, DATA_NEW, AtFlags::empty()))?;
        let generation = generations(mount).join(self.name());
        absent_is_fine(self.volume.wipe_below(&generation, &mut Receipt::default()))?;
        self.prune(mount)
    }

    /// After the swap: takes away entries whose files went, and gives out the old generation.
    ///
    /// # Errors
    /// None in practice.
    pub fn settle(self) -> io::Result<Replaced> {
        let mut replaced = Vec::with_capacity(self.changes.len());
        for (change, before) in self.changes.iter().zip(&self.before) {
            replaced.push(match before {
                Before::File(_) => self.single(change.mount),
                Before::Directory(before) => {
                    self.prune(change.mount)?;
                    generations(change.mount).join(before)
                }
            });
        }
        Ok(Replaced(replaced))
    }

    fn name(&self) -> String {
        format!("..gen{}", self.number)
    }

    /// Removes entries that lead nowhere.
    fn prune(&self, mount: usize) -> io::Result<()> {
        let (shown, in_force) =
            (self.volume.shown(mount)?, openat(self.volume.top(mount)?, IN_FORCE, PATH, Mode::empty())?);
        for entry in Dir::read_from(&shown)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_there = || statat(&in_force, name, AtFlags::SYMLINK_NOFOLLOW).err() != Some(Errno::NOENT);
            if !matches!(name.to_bytes(), b"." | b"..") && !is_there() {
                unlinkat(&shown, name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

fn inode(volume: &Volume, name: &Path) -> io::Result<u64> {
    Ok(statat(volume.handle(), name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino)
}

fn absent_is_fine<E: Into<io::Error>>(result: Result<(), E>) -> io::Result<()> {
    match result.map_err(Into::into) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests;
