//! The end of a volume: zeros in place, read back, the pages given up, the names removed.
//!
//! In place matters: a truncated and rewritten file gets other page frames, and the old ones keep the secret
//! until the kernel happens to reuse them. A process that still has a file open or mapped sees zeros.
//!
//! A wipe waits for nobody. A file on which somebody has a lease, which can only be where the shim that held it open is
//! gone, is left for another wipe: the kernel ends the lease within `fs.lease-break-time` (45 s) of the first.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use executor_core::record::WipeRecord;
use executor_core::time::Timestamp;
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat, fstat, openat, seek, statat, unlinkat,
};
use rustix::io::Errno;

use super::Volume;

/// Directories nested deeper than the longest path allows.
const DEPTH_MAX: usize = 4096;
const ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// What was wiped. Only [`Volume::wipe`] makes one, so that a receipt means that it happened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    files: u32,
    bytes: u64,
}

impl Receipt {
    /// The receipt as records have it: who wiped, and when.
    pub fn record(&self, by: &str, at: Timestamp) -> WipeRecord {
        // An unverified byte is an error of the wipe, and there is no receipt then.
        WipeRecord { files: self.files, bytes: self.bytes, verified: true, by: by.to_owned(), at }
    }

    /// Both together: of one container whose files were reached in several places.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self { files: self.files + other.files, bytes: self.bytes + other.bytes }
    }

    /// Files that were overwritten.
    pub fn files(&self) -> u32 {
        self.files
    }

    /// Bytes that were overwritten.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Volume {
    /// Overwrites, reads back and removes everything. Again is no harm: there is nothing left then.
    ///
    /// # Errors
    /// The first file that could not be overwritten or was not zero afterwards, when all others were tried;
    /// `WouldBlock` where somebody has a lease on it.
    pub fn wipe(&self) -> io::Result<Receipt> {
        let mut receipt = Receipt::default();
        self.wipe_onto(&mut receipt).map(|()| receipt)
    }

    /// As [`Volume::wipe`], counted in a receipt of what was wiped before: also where it fails.
    ///
    /// # Errors
    /// As [`Volume::wipe`].
    pub fn wipe_onto(&self, receipt: &mut Receipt) -> io::Result<()> {
        // The handle of a mount names a place and cannot be read from. One that was recovered may be of a single
        // file; it has no name to be removed there.
        if FileType::from_raw_mode(fstat(self.handle())?.st_mode) == FileType::RegularFile {
            let by_descriptor = format!("/proc/self/fd/{}", self.handle().as_raw_fd());
            receipt.bytes += wipe_file(&open_file(rustix::fs::CWD, by_descriptor.as_ref(), OFlags::empty())?)?;
            receipt.files += 1;
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut met = Links::Met(BTreeSet::new());
        let wiped = wipe_dir(openat(self.handle(), ".", flags, Mode::empty())?, &mut met, receipt, 0);
        self.release();
        wiped
    }

    /// Overwrites, reads back and removes what lies at a path; a file that has a name elsewhere only loses this one.
    pub(super) fn wipe_below(&self, path: &Path, receipt: &mut Receipt) -> io::Result<()> {
        wipe_entry(self.handle(), path, &mut Links::Spared, receipt, 0)
    }
}

/// What becomes of a file that has several names: generations share what did not change.
enum Links {
    /// It stays until its last name goes.
    Spared,
    /// It is overwritten and counted when it is met first; these were.
    Met(BTreeSet<u64>),
}

impl Links {
    fn is_to_be_wiped(&mut self, stat: &Stat) -> bool {
        match self {
            Self::Spared => stat.st_nlink <= 1,
            Self::Met(inodes) if stat.st_nlink <= 1 => !inodes.contains(&stat.st_ino),
            Self::Met(inodes) => inodes.insert(stat.st_ino),
        }
    }
}

fn wipe_dir(dir: impl AsFd, links: &mut Links, receipt: &mut Receipt, depth: usize) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::other("directories are nested too deeply"));
    }
    let mut result = Ok(());
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let wiped = wipe_entry(&dir, Path::new(OsStr::from_bytes(name.to_bytes())), links, receipt, depth);
        result = result.and(wiped);
    }
    result
}

fn wipe_entry(dir: impl AsFd, name: &Path, links: &mut Links, receipt: &mut Receipt, depth: usize) -> io::Result<()> {
    let stat = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let flags = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            wipe_dir(openat(&dir, name, flags, Mode::empty())?, links, receipt, depth + 1)?;
            AtFlags::REMOVEDIR
        }
        FileType::RegularFile => {
            if links.is_to_be_wiped(&stat) {
                receipt.bytes += wipe_file(&open_file(&dir, name, OFlags::NOFOLLOW)?)?;
                receipt.files += 1;
            }
            AtFlags::empty()
        }
        _ => AtFlags::empty(),
    };
    Ok(unlinkat(&dir, name, flags)?)
}

/// Opens a file, and waits for nobody who has a lease on it.
fn open_file(dir: impl AsFd, name: &Path, flags: OFlags) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | flags;
    openat(dir, name, flags, Mode::empty()).map(File::from).map_err(|error| match error {
        Errno::WOULDBLOCK => io::Error::new(io::ErrorKind::WouldBlock, "somebody has a lease on a file"),
        error => error.into(),
    })
}

/// Zeros over the whole file, read back. Gives the bytes that it had.
fn wipe_file(file: &File) -> io::Result<u64> {
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    if crate::CONTROL {
        return Ok(size);
    }
    let mut bytes = 0;
    let mut at = 0;
    while let Some(data) = next_data(file, at, size)? {
        wipe_range(file, data.clone())?;
        bytes += data.end - data.start;
        at = data.end;
    }
    if size > 0 {
        // The pages go even while somebody keeps the file open. ramfs cannot; they are zeros all the same.
        let _ = rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, size);
    }
    Ok(bytes)
}

/// The next bytes that have pages: holes cost nothing, however large they are.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) if start < size => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(start))?.min(size);
    Ok((start < end).then_some(start..end))
}

fn wipe_range(file: &File, range: Range<u64>) -> io::Result<()> {
    let pieces = || {
        let starts = range.clone().step_by(ZEROS.len());
        starts.map(|at| (at, ZEROS.len().min((range.end - at) as usize)))
    };
    for (at, length) in pieces() {
        file.write_all_at(&ZEROS[..length], at)?;
    }
    let mut back = [0xff; ZEROS.len()];
    for (at, length) in pieces() {
        file.read_exact_at(&mut back[..length], at)?;
        if back[..length] != ZEROS[..length] {
            return Err(io::Error::other("a file was not zero after it was overwritten"));
        }
    }
    Ok(())
}
