//! Imports images from layouts and archives. Documents and layers are checked as in a pull from a registry.
//!
//! Archives are not extracted by name. A table records the position of each entry, and only required entries are read.
//! Therefore entry names cannot escape a directory. Each blob is verified before unpacking, and the unpacker verifies
//! the uncompressed content.

mod archive;
mod docker;
mod layout;

use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use executor_core::image::{DOCUMENT_MAX, Digest};
use executor_core::text::printable;
use executor_sys::holes;
use executor_tar::{FREE, RATIO_MAX};

use crate::blocking::blocking;
use crate::documents::Documents;
use crate::error::ImageError;
use crate::hash::{self, Hasher};
use crate::intake::Intake;
use crate::layers::LayerStore;
use crate::record::{ImageRecord, Provenance};
use crate::store::ingest::Upload;

/// Format of an image that is not in a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportFormat {
    /// An OCI layout: a directory.
    Layout,
    /// An OCI layout in a tar archive.
    OciArchive,
    /// An archive that `docker save` has written.
    DockerArchive,
    /// An archive in either format, which is detected from its files.
    Archive,
}

impl ImportFormat {
    /// Returns the reference scheme of this format.
    fn scheme(self) -> &'static str {
        match self {
            Self::Layout => "oci",
            Self::OciArchive => "oci-archive",
            Self::DockerArchive => "docker-archive",
            Self::Archive => "archive",
        }
    }
}

/// A layout or an archive, from which the files of an image are read.
trait Source: Send {
    /// Opens a file by its name relative to the root of the layout or archive. Returns `None` if the file is missing.
    fn open(&mut self, name: &str) -> Result<Option<Section>, ImageError>;
}

/// A byte range of a file: a whole file of a layout, or an entry of an archive.
struct Section {
    file: File,
    at: u64,
    size: u64,
}

impl Section {
    /// Returns a reader of this byte range only.
    fn reader(&mut self) -> std::io::Result<std::io::Take<&mut File>> {
        self.file.seek(SeekFrom::Start(self.at))?;
        Ok((&mut self.file).take(self.size))
    }

    /// Returns an error if the byte range consists mostly of holes. Call this before reading the range.
    fn check_not_sparse(&self, what: &str) -> Result<(), ImageError> {
        let part = self.at..self.at.saturating_add(self.size);
        let most = holes::excess(&self.file, part, RATIO_MAX, FREE);
        match most.map_err(|error| ImageError::io("read", what, error))? {
            None => Ok(()),
            Some(most) => {
                let what = format!("{what} (a sparse file)");
                Err(ImageError::TooLarge {
                    what,
                    is: self.size,
                    most,
                    unit: "bytes (the limit grows with the bytes that are stored on disk)",
                })
            }
        }
    }

    fn read(mut self, what: &str) -> Result<Vec<u8>, ImageError> {
        if self.size > DOCUMENT_MAX {
            let what = what.to_owned();
            return Err(ImageError::TooLarge { what, is: self.size, most: DOCUMENT_MAX, unit: "bytes" });
        }
        let (size, mut bytes) = (self.size, Vec::new());
        let read = self.reader().and_then(|mut reader| reader.read_to_end(&mut bytes));
        read.map_err(|error| ImageError::io("read", what, error))?;
        hash::check_size(size, &bytes, what)?;
        Ok(bytes)
    }
}

fn required(source: &mut dyn Source, name: &str, what: &str) -> Result<Vec<u8>, ImageError> {
    let missing = || ImageError::Malformed { what: what.to_owned(), why: format!("file {name:?} is missing") };
    source.open(name)?.ok_or_else(missing)?.read(&format!("{name} of {what}"))
}

/// Returns the format in which a source is read. Refuses an archive whose format differs from the declared format. An
/// archive with the files of both formats, as written by `docker save`, may be declared as either.
fn detect_format(source: &mut dyn Source, declared: ImportFormat, what: &str) -> Result<ImportFormat, ImageError> {
    if declared == ImportFormat::Layout {
        return Ok(declared);
    }
    let is = match (source.open(docker::MANIFEST)?.is_some(), source.open(layout::INDEX)?.is_some()) {
        (true, true) if declared == ImportFormat::OciArchive => ImportFormat::OciArchive,
        (true, _) => ImportFormat::DockerArchive,
        (false, true) => ImportFormat::OciArchive,
        (false, false) if declared == ImportFormat::Archive => {
            let why = format!(
                "the archive has neither {:?} (docker save) nor {:?} (OCI layout)",
                docker::MANIFEST,
                layout::INDEX
            );
            return Err(ImageError::Malformed { what: what.to_owned(), why });
        }
        // Missing files are reported when they are read.
        (false, false) => declared,
    };
    match declared == ImportFormat::Archive || declared == is {
        true => Ok(is),
        false => Err(ImageError::OtherForm { what: what.to_owned(), is: is.scheme(), declared: declared.scheme() }),
    }
}

/// Returns the error for a source with several images if the request selects none of them. `names` are the images'
/// names.
fn several(count: usize, names: &[&str], form: ImportFormat, what: &str) -> ImageError {
    const SHOWN_MAX: usize = 5;
    let mut shown: Vec<String> =
        names.iter().take(SHOWN_MAX).map(|name| format!("`{}`", printable(name, 100))).collect();
    if names.len() > shown.len() {
        shown.push(format!("{} more names", names.len() - shown.len()));
    }
    let names = if shown.is_empty() { "without names".to_owned() } else { shown.join(", ") };
    let alone = if form == ImportFormat::DockerArchive { ", or save it alone with `docker save NAME`" } else { "" };
    let scheme = form.scheme();
    let why = format!("contains {count} images ({names}); one is expected: choose one as `{scheme}:PATH:NAME`{alone}");
    ImageError::Unsupported { what: what.to_owned(), why }
}

/// Documents of an image, and the file name of each layer.
struct FoundImage {
    documents: Documents,
    files: Vec<String>,
    /// Names of the image in the archive or layout.
    names: Vec<String>,
}

/// Imports an image. If no name is given, uses the name in the archive.
pub(crate) async fn import<L: LayerStore>(
    intake: &Intake<L>,
    path: PathBuf,
    form: ImportFormat,
    inner: Option<String>,
    (name, provenance): (Option<String>, Provenance),
) -> Result<ImageRecord, ImageError> {
    let most = intake.settings.image_bytes_max;
    let (mut source, FoundImage { documents, files, names }) =
        blocking(move || find(&path, form, inner.as_deref(), most)).await?;
    let _held = intake.hold_layers(&documents.layers).await;
    let mut notes = Vec::with_capacity(files.len());
    for (index, file) in files.into_iter().enumerate() {
        let layer = documents.layers[index].clone();
        if let Some(there) = intake.has(&documents.layers, index).await? {
            notes.push(there);
            continue;
        }
        let store = Arc::clone(&intake.store);
        let (back, _upload, blob) = blocking(move || {
            let missing = || ImageError::Malformed {
                what: format!("layer {}", layer.digest),
                why: "the layer is no longer in the archive or layout".into(),
            };
            let section = source.open(&file)?.ok_or_else(missing)?;
            let (upload, blob) = copy(section, &layer.digest, layer.size, || store.ingest.upload())?;
            Ok((source, upload, blob))
        })
        .await?;
        source = back;
        notes.push(intake.unpack(&documents.layers, index, blob).await?);
    }
    let references = name.map_or(names, |name| vec![name]);
    intake.record(documents, references, provenance, notes).await
}

/// Finds an image in a layout or an archive, without importing it.
fn find(
    path: &std::path::Path,
    form: ImportFormat,
    inner: Option<&str>,
    most: u64,
) -> Result<(Box<dyn Source>, FoundImage), ImageError> {
    let what = path.display().to_string();
    let mut source: Box<dyn Source> = match form {
        ImportFormat::Layout => Box::new(layout::Directory::open(path)?),
        ImportFormat::OciArchive | ImportFormat::DockerArchive | ImportFormat::Archive => {
            Box::new(archive::Archive::open(path, &what)?)
        }
    };
    let found = match detect_format(&mut *source, form, &what)? {
        ImportFormat::DockerArchive => docker::find(&mut *source, inner, most, &what)?,
        form @ (ImportFormat::Layout | ImportFormat::OciArchive | ImportFormat::Archive) => {
            layout::find(&mut *source, form, inner, most, &what)?
        }
    };
    Ok((source, found))
}

/// Reads the documents of an image from a layout or an archive.
pub(crate) fn documents(
    path: &std::path::Path,
    form: ImportFormat,
    inner: Option<&str>,
    most: u64,
) -> Result<Documents, ImageError> {
    Ok(find(path, form, inner, most)?.1.documents)
}

/// Reads a layer of at most `most` bytes from a layout or an archive, as stored. The caller must verify the layer.
pub(crate) fn layer(
    path: &std::path::Path,
    form: ImportFormat,
    inner: Option<&str>,
    (diff_id, most): (&Digest, u64),
) -> Result<Option<Vec<u8>>, ImageError> {
    let (mut source, found) = find(path, form, inner, u64::MAX)?;
    let at = found.documents.layers.iter().position(|layer| layer.diff_id == *diff_id);
    let Some(file) = at.and_then(|at| found.files.get(at)) else { return Ok(None) };
    let Some(mut section) = source.open(file)? else { return Ok(None) };
    let what = format!("layer {diff_id}");
    if section.size > most {
        return Err(ImageError::TooLarge { what, is: section.size, most, unit: "bytes" });
    }
    let mut bytes = Vec::new();
    let read = section.reader().and_then(|mut reader| reader.read_to_end(&mut bytes));
    read.map_err(|error| ImageError::io("read", &what, error))?;
    Ok(Some(bytes))
}

/// Copies a blob to a separate file and verifies it. The copy is needed because a part of an archive cannot be passed
/// as a descriptor, and a caller's file could change while it is read.
fn copy(
    mut section: Section,
    digest: &Digest,
    size: u64,
    make: impl FnOnce() -> Result<(Upload, File), ImageError>,
) -> Result<(Upload, File), ImageError> {
    let what = format!("layer {digest}");
    if section.size > size {
        return Err(ImageError::Longer { what, declared: size });
    }
    if section.size < size {
        return Err(ImageError::Truncated { what, declared: size, got: section.size });
    }
    section.check_not_sparse(&what)?;
    let (upload, mut blob) = make()?;
    let mut hasher = Hasher::new(digest.algorithm());
    let mut buffer = vec![0; 256 << 10];
    let mut copied = 0u64;
    let mut reader = section.reader().map_err(|error| ImageError::io("read", &what, error))?;
    loop {
        let n = reader.read(&mut buffer).map_err(|error| ImageError::io("read", &what, error))?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        let written = std::io::Write::write_all(&mut blob, &buffer[..n]);
        written.map_err(|error| ImageError::io("write", &upload.path, error))?;
        copied += n as u64;
    }
    if copied < size {
        return Err(ImageError::Truncated { what, declared: size, got: copied });
    }
    let got = hasher.finish();
    if got != *digest {
        return Err(ImageError::WrongDigest { what, declared: digest.clone(), got });
    }
    blob.seek(SeekFrom::Start(0)).map_err(|error| ImageError::io("read", &upload.path, error))?;
    Ok((upload, blob))
}
