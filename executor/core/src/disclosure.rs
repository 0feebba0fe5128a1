//! Defines the format of a shim's reply with the secret inputs of a container, for a client that has a runtime token.
//! The reply is a payload in a memory file.
//!
//! The first string of the payload is a [`Manifest`] as JSON. The values follow in the manifest's order: variables,
//! arguments, files. The manifest contains no secret; `inspect` shows the same data.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// Maximum size of a memory file that is accepted as a reply, in bytes.
pub const DISCLOSURE_MAX: u64 = 1 << 28;

/// Lists the values of a reply, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Names of the secret environment variables.
    pub environment: Vec<String>,
    /// Indices of the secret arguments.
    pub arguments: Vec<u32>,
    /// Secret files of the container, without the runtime token's file.
    pub files: Vec<ManifestFile>,
}

/// A secret file whose content a reply contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Absolute path in the container.
    pub path: PathBuf,
    /// True if the value is not masked in logs.
    #[serde(default)]
    pub public: bool,
}

impl Manifest {
    /// Lists the current inputs of a container. The runtime token is not an input and is left out.
    pub fn from_plan(plan: &Plan) -> Self {
        let main = plan.main();
        let file = |file: &crate::plan::PlannedFile| ManifestFile { path: file.path.clone(), public: file.public };
        Self {
            environment: main.map(|main| main.secret_environment_names.clone()).unwrap_or_default(),
            arguments: main.map(|main| main.secret_arguments.clone()).unwrap_or_default(),
            files: plan.given_files().iter().map(file).collect(),
        }
    }

    /// Returns the number of variables and arguments.
    pub fn inputs(&self) -> usize {
        self.environment.len() + self.arguments.len()
    }

    /// Returns the number of values: variables, arguments and contents of files.
    pub fn values(&self) -> usize {
        self.inputs() + self.files.len()
    }
}
