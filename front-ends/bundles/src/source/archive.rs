//! Tar archives, optionally compressed with gzip.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use executor_core::archive::Allowed;
use flate2::read::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use super::{DIRECTORY_MAX, FILES_MAX, Sink, SourceError, name_within};

/// Magic bytes of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Kind of a file.
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
    let is_tar = head.get(257..262) == Some(b"ustar");
    if !head.starts_with(&GZIP) && !is_tar {
        return Ok(ArchiveVisitor::Plain);
    }
    let (bounded, allowance) = Allowed::new(reader(path)?);
    let mut archive = Archive::new(bounded);
    for entry in archive.entries().map_err(failed)?.take(FILES_MAX) {
        let entry = entry.map_err(failed)?;
        allowance.renew(stored(&entry));
        let name = name_within(&entry.path_bytes())?;
        if matches!(&*name, "oci-layout" | "manifest.json") {
            return Ok(ArchiveVisitor::Image);
        }
    }
    Ok(ArchiveVisitor::Files)
}

/// Returns the tar stream of a file, within the size limit of a source.
pub(crate) fn reader(path: &Path) -> Result<Box<dyn Read>, SourceError> {
    let failed = |error| SourceError::Read(path.to_owned(), error);
    let mut head = [0; 2];
    let count = File::open(path).and_then(|mut file| file.read(&mut head)).map_err(failed)?;
    let file = BufReader::new(File::open(path).map_err(failed)?);
    Ok(unzipped(file, head[..count] == GZIP))
}

/// Returns a stream with a size limit, decompressed if needed.
pub(crate) fn unzipped(from: impl Read + 'static, compressed: bool) -> Box<dyn Read> {
    if compressed {
        Box::new(MultiGzDecoder::new(from).take(2 * DIRECTORY_MAX))
    } else {
        Box::new(from.take(2 * DIRECTORY_MAX))
    }
}

/// Reads the files and directories of an archive. Other entries are refused.
pub(super) fn files(path: &Path, sink: &mut Sink) -> Result<(), SourceError> {
    let failed = |error| SourceError::Read(path.to_owned(), error);
    let (bounded, allowance) = Allowed::new(reader(path)?);
    let mut archive = Archive::new(bounded);
    for (count, entry) in archive.entries().map_err(failed)?.enumerate() {
        let mut entry = entry.map_err(failed)?;
        allowance.renew(stored(&entry));
        if count >= FILES_MAX {
            return Err(SourceError::TooLarge(DIRECTORY_MAX));
        }
        let name = name_within(&entry.path_bytes())?;
        match entry.header().entry_type() {
            EntryType::Directory if !name.is_empty() => sink.directory_entry(&name)?,
            EntryType::Directory | EntryType::XGlobalHeader => {}
            EntryType::Regular | EntryType::Continuous if !name.is_empty() => sink.file(&name, &mut entry)?,
            _ => return Err(SourceError::Entry(name, "is neither a file nor a directory")),
        }
    }
    Ok(())
}

/// Visits each regular file of an archive; links and devices are skipped.
pub(crate) fn each_lenient(
    path: &Path,
    from: impl Read,
    mut take: impl FnMut(&str, &mut dyn Read) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let failed = |error| SourceError::Read(path.to_owned(), error);
    let (bounded, allowance) = Allowed::new(from);
    let mut archive = Archive::new(bounded);
    for (count, entry) in archive.entries().map_err(failed)?.enumerate() {
        let mut entry = entry.map_err(failed)?;
        allowance.renew(stored(&entry));
        if count >= FILES_MAX {
            return Err(SourceError::TooLarge(DIRECTORY_MAX));
        }
        let name = name_within(&entry.path_bytes())?;
        if matches!(entry.header().entry_type(), EntryType::Regular | EntryType::Continuous) && !name.is_empty() {
            take(&name, &mut entry)?;
        }
    }
    Ok(())
}

/// Returns the number of stored bytes of an entry; the size of a sparse file includes its holes.
pub(super) fn stored<R: Read>(entry: &Entry<'_, R>) -> u64 {
    let header = entry.header();
    if header.entry_type().is_gnu_sparse() { header.entry_size().unwrap_or(0) } else { entry.size() }
}
