//! Replaces the files with a new generation: writes the new generation next to the current generation, makes it
//! current, and returns the old generation for wiping.
//!
//! ```text
//! /files/0/..gen1/db/user, ..gen1/db/password
//!          ..gen2/db/user -> the same inode   unchanged files are hard links and use no page
//!          ..gen2/db/password                 new content is written
//!          ..data_new -> ..gen2               one rename onto `..data` changes all of them
//! /0/db/..., /0..gen2/                        visible to the container; missing entries are created aside and moved
//!                                             there just before the swap, removed entries are moved out after it
//! /0..gen2..links/0                           second link to a new file: renamed over the visible link after the swap
//! /1, /1..gen2                                a single file: the names are exchanged; the caller updates its mounts
//! ```
//! Within a mount point the swap is one rename. Several mount points are swapped one after the other, some microseconds
//! apart, and swapped back if one fails. Every file of the current generation can be opened at any moment. During those
//! microseconds, links of added or removed files may be visible but dangling.
//!
//! A program that watches a visible directory by inotify does not notice the rename in `/files/0`. Therefore, once
//! every mount point has the new generation, the link of each new file is renamed over the visible link, which has the
//! same target (docs/adr/0045-a-rotation-renames-the-visible-links.md).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use executor_core::placement::{Content, IN_FORCE, MountPoint, VolumeSize};
use executor_core::record::VolumeKind;
use executor_core::update::{MountChange, NextContent};
use executor_sys::mount::reconfigure;
use rustix::fs::{AtFlags, RenameFlags, readlinkat, renameat, renameat_with, statat, unlinkat};

use super::{
    Access, DIRECTORY, Owner, Pass, Receipt, Volume, generations, ignore_not_found, make_dir, make_generation,
    make_link, open_dir, shown, write_file,
};

/// Temporary name of the new link to the current generation.
const DATA_NEW: &str = "..data_new";

#[derive(Debug)]
pub struct Rotation<'a> {
    volume: &'a Volume,
    number: u64,
    mounts: &'a [MountPoint],
    changes: &'a [MountChange],
    /// State of each changed mount point before the update, in the order of `changes`.
    before: Vec<Before>,
}

#[derive(Debug)]
enum Before {
    /// Name of the directory of the generation that the mount point showed.
    Directory(PathBuf),
    /// Inode number of the single file that the mount point showed.
    File(u64),
}

/// An old generation. Processes that opened its files before the swap may read these files until they are wiped.
#[derive(Debug, Default)]
pub struct Replaced(Vec<PathBuf>);

impl Volume {
    /// Returns the total and the used size of the file system, or `None` if its size has no limit (ramfs).
    ///
    /// # Errors
    /// Returns the kernel's error if a system call fails, which is not expected.
    pub fn size(&self) -> io::Result<Option<(VolumeSize, VolumeSize)>> {
        if self.kind == VolumeKind::Ramfs {
            return Ok(None);
        }
        let stat = rustix::fs::fstatvfs(self.handle())?;
        let size = |blocks: u64, inodes| VolumeSize { bytes: blocks * stat.f_frsize, inodes };
        Ok(Some((size(stat.f_blocks, stat.f_files), size(stat.f_blocks - stat.f_bfree, stat.f_files - stat.f_ffree))))
    }

    /// Resizes the file system and keeps its other options. No effect on ramfs.
    ///
    /// # Errors
    /// Returns an error if the content is larger than the new size.
    pub fn resize(&self, size: VolumeSize) -> io::Result<()> {
        if self.kind == VolumeKind::Ramfs {
            return Ok(());
        }
        let (bytes, inodes) = (size.bytes.to_string(), size.inodes.to_string());
        reconfigure(self.handle(), &[("size", Some(&bytes)), ("nr_inodes", Some(&inodes))])
    }

    /// Sets the size to the used size plus `room`, which is the limit for a process that may write to the volume.
    ///
    /// # Errors
    /// Returns the kernel's error if a system call fails, which is not expected.
    pub fn leave_room(&self, room: VolumeSize) -> io::Result<()> {
        let Some((_, used)) = self.size()? else { return Ok(()) };
        self.resize(VolumeSize { bytes: used.bytes + room.bytes, inodes: used.inodes + room.inodes })
    }

    /// Overwrites and removes an old generation, except files that a newer generation shares.
    ///
    /// # Errors
    /// Returns an error if a file could not be overwritten; remaining files are wiped with the whole volume.
    pub fn wipe_replaced(&self, replaced: &Replaced) -> io::Result<Receipt> {
        let mut receipt = Receipt::default();
        let wiped = replaced.0.iter().try_for_each(|path| ignore_not_found(self.wipe_below(path, &mut receipt)));
        self.release();
        wiped.map(|()| receipt)
    }

    /// Opens the directory of a mount point's generations.
    fn top(&self, mount: usize) -> io::Result<OwnedFd> {
        open_dir(self.handle(), generations(mount).as_os_str())
    }

    /// Opens the directory that is visible at a mount point.
    fn shown(&self, mount: usize) -> io::Result<OwnedFd> {
        open_dir(self.handle(), mount.to_string().as_ref())
    }
}

impl<'a> Rotation<'a> {
    /// Reads the current state. `number` is the number of the new generation, and must be larger than any earlier
    /// number.
    ///
    /// # Errors
    /// Returns an error if a mount point's entries are not as this module creates them.
    pub fn start(
        volume: &'a Volume,
        number: u64,
        mounts: &'a [MountPoint],
        changes: &'a [MountChange],
    ) -> io::Result<Self> {
        let look = |change: &MountChange| match change.next {
            NextContent::Directory { .. } => {
                let name = readlinkat(volume.top(change.mount)?, IN_FORCE, Vec::new())?;
                let name = PathBuf::from(OsStr::new(name.to_str().map_err(io::Error::other)?));
                Ok(Before::Directory(name))
            }
            NextContent::File(_) => Ok(Before::File(inode(volume, change.mount.to_string().as_ref())?)),
        };
        let before = changes.iter().map(look).collect::<io::Result<_>>()?;
        Ok(Self { volume, number, mounts, changes, before })
    }

    /// Writes the new generation without making it visible, and passes the descriptor of each new file to `pass`. New
    /// pages are charged to the cgroup of the calling process.
    ///
    /// # Errors
    /// Returns an error if the volume is full or the cgroup's memory limit is reached. Partial files remain until
    /// `discard` is called.
    ///
    /// # Panics
    /// Panics if `contents`, `access` or `mounts` is shorter than the indices in the changes and the mount points
    /// require; the caller checks the lengths first.
    pub fn write(&self, contents: &[&[u8]], access: &[Access], owner: Owner, pass: &mut Pass<'_>) -> io::Result<()> {
        for (change, before) in self.changes.iter().zip(&self.before) {
            let mount = &self.mounts[change.mount];
            match (&change.next, before, &mount.content) {
                (NextContent::File(payload), _, Content::File(index)) => {
                    let beside = self.beside(change.mount);
                    let file =
                        write_file(self.volume.handle(), &beside, contents[*payload], owner.uid, access[*index])?;
                    pass(file.into())?;
                }
                (NextContent::Directory { kept, new }, Before::Directory(before), Content::Directory(files)) => {
                    let top = self.volume.top(change.mount)?;
                    let generation = make_generation(top.as_fd(), &self.name(), &mount.content, access, owner)?;
                    let old = open_dir(top.as_fd(), before.as_os_str())?;
                    for path in kept {
                        rustix::fs::linkat(&old, path, &generation, path, AtFlags::empty())?;
                    }
                    let access: BTreeMap<&Path, Access> =
                        files.iter().map(|(index, path)| (&**path, access[*index])).collect();
                    for (payload, path) in new {
                        let file =
                            write_file(generation.as_fd(), path, contents[*payload], owner.uid, access[&**path])?;
                        pass(file.into())?;
                    }
                    make_link(self.name().as_ref(), top.as_fd(), DATA_NEW.as_ref(), owner)?;
                    let private = Access { mode: DIRECTORY, gid: owner.gid };
                    let beside = self.beside(change.mount);
                    let made = make_dir(self.volume.handle(), beside.as_os_str(), owner.uid, private)?;
                    self.show(change.mount, generation.as_fd(), Some(made.as_fd()))?;
                    let links =
                        make_dir(self.volume.handle(), self.links(change.mount).as_os_str(), owner.uid, private)?;
                    for (number, (_, path)) in new.iter().enumerate() {
                        let name = number.to_string();
                        make_link(&mount.link(change.mount, path), links.as_fd(), name.as_ref(), owner)?;
                    }
                }
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            }
        }
        Ok(())
    }

    /// Creates the entries of a generation that are missing at a mount point. Creates them in `beside`, or directly in
    /// the visible directory if `beside` is `None`.
    fn show(&self, mount: usize, generation: BorrowedFd<'_>, beside: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let (shown, point) = (self.volume.shown(mount)?, &self.mounts[mount]);
        let into = beside.unwrap_or(shown.as_fd());
        shown::add(generation, Some(shown.as_fd()), into, &|path| point.link(mount, path))
    }

    /// Returns a temporary path in the volume. For a single file, the path holds the new content before the swap, and
    /// the old content afterwards. For a directory, the path holds new entries before the swap, and removed entries
    /// afterwards.
    pub fn beside(&self, mount: usize) -> PathBuf {
        PathBuf::from(format!("{mount}{}", self.name()))
    }

    /// Returns the path in the volume of the links that are renamed over the visible links of a directory.
    fn links(&self, mount: usize) -> PathBuf {
        PathBuf::from(format!("{mount}{}..links", self.name()))
    }

    /// Renames the link of each new file over the visible link, for programs that watch the directory.
    fn announce(&self) -> io::Result<()> {
        for change in self.changes {
            let NextContent::Directory { new, .. } = &change.next else { continue };
            let (links, shown) = (
                open_dir(self.volume.handle(), self.links(change.mount).as_os_str())?,
                self.volume.shown(change.mount)?,
            );
            for (number, (_, path)) in new.iter().enumerate() {
                renameat(&links, number.to_string(), &shown, path)?;
            }
        }
        Ok(())
    }

    /// Activates the new generation at every mount point. If a swap fails, restores the old generation at every mount
    /// point.
    ///
    /// # Errors
    /// Returns an error if a rename fails.
    pub fn swap(&self) -> io::Result<()> {
        let directories = || self.changes.iter().filter(|change| matches!(change.next, NextContent::Directory { .. }));
        let shown = directories().try_for_each(|change| {
            let made = open_dir(self.volume.handle(), self.beside(change.mount).as_os_str())?;
            shown::merge(made.as_fd(), self.volume.shown(change.mount)?.as_fd())
        });
        let swapped = || {
            self.changes.iter().try_for_each(|change| match change.next {
                NextContent::File(_) => self.exchange(change.mount),
                NextContent::Directory { .. } => {
                    let top = self.volume.top(change.mount)?;
                    Ok(renameat(&top, DATA_NEW, &top, IN_FORCE)?)
                }
            })
        };
        shown.and_then(|()| swapped()).and_then(|()| self.announce()).inspect_err(|_| {
            // The first error is returned; an error of the rollback is ignored.
            let _ = self.swap_back();
        })
    }

    /// Restores the old generation at every mount point.
    ///
    /// # Errors
    /// Returns the first error if a mount point cannot be restored; the others are still tried.
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
        if readlinkat(&top, IN_FORCE, Vec::new())?.as_bytes() != before.as_os_str().as_encoded_bytes() {
            ignore_not_found(unlinkat(&top, DATA_NEW, AtFlags::empty()))?;
            let above = rustix::fs::fstat(&top)?;
            let owner = Owner { uid: above.st_uid, gid: above.st_gid };
            make_link(before, top.as_fd(), DATA_NEW.as_ref(), owner)?;
            renameat(&top, DATA_NEW, &top, IN_FORCE)?;
        }
        self.prune(mount)?;
        self.show(mount, open_dir(top.as_fd(), before.as_os_str())?.as_fd(), None)
    }

    fn exchange(&self, mount: usize) -> io::Result<()> {
        let (root, beside) = (self.volume.handle(), self.beside(mount));
        Ok(renameat_with(root, beside, root, mount.to_string(), RenameFlags::EXCHANGE)?)
    }

    /// Overwrites and removes the files of a generation that was not activated.
    ///
    /// # Errors
    /// Returns an error if a file could not be overwritten.
    pub fn discard(self) -> io::Result<()> {
        let mut result = Ok(());
        for change in self.changes {
            let of_directory = match change.next {
                NextContent::File(_) => Ok(()),
                NextContent::Directory { .. } => self.discard_directory(change.mount),
            };
            result = result.and(of_directory).and(self.wipe_beside(change.mount));
        }
        self.volume.release();
        result
    }

    fn wipe_beside(&self, mount: usize) -> io::Result<()> {
        let wipe = |path: PathBuf| ignore_not_found(self.volume.wipe_below(&path, &mut Receipt::default()));
        wipe(self.links(mount)).and(wipe(self.beside(mount)))
    }

    fn discard_directory(&self, mount: usize) -> io::Result<()> {
        let top = self.volume.top(mount)?;
        ignore_not_found(unlinkat(&top, DATA_NEW, AtFlags::empty()))?;
        let generation = generations(mount).join(self.name());
        ignore_not_found(self.volume.wipe_below(&generation, &mut Receipt::default()))?;
        self.prune(mount)
    }

    /// Finishes a rotation after the swap: removes the links of removed files, and returns the old generation.
    ///
    /// # Errors
    /// Returns the kernel's error if a system call fails, which is not expected.
    pub fn finish(self) -> io::Result<Replaced> {
        let mut replaced = Vec::with_capacity(self.changes.len());
        for (change, before) in self.changes.iter().zip(&self.before) {
            replaced.push(match before {
                Before::File(_) => self.beside(change.mount),
                Before::Directory(before) => {
                    self.prune(change.mount)?;
                    self.wipe_beside(change.mount)?;
                    generations(change.mount).join(before)
                }
            });
        }
        Ok(Replaced(replaced))
    }

    fn name(&self) -> String {
        format!("..gen{}", self.number)
    }

    /// Removes visible links whose files the current generation lacks. Does nothing if the directory
    /// [`Self::beside`] does not exist.
    fn prune(&self, mount: usize) -> io::Result<()> {
        let aside = match open_dir(self.volume.handle(), self.beside(mount).as_os_str()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            aside => aside?,
        };
        let (shown, top) = (self.volume.shown(mount)?, self.volume.top(mount)?);
        let name = readlinkat(&top, IN_FORCE, Vec::new())?;
        let in_force = open_dir(top.as_fd(), OsStr::from_bytes(name.as_bytes()))?;
        shown::prune(in_force.as_fd(), shown.as_fd(), aside.as_fd())
    }
}

fn inode(volume: &Volume, name: &Path) -> io::Result<u64> {
    Ok(statat(volume.handle(), name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino)
}

#[cfg(test)]
mod tests;
