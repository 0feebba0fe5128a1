//! Reads zip archives. Every entry is checked before any entry is unpacked, and is converted to a tar entry.
//!
//! The number of entries is read from the end record, before the entries. Entries are read one at a time and not stored
//! in a table, so that memory use does not depend on the archive.

use std::fs::File;
use std::io::{self, Read, Write};

use tar::{Builder, EntryType, Header};
use zip::read::{Config, ZipFile, ZipReadOptions};
use zip::unstable::read::ZipIterable;

use crate::job::Failure;
use crate::paths::check_path;
use crate::remote::plain;

const ENTRIES_MAX: usize = 1_000_000;
/// Maximum length of a symbolic link's target, in bytes.
const LINK_MAX: u64 = 4095;
/// Mask of the file type in Unix permissions.
const TYPE_MASK: u32 = 0o170_000;
const SYMLINK: u32 = 0o120_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// Reads only the end record of an archive.
fn open(file: &File) -> Result<ZipIterable<&File>, Failure> {
    let archive = ZipIterable::try_new(file, Config::default()).map_err(|error| damaged(&error))?;
    if archive.len() > ENTRIES_MAX {
        let why = format!("the zip archive has {} entries; at most {ENTRIES_MAX} are allowed", archive.len());
        return Err(Failure::last(why));
    }
    Ok(archive)
}

/// Checks every entry in the central directory.
pub(crate) fn check(file: &File, bytes_max: u64) -> Result<(), Failure> {
    let mut archive = open(file)?;
    let mut bytes: u64 = 0;
    for entry in archive.files().map_err(|error| damaged(&error))? {
        let entry = entry.map_err(|error| damaged(&error))?;
        let path = entry.name_raw();
        check_path(path)?;
        let shown = path.escape_ascii();
        if entry.encrypted() {
            return Err(Failure::last(format!("`{shown}` is encrypted, which is not supported")));
        }
        if !matches!(entry.unix_mode().unwrap_or(0) & TYPE_MASK, 0 | SYMLINK | DIRECTORY | REGULAR) {
            return Err(Failure::last(format!("`{shown}` is neither a file, a directory nor a symbolic link")));
        }
        bytes = bytes.saturating_add(entry.size());
        if bytes > bytes_max {
            let why = format!("the zip archive unpacks to {bytes} bytes or more; the maximum is {bytes_max}");
            return Err(Failure::last(why));
        }
    }
    Ok(())
}

fn damaged(error: &zip::result::ZipError) -> Failure {
    Failure::last(format!("the zip archive is damaged: {}", plain(&error.to_string())))
}

/// Writes a zip archive as a tar archive.
pub(crate) fn to_tar(file: &File, out: &mut impl Write, bytes_max: u64) -> io::Result<()> {
    let failed = |error: zip::result::ZipError| io::Error::other(damaged(&error).why);
    let mut archive = open(file).map_err(|failure| io::Error::other(failure.why))?;
    let mut tar = Builder::new(out);
    let mut left = bytes_max;
    // Both readers share the file's offset, so each of them seeks before it reads.
    let mut entries = archive.files_with_reader(file, ZipReadOptions::new()).map_err(failed)?;
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(failed)?;
        left = left
            .checked_sub(entry.size())
            .ok_or_else(|| io::Error::other(format!("the unpacked size exceeds the maximum of {bytes_max} bytes")))?;
        append(entry, &mut tar)?;
    }
    tar.finish()
}

fn append(mut entry: ZipFile<'_, &File>, tar: &mut Builder<impl Write>) -> io::Result<()> {
    let path = String::from_utf8_lossy(entry.name_raw()).into_owned();
    check_path(path.as_bytes()).map_err(|failure| io::Error::other(failure.why))?;
    let shown = path.clone();
    let named = |error: io::Error| io::Error::new(error.kind(), format!("`{shown}`: {}", plain(&error.to_string())));
    let unix = entry.unix_mode();
    let mut header = Header::new_gnu();
    header.set_mtime(0);
    if unix.is_some_and(|mode| mode & TYPE_MASK == SYMLINK) {
        let mut target = Vec::new();
        entry.by_ref().take(LINK_MAX + 1).read_to_end(&mut target).map_err(&named)?;
        let target =
            String::from_utf8(target).ok().filter(|target| target.len() as u64 <= LINK_MAX && !target.is_empty());
        let target = target.ok_or_else(|| {
            io::Error::other(format!("`{shown}` is a symbolic link whose target is empty, too long or not UTF-8"))
        })?;
        header.set_entry_type(EntryType::Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        return tar.append_link(&mut header, &path, &target);
    }
    let permissions = |default: u32| unix.map_or(default, |mode| mode & 0o777);
    if entry.is_dir() {
        header.set_entry_type(EntryType::Directory);
        header.set_mode(permissions(0o755));
        header.set_size(0);
        return tar.append_data(&mut header, &path, io::empty());
    }
    let size = entry.size();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(permissions(0o644));
    header.set_size(size);
    // The tar format requires exactly the declared size: otherwise data of one entry would be read as part of another.
    let mut exact = Exact { inner: entry, left: size };
    tar.append_data(&mut header, &path, &mut exact).map_err(&named)
}

/// A reader that returns an error unless its source has exactly this number of bytes.
struct Exact<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Exact<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        if length == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::Error::other(format!("the content ends {} bytes before its declared size", self.left)));
        }
        let left = self.left.checked_sub(length as u64);
        self.left = left.ok_or_else(|| io::Error::other("the content is longer than its declared size"))?;
        Ok(length)
    }
}
