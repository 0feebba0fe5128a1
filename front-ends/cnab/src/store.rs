//! Stores claims, results and outputs on disk, in the layout of Porter v0 and cnab-go.
//!
//! ```text
//! installations/NAME                  empty file that registers the installation
//! locks/NAME                          locked during an action
//! claims/NAME/CLAIM.json
//! results/CLAIM/RESULT.json
//! outputs/RESULT/RESULT-OUTPUT
//! bundles/sha256-HEX.json             bundle.json files as they were published (an addition of the executor)
//! ```
//! A file is written under a temporary name, synced and renamed, and then its directory is synced. Even after a crash,
//! a file is complete or absent. Outputs are written before the result that names them, and a claim before its
//! installation.
//!
//! Names of installations may contain any printable character. In file names, `/`, `%` and a leading dot are escaped as
//! `%2F`, `%25` and `%2E`. Names that cnab-go allows contain none of these and are unchanged.
//!
//! Directories have mode 0700, files 0600. The content of files is not trusted, so all reads are limited in size.

mod files;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::claim::{Claim, ClaimResult};
use crate::digest;
use crate::id::is_ulid;
use crate::names;
use crate::violation::Violations;

/// Maximum size of a claim or result, in bytes.
const RECORD_MAX: u64 = 16 << 20;
/// Maximum size of an output, in bytes.
pub const OUTPUT_MAX: u64 = 256 << 20;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{} cannot {doing}", .path.display())]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
    #[error("{} is not a valid {what}", .path.display())]
    Broken { path: PathBuf, what: &'static str, source: Violations },
    #[error("{}: {field} is {found:?}, but its path requires {expected:?}", .path.display())]
    Misplaced { path: PathBuf, field: &'static str, found: String, expected: String },
    #[error("{} is larger than the maximum of {limit} bytes", .path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("there is no installation {0:?}")]
    NoInstallation(String),
    #[error("{0}")]
    Name(#[from] Violations),
    #[error("{0:?} is not a ULID")]
    NoId(String),
    #[error("{0:?} is not a valid output name")]
    NoOutputName(String),
}

#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// Lock on an installation, released when dropped.
#[derive(Debug)]
pub struct Locked {
    installation: String,
    _file: File,
}

/// The readable records of an installation, and errors for the unreadable records.
#[derive(Debug)]
pub struct Survey {
    /// Records, oldest first. If some results of a claim are unreadable, the claim is included with its other results.
    pub records: Vec<Record>,
    /// Errors of the unreadable claims and results.
    pub unreadable: Vec<StoreError>,
}

/// A claim and all of its results.
#[derive(Clone, Debug)]
pub struct Record {
    pub claim: Claim,
    /// Results of the action, oldest first.
    pub results: Vec<ClaimResult>,
}

impl Record {
    /// Returns the latest result, which is the effective result.
    pub fn last(&self) -> Option<&ClaimResult> {
        self.results.last()
    }

    /// Returns true if the action has no final result.
    pub fn is_unfinished(&self) -> bool {
        self.last().is_none_or(|result| !result.status.is_final())
    }
}

impl Store {
    /// Returns a store in a directory. The directory is created on the first write.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the directory of the store.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the names of all installations, sorted.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub fn installations(&self) -> Result<Vec<String>, StoreError> {
        let names = files::names(&self.root.join("installations"))?;
        let mut names: Vec<String> = names.iter().filter_map(|file| self.name_of(file)).collect();
        names.sort();
        Ok(names)
    }

    /// Returns the name of the installation with this file name. The name of a file that looks like a hash is read from
    /// a claim first, because a hash that begins with 25 also looks like an escaped `%`.
    fn name_of(&self, file: &str) -> Option<String> {
        let claimed = || {
            let directory = self.root.join("claims").join(file);
            let ids = ids(&directory).ok()?;
            let claim = |id: &String| record(&directory.join(format!("{id}.json")), "claim", Claim::parse).ok();
            ids.iter().filter_map(claim).map(|claim| claim.installation).find(|name| escape(name) == file)
        };
        let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        file.strip_prefix('%').filter(|hash| is_hash(hash)).and_then(|_| claimed()).or_else(|| unescape(file))
    }

    /// Locks an installation. The installation may not exist yet. Only the lock file is created. Returns `None` if
    /// another process holds the lock.
    ///
    /// # Errors
    /// Returns an error if the name is not valid or the file cannot be created or locked.
    pub fn lock(&self, installation: &str) -> Result<Option<Locked>, StoreError> {
        names::installation(installation)?;
        let path = self.root.join("locks").join(escape(installation));
        let file = files::lock(&path)?;
        Ok(file.map(|file| Locked { installation: installation.to_owned(), _file: file }))
    }

    /// Reads all records of an installation, oldest first.
    ///
    /// # Errors
    /// Returns an error if the installation does not exist or a record cannot be read.
    pub fn read(&self, installation: &str) -> Result<Vec<Record>, StoreError> {
        let Survey { records, unreadable } = self.survey(installation)?;
        unreadable.into_iter().next().map_or(Ok(records), Err)
    }

    /// Reads all records of an installation, and collects the errors of unreadable records.
    ///
    /// # Errors
    /// Returns an error if the installation does not exist or its directory cannot be read.
    pub fn survey(&self, installation: &str) -> Result<Survey, StoreError> {
        names::installation(installation)?;
        let directory = self.root.join("claims").join(escape(installation));
        let mut survey = Survey { records: Vec::new(), unreadable: Vec::new() };
        for id in ids(&directory)? {
            match claim(&directory.join(format!("{id}.json")), installation, &id) {
                Ok(claim) => {
                    let results = self.results(&id, &mut survey.unreadable);
                    survey.records.push(Record { claim, results });
                }
                Err(error) => survey.unreadable.push(error),
            }
        }
        if survey.records.is_empty() && survey.unreadable.is_empty() {
            return Err(StoreError::NoInstallation(installation.into()));
        }
        Ok(survey)
    }

    /// Reads all records of an installation; an empty list if the installation does not exist.
    ///
    /// # Errors
    /// Returns an error if a record cannot be read.
    pub fn history(&self, installation: &str) -> Result<Vec<Record>, StoreError> {
        match self.read(installation) {
            Err(StoreError::NoInstallation(_)) => Ok(Vec::new()),
            other => other,
        }
    }

    fn results(&self, claim: &str, unreadable: &mut Vec<StoreError>) -> Vec<ClaimResult> {
        let directory = self.root.join("results").join(claim);
        let ids = ids(&directory).unwrap_or_else(|error| {
            unreadable.push(error);
            Vec::new()
        });
        let read = |id: &String| match result(&directory.join(format!("{id}.json")), claim, id) {
            Ok(result) => Some(result),
            Err(error) => {
                unreadable.push(error);
                None
            }
        };
        ids.iter().filter_map(read).collect()
    }

    /// Returns the last content of an output from any action, with the claim of that action.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn last_output<'a>(
        &self,
        history: &'a [Record],
        name: &str,
    ) -> Result<Option<(&'a Claim, Vec<u8>)>, StoreError> {
        for record in history.iter().rev() {
            for result in record.results.iter().rev().filter(|result| result.outputs.contains_key(name)) {
                if let Some(content) = self.output(&result.id, name)? {
                    return Ok(Some((&record.claim, content)));
                }
            }
        }
        Ok(None)
    }

    /// Stores a claim and the name of its installation.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save_claim(&self, claim: &Claim) -> Result<(), StoreError> {
        names::installation(&claim.installation)?;
        let id = checked(&claim.id)?;
        let name = escape(&claim.installation);
        let path = self.root.join("claims").join(&name).join(format!("{id}.json"));
        files::write(&path, &pretty(claim))?;
        let installation = self.root.join("installations").join(&name);
        if installation.exists() { Ok(()) } else { files::write(&installation, b"") }
    }

    /// Stores a result.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save_result(&self, result: &ClaimResult) -> Result<(), StoreError> {
        let path =
            self.root.join("results").join(checked(&result.claim_id)?).join(format!("{}.json", checked(&result.id)?));
        files::write(&path, &pretty(result))
    }

    /// Stores the content of an output. The caller stores the result afterwards.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save_output(&self, result: &str, name: &str, content: &[u8]) -> Result<(), StoreError> {
        files::write(&self.output_path(result, name)?, content)
    }

    /// Returns the content of an output; `None` if there is no output with that name.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn output(&self, result: &str, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        files::read(&self.output_path(result, name)?, OUTPUT_MAX)
    }

    fn output_path(&self, result: &str, name: &str) -> Result<PathBuf, StoreError> {
        let result = checked(result)?;
        if name.is_empty() || name.contains(['/', '\0']) {
            return Err(StoreError::NoOutputName(name.into()));
        }
        Ok(self.root.join("outputs").join(result).join(format!("{result}-{name}")))
    }

    /// Stores the original bytes of a bundle.json under their digest (`sha256:HEX`).
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save_bundle(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError> {
        match self.bundle_path(digest) {
            Some(path) if !path.exists() => files::write(&path, bytes),
            _ => Ok(()),
        }
    }

    /// Returns a bundle.json by its digest; `None` if it is not stored or its content does not match the digest.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn bundle(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(path) = self.bundle_path(digest) else { return Ok(None) };
        let bytes = files::read(&path, RECORD_MAX)?;
        Ok(bytes.filter(|bytes| digest::sha256(bytes) == digest))
    }

    fn bundle_path(&self, digest: &str) -> Option<PathBuf> {
        let hex = digest::hex_of_sha256(digest)?;
        Some(self.root.join("bundles").join(format!("sha256-{hex}.json")))
    }

    /// Removes all records of a locked installation: outputs first, then results, claims, and finally the name, so that
    /// the removal can be repeated after a crash. Records are not parsed, so unreadable records are also removed.
    ///
    /// # Errors
    /// Returns an error if the installation does not exist or a record cannot be removed.
    pub fn remove(&self, locked: &Locked) -> Result<(), StoreError> {
        let (name, root) = (escape(&locked.installation), &self.root);
        let (claims, installation) = (root.join("claims").join(&name), root.join("installations").join(&name));
        if !claims.exists() && !installation.exists() {
            return Err(StoreError::NoInstallation(locked.installation.clone()));
        }
        for claim in ids(&claims)? {
            let results = root.join("results").join(&claim);
            for result in ids(&results)? {
                files::remove_dir(&root.join("outputs").join(&result))?;
            }
            files::remove_dir(&results)?;
        }
        files::remove_dir(&claims)?;
        files::remove_file(&installation)
    }
}

fn record<T>(path: &Path, what: &'static str, parse: fn(&[u8]) -> Result<T, Violations>) -> Result<T, StoreError> {
    let bytes = files::read(path, RECORD_MAX)?.unwrap_or_default();
    parse(&bytes).map_err(|source| StoreError::Broken { path: path.into(), what, source })
}

/// Reads a claim and checks that the names in the record match the path.
fn claim(path: &Path, installation: &str, id: &str) -> Result<Claim, StoreError> {
    let claim = record(path, "claim", Claim::parse)?;
    placed(path, [("installation", &claim.installation, installation), ("id", &claim.id, id)])?;
    Ok(claim)
}

/// Reads a result and checks that the ids in the record match the path.
fn result(path: &Path, claim: &str, id: &str) -> Result<ClaimResult, StoreError> {
    let result = record(path, "result of a claim", ClaimResult::parse)?;
    placed(path, [("claimId", &result.claim_id, claim), ("id", &result.id, id)])?;
    Ok(result)
}

fn placed(path: &Path, fields: [(&'static str, &String, &str); 2]) -> Result<(), StoreError> {
    match fields.into_iter().find(|(_, found, expected)| found != expected) {
        None => Ok(()),
        Some((field, found, expected)) => {
            Err(StoreError::Misplaced { path: path.into(), field, found: found.clone(), expected: expected.into() })
        }
    }
}

fn pretty(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

/// Returns the ULIDs of the `.json` files in a directory, oldest first. Other files are ignored.
fn ids(directory: &Path) -> Result<Vec<String>, StoreError> {
    let names = files::names(directory)?;
    let mut ids: Vec<String> = names
        .iter()
        .filter_map(|name| name.strip_suffix(".json"))
        .filter(|id| is_ulid(id))
        .map(str::to_owned)
        .collect();
    ids.sort();
    Ok(ids)
}

fn checked(id: &str) -> Result<&str, StoreError> {
    if is_ulid(id) { Ok(id) } else { Err(StoreError::NoId(id.into())) }
}

/// Escapes a name for use as a file name.
fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (index, c) in name.chars().enumerate() {
        match c {
            '/' => escaped.push_str("%2F"),
            '%' => escaped.push_str("%25"),
            '.' if index == 0 => escaped.push_str("%2E"),
            c => escaped.push(c),
        }
    }
    // File names are limited to 255 bytes. Names with very many escaped characters are too long and are hashed.
    if escaped.len() > 250 { format!("%{}", digest::sha256_hex(name.as_bytes())) } else { escaped }
}

/// Returns the name from a file name that [`escape`] returned; `None` for a hashed name and for any other file name.
fn unescape(file: &str) -> Option<String> {
    let name = file.replace("%2F", "/").replace("%2E", ".").replace("%25", "%");
    (escape(&name) == file).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installation_names_are_escaped_in_files() {
        for (name, file) in [
            ("my-app.1_x", "my-app.1_x"),
            ("../../etc", "%2E.%2F..%2Fetc"),
            (".hidden", "%2Ehidden"),
            ("100%2F", "100%252F"),
            ("größe 20€", "größe 20€"),
        ] {
            assert_eq!(escape(name), file);
            assert_eq!(unescape(file).as_deref(), Some(name));
        }
        assert_eq!(unescape(".executor-x"), None);
        assert!(escape(&"/".repeat(200)).len() < 100);
    }
}
