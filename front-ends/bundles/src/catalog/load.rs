//! Reads a catalog. One thread splits files into documents, and other threads parse the documents. Only a few documents
//! are in memory at a time; of each document, only the fields that the model needs are kept.
//!
//! Rules are numbered as in `docs/guides/catalogs.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::blob::{self, Blob};
use super::files::{self, FilesError, Listing};
use super::form::Form;
use super::split::{Document, Documents};
use crate::fault::Faults;

/// Size at which a batch of documents is sent to the workers, in bytes.
const BATCH: usize = 512 << 10;
/// Maximum number of batches in the queue of the workers.
const WAITING: usize = 8;
/// Maximum number of reasons in the warning that a catalog has no packages.
const REASONS_MAX: usize = 10;
/// Maximum number of documents of a catalog.
const DOCUMENTS_MAX: usize = 500_000;

/// Location of an object in the files of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: usize,
    pub form: Form,
    /// Offset of the object's first byte in its file.
    pub offset: u64,
    /// Number of bytes of the object.
    pub length: usize,
    /// First line of the object in its file, from 1.
    pub line: u64,
}

/// An object with its location.
#[derive(Clone, Debug)]
pub struct Object {
    pub place: Place,
    /// The object itself.
    pub blob: Blob,
    /// SHA-256 of the content, which does not depend on encoding, white space or the order of keys. `None` if no
    /// digests were requested.
    pub digest: Option<[u8; 32]>,
}

/// All objects of a catalog, sorted by file and position.
#[derive(Debug, Default)]
pub struct Objects {
    root: PathBuf,
    listing: Listing,
    pub objects: Vec<Object>,
    /// Number of bytes that were read.
    pub bytes: u64,
}

/// Reason why a catalog cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files cannot be listed.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Objects cannot be read (rules C1 and C3).
    #[error(transparent)]
    Faults(#[from] Faults),
}

struct Task {
    file: usize,
    documents: Vec<Document>,
}

/// Reads all objects of a file or directory. With `digests`, computes the digest of each object's content.
///
/// # Errors
/// Returns an error if a file cannot be read or an object is invalid. A single error makes the whole catalog invalid.
pub fn load(root: &Path, digests: bool) -> Result<Objects, LoadError> {
    let listing = files::list(root)?;
    let root = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let workers = thread::available_parallelism().map_or(2, usize::from).min(16);
    let (sender, receiver) = sync_channel::<Task>(WAITING);
    let receiver = Mutex::new(receiver);
    let mut all = Objects { root, listing, ..Objects::default() };
    let mut faults = Vec::new();
    thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(|| work(&receiver, digests))).collect();
        match split(&all, &sender) {
            Ok(bytes) => all.bytes = bytes,
            Err((file, message)) => faults.push((file, 0, 0, "C1", message)),
        }
        drop(sender);
        for worker in running {
            let (objects, wrong) = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.objects.extend(objects);
            faults.extend(wrong);
        }
    });
    faults.sort();
    let mut reported = Faults::default();
    for (file, _, line, rule, message) in faults {
        reported.add(all.place_text(file, line), rule, message);
    }
    all.objects.sort_by_key(|object| (object.place.file, object.place.offset));
    Ok(reported.or(all)?)
}

/// A violation: file, offset, line, rule and message.
type Located = (usize, u64, u64, &'static str, String);

fn split(all: &Objects, sender: &SyncSender<Task>) -> Result<u64, (usize, String)> {
    let (mut bytes, mut count) = (0u64, 0usize);
    for (index, path) in all.listing.files.iter().enumerate() {
        let failed = |error: &dyn std::error::Error| (index, with_causes(error));
        let file = File::open(path).map_err(|error| failed(&error))?;
        let mut documents = Documents::new(file);
        let mut task = Task { file: index, documents: Vec::new() };
        let mut size = 0;
        while let Some(document) = documents.next().map_err(|error| failed(&error))? {
            size += document.bytes.len();
            bytes += document.bytes.len() as u64;
            count += 1;
            if count > DOCUMENTS_MAX {
                return Err((index, format!("the catalog has more than {DOCUMENTS_MAX} objects")));
            }
            task.documents.push(document);
            if size >= BATCH {
                size = 0;
                let full = std::mem::replace(&mut task, Task { file: index, documents: Vec::new() });
                if sender.send(full).is_err() {
                    return Ok(bytes);
                }
            }
        }
        if !task.documents.is_empty() && sender.send(task).is_err() {
            return Ok(bytes);
        }
    }
    Ok(bytes)
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Parses documents until the channel is closed.
fn work(tasks: &Mutex<Receiver<Task>>, digests: bool) -> (Vec<Object>, Vec<Located>) {
    let (mut objects, mut faults) = (Vec::new(), Vec::new());
    loop {
        let task = match tasks.lock() {
            Ok(tasks) => tasks.recv(),
            Err(_) => break,
        };
        let Ok(Task { file, documents }) = task else { break };
        for Document { form, bytes, offset, line } in documents {
            let place = Place { file, form, offset, length: bytes.len(), line };
            let Ok(text) = std::str::from_utf8(&bytes) else {
                faults.push((file, offset, line, "C1", "is not UTF-8".to_owned()));
                continue;
            };
            // A document that begins with a brace may be YAML instead of JSON.
            let read = blob::read(form, text).or_else(|wrong| match form {
                Form::Json if wrong.0 == "C1" => blob::read(Form::Yaml, text).map_err(|_| wrong),
                _ => Err(wrong),
            });
            match read {
                Ok(blob) => {
                    let digest = digests.then(|| value(text).map(|value| digest(&value))).and_then(Result::ok);
                    objects.push(Object { place, blob, digest });
                }
                // The caller limits the number of stored violations.
                Err((rule, message)) => faults.push((file, offset, line, rule, message)),
            }
        }
    }
    (objects, faults)
}

/// Parses an object as JSON or YAML, with all of its fields.
fn value(text: &str) -> Result<Value, String> {
    let form = Form::from_text(text);
    form.read(text)
        .or_else(|error| if form == Form::Json { Form::Yaml.read(text).map_err(|_| error) } else { Err(error) })
}

/// Returns the SHA-256 of a value, encoded as JSON with sorted keys.
fn digest(value: &Value) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(value.to_string().as_bytes());
    hasher.finalize().into()
}

impl Objects {
    /// Returns the path relative to the catalog and the line, for error messages.
    pub fn place_text(&self, file: usize, line: u64) -> String {
        let Some(path) = self.listing.files.get(file) else { return String::new() };
        let shown = path.strip_prefix(&self.root).ok().filter(|rest| !rest.as_os_str().is_empty());
        let shown = shown.map_or_else(
            || path.file_name().map_or_else(|| path.display().to_string(), |name| name.display().to_string()),
            |rest| rest.display().to_string(),
        );
        if line == 0 { shown } else { format!("{shown}:{line}") }
    }

    /// Returns the reason why a catalog has no packages, for error messages.
    pub(super) fn why_empty(&self) -> String {
        let left_out = self.listing.left_out.iter().map(|(file, count)| {
            let file = file.strip_prefix(&self.root).unwrap_or(file).display();
            format!("{file} excludes {count} files or directories")
        });
        let found = match (self.listing.files.len(), self.objects.len()) {
            (0, _) => "no files were read".to_owned(),
            (files, 0) => format!("{files} files contain no objects"),
            (_, objects) => format!("none of the {objects} objects is an olm.package"),
        };
        let reasons: Vec<_> = std::iter::once(found).chain(left_out.take(REASONS_MAX)).collect();
        format!("the catalog has no packages: {}", reasons.join("; "))
    }

    /// Returns the file and line of an object for error messages.
    pub fn place_of(&self, object: &Object) -> String {
        self.place_text(object.place.file, object.place.line)
    }

    /// Reads an object again, with all of its fields.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if `place` no longer contains a valid document.
    pub fn content(&self, place: &Place) -> Result<Value, FilesError> {
        let path = &self.listing.files[place.file];
        let failed = |error| FilesError::Read(path.clone(), error);
        let mut file = File::open(path).map_err(failed)?;
        file.seek(SeekFrom::Start(place.offset)).map_err(failed)?;
        let mut text = String::new();
        file.take(place.length as u64).read_to_string(&mut text).map_err(failed)?;
        value(&text).map_err(|error| FilesError::Pattern { path: path.clone(), why: error })
    }

    /// Returns the objects in canonical order: sorted by package, and within a package the package itself, channels,
    /// bundles, others, deprecations. Objects without a package are last.
    pub fn in_order(&self) -> Vec<&Object> {
        type Ranked<'a> = Vec<(u8, &'a str, &'a Object)>;
        let mut by_package: BTreeMap<(bool, &str), Ranked<'_>> = BTreeMap::new();
        for object in &self.objects {
            let (schema, package, name) = object.blob.meta();
            let rank = match schema {
                blob::PACKAGE => 0,
                blob::CHANNEL => 1,
                blob::BUNDLE => 2,
                blob::DEPRECATIONS => 4,
                _ => 3,
            };
            let key = if rank == 3 { schema } else { name };
            by_package.entry((package.is_empty(), package)).or_default().push((rank, key, object));
        }
        let mut ordered = Vec::with_capacity(self.objects.len());
        for mut objects in by_package.into_values() {
            objects.sort_by_key(|(rank, key, _)| (*rank, *key));
            ordered.extend(objects.into_iter().map(|(_, _, object)| object));
        }
        ordered
    }
}
