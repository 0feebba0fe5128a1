//! Outputs as JSON: declared, captured, and copied by `cp`.

use std::path::PathBuf;

use executor_client::v1;
use serde::Serialize;

/// Outputs that a container's specification declares.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Declared {
    files: Vec<String>,
    directory: Option<String>,
    bytes_max: u64,
}

/// Outputs that a container's result reports.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Summary {
    files: u32,
    bytes: u64,
    skipped: u32,
    failure: Option<String>,
}

/// The document of `cp`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub(crate) enum Cp {
    /// Copy of outputs of a completed container.
    Outputs(Copied),
    /// Copy out of or into a running container.
    Archive(Archived),
}

impl From<Copied> for Cp {
    fn from(copied: Copied) -> Self {
        Self::Outputs(copied)
    }
}

/// Files copied out of or into a running container.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Archived {
    pub(crate) id: String,
    /// Path in the container.
    pub(crate) path: String,
    /// Number of files, directories and links.
    pub(crate) entries: u64,
    /// Size of the files.
    pub(crate) bytes: u64,
}

/// Outputs that were fetched.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Copied {
    id: String,
    files: Vec<CopiedFile>,
    skipped: Vec<Skipped>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CopiedFile {
    path: String,
    destination: String,
    size: u64,
    mode: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Skipped {
    /// Path of the output; null for outputs that are only counted.
    path: Option<String>,
    reason: String,
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

impl From<&v1::Outputs> for Declared {
    fn from(outputs: &v1::Outputs) -> Self {
        Self { files: outputs.files.clone(), directory: some(&outputs.directory), bytes_max: outputs.bytes_max }
    }
}

impl From<&v1::OutputsSummary> for Summary {
    fn from(summary: &v1::OutputsSummary) -> Self {
        Self { files: summary.files, bytes: summary.bytes, skipped: summary.skipped, failure: some(&summary.failure) }
    }
}

impl Copied {
    pub(crate) fn new(id: &str, files: &[(v1::OutputFile, PathBuf)], skipped: &[v1::SkippedOutput]) -> Self {
        let file = |(file, destination): &(v1::OutputFile, PathBuf)| CopiedFile {
            path: file.path.clone(),
            destination: destination.display().to_string(),
            size: file.size,
            mode: format!("{:04o}", file.mode),
        };
        let entry = |entry: &v1::SkippedOutput| Skipped { path: some(&entry.path), reason: entry.reason.clone() };
        Self {
            id: id.to_owned(),
            files: files.iter().map(file).collect(),
            skipped: skipped.iter().map(entry).collect(),
        }
    }
}
