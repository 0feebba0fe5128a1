//! Reads files of Kubernetes objects and finds their templates and secrets.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_conventions::secrets::SecretValues;
use executor_yaml::{Limits, decode, parse, parts};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::error::ConventionError;

/// Maximum size of a file, in bytes.
const FILE_MAX: u64 = 16 << 20;
/// Maximum number of documents in all files.
const DOCUMENTS_MAX: usize = 2000;
/// Maximum nesting depth of lists.
const LISTS_MAX: usize = 4;

pub(crate) struct Document {
    /// Path of the file as given on the command line.
    pub(crate) file: PathBuf,
    /// Number of the document in the file, from 1.
    pub(crate) number: usize,
    pub(crate) object: Value,
}

/// Location of an object, for error messages.
pub(crate) struct Location {
    pub(crate) file: String,
    pub(crate) number: usize,
}

/// Reads the documents of files.
///
/// # Errors
/// Returns the I/O error if a file cannot be read, otherwise all errors in the documents.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Document>, ConventionError> {
    let (mut documents, mut faults) = (Vec::new(), Vec::new());
    for file in files {
        let text = text(file)?;
        for part in parts(&text) {
            if documents.len() >= DOCUMENTS_MAX {
                return Err(ConventionError::TooMany { limit: DOCUMENTS_MAX });
            }
            let at = |place: &dyn std::fmt::Display| format!("{}: {place}", file.display());
            if part.beside_separator {
                faults.push(format!("{}: only a comment may follow `---`", at(&format_args!("line {}", part.line))));
                continue;
            }
            let parsed = match parse(part.text, part.line, &Limits::OBJECT) {
                Ok(parsed) => parsed,
                Err(error) => {
                    faults.push(format!("{}: {error}", at(&error.place)));
                    continue;
                }
            };
            let decoded = decode::<Value>(&parsed.root);
            for fault in parsed.duplicates.iter().chain(&decoded.faults) {
                faults.push(format!("{}: {}: {}", at(&fault.place), fault.path, fault.message));
            }
            match decoded.value {
                Some(object) if object["kind"].is_string() && object["apiVersion"].is_string() => {
                    documents.push(Document { file: file.clone(), number: part.number, object });
                }
                _ => {
                    let why = "the document is not a Kubernetes object: it has no apiVersion and kind";
                    faults.push(format!("{}: {why}", at(&format_args!("line {}", part.line))));
                }
            }
        }
    }
    if faults.is_empty() { Ok(documents) } else { Err(ConventionError::Files(faults)) }
}

fn text(file: &Path) -> Result<Zeroizing<String>, ConventionError> {
    let failed = |source| ConventionError::Read { path: file.to_owned(), source };
    let mut text = Zeroizing::new(String::new());
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().take(FILE_MAX + 1).read_to_string(&mut text),
        false => File::open(file).and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text)),
    };
    read.map_err(failed)?;
    if text.len() as u64 > FILE_MAX {
        return Err(ConventionError::TooLarge { path: file.to_owned(), limit: FILE_MAX });
    }
    Ok(text)
}

/// Visits an object or, if it is a list, each of its items.
pub(crate) fn visit<'a>(object: &'a mut Value, each: &mut impl FnMut(&'a mut Value)) {
    visit_to(object, LISTS_MAX, each);
}

fn visit_to<'a>(object: &'a mut Value, depth: usize, each: &mut impl FnMut(&'a mut Value)) {
    let is_list = object["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) && object["items"].is_array();
    if depth == 0 || !is_list {
        each(object);
        return;
    }
    for item in object["items"].as_array_mut().into_iter().flatten() {
        visit_to(item, depth - 1, each);
    }
}

/// Collects the values of all Secrets in the documents.
///
/// # Errors
/// Returns an error if a value under `data` is not base64.
pub(crate) fn secrets(documents: &mut [Document]) -> Result<SecretValues, ConventionError> {
    let (mut secrets, mut faults) = (SecretValues::default(), Vec::new());
    for document in documents {
        let at = format!("{}: document {}", document.file.display(), document.number);
        visit(&mut document.object, &mut |object| {
            if object["kind"] != "Secret" {
                return;
            }
            for (key, value) in object["data"].as_object().into_iter().flatten() {
                let packed: String = value.as_str().unwrap_or_default().split_ascii_whitespace().collect();
                match STANDARD.decode(Zeroizing::new(packed).as_bytes()).map(Zeroizing::new) {
                    Ok(value) => secrets.add(&value),
                    Err(_) => faults.push(format!("{at}: Secret {}: data.{key} is not base64", name(object))),
                }
            }
            for (_, value) in object["stringData"].as_object().into_iter().flatten() {
                secrets.add(value.as_str().unwrap_or_default().as_bytes());
            }
        });
    }
    if faults.is_empty() { Ok(secrets) } else { Err(ConventionError::Files(faults)) }
}

pub(crate) fn name(object: &Value) -> &str {
    let metadata = &object["metadata"];
    metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap_or("(without a name)")
}
