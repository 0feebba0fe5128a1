//! Values of a container's secrets, which its shim must know in order to mask them in its output.
//!
//! Values are read out of the memory files that the container is started with, after its init was cloned, and stay
//! in this process until the container has ended: secret variables, secret arguments, files that are not public, the
//! runtime token. Output that is not kept is masked as well, because attached clients see it. A container without such
//! inputs costs nothing.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use executor_core::payload::{self, ProcessPayload};
use executor_core::plan::{Plan, PlannedFile, PlannedProcess, PlannedTransfer, Redaction};
use executor_secrets::redact::{Redactor, Watched};
use executor_sys::memfile::MemFile;
use zeroize::Zeroizing;

/// For so many updates a value that was replaced or removed is masked on: the process may still print it.
const UPDATES: u64 = 8;

/// The values that are masked.
pub(super) struct Watch {
    mode: Redaction,
    /// Root of relative paths of files.
    root: PathBuf,
    inputs: Vec<Value>,
    files: Vec<Value>,
    /// Of files that are about to come into force.
    announced: Vec<Value>,
    /// Number of updates.
    updates: u64,
}

/// A value and the name that stands in its place.
struct Value {
    name: String,
    value: Zeroizing<Vec<u8>>,
    /// In force no longer, since this update.
    replaced: Option<u64>,
}

impl Value {
    fn new(name: String, value: &[u8]) -> Self {
        Self { name, value: Zeroizing::new(value.to_vec()), replaced: None }
    }
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
        let mode = plan.redaction;
        let mut watch = Self {
            mode,
            root: root.to_owned(),
            inputs: Vec::new(),
            files: Vec::new(),
            announced: Vec::new(),
            updates: 0,
        };
        if mode == Redaction::None {
            return Ok(watch);
        }
        watch.inputs = inputs(plan, process)?;
        if let (Some(file), Some(token)) = (plan.token_file(), token) {
            watch.inputs.push(Value::new(watch.name(file), &token));
        }
        let of_steps: Vec<&PlannedFile> = plan.processes.iter().flat_map(|process| &process.files).collect();
        let given: Vec<&PlannedFile> = plan.given_files().iter().chain(of_steps.iter().copied()).collect();
        watch.announce(&given, files)?;
        // Files of steps are never replaced: they count as inputs.
        let own = plan.given_files().iter().filter(|file| !file.public).count();
        let steps = watch.announced.split_off(own);
        watch.inputs.extend(steps);
        watch.confirm(&plan.files);
        Ok(watch)
    }

    /// Takes the contents of files, in this order, that are about to come into force. What is in force is masked on.
    ///
    /// # Errors
    /// As [`Watch::begin`].
    pub(super) fn announce(&mut self, files: &[&PlannedFile], contents: &MemFile) -> io::Result<()> {
        if self.mode == Redaction::None {
            return Ok(());
        }
        self.announced = contents.read(|bytes| {
            let contents = payload::decode(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let pairs = files.iter().zip(contents).filter(|(file, _)| !file.public);
            Ok::<_, io::Error>(pairs.map(|(file, content)| Value::new(self.name(file), content)).collect())
        })??;
        Ok(())
    }

    /// Puts the announced values in force. These are all the files that there are.
    pub(super) fn confirm(&mut self, all: &[PlannedFile]) {
        if self.mode == Redaction::None {
            return;
        }
        self.updates += 1;
        let secret: BTreeSet<String> = all.iter().filter(|file| !file.public).map(|file| self.name(file)).collect();
        let changed: BTreeSet<&str> = self.announced.iter().map(|new| &*new.name).collect();
        for old in self.files.iter_mut().filter(|old| old.replaced.is_none()) {
            if changed.contains(&*old.name) || !secret.contains(&old.name) {
                old.replaced = Some(self.updates);
            }
        }
        self.files.retain(|value| value.replaced.is_none_or(|at| at + UPDATES > self.updates));
        self.files.append(&mut self.announced);
    }

    /// Drops the announced values.
    pub(super) fn withdraw(&mut self) {
        self.announced.clear();
    }

    /// Returns whether there is nothing to be masked.
    pub(super) fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.files.is_empty() && self.announced.is_empty()
    }

    /// Returns the redactor of these values. Of two values with one name the newer one comes first.
    pub(super) fn redactor(&self) -> Redactor {
        let values = self.inputs.iter().chain(self.announced.iter().rev()).chain(self.files.iter().rev());
        Redactor::new(self.mode, values.map(|value| Watched { name: &value.name, value: &value.value }))
    }

    /// Returns the name of a file in the log: its path, without the root that relative paths lie below.
    fn name(&self, file: &PlannedFile) -> String {
        file.path.strip_prefix(&self.root).unwrap_or(&file.path).display().to_string()
    }
}

/// Secret arguments and variables.
fn inputs(plan: &Plan, process: &MemFile) -> io::Result<Vec<Value>> {
    if plan.actions.is_some() {
        return inputs_of_steps(plan, process);
    }
    let Some(main) = plan.main() else { return Ok(Vec::new()) };
    if main.secret_arguments.is_empty() && main.secret_environment_names.is_empty() {
        return Ok(Vec::new());
    }
    process.read(|bytes| of_process(main, "", bytes))?
}

/// Secret arguments and variables of the processes of a tree of actions.
fn inputs_of_steps(plan: &Plan, payloads: &MemFile) -> io::Result<Vec<Value>> {
    payloads.read(|bytes| {
        let payloads = payload::decode(bytes).map_err(invalid)?;
        let urls = payloads.get(plan.processes.len()..).unwrap_or_default();
        let urls = plan.transfers.iter().zip(urls).flat_map(|(transfer, url)| of_url(transfer, url));
        let pairs = plan.processes.iter().zip(&payloads);
        let values = pairs.map(|(process, payload)| of_process(process, &format!("{}.run.", process.id), payload));
        Ok(values.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().chain(urls).collect())
    })?
}

/// The secret parts of a URL: the query, and the name and password before the host.
fn of_url(transfer: &PlannedTransfer, url: &[u8]) -> Vec<Value> {
    let direction = transfer.direction;
    let name = |part: &str| format!("{}.{}.{} ({part})", transfer.id, direction.kind(), direction.url_field());
    let (rest, query) = match url.iter().position(|byte| *byte == b'?') {
        Some(at) => (&url[..at], &url[at + 1..]),
        None => (url, &b""[..]),
    };
    let query = query.split(|byte| *byte == b'#').next().unwrap_or_default();
    let authority = rest.windows(3).position(|three| three == b"://").map_or(rest, |at| &rest[at + 3..]);
    let authority = authority.split(|byte| *byte == b'/').next().unwrap_or_default();
    let user = authority.iter().rposition(|byte| *byte == b'@').map_or(&b""[..], |at| &authority[..at]);
    let parts = [("query", query), ("user", user)];
    parts.into_iter().filter(|(_, part)| !part.is_empty()).map(|(part, value)| Value::new(name(part), value)).collect()
}

/// Secret arguments and variables of one process, whose arguments are named below `parent`.
fn of_process(process: &PlannedProcess, parent: &str, payload: &[u8]) -> io::Result<Vec<Value>> {
    let values = ProcessPayload::decode(payload).and_then(|payload| payload.secrets(process)).map_err(invalid)?;
    let variables = process.secret_environment_names.iter().cloned();
    let arguments = process.secret_arguments.iter().map(|index| format!("{parent}args[{index}]"));
    Ok(variables.chain(arguments).zip(values).map(|(name, value)| Value::new(name, value)).collect())
}

fn invalid(error: payload::PayloadError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
