//! What a shim answers to the holder of a runtime token: the secret inputs, as a payload in a memory file.
//!
//! The first string of the payload is a [`Manifest`] as JSON; then follow the values in its order: of variables, of
//! arguments, of files. The manifest says nothing that `inspect` does not say.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// Largest memory file that is taken for an answer, in bytes.
pub const DISCLOSURE_MAX: u64 = 1 << 28;

/// What the values are of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Names of variables.
    pub environment: Vec<String>,
    /// Indices of arguments.
    pub arguments: Vec<u32>,
    /// Files.
    pub files: Vec<ManifestFile>,
}

/// A file of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Absolute, in the container.
    pub path: PathBuf,
    /// Not masked in logs.
    #[serde(default)]
    pub public: bool,
}

impl Manifest {
    /// Of a container as it is now. The runtime token is no input, and not in it.
    pub fn of(plan: &Plan) -> Self {
        let main = plan.main();
        let file = |file: &crate::plan::PlannedFile| ManifestFile { path: file.path.clone(), public: file.public };
        Self {
            environment: main.map(|main| main.secret_environment_names.clone()).unwrap_or_default(),
            arguments: main.map(|main| main.secret_arguments.clone()).unwrap_or_default(),
            files: plan.given_files().iter().map(file).collect(),
        }
    }

    /// How many values are not of files.
    pub fn inputs(&self) -> usize {
        self.environment.len() + self.arguments.len()
    }

    /// How many values there are.
    pub fn values(&self) -> usize {
        self.inputs() + self.files.len()
    }
}
