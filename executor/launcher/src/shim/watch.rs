//! What a shim must know of a container's secrets in order to mask them in its output (secrets.md, redaction).
//!
//! Values are read out of the memory files that the container is started with, after its init was cloned, and stay
//! in this process until the container has ended: secret variables, secret arguments, files that are not public, the
//! runtime token. A container without such inputs, or whose output is not kept, costs nothing.

use std::io;
use std::path::{Path, PathBuf};

use executor_core::payload::{self, ProcessPayload};
use executor_core::plan::{Plan, PlannedFile, Redaction};
use executor_secrets::redact::{Redactor, Watched};
use executor_sys::memfile::MemFile;
use zeroize::Zeroizing;

/// Generations of files whose values are masked: the current one, and those that the process may still print.
const GENERATIONS: usize = 4;

/// The values that are masked.
pub(super) struct Watch {
    mode: Redaction,
    /// Where relative paths of files lie.
    root: PathBuf,
    inputs: Vec<Value>,
    /// Of each generation of the files, the newest last.
    files: Vec<Vec<Value>>,
}

/// A value and the name that stands in its place.
struct Value {
    name: String,
    value: Zeroizing<Vec<u8>>,
}

impl Watch {
    /// Reads what a container is started with.
    ///
    /// # Errors
    /// The memory files do not fit the plan, or cannot be mapped.
    pub(super) fn begin(
        plan: &Plan,
        root: &Path,
        process: &MemFile,
        files: &MemFile,
        token: Option<Zeroizing<Vec<u8>>>,
    ) -> io::Result<Self> {
        let printed = plan.main().is_some_and(|main| !main.suppress_log_output);
        let mode = if printed { plan.redaction } else { Redaction::None };
        if mode == Redaction::None {
            return Ok(Self { mode, root: root.to_owned(), inputs: Vec::new(), files: Vec::new() });
        }
        let mut inputs = inputs(plan, process)?;
        if let (Some(file), Some(token)) = (plan.token_file(), token) {
            inputs.push(Value { name: name(file, root), value: token });
        }
        let mut watch = Self { mode, root: root.to_owned(), inputs, files: Vec::new() };
        let given: Vec<&PlannedFile> = plan.given_files().iter().collect();
        watch.learn(&given, files)?;
        Ok(watch)
    }

    /// Takes a new generation of the files: those whose content is in `contents`, in this order.
    ///
    /// # Errors
    /// As [`Watch::begin`].
    pub(super) fn learn(&mut self, files: &[&PlannedFile], contents: &MemFile) -> io::Result<()> {
        if self.mode == Redaction::None || files.iter().all(|file| file.public) {
            return Ok(());
        }
        let values = contents.read(|bytes| {
            let contents = payload::decode(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let pairs = files.iter().zip(contents).filter(|(file, _)| !file.public);
            let value = |(file, content): (&&PlannedFile, &[u8])| Value {
                name: name(file, &self.root),
                value: Zeroizing::new(content.to_vec()),
            };
            Ok::<_, io::Error>(pairs.map(value).collect())
        })??;
        self.files.push(values);
        if self.files.len() > GENERATIONS {
            self.files.remove(0);
        }
        Ok(())
    }

    /// There is nothing to be masked.
    pub(super) fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.files.iter().all(Vec::is_empty)
    }

    /// What masks them.
    pub(super) fn redactor(&self) -> Redactor {
        let values = self.inputs.iter().chain(self.files.iter().rev().flatten());
        Redactor::new(self.mode, values.map(|value| Watched { name: &value.name, value: &value.value }))
    }
}

/// Secret arguments and variables.
fn inputs(plan: &Plan, process: &MemFile) -> io::Result<Vec<Value>> {
    let Some(main) = plan.main() else { return Ok(Vec::new()) };
    if main.secret_arguments.is_empty() && main.secret_environment_names.is_empty() {
        return Ok(Vec::new());
    }
    process.read(|bytes| {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let values = ProcessPayload::decode(bytes).and_then(|payload| payload.secrets(main)).map_err(invalid)?;
        let variables = main.secret_environment_names.iter().cloned();
        let names = variables.chain(main.secret_arguments.iter().map(|index| format!("args[{index}]")));
        let value = |(name, value): (String, &[u8])| Value { name, value: Zeroizing::new(value.to_vec()) };
        Ok(names.zip(values).map(value).collect())
    })?
}

/// What stands for a file in the log: its path, without the root that relative paths lie below.
fn name(file: &PlannedFile, root: &Path) -> String {
    file.path.strip_prefix(root).unwrap_or(&file.path).display().to_string()
}
