//! Keeps the values of a container's secrets in the shim's memory, so that they can be masked in the output.
//!
//! The values are secret variables, secret arguments, secret parts of URLs, files that are not public, and the runtime
//! token. The shim reads the values after the container's init was cloned. The current values stay in memory until the
//! container has exited, and replaced values for [`UPDATES`] updates. Output that is not logged is masked, too, because
//! attached clients receive it. Masking costs nothing for a container without these inputs, and a matcher is built only
//! when there is output.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use executor_core::payload::{self, ProcessPayload};
use executor_core::plan::{Plan, PlannedFile, PlannedProcess, PlannedTransfer, Redaction};
use executor_secrets::redact::{self, Redactor, Watched};
use executor_sys::memfile::{MemFile, PrivateCopy};
use zeroize::Zeroizing;

/// Number of updates for which a replaced or removed value is still masked, because the process may still print it.
const UPDATES: u64 = 8;

pub(crate) struct MaskedValues {
    mode: Redaction,
    /// Base directory of relative file paths.
    root: PathBuf,
    inputs: Vec<Rc<Value>>,
    files: Vec<Rc<Value>>,
    /// Values of the files that a running update is about to make visible.
    announced: Vec<Rc<Value>>,
    updates: u64,
}

/// A value and the name that replaces it.
struct Value {
    name: String,
    value: ValueBytes,
    /// Number of the update that replaced or removed the value, if any.
    replaced: Cell<Option<u64>>,
}

/// The bytes of a value. The allocator overwrites freed memory.
enum ValueBytes {
    Own(Vec<u8>),
    /// A part of the contents of all files of a start or of an update.
    Part(Rc<PrivateCopy>, Range<usize>),
}

impl Value {
    fn new(name: String, value: &[u8]) -> Rc<Self> {
        Rc::new(Self { name, value: ValueBytes::Own(value.to_vec()), replaced: Cell::new(None) })
    }

    fn bytes(&self) -> &[u8] {
        match &self.value {
            ValueBytes::Own(bytes) => bytes,
            ValueBytes::Part(contents, range) => &contents[range.clone()],
        }
    }

    /// Returns the contents that the value is a part of.
    fn contents(&self) -> Option<&Rc<PrivateCopy>> {
        match &self.value {
            ValueBytes::Own(_) => None,
            ValueBytes::Part(contents, _) => Some(contents),
        }
    }

    /// Returns a copy of the value in its own memory.
    fn detached(&self) -> Rc<Self> {
        let (name, value) = (self.name.clone(), ValueBytes::Own(self.bytes().to_vec()));
        Rc::new(Self { name, value, replaced: self.replaced.clone() })
    }
}

/// Values to mask, and their matcher. The matcher is built only when there is output, because building it for many
/// values takes as long as a container's start.
pub(crate) struct Masking {
    mode: Redaction,
    values: Vec<Rc<Value>>,
    search: OnceCell<Redactor>,
    /// Warnings that do not require the matcher.
    warnings: Vec<String>,
    /// True after the matcher's warnings were returned.
    reported: bool,
}

impl Masking {
    /// Returns a masking that masks nothing.
    pub(crate) fn none() -> Self {
        Self::new(Redaction::None, Vec::new())
    }

    /// Creates a masking. If two values are equal, masked output contains the name of the first.
    fn new(mode: Redaction, values: Vec<Rc<Value>>) -> Self {
        let warnings = redact::warnings(mode, watched(&values));
        Self { mode, values, search: OnceCell::new(), warnings, reported: false }
    }

    pub(crate) fn redactor(&self) -> &Redactor {
        self.search.get_or_init(|| Redactor::new(self.mode, watched(&self.values)))
    }

    /// Returns the warnings that do not require the matcher.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the warnings from building the matcher that were not reported yet. Later calls return none.
    pub(crate) fn new_warnings(&mut self) -> Vec<String> {
        let Some(search) = self.search.get().filter(|_| !std::mem::replace(&mut self.reported, true)) else {
            return Vec::new();
        };
        search.warnings().iter().filter(|warning| !self.warnings.contains(warning)).cloned().collect()
    }
}

fn watched(values: &[Rc<Value>]) -> impl Iterator<Item = Watched<'_>> {
    values.iter().map(|value| Watched { name: &value.name, value: value.bytes() })
}

impl MaskedValues {
    /// Reads the secret inputs of a container's start. `contents` is a copy of `files`, if this process already has
    /// one.
    ///
    /// # Errors
    /// Returns an error if the memory files do not match the plan or cannot be mapped.
    pub(crate) fn start(
        plan: &Plan,
        root: &Path,
        process: &MemFile,
        (files, contents): (&MemFile, Option<PrivateCopy>),
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
        watch.add(&given, contents.map_or_else(|| files.copy(), Ok)?)?;
        // Files of steps are never replaced, so they count as inputs.
        let own = plan.given_files().iter().filter(|file| !file.public).count();
        let steps = watch.announced.split_off(own);
        watch.inputs.extend(steps);
        watch.confirm(&plan.files);
        Ok(watch)
    }

    /// Adds the contents of the files that an update is about to swap in, in the order of `files`. The current values
    /// are still masked.
    ///
    /// # Errors
    /// Returns the same errors as [`MaskedValues::start`].
    pub(crate) fn announce(&mut self, files: &[&PlannedFile], contents: &MemFile) -> io::Result<()> {
        if self.mode == Redaction::None {
            return Ok(());
        }
        self.add(files, contents.copy()?)
    }

    fn add(&mut self, files: &[&PlannedFile], contents: PrivateCopy) -> io::Result<()> {
        let ranges = payload::ranges(&contents).map_err(invalid)?;
        let contents = Rc::new(contents);
        let secret = files.iter().zip(ranges).filter(|(file, _)| !file.public);
        self.announced = secret
            .map(|(file, range)| {
                let value = ValueBytes::Part(Rc::clone(&contents), range);
                Rc::new(Value { name: self.name(file), value, replaced: Cell::new(None) })
            })
            .collect();
        Ok(())
    }

    /// Makes the announced values current. `all` lists all current files.
    pub(crate) fn confirm(&mut self, all: &[PlannedFile]) {
        if self.mode == Redaction::None {
            return;
        }
        self.updates += 1;
        let secret: BTreeSet<String> = all.iter().filter(|file| !file.public).map(|file| self.name(file)).collect();
        let changed: BTreeSet<&str> = self.announced.iter().map(|new| &*new.name).collect();
        for old in self.files.iter().filter(|old| old.replaced.get().is_none()) {
            if changed.contains(&*old.name) || !secret.contains(&old.name) {
                old.replaced.set(Some(self.updates));
            }
        }
        self.drop_old_values();
        self.files.append(&mut self.announced);
    }

    /// Drops the values that are no longer masked. The other values in the same contents move to their own memory.
    /// Afterwards the contents are freed and overwritten.
    fn drop_old_values(&mut self) {
        let updates = self.updates;
        let is_old = |value: &Value| value.replaced.get().is_some_and(|at| at + UPDATES <= updates);
        let (old, kept): (Vec<Rc<Value>>, Vec<Rc<Value>>) =
            std::mem::take(&mut self.files).into_iter().partition(|value| is_old(value));
        self.files = kept;
        let old: Vec<&Rc<PrivateCopy>> = old.iter().filter_map(|value| value.contents()).collect();
        for value in self.files.iter_mut().chain(&mut self.inputs) {
            if value.contents().is_some_and(|contents| old.iter().any(|old| Rc::ptr_eq(old, contents))) {
                *value = value.detached();
            }
        }
    }

    /// Stops masking the announced values, because their update has failed.
    pub(crate) fn withdraw(&mut self) {
        self.announced.clear();
    }

    /// Returns true if there is nothing to mask.
    pub(crate) fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.files.is_empty() && self.announced.is_empty()
    }

    /// Returns a masking of these values, newer values first.
    pub(crate) fn masking(&self) -> Masking {
        let values = self.inputs.iter().chain(self.announced.iter().rev()).chain(self.files.iter().rev());
        Masking::new(self.mode, values.cloned().collect())
    }

    /// Returns the name of a file in masked output: its path, relative to the base directory if possible.
    fn name(&self, file: &PlannedFile) -> String {
        file.path.strip_prefix(&self.root).unwrap_or(&file.path).display().to_string()
    }
}

/// Returns the secret arguments and variables of a container.
fn inputs(plan: &Plan, process: &MemFile) -> io::Result<Vec<Rc<Value>>> {
    if plan.actions.is_some() {
        return inputs_of_steps(plan, process);
    }
    let Some(main) = plan.main() else { return Ok(Vec::new()) };
    if main.secret_arguments.is_empty() && main.secret_environment_names.is_empty() {
        return Ok(Vec::new());
    }
    process.read(|bytes| process_values(main, "", bytes))?
}

/// Returns the secret arguments and variables of the processes in a tree of actions, and the secret parts of URLs.
fn inputs_of_steps(plan: &Plan, payloads: &MemFile) -> io::Result<Vec<Rc<Value>>> {
    payloads.read(|bytes| {
        let payloads = payload::decode(bytes).map_err(invalid)?;
        let urls = payloads.get(plan.processes.len()..).unwrap_or_default();
        let urls = plan.transfers.iter().zip(urls).flat_map(|(transfer, url)| url_values(transfer, url));
        let pairs = plan.processes.iter().zip(&payloads);
        let values = pairs.map(|(process, payload)| process_values(process, &format!("{}.run.", process.id), payload));
        Ok(values.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().chain(urls).collect())
    })?
}

/// Returns the secret parts of a URL: the query, and the user name and password before the host.
fn url_values(transfer: &PlannedTransfer, url: &[u8]) -> Vec<Rc<Value>> {
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

/// Returns the secret arguments and variables of a process. Names of arguments start with `parent`.
fn process_values(process: &PlannedProcess, parent: &str, payload: &[u8]) -> io::Result<Vec<Rc<Value>>> {
    let values = ProcessPayload::decode(payload).and_then(|payload| payload.secrets(process)).map_err(invalid)?;
    let variables = process.secret_environment_names.iter().cloned();
    let arguments = process.secret_arguments.iter().map(|index| format!("{parent}args[{index}]"));
    Ok(variables.chain(arguments).zip(values).map(|(name, value)| Value::new(name, value)).collect())
}

fn invalid(error: payload::PayloadError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masking(values: &[(&str, &[u8])]) -> Masking {
        Masking::new(
            Redaction::Auto,
            values.iter().map(|(name, value)| Value::new((*name).to_owned(), value)).collect(),
        )
    }

    fn payload(contents: &[&[u8]]) -> PrivateCopy {
        MemFile::with_strings("test", contents).unwrap().copy().unwrap()
    }

    fn watch() -> MaskedValues {
        let root = PathBuf::from("/files");
        MaskedValues { mode: Redaction::Auto, root, inputs: vec![], files: vec![], announced: vec![], updates: 0 }
    }

    fn planned(path: &str) -> PlannedFile {
        PlannedFile::private(path, 9, "f")
    }

    #[test]
    fn parts_of_a_payload_are_masked() {
        let public = PlannedFile { public: true, ..planned("/files/public") };
        let all = [planned("/files/a"), public, planned("/files/empty"), planned("/other/b")];
        let mut watch = watch();
        let contents = payload(&[b"value of a", b"public value", b"", b"value of b"]);
        watch.add(&all.iter().collect::<Vec<_>>(), contents).unwrap();
        let text = "value of a, public value, value of b";
        assert_eq!(watch.masking().redactor().text(text), "[REDACTED:a], public value, [REDACTED:/other/b]");
        watch.withdraw();
        assert_eq!(watch.masking().redactor().text(text), text);
        assert!(watch.add(&[], payload(&[])).is_ok() && watch.is_empty());
    }

    /// The contents of a start are freed when one of the values in them is no longer masked, even if other values are
    /// current.
    #[test]
    fn contents_with_an_old_value_are_freed() {
        let (a, b) = (planned("/files/a"), planned("/files/b"));
        let all = [a.clone(), b.clone()];
        let mut watch = watch();
        watch.add(&[&a, &b], payload(&[b"first value", b"other value"])).unwrap();
        watch.confirm(&all);
        let contents = Rc::downgrade(watch.files[0].contents().unwrap());
        for update in 0..=UPDATES {
            assert!(contents.upgrade().is_some(), "update {update}");
            assert_eq!(watch.masking().redactor().text("first value"), "[REDACTED:a]", "update {update}");
            watch.add(&[&a], payload(&[b"later value"])).unwrap();
            watch.confirm(&all);
        }
        assert!(contents.upgrade().is_none());
        assert_eq!(watch.masking().redactor().text("first value, other value"), "first value, [REDACTED:b]");
    }

    #[test]
    fn redaction_search_is_built_on_demand() {
        let mut masking = masking(&[("short", b"1234"), ("long", b"123456789")]);
        assert_eq!(masking.warnings(), ["values shorter than 8 bytes are not masked in the output: short"]);
        assert!(masking.search.get().is_none() && masking.new_warnings().is_empty());
        assert_eq!(masking.redactor().text("1234 123456789"), "1234 [REDACTED:long]");
        assert_eq!(masking.warnings(), masking.redactor().warnings());
        assert!(masking.new_warnings().is_empty(), "all warnings were reported before");
    }

    #[test]
    fn search_warnings_are_reported_once() {
        let value: Vec<u8> =
            (0..3_000_000_u32).flat_map(|at| char::from(b'a' + (at % 26) as u8).to_string().into_bytes()).collect();
        let mut masking = masking(&[("large", &value)]);
        assert!(masking.warnings().is_empty());
        assert_eq!(masking.redactor().text("nothing"), "nothing");
        assert_eq!(
            masking.new_warnings(),
            ["not masked in every encoding, because the encoded values exceed 16 MiB: large"]
        );
        assert!(masking.new_warnings().is_empty());
    }

    #[test]
    fn redactor_without_values_is_idle() {
        let mut none = Masking::none();
        assert_eq!(none.redactor().text("123456789"), "123456789");
        assert!(none.redactor().is_idle() && none.warnings().is_empty() && none.new_warnings().is_empty());
    }
}
