//! Wipes a volume: overwrites files with zeros in place, reads them back, releases the pages, and removes the names.
//!
//! Overwriting must be in place: a file that is truncated and rewritten gets other page frames, and the old frames keep
//! the secret until the kernel reuses them. A process that still has a wiped file open or mapped sees zeros.
//!
//! A tree that a process could write to may contain anything: hard links, symbolic links to any path, pipes, deeply
//! nested directories, files without permissions or with the immutable attribute, holes of any size. Therefore, a wipe
//! follows no symbolic link, opens only regular files, and needs little stack and few descriptors at any depth. A wipe
//! overwrites every file that has a name when the container exits. Pages that a process released earlier, by truncating
//! a file or deleting its own file, already belong to the kernel, like freed memory.
//!
//! A wipe never blocks. A file with a lease is left for a later wipe. A lease is possible only if the process created
//! the file, or if the shim that held the file open has exited. The kernel breaks the lease within
//! `fs.lease-break-time` (45 s) after the first attempt to open the file.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use executor_core::record::WipeRecord;
use executor_core::time::Timestamp;
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, IFlags, Mode, OFlags, RenameFlags, SeekFrom, Stat, fstat, ioctl_getflags,
    ioctl_setflags, openat, renameat_with, seek, statat, unlinkat,
};
use rustix::io::Errno;

use super::{Volume, ignore_not_found, open_dir};

/// Maximum directory depth of a recursive descent, as each level costs descriptors and stack. Deeper directories are
/// moved up first.
const DEPTH_MAX: usize = 32;
/// Maximum number of rounds if other processes create files in a directory that is being removed.
const ROUNDS_MAX: usize = 16;
/// Name prefix of a directory that was moved up; a number follows.
const MOVED: &str = "..moved";
const ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Record of wipes. Only the wipes of this module count files, so a receipt proves that the files were wiped.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    files: u32,
    bytes: u64,
    /// Device and inode of each counted file that has several names.
    met: BTreeSet<(u64, u64)>,
}

impl Receipt {
    /// Converts the receipt to a record with the name of the program that wiped and the time.
    pub fn record(&self, program: &str, at: Timestamp) -> WipeRecord {
        // A failed verification is an error of the wipe and produces no receipt.
        WipeRecord { files: self.files, bytes: self.bytes, verified: true, by: program.to_owned(), at }
    }

    /// Adds up two receipts for the same container, whose files were wiped at different times.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let met = self.met.into_iter().chain(other.met).collect();
        Self { files: self.files + other.files, bytes: self.bytes + other.bytes, met }
    }

    /// Counts a wiped file, unless it was counted by another name.
    fn count(&mut self, stat: &Stat, bytes: u64) {
        let key = (stat.st_dev, stat.st_ino);
        let is_first = if stat.st_nlink > 1 { self.met.insert(key) } else { !self.met.contains(&key) };
        if is_first {
            self.files += 1;
            self.bytes += bytes;
        }
    }

    /// Returns the number of overwritten files.
    pub fn files(&self) -> u32 {
        self.files
    }

    /// Returns the number of overwritten bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Volume {
    /// Overwrites, verifies and removes everything. A second wipe is harmless.
    ///
    /// # Errors
    /// Returns the error of the first file that could not be overwritten or verified, after trying all others. Returns
    /// `WouldBlock` if another process has a lease on that file.
    pub fn wipe(&self) -> io::Result<Receipt> {
        let mut receipt = Receipt::default();
        self.wipe_onto(&mut receipt).map(|()| receipt)
    }

    /// Wipes like [`Volume::wipe`], and adds the result to the receipt of earlier wipes, even if the wipe fails.
    ///
    /// # Errors
    /// Returns the same errors as [`Volume::wipe`].
    pub fn wipe_onto(&self, receipt: &mut Receipt) -> io::Result<()> {
        // The handle is an O_PATH descriptor of a mount and cannot be read. A handle recovered from the container's
        // mounts may be a single file, which has no name to remove in the volume.
        if FileType::from_raw_mode(fstat(self.handle())?.st_mode) == FileType::RegularFile {
            let by_descriptor = format!("/proc/self/fd/{}", self.handle().as_raw_fd());
            let file = open_file(rustix::fs::CWD, by_descriptor.as_ref(), OFlags::empty())?;
            receipt.count(&fstat(&file)?, wipe_file(&file)?);
            return Ok(());
        }
        let mut walk = WipeWalk::new(self.handle(), receipt);
        let mut round = || walk.through(|walk| wipe_dir(open_dir(walk.top, ".".as_ref())?.as_fd(), walk, 0));
        let mut wiped = round();
        for _ in 1..ROUNDS_MAX {
            match &wiped {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => wiped = round(),
                _ => break,
            }
        }
        match wiped {
            Ok(()) => self.held.borrow_mut().clear(),
            Err(_) => self.release(),
        }
        wiped
    }

    /// Overwrites, verifies and removes the tree at a path. Files that also have a name outside the tree are only
    /// unlinked.
    pub(super) fn wipe_below(&self, path: &Path, receipt: &mut Receipt) -> io::Result<()> {
        let mut walk = WipeWalk { spares_links: true, ..WipeWalk::new(self.handle(), receipt) };
        walk.through(|walk| wipe_entry(walk.top, path, walk, 0))
    }
}

/// State of a walk that wipes and removes entries of a volume.
struct WipeWalk<'a> {
    /// Destination of directories that are nested too deeply.
    top: BorrowedFd<'a>,
    /// True if files with a second name are unlinked but not wiped, because generations share unchanged files.
    spares_links: bool,
    receipt: &'a mut Receipt,
    /// Names of moved directories that are not wiped yet.
    moved: Vec<String>,
    /// Number of the last moved directory.
    number: u64,
}

impl<'a> WipeWalk<'a> {
    fn new(top: BorrowedFd<'a>, receipt: &'a mut Receipt) -> Self {
        Self { top, spares_links: false, receipt, moved: Vec::new(), number: 0 }
    }

    /// Runs a walk, then wipes the directories that the walk moved up.
    fn through(&mut self, way: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        let mut result = way(self);
        while let Some(name) = self.moved.pop() {
            result = result.and(ignore_not_found(wipe_entry(self.top, name.as_ref(), self, 0)));
        }
        result
    }

    /// Moves a directory to the top under an unused name.
    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
        loop {
            self.number += 1;
            let up = format!("{MOVED}{}", self.number);
            match renameat_with(dir, name, self.top, &*up, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                moved => {
                    moved?;
                    self.moved.push(up);
                    return Ok(());
                }
            }
        }
    }
}

fn wipe_dir(dir: BorrowedFd<'_>, walk: &mut WipeWalk<'_>, depth: usize) -> io::Result<()> {
    let mut result = Ok(());
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let wiped = wipe_entry(dir, Path::new(OsStr::from_bytes(name.to_bytes())), walk, depth);
        result = result.and(ignore_not_found(wiped)); // another process removed the entry
    }
    result
}

fn wipe_entry(dir: BorrowedFd<'_>, name: &Path, walk: &mut WipeWalk<'_>, depth: usize) -> io::Result<()> {
    match try_entry(dir, name, walk, depth) {
        // For root, EPERM means that a file attribute forbids the change (chattr(1)).
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            allow_changes(dir, name);
            try_entry(dir, name, walk, depth)
        }
        tried => tried,
    }
}

fn try_entry(dir: BorrowedFd<'_>, name: &Path, walk: &mut WipeWalk<'_>, depth: usize) -> io::Result<()> {
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let flags = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory if depth >= DEPTH_MAX => return walk.move_up(dir, name),
        FileType::Directory => {
            wipe_dir(open_dir(dir, name.as_os_str())?.as_fd(), walk, depth + 1)?;
            AtFlags::REMOVEDIR
        }
        FileType::RegularFile => {
            if stat.st_nlink <= 1 || !walk.spares_links {
                let file = open_file(dir, name, OFlags::NOFOLLOW)?;
                walk.receipt.count(&stat, wipe_file(&file)?);
            }
            AtFlags::empty()
        }
        _ => AtFlags::empty(),
    };
    Ok(unlinkat(dir, name, flags)?)
}

/// Clears the attributes that protect a file or directory and its parent directory from changes. Symbolic links and
/// special files have no such attributes.
fn allow_changes(dir: BorrowedFd<'_>, name: &Path) {
    let allow = |file: OwnedFd| {
        if let Ok(flags) = ioctl_getflags(&file) {
            let _ = ioctl_setflags(&file, flags.difference(IFlags::IMMUTABLE.union(IFlags::APPEND)));
        }
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open_dir(dir, ".".as_ref()).into_iter().for_each(allow);
    openat(dir, name, flags, Mode::empty()).into_iter().for_each(allow);
}

/// Opens a file without blocking on a lease.
fn open_file(dir: impl AsFd, name: &Path, flags: OFlags) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | flags;
    openat(dir, name, flags, Mode::empty()).map(File::from).map_err(|error| match error {
        Errno::WOULDBLOCK => io::Error::new(io::ErrorKind::WouldBlock, "another process has a lease on a file"),
        error => error.into(),
    })
}

/// Overwrites the whole file with zeros and reads it back. Returns the number of overwritten bytes, without holes.
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
    wipe_behind(file, size)?;
    if size > 0 {
        // Releases the pages even if another process has the file open. ramfs does not support this, but the pages are
        // zeros.
        let _ = rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, size);
    }
    Ok(bytes)
}

/// Zeros the part of a file's last page beyond the end of the file. A mapping can write to this part. Punching a hole
/// that is smaller than a page zeros that part of the page, and the visible size does not change.
pub(super) fn wipe_behind(file: &File, size: u64) -> io::Result<()> {
    let page_end = size.next_multiple_of(rustix::param::page_size() as u64).min(i64::MAX.unsigned_abs());
    if size == page_end {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, size, page_end - size) {
        Err(Errno::OPNOTSUPP) => Ok(()), // ramfs, where no process can write
        punched => Ok(punched?),
    }
}

/// Returns the next range with allocated pages, so that a wipe skips holes of any size.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    if at >= size {
        return Ok(None);
    }
    // Returns `None` if only a hole is left, or if another process has shortened the file.
    let find = |next| match seek(file, next) {
        Err(Errno::NXIO) => Ok(None),
        found => found.map(|found| Some(found.min(size))),
    };
    // Most files have no hole, so that one call finds their end.
    let mut start = at;
    let mut end = find(SeekFrom::Hole(at))?;
    if end == Some(at) {
        let Some(data) = find(SeekFrom::Data(at))?.filter(|data| *data < size) else { return Ok(None) };
        start = data;
        end = find(SeekFrom::Hole(start))?;
    }
    Ok(end.filter(|end| *end > start).map(|end| start..end))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that another process shortens has no data behind its new end, whatever its former size.
    #[test]
    fn data_is_found_between_holes_and_ends() {
        let page = rustix::param::page_size() as u64;
        let file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        let find = |at| next_data(&file, at, 4 * page).unwrap();
        file.set_len(4 * page).unwrap();
        assert_eq!(find(0), None);
        file.write_all_at(b"data", page).unwrap();
        assert_eq!((find(0), find(2 * page)), (Some(page..2 * page), None));
        file.write_all_at(b"data", 3 * page).unwrap();
        assert_eq!(find(2 * page), Some(3 * page..4 * page));
        assert_eq!(next_data(&file, 3 * page, 3 * page + 4).unwrap(), Some(3 * page..3 * page + 4));
        assert_eq!(find(4 * page), None);
        file.set_len(0).unwrap();
        assert_eq!((find(0), find(page)), (None, None));
    }
}
