//! Reads a tar archive entry by entry.
//!
//! Input: the bytes of an untrusted archive; output: entries whose names and lengths are within the limits, and the
//! pieces of their contents. This module looks up no path and creates no file.
//!
//! It accepts what Go's `archive/tar` accepts, which writes most layers: v7, ustar, GNU with its long names, base-256
//! numbers and sparse files, pax with its records and its three forms of sparse files. The crate `tar` is not
//! sufficient: its records end at the first newline, so that a `security.capability` containing a byte 10 is an error
//! or lost, its long names and records are limited only by memory, and it does not support pax's sparse files and
//! negative times.

mod header;
mod pax;
mod sparse;

use crate::{Limits, UnpackError};
use header::{BLOCK, Header};
use pax::Records;
pub use sparse::SparsePiece;

/// Most extension headers before one entry: a long name, a long link and records, each possibly twice.
const DESCRIPTIONS_MAX: u32 = 8;

/// Source of an archive's bytes.
pub trait Source {
    /// Reads up to `buffer.len()` bytes. 0 means end of file.
    ///
    /// # Errors
    /// Errors of the source.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, UnpackError>;
}

impl Source for crate::stream::Archive {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, UnpackError> {
        Self::read(self, buffer)
    }
}

impl Source for &[u8] {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, UnpackError> {
        let (now, later) = self.split_at(self.len().min(buffer.len()));
        buffer[..now.len()].copy_from_slice(now);
        *self = later;
        Ok(now.len())
    }
}

impl<S: Source + ?Sized> Source for &mut S {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, UnpackError> {
        (**self).read(buffer)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    /// Another name of an existing file.
    HardLink,
    Symlink,
    Directory,
    Fifo,
    /// A character device with its major and minor number.
    CharDevice(u32, u32),
    /// A block device with its major and minor number.
    BlockDevice(u32, u32),
}

impl Kind {
    /// Returns true for a character or block device.
    pub(crate) fn is_device(&self) -> bool {
        matches!(self, Self::CharDevice(..) | Self::BlockDevice(..))
    }
}

/// Extended attributes: names and values as bytes.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds, less than a second.
    pub nanoseconds: u32,
}

/// An entry, without its content.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path as written in the archive.
    pub path: Vec<u8>,
    pub kind: Kind,
    /// Permissions, set-id and sticky bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Modification time.
    pub mtime: Time,
    /// Target of a link as written in the archive.
    pub link: Vec<u8>,
    pub xattrs: Xattrs,
    /// Size of a regular file in bytes, including holes.
    pub size: u64,
}

/// Reads the entries of an archive.
pub struct Reader<S> {
    source: S,
    limits: Limits,
    /// Unread bytes of the current entry's content and padding.
    left: u64,
    padding: u64,
    /// Remaining pieces of the current entry; the next one is last.
    pieces: Vec<SparsePiece>,
    ended: bool,
}

impl<S: Source> Reader<S> {
    /// Starts reading an archive.
    pub fn new(source: S, limits: Limits) -> Self {
        Self { source, limits, left: 0, padding: 0, pieces: Vec::new(), ended: false }
    }

    /// Returns the rest of the source. Bytes after the end of the archive are not part of it.
    pub fn into_source(self) -> S {
        self.source
    }

    /// Returns the next entry, skipping unread content of the current one. After an error there are no more entries,
    /// because the position of the next one is unknown.
    ///
    /// # Errors
    /// Fails if the archive is malformed, a limit is exceeded, or the source fails.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, UnpackError> {
        if self.ended {
            return Ok(None);
        }
        let entry = self.read_entry();
        self.ended = !matches!(entry, Ok(Some(_)));
        entry
    }

    fn read_entry(&mut self) -> Result<Option<Entry>, UnpackError> {
        let mut described = Described::default();
        for _ in 0..=DESCRIPTIONS_MAX {
            self.pass_over()?;
            let Some(block) = self.header()? else {
                if described.is_empty() {
                    return Ok(None);
                }
                return Err(UnpackError::archive(&described.path, "it ends between an extension header and its entry"));
            };
            let header = Header(&block);
            match header.kind() {
                b'x' => described.records = Records::parse(&self.description(&header)?, &self.limits)?,
                b'g' => drop(self.description(&header)?),
                b'L' => described.path = until_nul(&self.description(&header)?).to_vec(),
                b'K' => described.link = until_nul(&self.description(&header)?).to_vec(),
                _ => return self.entry(&header, described).map(Some),
            }
        }
        let what = "extension headers before an entry";
        Err(UnpackError::limit(&described.path, what, u64::from(DESCRIPTIONS_MAX) + 1, DESCRIPTIONS_MAX.into()))
    }

    /// Returns the next header block; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, UnpackError> {
        let mut block = [0; BLOCK];
        // A missing end marker is accepted as the end.
        if !self.fill_or_end(&mut block)? {
            return Ok(None);
        }
        if block == [0; BLOCK] {
            if !self.fill_or_end(&mut block)? || block == [0; BLOCK] {
                return Ok(None);
            }
            return Err(UnpackError::archive(b"", "an empty block between entries"));
        }
        Header(&block).check()?;
        Ok(Some(block))
    }

    /// Reads the content of an extension header, which describes the next entry.
    fn description(&mut self, header: &Header<'_>) -> Result<Vec<u8>, UnpackError> {
        let size = header.size()?;
        if size > self.limits.description {
            let what = "bytes of long names or records";
            return Err(UnpackError::limit(&header.path(), what, size, self.limits.description));
        }
        let mut bytes = vec![0; size as usize];
        self.fill(&mut bytes)?;
        self.padding = padding(size);
        Ok(bytes)
    }

    fn entry(&mut self, header: &Header<'_>, described: Described) -> Result<Entry, UnpackError> {
        let Described { path, link, records } = described;
        let path = [records.sparse.name, records.path, (!path.is_empty()).then_some(path)].into_iter().flatten().next();
        let path = path.unwrap_or_else(|| header.path());
        let link = records.link.or((!link.is_empty()).then_some(link)).unwrap_or_else(|| header.link());
        let damaged = |why: &str| UnpackError::archive(&path, why);
        let kind = match header.kind() {
            // Old archives mark a directory only by the slash.
            0 if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::CharDevice(header.device_major()?, header.device_minor()?),
            b'4' => Kind::BlockDevice(header.device_major()?, header.device_minor()?),
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => return Err(UnpackError::entry(&path, format!("has an unknown entry type: {other:#04x}"))),
        };
        // Only a file has content, regardless of the header.
        let stored = if kind == Kind::File { records.size.map_or_else(|| header.size(), Ok)? } else { 0 };
        self.left = stored;
        self.padding = padding(stored);
        let mut size = stored;
        self.pieces = vec![SparsePiece { at: 0, length: stored }];
        if kind == Kind::File {
            if header.kind() == b'S' {
                (size, self.pieces) = self.gnu_pieces(header, &path)?;
            } else if let Some(real) = records.sparse.size {
                size = real;
                self.pieces = if records.sparse.in_content {
                    self.pieces_in_content(&path)?
                } else {
                    sparse::from_pairs(&records.sparse.map, &path, &self.limits)?
                };
            }
            sparse::check(&self.pieces, self.left, size, &path)?;
        }
        self.pieces.reverse();
        let id = |value: Option<u64>, field: Result<u64, UnpackError>| {
            u32::try_from(value.map_or(field, Ok)?).map_err(|_| damaged("an owner or group of more than 32 bits"))
        };
        let (uid, gid) = (id(records.uid, header.uid())?, id(records.gid, header.gid())?);
        let mtime = records.mtime.map_or_else(|| header.mtime(), Ok)?;
        let mode = header.mode()? & 0o7777;
        for (what, found, limit) in [
            ("bytes of its name", path.len() as u64, self.limits.path),
            ("bytes of its link target", link.len() as u64, self.limits.link),
        ] {
            if found > limit {
                return Err(UnpackError::limit(&path, what, found, limit));
            }
        }
        if path.contains(&0) || link.contains(&0) {
            return Err(damaged("a name with a NUL byte"));
        }
        Ok(Entry { path, kind, mode, uid, gid, mtime, link, xattrs: records.xattrs, size })
    }

    /// Reads the next part of the current entry's content into `buffer`. Returns its offset in the file and its length.
    /// The ranges between pieces are holes.
    ///
    /// # Errors
    /// Fails if the content is truncated or the source fails.
    pub fn content(&mut self, buffer: &mut [u8]) -> Result<Option<(u64, usize)>, UnpackError> {
        let (at, most) = loop {
            let Some(piece) = self.pieces.last_mut() else { return Ok(None) };
            let most = piece.length.min(buffer.len() as u64) as usize;
            let at = piece.at;
            piece.at += most as u64;
            piece.length -= most as u64;
            if piece.length == 0 {
                self.pieces.pop();
            }
            if most > 0 {
                break (at, most);
            }
        };
        self.fill(&mut buffer[..most])?;
        self.left -= most as u64;
        Ok(Some((at, most)))
    }

    fn pass_over(&mut self) -> Result<(), UnpackError> {
        let mut buffer = [0; 16 << 10];
        let mut left = self.left.saturating_add(self.padding);
        (self.left, self.padding) = (0, 0);
        self.pieces.clear();
        while left > 0 {
            let most = left.min(buffer.len() as u64) as usize;
            self.fill(&mut buffer[..most])?;
            left -= most as u64;
        }
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), UnpackError> {
        if buffer.is_empty() || self.fill_or_end(buffer)? {
            return Ok(());
        }
        Err(too_early())
    }

    /// Fills a buffer; returns false at the end of the source.
    fn fill_or_end(&mut self, buffer: &mut [u8]) -> Result<bool, UnpackError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.source.read(&mut buffer[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(too_early()),
                read => filled += read,
            }
        }
        Ok(true)
    }
}

/// Extension headers that precede an entry.
#[derive(Default)]
struct Described {
    path: Vec<u8>,
    link: Vec<u8>,
    records: Records,
}

impl Described {
    fn is_empty(&self) -> bool {
        self.path.is_empty() && self.link.is_empty() && self.records.is_empty()
    }
}

fn too_early() -> UnpackError {
    UnpackError::archive(b"", "it is truncated")
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}
