//! Reads tar archives, optionally compressed with gzip.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};
use std::path::Path;

use executor_tar::{Entry, Kind, Limits, Reader, is_tar};
use flate2::read::MultiGzDecoder;

use super::{DIRECTORY_MAX, FILES_MAX, Sink, SourceError, name_within};

/// Magic bytes of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Kind of a file, detected from its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveVisitor {
    /// Not an archive.
    Plain,
    /// An archive of files.
    Files,
    /// An archive of an image.
    Image,
}

/// Detects the kind of a file from its content.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn visit(path: &Path) -> Result<ArchiveVisitor, SourceError> {
    let failed = |error| SourceError::Read(path.to_owned(), error);
    let mut head = Vec::new();
    File::open(path).and_then(|file| file.take(512).read_to_end(&mut head)).map_err(failed)?;
    if !head.starts_with(&GZIP) && !is_tar(&head) {
        return Ok(ArchiveVisitor::Plain);
    }
    let mut archive = open(path)?;
    while let Some((name, _)) = next(&mut archive, path)? {
        if matches!(&*name, "oci-layout" | "manifest.json") {
            return Ok(ArchiveVisitor::Image);
        }
    }
    Ok(ArchiveVisitor::Files)
}

/// An archive, decompressed if needed.
pub(super) type Archive = Reader<Box<dyn Read>>;

pub(super) fn open(path: &Path) -> Result<Archive, SourceError> {
    let failed = |error| SourceError::Read(path.to_owned(), error);
    from_file(File::open(path).map_err(failed)?).map_err(failed)
}

/// Reads a file from its start, decompressed if needed.
pub(super) fn decompressed(mut file: File) -> io::Result<Box<dyn Read>> {
    let mut head = [0; 2];
    file.rewind()?;
    let count = file.read(&mut head)?;
    file.rewind()?;
    let file = BufReader::new(file);
    Ok(if head[..count] == GZIP { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) })
}

/// Reads a file from its start as an archive, within the limits of a source.
pub(super) fn from_file(file: File) -> io::Result<Archive> {
    let stream = decompressed(file)?;
    // The sink limits the files that are kept. These limits also apply to skipped files, headers and padding.
    let limits = Limits { entries: FILES_MAX as u64, ..Limits::default() }.within(2 * DIRECTORY_MAX);
    Ok(Reader::new(stream, limits))
}

/// Returns the next entry of an archive with its name; `None` at the end of the archive.
pub(super) fn next(archive: &mut Archive, path: &Path) -> Result<Option<(String, Entry)>, SourceError> {
    let entry = archive.next_entry().map_err(|error| SourceError::Read(path.to_owned(), error.into()))?;
    entry.map(|entry| Ok((name_within(&entry.path)?, entry))).transpose()
}

/// Reads the files and directories of an archive. Other entries are refused.
pub(super) fn files(path: &Path, sink: &mut Sink) -> Result<(), SourceError> {
    let mut archive = open(path)?;
    while let Some((name, entry)) = next(&mut archive, path)? {
        match entry.kind {
            Kind::Directory if name.is_empty() => {}
            Kind::Directory => sink.directory_entry(&name)?,
            Kind::File if entry.is_plain_file() && !name.is_empty() => {
                sink.file(&name, &mut archive.plain_content())?;
            }
            _ => return Err(SourceError::Entry(name, "is neither a file nor a directory")),
        }
    }
    Ok(())
}
