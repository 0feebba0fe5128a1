//! Copies captured files from the helper's descriptors to numbered files in the state directory.
//!
//! Each descriptor is checked again here, by the process that has the privilege to write. If a file cannot be copied
//! completely, the copy is removed, the file is reported as skipped, and the other files are still copied. The list is
//! written last, so all listed files exist.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

use executor_core::outputs::{CapturedFile, DISK_RESERVE, LIST, OutputsList};
use rustix::fs::{FileType, fstat};

use crate::dirs::Dirs;
use crate::errors::{is_full, plain};

/// Number of bytes copied between two checks of the time limit.
const PIECE: u64 = 1 << 20;
/// Maximum number of files that are synced individually. For more files the whole file system is synced.
const SYNCED_ALONE_MAX: usize = 32;
const NO_ROOM: &str = "no space on the executor's disk";

/// Outputs that are being captured.
pub(super) struct Store<'a> {
    dirs: &'a Dirs,
    directory: PathBuf,
    list: OutputsList,
    next: u32,
    bytes_max: u64,
    bytes_left: u64,
    secret_devices: &'a [u64],
}

/// Error of a file that was not copied.
enum CopyError {
    /// Copying had to stop, because the time limit was reached or the container is stopped. Holds the reason.
    Stopped(&'static str),
    /// The file could not be copied because of an I/O error.
    Failed(io::Error),
}

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl<'a> Store<'a> {
    /// Creates an empty store.
    pub(super) fn create(dirs: &'a Dirs, bytes_max: u64, secret_devices: &'a [u64]) -> io::Result<Self> {
        let directory = dirs.make_outputs()?;
        let list = OutputsList::default();
        Ok(Self { dirs, directory, list, next: 0, bytes_max, bytes_left: bytes_max, secret_devices })
    }

    /// Records a file that is not captured.
    pub(super) fn skip(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.list.skip(path, reason);
    }

    /// Copies a file. `over` is called repeatedly and returns a reason when copying must stop.
    pub(super) fn take(
        &mut self,
        path: String,
        mode: u32,
        file: &File,
        over: &mut dyn FnMut() -> Option<&'static str>,
    ) {
        let size = match self.evaluate(&path, file) {
            Ok(size) => size,
            Err(reason) => return self.skip(path, reason),
        };
        let number = self.next;
        self.next += 1;
        match self.copy(number, file, size, over) {
            Ok(size) => {
                self.bytes_left -= size;
                self.list.add(CapturedFile { number, path, size, mode: mode & 0o7777 });
            }
            Err(error) => {
                self.remove(number);
                let reason = match error {
                    CopyError::Stopped(why) => why.to_owned(),
                    CopyError::Failed(error) if is_full(&error) => NO_ROOM.to_owned(),
                    CopyError::Failed(error) => plain(&error),
                };
                self.skip(path, reason);
            }
        }
    }

    /// Returns the size of a file if it may be captured.
    fn evaluate(&self, path: &str, file: &File) -> Result<u64, String> {
        let stat = fstat(file).map_err(|error| plain(&error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err("not a regular file".into());
        }
        if self.secret_devices.contains(&stat.st_dev) {
            return Err("a secret file".into());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > self.bytes_left {
            let (left, max) = (self.bytes_left, self.bytes_max);
            return Err(format!("the file is {size} bytes; {left} of {max} bytes are left"));
        }
        // Check the free space first: a full disk would stop other containers, even if it is full only for a moment.
        let disk = rustix::fs::statvfs(&self.directory).map_err(|error| plain(&error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        // File systems without a fixed number of inodes report 0 inodes and 0 free inodes.
        let inodes = disk.f_files == 0 || disk.f_favail > DISK_RESERVE.1;
        if free < size.saturating_add(DISK_RESERVE.0) || !inodes {
            return Err(NO_ROOM.into());
        }
        if !self.list.has_room_for(path) {
            return Err("the list of captured files is full".into());
        }
        Ok(size)
    }

    /// Copies at most `size` bytes. Returns the number of bytes copied.
    fn copy(
        &self,
        number: u32,
        from: &File,
        size: u64,
        over: &mut dyn FnMut() -> Option<&'static str>,
    ) -> Result<u64, CopyError> {
        let to = self.dirs.open_new(&self.directory.join(number.to_string()))?;
        let mut copied = 0;
        while copied < size {
            let piece = io::copy(&mut from.take(PIECE.min(size - copied)), &mut &to)?;
            if piece == 0 {
                break; // the file was truncated
            }
            copied += piece;
            if let Some(why) = over() {
                return Err(CopyError::Stopped(why));
            }
        }
        Ok(copied)
    }

    fn remove(&self, number: u32) {
        let _ = fs::remove_file(self.directory.join(number.to_string())); // best effort: the file is not in the list
    }

    /// Syncs the files and writes the list. While the disk has no space for the list, removes the largest file and
    /// tries again.
    pub(super) fn finish(mut self) -> Result<OutputsList, String> {
        self.sync();
        loop {
            let error = match self.write_list() {
                Ok(()) => return Ok(self.list),
                Err(error) => error,
            };
            let largest = self.list.files.iter().enumerate().max_by_key(|(_, file)| file.size).map(|(index, _)| index);
            let Some(largest) = largest.filter(|_| is_full(&error)) else {
                return Err(format!("cannot write the list of the captured outputs: {}", plain(&error)));
            };
            self.drop_file(largest, NO_ROOM);
        }
    }

    fn drop_file(&mut self, index: usize, reason: &str) {
        let file = self.list.files.remove(index);
        self.remove(file.number);
        self.list.skip(file.path, reason);
    }

    /// Syncs the files. Removes files that cannot be synced, and lists them as skipped.
    fn sync(&mut self) {
        if self.list.files.len() > SYNCED_ALONE_MAX {
            let synced = File::open(&self.directory).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
            if let Err(error) = synced {
                for index in (0..self.list.files.len()).rev() {
                    self.drop_file(index, &plain(&error));
                }
            }
            return;
        }
        for index in (0..self.list.files.len()).rev() {
            let path = self.directory.join(self.list.files[index].number.to_string());
            if let Err(error) = File::open(&path).and_then(|file| file.sync_all()) {
                self.drop_file(index, &plain(&error));
            }
        }
    }

    fn write_list(&self) -> io::Result<()> {
        let path = self.directory.join(LIST);
        self.dirs.replacement(&path).durable().write(&serde_json::to_vec(&self.list)?).map(drop)
    }
}
