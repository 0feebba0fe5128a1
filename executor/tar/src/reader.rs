//! The reader: headers, extension headers, contents, and the limits on all of them.

use std::io::{self, Read, Seek, SeekFrom};

use crate::header::{BLOCK, Header, until_nul};
use crate::pax::Records;
use crate::sparse::{self, Piece};
use crate::{Entry, Kind, Limits, TarError};

/// Maximum number of extension headers before one entry: a long name, a long link and records, each possibly twice.
const DESCRIPTIONS_MAX: u32 = 8;

/// Reads the entries of an archive.
pub struct Reader<R> {
    source: R,
    /// Moves the source forward by this many bytes, all of which must exist.
    skip: fn(&mut R, u64) -> io::Result<()>,
    limits: Limits,
    /// Bytes of the source before the current position.
    position: u64,
    /// Number of entries so far, and the bytes of their files including holes.
    entries: u64,
    file_bytes: u64,
    /// Unread bytes of the current entry's content and padding.
    left: u64,
    padding: u64,
    /// Remaining data regions of the current entry, in reverse order.
    pieces: Vec<Piece>,
    sparse: bool,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Starts reading an archive. Unread contents are read and dropped.
    pub fn new(source: R, limits: Limits) -> Self {
        Self::with_skip(source, limits, read_over)
    }

    /// Starts reading an archive in a file. Unread contents are skipped by seeking.
    pub fn seeking(source: R, limits: Limits) -> Self
    where
        R: Seek,
    {
        Self::with_skip(source, limits, seek_over)
    }

    fn with_skip(source: R, limits: Limits, skip: fn(&mut R, u64) -> io::Result<()>) -> Self {
        Self {
            source,
            skip,
            limits,
            position: 0,
            entries: 0,
            file_bytes: 0,
            left: 0,
            padding: 0,
            pieces: Vec::new(),
            sparse: false,
            ended: false,
        }
    }

    /// Returns the current position in bytes from the start of the archive. After [`Reader::next_entry`], this is the
    /// start of the entry's content.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of bytes that the remaining files of the archive may have in total.
    pub fn file_bytes_left(&self) -> u64 {
        self.limits.file_bytes.saturating_sub(self.file_bytes)
    }

    /// Counts bytes of a file that the caller writes in addition to the contents of the archive.
    ///
    /// # Errors
    /// Returns [`TarError::Limit`] if the files have more bytes than allowed.
    pub fn charge(&mut self, path: &[u8], bytes: u64) -> Result<(), TarError> {
        self.file_bytes = self.file_bytes.saturating_add(bytes);
        within(path, "bytes of files", self.file_bytes, self.limits.file_bytes)
    }

    /// Returns the source, positioned after the bytes that were read. Bytes after the end of the archive are not part
    /// of the archive.
    pub fn into_source(self) -> R {
        self.source
    }

    /// Returns the next entry, skipping unread content of the current entry. After an error there are no more entries,
    /// because the position of the next entry is unknown.
    ///
    /// # Errors
    /// Returns an error if the archive is malformed, a limit is exceeded, or the source fails.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        if self.ended {
            return Ok(None);
        }
        let entry = self.read_entry().and_then(|entry| match entry {
            Some(entry) => self.counted(entry).map(Some),
            None => Ok(None),
        });
        self.ended = !matches!(entry, Ok(Some(_)));
        entry
    }

    fn counted(&mut self, entry: Entry) -> Result<Entry, TarError> {
        self.entries += 1;
        within(&entry.path, "entries", self.entries, self.limits.entries)?;
        self.charge(&entry.path, entry.size)?;
        Ok(entry)
    }

    fn read_entry(&mut self) -> Result<Option<Entry>, TarError> {
        let mut described = Described::default();
        for _ in 0..=DESCRIPTIONS_MAX {
            self.pass_over()?;
            let Some(block) = self.header()? else {
                if described.is_empty() {
                    return Ok(None);
                }
                return Err(TarError::damaged(&described.path, "no entry follows the last extension header"));
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
        Err(TarError::limit(&described.path, what, u64::from(DESCRIPTIONS_MAX) + 1, DESCRIPTIONS_MAX.into()))
    }

    /// Returns the next header block; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        // A missing end marker is accepted as the end.
        if !self.fill_or_end(&mut block)? {
            return Ok(None);
        }
        if block == [0; BLOCK] {
            if !self.fill_or_end(&mut block)? || block == [0; BLOCK] {
                return Ok(None);
            }
            return Err(TarError::damaged(b"", "an empty block between entries"));
        }
        Header(&block).check()?;
        Ok(Some(block))
    }

    /// Reads the content of an extension header, which describes the next entry.
    fn description(&mut self, header: &Header<'_>) -> Result<Vec<u8>, TarError> {
        let size = header.size()?;
        if size > self.limits.description {
            let what = "bytes of long names or records";
            return Err(TarError::limit(&header.path(), what, size, self.limits.description));
        }
        let mut bytes = vec![0; size as usize];
        self.fill(&mut bytes)?;
        self.padding = padding(size);
        Ok(bytes)
    }

    fn entry(&mut self, header: &Header<'_>, described: Described) -> Result<Entry, TarError> {
        let Described { path, link, records } = described;
        let path = [records.sparse.name, records.path, (!path.is_empty()).then_some(path)].into_iter().flatten().next();
        let path = path.unwrap_or_else(|| header.path());
        let link = records.link.or((!link.is_empty()).then_some(link)).unwrap_or_else(|| header.link());
        let damaged = |why: &str| TarError::damaged(&path, why);
        let kind = match header.kind() {
            // Old archives mark a directory only by a trailing slash.
            0 if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::CharDevice(header.device_major()?, header.device_minor()?),
            b'4' => Kind::BlockDevice(header.device_major()?, header.device_minor()?),
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => return Err(TarError::entry(&path, format!("has an unknown entry type: {other:#04x}"))),
        };
        // Only a file has content, regardless of the header.
        let stored = if kind == Kind::File { records.size.map_or_else(|| header.size(), Ok)? } else { 0 };
        self.left = stored;
        self.padding = padding(stored);
        let (mut size, mut is_sparse) = (stored, false);
        self.pieces = vec![Piece { at: 0, length: stored }];
        if kind == Kind::File {
            is_sparse = header.kind() == b'S' || records.sparse.size.is_some();
            if header.kind() == b'S' {
                let limits = self.limits;
                (size, self.pieces) = sparse::from_gnu(header, &path, &limits, || self.block())?;
            } else if let Some(real) = records.sparse.size {
                size = real;
                self.pieces = if records.sparse.in_content {
                    let limits = self.limits;
                    sparse::from_content(&path, &limits, || self.content_block(&path))?
                } else {
                    sparse::from_pairs(&records.sparse.map, &path, &self.limits)?
                };
            }
            sparse::check(&self.pieces, self.left, size, &path)?;
        }
        self.pieces.reverse();
        self.sparse = is_sparse;
        let id = |value: Option<u64>, field: Result<u64, TarError>| {
            u32::try_from(value.map_or(field, Ok)?)
                .map_err(|_| damaged("the owner or group id does not fit into 32 bits"))
        };
        let (uid, gid) = (id(records.uid, header.uid())?, id(records.gid, header.gid())?);
        let mtime = records.mtime.map_or_else(|| header.mtime(), Ok)?;
        let mode = header.mode()? & 0o7777;
        for (what, found, limit) in [
            ("bytes in the name", path.len() as u64, self.limits.path),
            ("bytes in the link target", link.len() as u64, self.limits.link),
        ] {
            within(&path, what, found, limit)?;
        }
        if path.contains(&0) || link.contains(&0) {
            return Err(damaged("a name with a NUL byte"));
        }
        Ok(Entry { path, kind, mode, uid, gid, mtime, link, xattrs: records.xattrs, size, sparse: is_sparse })
    }

    /// Reads the next part of the current entry's content into `buffer`. Returns its offset in the file and its length.
    /// The ranges between the returned parts are holes. Returns `None` after the last part.
    ///
    /// # Errors
    /// Returns an error if the content is truncated or the source fails.
    pub fn content(&mut self, buffer: &mut [u8]) -> Result<Option<(u64, usize)>, TarError> {
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
        if let Err(error) = self.fill(&mut buffer[..most]) {
            self.ended = true;
            self.pieces.clear();
            return Err(error);
        }
        self.left -= most as u64;
        Ok(Some((at, most)))
    }

    /// Returns the unread content of a plain file ([`Entry::is_plain_file`]) as a stream. Reading a sparse file as a
    /// stream fails.
    pub fn plain_content(&mut self) -> Content<'_, R> {
        Content(self)
    }

    fn pass_over(&mut self) -> Result<(), TarError> {
        let left = self.left.saturating_add(self.padding);
        (self.left, self.padding) = (0, 0);
        self.pieces.clear();
        if left == 0 {
            return Ok(());
        }
        self.advance(left)?;
        (self.skip)(&mut self.source, left).map_err(failed)
    }

    /// Moves the position; fails if the archive is longer than allowed.
    fn advance(&mut self, bytes: u64) -> Result<(), TarError> {
        self.position = self.position.saturating_add(bytes);
        within(b"", "bytes of the uncompressed archive", self.position, self.limits.bytes)
    }

    /// Reads a block that is not content.
    fn block(&mut self) -> Result<[u8; BLOCK], TarError> {
        let mut block = [0; BLOCK];
        self.fill(&mut block)?;
        Ok(block)
    }

    /// Reads a block of the current entry's content.
    fn content_block(&mut self, path: &[u8]) -> Result<[u8; BLOCK], TarError> {
        self.left = self.left.checked_sub(BLOCK as u64).ok_or_else(|| TarError::damaged(path, sparse::INVALID_MAP))?;
        self.block()
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), TarError> {
        if buffer.is_empty() || self.fill_or_end(buffer)? {
            return Ok(());
        }
        Err(too_early())
    }

    /// Fills a buffer; returns false at the end of the source.
    fn fill_or_end(&mut self, buffer: &mut [u8]) -> Result<bool, TarError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.source.read(&mut buffer[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(too_early()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        self.advance(filled as u64)?;
        Ok(true)
    }
}

/// The content of a plain file.
pub struct Content<'a, R>(&'a mut Reader<R>);

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.sparse {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a sparse file has no contiguous content"));
        }
        if buffer.is_empty() {
            return Ok(0);
        }
        Ok(self.0.content(buffer)?.map_or(0, |(_, length)| length))
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

fn within(path: &[u8], what: &'static str, found: u64, limit: u64) -> Result<(), TarError> {
    if found > limit { Err(TarError::limit(path, what, found, limit)) } else { Ok(()) }
}

/// Converts an error from the source.
fn failed(error: io::Error) -> TarError {
    if error.kind() == io::ErrorKind::UnexpectedEof { too_early() } else { TarError::Read(error) }
}

fn read_over(source: &mut impl Read, bytes: u64) -> io::Result<()> {
    if io::copy(&mut source.take(bytes), &mut io::sink())? < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Reads the last byte: a seek beyond the end of a file succeeds.
fn seek_over(source: &mut (impl Read + Seek), bytes: u64) -> io::Result<()> {
    let offset = i64::try_from(bytes - 1).map_err(|_| io::ErrorKind::UnexpectedEof)?;
    source.seek(SeekFrom::Current(offset))?;
    source.read_exact(&mut [0])
}

fn too_early() -> TarError {
    TarError::damaged(b"", "truncated")
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}
