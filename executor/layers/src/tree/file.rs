//! Creates files, links, pipes and devices of a layer.

use std::os::fd::{AsFd, OwnedFd};

use executor_sys::holes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ftruncate, linkat, mknodat, openat, readlinkat, statat, symlinkat};
use rustix::io::{Errno, pwrite};

use super::parents::attributes;
use super::{Existing, Marks, Tree, inspect, joined, keeping_time, mark_at, mark_fd, marks_of};
use crate::UnpackError;
use crate::error::Context;
use crate::error::shown;

/// Block size for copying a file from the layers below, in bytes.
const BLOCK: usize = 128 << 10;

/// A file of a layer, while its content is written.
pub struct Writing {
    file: OwnedFd,
    path: Vec<u8>,
}

impl Writing {
    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn write(&mut self, mut bytes: &[u8], mut at: u64) -> Result<(), UnpackError> {
        while !bytes.is_empty() {
            match pwrite(&self.file, bytes, at) {
                Err(Errno::INTR) => {}
                written => {
                    let written = written.context(|| format!("cannot write file `{}`", shown(&self.path)))?;
                    bytes = &bytes[written..];
                    at += written as u64;
                }
            }
        }
        Ok(())
    }

    /// Sets the attributes and the length of the file. The file may end with a hole.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn finish(self, size: u64, marks: &Marks) -> Result<(), UnpackError> {
        ftruncate(&self.file, size).context(|| format!("cannot set the size of file `{}`", shown(&self.path)))?;
        mark_fd(&self.file, marks, &self.path)
    }
}

impl Tree {
    /// Creates a file and replaces an existing entry.
    ///
    /// # Errors
    /// Returns an error if the name cannot be created, or if an I/O operation fails.
    pub fn file(&mut self, path: &[&[u8]]) -> Result<Writing, UnpackError> {
        let (dir, name) = self.parent(path)?;
        let path = joined(path);
        let file = keeping_time(&dir, || {
            Self::clear(&dir, name)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(openat(&dir, name, flags, Mode::RUSR | Mode::WUSR)?)
        });
        let file = file.context(|| format!("cannot create file `{}`", shown(&path)))?;
        Ok(Writing { file, path })
    }

    /// Creates a symbolic link and replaces an existing entry. The target is not checked, because only the container
    /// resolves it.
    ///
    /// # Errors
    /// Returns the same errors as [`Tree::file`].
    pub fn symlink(&mut self, path: &[&[u8]], target: &[u8], marks: &Marks) -> Result<(), UnpackError> {
        if target.is_empty() {
            return Err(UnpackError::entry(&joined(path), "is a symbolic link without a target"));
        }
        let (dir, name) = self.parent(path)?;
        self.special(&dir, name, &joined(path), marks, true, || Ok(symlinkat(target, &dir, name)?))
    }

    /// Creates a named pipe or a device and replaces an existing entry. A character device 0:0 would be a whiteout, so
    /// an archive must not contain one.
    ///
    /// # Errors
    /// Returns the same errors as [`Tree::file`].
    pub fn node(
        &mut self,
        path: &[&[u8]],
        kind: FileType,
        device: (u32, u32),
        marks: &Marks,
    ) -> Result<(), UnpackError> {
        if kind == FileType::CharacterDevice && device == (0, 0) {
            return Err(UnpackError::entry(
                &joined(path),
                "is a device 0:0, which overlayfs reserves for its whiteouts",
            ));
        }
        let (dir, name) = self.parent(path)?;
        let device = rustix::fs::makedev(device.0, device.1);
        let make = || Ok(mknodat(&dir, name, kind, Mode::RUSR | Mode::WUSR, device)?);
        self.special(&dir, name, &joined(path), marks, false, make).map_err(|error| match error {
            UnpackError::Host { error, .. }
                if kind != FileType::Fifo && error.raw_os_error() == Some(Errno::PERM.raw_os_error()) =>
            {
                UnpackError::device(&joined(path), "the launcher cannot create devices on this host (CAP_MKNOD)")
            }
            error => error,
        })
    }

    fn special(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        path: &[u8],
        marks: &Marks,
        symlink: bool,
        make: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<(), UnpackError> {
        let made = keeping_time(dir, || Self::clear(dir, name).and_then(|()| make()));
        made.context(|| format!("cannot create `{}`", shown(path)))?;
        mark_at(dir, name, marks, symlink, path)
    }

    /// Creates a hard link and replaces an existing entry. If the last component of the target is a symbolic link, the
    /// link is not followed. If only the layers below have the target, the target is copied into this layer. Returns
    /// the number of copied bytes.
    ///
    /// # Errors
    /// Returns an error if the target does not exist or is a directory, if more than `most` bytes would be copied, or
    /// if an I/O operation fails.
    pub fn hard_link(&mut self, path: &[&[u8]], target: &[&[u8]], most: u64) -> Result<u64, UnpackError> {
        let refused = |why: &str| {
            UnpackError::entry(&joined(path), format!("is a hard link to `{}`, {why}", shown(&joined(target))))
        };
        let failed = || format!("cannot create hard link `{}`", shown(&joined(path)));
        let (last, dirs) = target.split_last().ok_or_else(|| refused("which is the root directory"))?;
        let walked = self.walk(dirs, false)?;
        let there = match &walked.dir {
            Some(dir) => inspect(dir.as_fd(), last).context(failed)?,
            None => Existing::Nothing,
        };
        let (from, copied) = match (there, walked.dir) {
            (Existing::Directory, _) => return Err(refused("which is a directory")),
            (Existing::Symlink | Existing::Other, Some(dir)) => (dir, 0),
            (Existing::Whiteout, _) => return Err(refused("which this layer removes")),
            (_, _) if walked.hidden => return Err(refused("which does not exist")),
            _ => {
                let names: Vec<&[u8]> = walked.path.iter().map(Vec::as_slice).chain([*last]).collect();
                let copied = self.copy_up(&names, most)?.ok_or_else(|| refused("which does not exist"))?;
                (self.parent(&names)?.0, copied)
            }
        };
        let (dir, name) = self.parent(path)?;
        let same = |dir: &OwnedFd, name: &[u8]| {
            statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| (stat.st_dev, stat.st_ino))
        };
        if same(&dir, name).is_ok_and(|there| same(&from, last) == Ok(there)) {
            return Ok(copied); // the name already refers to the target
        }
        let made = keeping_time(&dir, || {
            Self::clear(&dir, name)?;
            Ok(linkat(&from, *last, &dir, name, AtFlags::empty())?)
        });
        made.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => refused("which the link would replace"),
            _ => UnpackError::Host { about: failed(), error },
        })?;
        Ok(copied)
    }

    /// Copies an entry from the lower layers into this layer, with all its attributes. Returns the number of copied
    /// bytes, or `None` if there is no such entry.
    fn copy_up(&mut self, path: &[&[u8]], most: u64) -> Result<Option<u64>, UnpackError> {
        let full = joined(path);
        let failed = || format!("cannot copy `{}` from the lower layers", shown(&full));
        let Some((dir, name, stat)) = self.parents.find(&full).context(failed)? else { return Ok(None) };
        let marks = marks_of(&stat, attributes(&dir, name).context(failed)?);
        self.found.depends = true;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                return Err(UnpackError::entry(&full, "is a directory, which cannot be the target of a hard link"));
            }
            FileType::Symlink => {
                let target = readlinkat(&dir, name, Vec::new()).context(failed)?;
                self.symlink(path, target.as_bytes(), &marks)?;
            }
            FileType::RegularFile => {
                let size = stat.st_size as u64;
                if size > most {
                    return Err(UnpackError::limit(&full, "bytes of files", size, most));
                }
                let from = openat(&dir, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
                let from = from.context(failed)?;
                let mut writing = self.file(path)?;
                let (mut buffer, mut at) = (vec![0; BLOCK], 0);
                // Holes are not read, and stay holes in the copy.
                while let Some(stored) = holes::next_stored(&from, at).context(failed)? {
                    at = stored.start;
                    while at < stored.end {
                        let most = usize::try_from(stored.end - at).unwrap_or(BLOCK).min(BLOCK);
                        let read = rustix::io::pread(&from, &mut buffer[..most], at).context(failed)?;
                        if read == 0 {
                            break;
                        }
                        writing.write(&buffer[..read], at)?;
                        at += read as u64;
                    }
                }
                writing.finish(size, &marks)?;
                return Ok(Some(size));
            }
            kind => {
                let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
                self.node(path, kind, device, &marks)?;
            }
        }
        Ok(Some(0))
    }
}
