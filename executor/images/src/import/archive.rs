//! Reads a tar archive by a table of the positions of its files.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use executor_tar::{Kind, Limits, Reader, TarError, components};

use super::{Section, Source};
use crate::error::ImageError;

/// Maximum number of entries of an archive; an image has a few entries per layer.
const ENTRIES_MAX: u64 = 10_000;
/// Maximum length of the name of an archive entry, in bytes.
const NAME_MAX: u64 = 1024;
/// Maximum number of links that are followed to a file.
const LINKS_MAX: usize = 8;

/// An entry of an archive: the position of a file, or a link to another entry.
enum ArchiveEntry {
    File {
        at: u64,
        size: u64,
    },
    /// A symbolic or hard link to another entry.
    Link(String),
}

pub(super) struct Archive {
    file: File,
    entries: HashMap<String, ArchiveEntry>,
}

impl Archive {
    /// Opens an archive, and builds the table of its files.
    pub(super) fn open(path: &Path, what: &str) -> Result<Self, ImageError> {
        let io = |error| ImageError::caller_io("read", path, error);
        let unsupported = |why: &str| ImageError::Unsupported { what: what.to_owned(), why: why.to_owned() };
        let malformed = |why: String| ImageError::Malformed { what: what.to_owned(), why };
        let mut file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(unsupported("the archive is not a regular file"));
        }
        let mut head = [0; 4];
        let n = file.read(&mut head).map_err(io)?;
        if matches!(head[..n], [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd]) {
            return Err(unsupported("the whole archive is compressed: decompress it first"));
        }
        std::io::Seek::rewind(&mut file).map_err(io)?;
        let mut entries = HashMap::new();
        // The size of a file is limited when it is read.
        let limits =
            Limits { bytes: u64::MAX, file_bytes: u64::MAX, entries: ENTRIES_MAX, path: NAME_MAX, ..Limits::default() };
        let mut reader = Reader::seeking(file.try_clone().map_err(io)?, limits);
        let broken = |error: TarError| malformed(error.to_string());
        while let Some(entry) = reader.next_entry().map_err(broken)? {
            let Some(name) = normal(&entry.path) else { continue };
            let value = match entry.kind {
                Kind::File if !entry.sparse => ArchiveEntry::File { at: reader.position(), size: entry.size },
                Kind::Symlink | Kind::HardLink => {
                    let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
                    let from_root = entry.kind == Kind::HardLink || entry.link.starts_with(b"/");
                    let base = if from_root { "" } else { dir };
                    let Some(target) = normal(&[base.as_bytes(), b"/", &entry.link].concat()) else { continue };
                    ArchiveEntry::Link(target)
                }
                _ => continue,
            };
            entries.insert(name, value);
        }
        Ok(Self { file, entries })
    }
}

impl Source for Archive {
    fn open(&mut self, name: &str) -> Result<Option<Section>, ImageError> {
        let mut name = normal(name.as_bytes());
        for _ in 0..LINKS_MAX {
            match name.as_ref().and_then(|name| self.entries.get(name)) {
                None => return Ok(None),
                Some(ArchiveEntry::Link(target)) => name = Some(target.clone()),
                Some(ArchiveEntry::File { at, size }) => {
                    let file = self.file.try_clone().map_err(|error| ImageError::io("read", "the archive", error))?;
                    return Ok(Some(Section { file, at: *at, size: *size }));
                }
            }
        }
        Ok(None)
    }
}

/// Returns a name relative to the archive's root. Returns `None` if the name escapes the root, is the root, or is not
/// UTF-8.
fn normal(path: &[u8]) -> Option<String> {
    let name = String::from_utf8(components(path)?.join(&b'/')).ok()?;
    (!name.is_empty()).then_some(name)
}
