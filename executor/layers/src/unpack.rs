//! Unpacks a blob into a layer of the store.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use executor_tar::{Entry, Kind, Reader, components};
use rustix::fs::FileType;

use crate::skipped_devices::SkippedDevices;
use crate::store::{Ingest, list_digest};
use crate::stream::{Archive, Compression};
use crate::tree::{Marks, Parents, Tree};
use crate::{DiffId, Limits, Store, UnpackError};

/// Name prefix of whiteouts.
const WHITEOUT: &[u8] = b".wh.";
/// Name of the whiteout for all entries of a directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Name prefix of internal entries of aufs. Such entries occur in early Docker images and are skipped.
const AUFS_PREFIX: &[u8] = b".wh..wh.";
/// Write size for files, in bytes.
const BLOCK: usize = 256 << 10;

/// A request to unpack a layer.
pub struct Request<'a> {
    /// Digest of the uncompressed archive.
    pub diff_id: DiffId,
    pub compression: Compression,
    pub blob: File,
    /// Layers below this layer, bottom first.
    pub parents: &'a [DiffId],
    pub limits: Limits,
    /// True if the layer may contain devices outside of `/dev`.
    pub devices: bool,
}

/// Error message for a device outside of `/dev`.
const DEVICES: &str = "images may have devices outside of /dev only if the configuration sets launcher.image_devices";

/// A prepared unpacking of a layer, with all files open. [`Self::run`] needs no privilege except write access to the
/// directory of the new layer.
pub struct PreparedUnpack {
    diff_id: DiffId,
    parents: DiffId,
    limits: Limits,
    devices: bool,
    archive: Archive,
    below: Parents,
    ingest: Ingest,
}

impl Request<'_> {
    /// Opens all files, and mounts the layers below in this process's mount namespace.
    ///
    /// # Errors
    /// Returns an error if the blob is not a regular file or a layer below is missing, or if an I/O operation fails.
    pub fn prepare(self, store: &Store) -> Result<PreparedUnpack, UnpackError> {
        let archive = Archive::open(self.blob, self.compression, &self.limits)?;
        let below = store.open(self.parents)?;
        let below: Vec<_> = below.dirs.iter().map(AsFd::as_fd).collect();
        let below = store.view(&below)?;
        let ingest = store.start()?;
        Ok(PreparedUnpack {
            diff_id: self.diff_id,
            parents: list_digest(self.parents),
            limits: self.limits,
            devices: self.devices,
            archive,
            below,
            ingest,
        })
    }
}

impl PreparedUnpack {
    /// Unpacks the layer into the store. On success the layer is complete and synced. After an error no part of the
    /// layer remains.
    ///
    /// # Errors
    /// Returns an error if the layer is invalid, or if an I/O operation fails.
    pub fn run(self) -> Result<(), UnpackError> {
        let Self { diff_id, parents, limits, devices, archive, below, ingest } = self;
        let unpacked = (|| {
            let mut tree = Tree::new(ingest.root(), below)?;
            let mut reader = Reader::new(archive, limits.archive);
            let skipped = apply(&mut reader, &mut tree, limits.archive.name, devices)?;
            let found = reader.into_source().finish()?;
            if found != diff_id {
                return Err(UnpackError::DiffId { expected: diff_id, found });
            }
            Ok((tree.found(), skipped.warning()))
        })();
        match unpacked {
            Ok((found, warning)) => ingest.commit(&diff_id, &parents, found, warning),
            Err(error) => {
                ingest.discard();
                Err(error)
            }
        }
    }
}

/// Unpacks an archive into a tree. Components of the archive's paths may have at most `name_max` bytes. Returns the
/// skipped devices in `/dev`.
///
/// # Errors
/// Returns an error if the archive is invalid, or if an I/O operation fails.
pub fn apply<R: Read>(
    reader: &mut Reader<R>,
    tree: &mut Tree,
    name_max: u64,
    devices: bool,
) -> Result<SkippedDevices, UnpackError> {
    let mut skipped = SkippedDevices::default();
    let mut buffer = vec![0; BLOCK];
    while let Some(entry) = reader.next_entry()? {
        let path = names(&entry.path, &entry.path, name_max)?;
        let marks = Marks {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            mtime: (entry.mtime.seconds, entry.mtime.nanoseconds),
            xattrs: entry.xattrs.clone(),
        };
        match path.split_last() {
            None if entry.kind == Kind::Directory => tree.mark_root(&marks)?,
            None => return Err(UnpackError::entry(&entry.path, "would replace the root directory")),
            Some((name, dirs)) if name.starts_with(WHITEOUT) => whiteout(tree, &entry, name, dirs)?,
            Some(_) if path.iter().any(|name| name.starts_with(AUFS_PREFIX)) => {}
            Some(_) if entry.kind.is_device() && SkippedDevices::covers(&path) => skipped.add(&path),
            Some(_) => match entry.kind {
                Kind::Directory => tree.directory(&path, &marks)?,
                Kind::File => {
                    let mut file = tree.file(&path)?;
                    while let Some((at, length)) = reader.content(&mut buffer)? {
                        file.write(&buffer[..length], at)?;
                    }
                    file.finish(entry.size, &marks)?;
                }
                Kind::Symlink => tree.symlink(&path, &entry.link, &marks)?,
                Kind::HardLink => {
                    let target = names(&entry.link, &entry.path, name_max)?;
                    match (skipped.has(&target), SkippedDevices::covers(&path)) {
                        (true, true) => {
                            skipped.add(&path);
                            continue;
                        }
                        (true, false) => return Err(UnpackError::device(&entry.path, DEVICES)),
                        (false, _) => {}
                    }
                    let copied = tree.hard_link(&path, &target, reader.file_bytes_left())?;
                    reader.charge(&entry.path, copied)?;
                }
                Kind::Fifo => tree.node(&path, FileType::Fifo, (0, 0), &marks)?,
                Kind::CharDevice(..) | Kind::BlockDevice(..) if !devices => {
                    return Err(UnpackError::device(&entry.path, DEVICES));
                }
                Kind::CharDevice(major, minor) => {
                    tree.node(&path, FileType::CharacterDevice, (major, minor), &marks)?;
                }
                Kind::BlockDevice(major, minor) => tree.node(&path, FileType::BlockDevice, (major, minor), &marks)?,
            },
        }
    }
    Ok(skipped)
}

fn whiteout(tree: &mut Tree, entry: &Entry, name: &[u8], dirs: &[&[u8]]) -> Result<(), UnpackError> {
    let hidden = &name[WHITEOUT.len()..];
    if name == OPAQUE {
        return tree.hide_all(dirs);
    }
    if matches!(hidden, b"" | b"." | b"..") {
        return Err(UnpackError::entry(&entry.path, "is a whiteout without a name"));
    }
    if name.starts_with(AUFS_PREFIX) || dirs.iter().any(|name| name.starts_with(AUFS_PREFIX)) {
        return Ok(());
    }
    let path: Vec<&[u8]> = dirs.iter().copied().chain([hidden]).collect();
    tree.hide(&path)
}

/// Splits a path in the same way as umoci, and checks the length of its components.
fn names<'a>(path: &'a [u8], entry: &[u8], name_max: u64) -> Result<Vec<&'a [u8]>, UnpackError> {
    let names = components(path).ok_or_else(|| UnpackError::entry(entry, "escapes the layer"))?;
    match names.iter().map(|name| name.len() as u64).find(|length| *length > name_max) {
        Some(length) => Err(UnpackError::limit(entry, "bytes in a path component", length, name_max)),
        None => Ok(names),
    }
}
