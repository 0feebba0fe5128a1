//! Reads thick bundles: gzipped tar archives with a bundle.json and an image layout in `artifacts/layout` (rule 42 of
//! `docs/guides/cnab-rules.md`).
//!
//! The archive is read twice as a stream: once for the bundle.json, which may be the last entry, and once for the
//! layout. The layout is written to a separate tar archive whose index has one image. No file is created with a name
//! from the archive.
//!
//! Links, devices and names that escape the archive are errors, and so are two file names that are equal if case
//! is ignored. Unicode normalization is not considered.

use std::collections::HashSet;
use std::io::{self, Read, Write};

use executor_core::text::{is_harmful, printable};
use executor_tar::{Entry, Kind, Limits, Reader};
use flate2::read::GzDecoder;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::bundle::BUNDLE_MAX;

/// Maximum size of an unpacked archive, in bytes.
pub const UNPACKED_MAX: u64 = 64 << 30;
/// Maximum number of entries.
pub const ENTRIES_MAX: u64 = 100_000;
/// Maximum length of an entry's name, in bytes; equal to PATH_MAX on Linux.
pub const NAME_MAX: usize = 4096;
/// Maximum number of characters of a name in an error message.
const SHOWN_MAX: usize = 200;
/// Directory of the image layout.
const LAYOUT: &str = "artifacts/layout/";

/// Reason why an archive is not a valid thick bundle.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("cannot read the thick bundle")]
    Read(#[source] io::Error),
    #[error("cannot write the image layout")]
    Write(#[source] io::Error),
    #[error("the thick bundle has no bundle.json at its root")]
    NoBundle,
    #[error("the bundle.json is {0} bytes; the maximum is {BUNDLE_MAX}")]
    BundleTooLarge(u64),
    #[error("the thick bundle has no image layout under {LAYOUT}")]
    NoLayout,
    #[error("the index.json of the thick bundle's layout is not valid: {0}")]
    Index(String),
    #[error("the thick bundle's layout has no image {0:?}, by name or by contentDigest")]
    NoImage(String),
    #[error("the thick bundle has several entries named {0:?}, ignoring case")]
    Twice(String),
    #[error("the thick bundle has {0:?}, which {1}")]
    Entry(String, &'static str),
}

/// Returns true if the first bytes of a file are the magic number of gzip, as in a thick bundle.
pub fn is_thick(beginning: &[u8]) -> bool {
    beginning.starts_with(&[0x1f, 0x8b])
}

/// Extracts the bundle.json.
///
/// # Errors
/// Returns an error if the archive has no bundle.json or is broken.
pub fn bundle(stream: impl Read) -> Result<Vec<u8>, ArchiveError> {
    let mut found = None;
    each(stream, |name, size, content| {
        if name == "bundle.json" {
            if size > BUNDLE_MAX as u64 {
                return Err(ArchiveError::BundleTooLarge(size));
            }
            found = Some(document(content)?);
        }
        Ok(())
    })?;
    found.ok_or(ArchiveError::NoBundle)
}

/// Selection of one image of a layout.
#[derive(Clone, Copy, Debug)]
pub struct ImageSelector<'a> {
    /// Digest of the image's manifest or index.
    pub digest: Option<&'a str>,
    /// Reference of the image in the bundle.
    pub reference: &'a str,
    /// True if an image with another digest and reference is accepted when it is the layout's only image.
    pub allow_sole_image: bool,
}

/// Writes the layout as a separate tar archive, and returns the writer. The index of the written layout names only the
/// selected image. The image is selected by digest, otherwise by name.
///
/// # Errors
/// Returns an error if the archive has no layout or no such image, if the archive is broken, or if the writer fails.
pub fn layout<W: Write>(stream: impl Read, to: W, selector: ImageSelector<'_>) -> Result<W, ArchiveError> {
    let mut tar = Builder::new(to);
    let mut found = false;
    each(stream, |name, size, content| {
        let Some(name) = name.strip_prefix(LAYOUT).filter(|name| !name.is_empty()) else { return Ok(()) };
        if name == "index.json" {
            if size > BUNDLE_MAX as u64 {
                return Err(ArchiveError::Index(format!("the file is {size} bytes; the maximum is {BUNDLE_MAX}")));
            }
            let index = one(&document(content)?, selector)?;
            found = true;
            return append(&mut tar, name, index.len() as u64, &*index);
        }
        append(&mut tar, name, size, content)
    })?;
    if !found {
        return Err(ArchiveError::NoLayout);
    }
    tar.into_inner().map_err(ArchiveError::Write)
}

/// Reads a file whose size the caller has checked.
fn document(content: &mut dyn Read) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes).map_err(ArchiveError::Read)?;
    Ok(bytes)
}

/// Writes a file, and distinguishes errors of the content from errors of the writer.
fn append<W: Write>(tar: &mut Builder<W>, name: &str, size: u64, content: impl Read) -> Result<(), ArchiveError> {
    /// Passes the content on, and keeps the read error.
    struct Content<R>(R, Option<io::Error>);
    impl<R: Read> Read for Content<R> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer).map_err(|error| {
                let kind = error.kind();
                if kind != io::ErrorKind::Interrupted {
                    self.1 = Some(error); // an interrupted read is repeated
                }
                kind.into()
            })
        }
    }
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    let mut content = Content(content, None);
    tar.append_data(&mut header, name, &mut content)
        .map_err(|error| content.1.take().map_or(ArchiveError::Write(error), ArchiveError::Read))
}

/// Returns the index reduced to the selected entry.
fn one(index: &[u8], selector: ImageSelector<'_>) -> Result<Vec<u8>, ArchiveError> {
    /// Annotations that hold the name of an image in an index (image-spec; containerd).
    const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];
    let broken = |why: &str| ArchiveError::Index(why.to_owned());
    let mut index: Value = serde_json::from_slice(index).map_err(|_| broken("the file is not JSON"))?;
    let all =
        index.get("manifests").and_then(Value::as_array).ok_or_else(|| broken("the list `manifests` is missing"))?;
    let called = |entry: &&Value| {
        let annotations = entry.get("annotations");
        NAMES
            .iter()
            .any(|name| annotations.and_then(|all| all.get(name)).and_then(Value::as_str) == Some(selector.reference))
    };
    let has_digest =
        |entry: &&Value| selector.digest.is_some() && entry.get("digest").and_then(Value::as_str) == selector.digest;
    let entry = all.iter().find(has_digest).or_else(|| all.iter().find(called));
    let entry = entry.or(match &all[..] {
        [one] if selector.allow_sole_image => Some(one),
        _ => None,
    });
    let entry = entry.ok_or_else(|| ArchiveError::NoImage(selector.reference.to_owned()))?.clone();
    index["manifests"] = Value::Array(vec![entry]);
    serde_json::to_vec(&index).map_err(|_| broken("the selected manifest cannot be written as JSON"))
}

/// Calls `visit` with the name (without a leading `./`), size and content of each file. Refuses duplicate names.
fn each(
    stream: impl Read,
    mut visit: impl FnMut(&str, u64, &mut dyn Read) -> Result<(), ArchiveError>,
) -> Result<(), ArchiveError> {
    let limits = Limits {
        bytes: UNPACKED_MAX,
        file_bytes: UNPACKED_MAX,
        entries: ENTRIES_MAX,
        path: NAME_MAX as u64,
        ..Limits::default()
    };
    let mut archive = Reader::new(GzDecoder::new(stream), limits);
    // Store digests of the names, because the names themselves can take hundreds of megabytes.
    let mut seen: HashSet<[u8; 32]> = HashSet::new();
    while let Some(entry) = archive.next_entry().map_err(|error| ArchiveError::Read(error.into()))? {
        let name = checked_name(&entry)?;
        if entry.kind != Kind::File {
            continue;
        }
        if !seen.insert(Sha256::digest(name.to_lowercase()).into()) {
            return Err(ArchiveError::Twice(printable(&entry.path, SHOWN_MAX)));
        }
        visit(name, entry.size, &mut archive.plain_content())?;
    }
    Ok(())
}

/// Checks the name of an entry, and returns the name in canonical form.
///
/// # Errors
/// Returns an error if the name escapes the archive or is ambiguous, or if the entry is neither a file nor a
/// directory.
fn checked_name(entry: &Entry) -> Result<&str, ArchiveError> {
    let path = &*entry.path;
    let refused = |why| Err(ArchiveError::Entry(printable(path, SHOWN_MAX), why));
    let Ok(name) = std::str::from_utf8(path) else { return refused("is not UTF-8") };
    let name = name.strip_prefix("./").unwrap_or(name);
    let name = if entry.kind == Kind::Directory { name.strip_suffix('/').unwrap_or(name) } else { name };
    if name.starts_with('/') || name.split('/').any(|part| part == "..") {
        return refused("escapes the archive");
    }
    // A reader of the layout could treat different spellings of a path as the same file.
    if name.split('/').any(|part| matches!(part, "" | ".")) && !matches!(name, "" | ".") {
        return refused("has an empty or `.` component in its path");
    }
    if name.contains(is_harmful) {
        return refused("has control characters or bidirectional marks in its name");
    }
    if entry.kind == Kind::Directory || entry.is_plain_file() {
        Ok(name)
    } else {
        refused("is neither a file nor a directory")
    }
}
