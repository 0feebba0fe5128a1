//! Records of sandboxes and containers: in memory, and on disk with mode 0600.
//!
//! A record is written before executord creates an object, and again after the creation. The record contains the
//! request without the environment (rule C43). Names are unique: a name belongs to one id until the object is removed
//! or its creation fails (rule C8).

mod records;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use executor_client::v1;
use executor_sys::mutex::locked;
use serde::de::DeserializeOwned;
use tonic::Status;

pub(crate) use self::records::{ContainerRecord, Record, SandboxRecord};

/// Maximum size of a record, in bytes. A request has at most 16 MiB.
const RECORD_MAX: u64 = 16 << 20;

/// Maximum size of a list, in bytes. The kubelet reads messages of up to 16 MiB.
const LISTS_MAX: usize = (16 << 20) - (64 << 10);

/// A state from executord. The number of a state never decreases during the lifetime of an object.
pub(crate) trait State {
    fn number(&self) -> i32;
}

impl State for v1::Pod {
    fn number(&self) -> i32 {
        self.state
    }
}

impl State for v1::Container {
    fn number(&self) -> i32 {
        self.state
    }
}

/// A record with the last known state at executord.
#[derive(Debug)]
pub(crate) struct Object<R, S> {
    pub(crate) record: Arc<R>,
    /// Last known state; `None` if executord does not have the object.
    pub(crate) state: Option<Arc<S>>,
}

impl<R, S> Clone for Object<R, S> {
    fn clone(&self) -> Self {
        Self { record: Arc::clone(&self.record), state: self.state.clone() }
    }
}

pub(crate) type Sandbox = Object<SandboxRecord, v1::Pod>;
pub(crate) type Container = Object<ContainerRecord, v1::Container>;

impl Sandbox {
    /// Returns true if the sandbox accepts containers.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.as_ref().is_some_and(|pod| pod.state() == v1::pod::State::Ready)
    }
}

/// The records of all sandboxes and containers.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) sandboxes: Objects<SandboxRecord, v1::Pod>,
    pub(crate) containers: Objects<ContainerRecord, v1::Container>,
    /// Lock that is held while an object is inserted.
    inserting: Mutex<()>,
}

impl Store {
    /// Reads the records in a directory, which is created if it is missing.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created or read.
    pub(crate) fn open(directory: &Path) -> Result<Self, String> {
        Ok(Self {
            sandboxes: Objects::open(directory.join("sandboxes"))?,
            containers: Objects::open(directory.join("containers"))?,
            inserting: Mutex::default(),
        })
    }

    /// Inserts the record of a new sandbox, like [`Objects::insert_or_find`].
    ///
    /// # Errors
    /// Returns RESOURCE_EXHAUSTED if the kubelet's lists would become too large, or the record cannot be written.
    pub(crate) fn insert_sandbox(&self, record: SandboxRecord) -> Result<Option<Arc<SandboxRecord>>, Status> {
        let bytes = record.listed_bytes();
        self.insert_one(|| self.sandboxes.insert_or_find(record, || self.check_lists(bytes)))
    }

    /// Inserts the record of a new container, like [`Objects::insert_or_find`].
    ///
    /// # Errors
    /// Returns the same errors as [`Self::insert_sandbox`].
    pub(crate) fn insert_container(&self, record: ContainerRecord) -> Result<Option<Arc<ContainerRecord>>, Status> {
        let bytes = record.listed_bytes();
        self.insert_one(|| self.containers.insert_or_find(record, || self.check_lists(bytes)))
    }

    /// Inserts one object at a time. Insertions may block.
    fn insert_one<T>(&self, insert: impl FnOnce() -> T) -> T {
        tokio::task::block_in_place(|| {
            let _one = locked(&self.inserting);
            insert()
        })
    }

    /// Checks that the largest list, the statistics of all sandboxes with their containers, still fits into a message
    /// after another object is added (rule C14). Otherwise the kubelet could not read the list, and the node would
    /// become NotReady.
    fn check_lists(&self, added: usize) -> Result<(), Status> {
        let bytes = self.sandboxes.listed_bytes() + self.containers.listed_bytes() + added;
        if bytes <= LISTS_MAX {
            return Ok(());
        }
        Err(Status::resource_exhausted(format!(
            "the kubelet's list of all sandboxes and containers, with labels and annotations, would be {bytes} bytes; \
             the maximum is {LISTS_MAX}: remove pods or shorten annotations"
        )))
    }
}

/// Objects of one kind, by id.
#[derive(Debug)]
pub(crate) struct Objects<R, S> {
    directory: PathBuf,
    known: Mutex<BTreeMap<String, Object<R, S>>>,
    /// Lock that is held while records are written. Readers lock only `known`, so they do not wait for the disk.
    writing: Mutex<()>,
}

impl<R: Record, S: State> Objects<R, S> {
    fn open(directory: PathBuf) -> Result<Self, String> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
        let records = read_all::<R>(&directory)?.into_iter();
        let known =
            records.map(|record| (record.id().to_owned(), Object { record: Arc::new(record), state: None })).collect();
        Ok(Self { directory, known: Mutex::new(known), writing: Mutex::default() })
    }

    fn listed_bytes(&self) -> usize {
        locked(&self.known).values().map(|object| object.record.listed_bytes()).sum()
    }

    /// Inserts an object and writes its record. If the name is in use, returns the earlier record and writes nothing.
    ///
    /// # Errors
    /// Returns the error of `check`, which is called before a record is written, or an error if the record cannot be
    /// written.
    fn insert_or_find(&self, record: R, check: impl FnOnce() -> Result<(), Status>) -> Result<Option<Arc<R>>, Status> {
        self.write_with(|| {
            let name = record.name();
            if let Some(earlier) = locked(&self.known).values().find(|object| object.record.name() == name) {
                return Ok(Some(Arc::clone(&earlier.record)));
            }
            check()?;
            self.write(&record)?;
            locked(&self.known).insert(record.id().to_owned(), Object { record: Arc::new(record), state: None });
            Ok(None)
        })
    }

    /// Records that executord has created an object. Returns false if the object has been removed.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub(crate) fn created(&self, id: &str, state: S) -> Result<bool, Status> {
        let is_there = self.change(id, |record| {
            let is_first = !record.is_created();
            record.set_created();
            is_first
        })?;
        self.advance(id, state);
        Ok(is_there)
    }

    /// Changes a record. Returns false if the object does not exist. `change` returns true if it changed the record.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub(crate) fn change(&self, id: &str, change: impl FnOnce(&mut R) -> bool) -> Result<bool, Status> {
        self.write_with(|| {
            let known = locked(&self.known).get(id).map(|object| R::clone(&object.record));
            let Some(mut record) = known else { return Ok(false) };
            if change(&mut record) {
                self.write(&record)?;
                if let Some(object) = locked(&self.known).get_mut(id) {
                    object.record = Arc::new(record);
                }
            }
            Ok(true)
        })
    }

    /// Sets a state, unless a later state is known: a response that was sent before an event can arrive after the
    /// event. Returns the object before and after the change, or `None` if the object does not exist.
    pub(crate) fn advance(&self, id: &str, state: S) -> Option<[Object<R, S>; 2]> {
        let mut known = locked(&self.known);
        let object = known.get_mut(id)?;
        let before = object.clone();
        if state.number() >= before.state.as_ref().map_or(0, |state| state.number()) {
            object.state = Some(Arc::new(state));
        }
        Some([before, object.clone()])
    }

    /// Clears the state of an object that executord does not have, unless the state is final. Returns true if there was
    /// a state.
    pub(crate) fn clear_state(&self, id: &str, is_final: impl FnOnce(&S) -> bool) -> bool {
        let mut known = locked(&self.known);
        known.get_mut(id).is_some_and(|object| object.state.take_if(|state| !is_final(state)).is_some())
    }

    /// Removes an object and frees its name. Returns false if the object does not exist.
    pub(crate) fn remove(&self, id: &str) -> bool {
        self.write_with(|| {
            let is_there = locked(&self.known).remove(id).is_some();
            if is_there {
                remove_file(&self.path(id));
            }
            is_there
        })
    }

    /// Returns all objects whose creation has finished.
    pub(crate) fn all(&self) -> Vec<Object<R, S>> {
        self.everything().into_iter().filter(|object| object.record.is_created()).collect()
    }

    /// Returns all objects, including objects whose creation has not finished.
    pub(crate) fn everything(&self) -> Vec<Object<R, S>> {
        locked(&self.known).values().cloned().collect()
    }

    /// Returns the created object with an id or with a unique prefix of an id.
    pub(crate) fn get(&self, id: &str) -> Option<Object<R, S>> {
        only(&locked(&self.known), id).filter(|object| object.record.is_created())
    }

    /// Runs one change at a time. Changes may block.
    fn write_with<T>(&self, change: impl FnOnce() -> T) -> T {
        tokio::task::block_in_place(|| {
            let _one = locked(&self.writing);
            change()
        })
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }

    fn write(&self, record: &R) -> Result<(), Status> {
        let path = self.path(record.id());
        let written =
            serde_json::to_vec(record).map_err(std::io::Error::from).and_then(|json| match json.len() as u64 {
                0..=RECORD_MAX => replace(&path, &json),
                bytes => {
                    Err(std::io::Error::other(format!("the request is {bytes} bytes; the maximum is {RECORD_MAX}")))
                }
            });
        written.map_err(|error| Status::resource_exhausted(format!("cannot write {}: {error}", path.display())))
    }
}

/// Replaces a file atomically.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    // Without the synchronization a power cut could leave an empty file.
    let written = file.write_all(bytes).and_then(|()| file.sync_data()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

pub(crate) fn remove_file(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), "cannot remove a record: {error}");
    }
}

/// Reads all records in a directory. Logs and skips a record that cannot be read.
pub(crate) fn read_all<R: DeserializeOwned>(directory: &Path) -> Result<Vec<R>, String> {
    let entries = fs::read_dir(directory).map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut records = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => {}
            Some("new") => {
                // An unfinished file: the process was killed while it wrote a record.
                remove_file(&path);
                continue;
            }
            _ => continue,
        }
        match read(&path) {
            Ok(record) => records.push(record),
            Err(error) => tracing::error!(path = %path.display(), "cannot read a record: {error}"),
        }
    }
    Ok(records)
}

fn read<R: DeserializeOwned>(path: &Path) -> Result<R, std::io::Error> {
    let file = fs::File::open(path)?;
    if file.metadata()?.len() > RECORD_MAX {
        return Err(std::io::Error::other(format!("the record is larger than the maximum of {RECORD_MAX} bytes")));
    }
    Ok(serde_json::from_reader(std::io::BufReader::new(file))?)
}

/// Returns the object with an id or with a unique prefix of an id.
fn only<T: Clone>(all: &BTreeMap<String, T>, id: &str) -> Option<T> {
    if id.is_empty() {
        return None;
    }
    let mut matches = all.range(id.to_owned()..).take_while(|(key, _)| key.starts_with(id));
    let (key, found) = matches.next()?;
    (key == id || matches.next().is_none()).then(|| found.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_cri_api::v1::{ContainerConfig, ContainerMetadata, KeyValue, PodSandboxConfig, PodSandboxMetadata};

    fn record(id: &str, name: &str) -> SandboxRecord {
        let metadata = PodSandboxMetadata { name: name.into(), ..PodSandboxMetadata::default() };
        let config = PodSandboxConfig { metadata: Some(metadata), ..PodSandboxConfig::default() };
        SandboxRecord { id: id.into(), config, ..SandboxRecord::default() }
    }

    #[test]
    fn unfinished_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        drop(Store::open(directory.path()).unwrap());
        let unfinished = directory.path().join("sandboxes/1.new");
        fs::write(&unfinished, "{").unwrap();
        let store = Store::open(directory.path()).unwrap();
        assert!(!unfinished.exists() && store.sandboxes.everything().is_empty());
    }

    /// Rules C4, C8: a name has one id until the object is removed.
    #[test]
    fn names_are_unique_until_removed() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        assert!(store.insert_sandbox(record("1", "a")).unwrap().is_none());
        assert_eq!(store.insert_sandbox(record("2", "a")).unwrap().unwrap().id, "1");
        assert!(store.sandboxes.remove("1") && !store.sandboxes.remove("1"));
        assert!(store.insert_sandbox(record("2", "a")).unwrap().is_none());
        let id = crate::ids::new().unwrap();
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    /// Rule C14: all lists fit into a message. A retry of an object that exists is not refused.
    #[test]
    fn lists_fit_into_a_message() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let large = |id: &str| {
            let mut record = record(id, id);
            record.config.annotations = [("a".to_owned(), "x".repeat(1 << 20))].into();
            record
        };
        let ids: Vec<String> = (0..15).map(|id| id.to_string()).collect();
        ids.iter().for_each(|id| assert!(store.insert_sandbox(large(id)).unwrap().is_none()));
        let status = store.insert_sandbox(large("15")).unwrap_err();
        assert!(
            status.code() == tonic::Code::ResourceExhausted && status.message().contains("annotations"),
            "{status}"
        );
        assert!(store.insert_sandbox(large("3")).unwrap().is_some());
        let container = ContainerRecord { id: "c".into(), ..ContainerRecord::default() };
        assert!(store.insert_container(container).unwrap().is_none());
        assert!(store.sandboxes.remove("3") && store.insert_sandbox(large("15")).unwrap().is_none());
    }

    /// Rule C14: states only advance, and readers see each state immediately.
    #[test]
    fn states_only_advance() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        store.insert_sandbox(record("1", "a")).unwrap();
        let pod = |state: v1::pod::State| v1::Pod { state: state.into(), ..v1::Pod::default() };
        assert!(store.sandboxes.created("1", pod(v1::pod::State::Ready)).unwrap());
        let [before, after] = store.sandboxes.advance("1", pod(v1::pod::State::Ended)).unwrap();
        assert!(before.is_ready() && !after.is_ready());
        store.sandboxes.advance("1", pod(v1::pod::State::Ready));
        assert!(!store.sandboxes.get("1").unwrap().is_ready());
        assert!(!store.sandboxes.clear_state("1", |_| true) && store.sandboxes.clear_state("1", |_| false));
        assert!(store.sandboxes.advance("2", pod(v1::pod::State::Ready)).is_none());
    }

    /// Rule C43: records are read again after a restart, and contain no values of environments.
    #[test]
    fn records_survive_without_environments() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "c".into(), attempt: 1 }),
            envs: vec![KeyValue { key: "K".into(), value: "hunter2".into() }],
            log_path: "c.log".into(),
            ..ContainerConfig::default()
        };
        let record = ContainerRecord { id: "1234".into(), config, ..ContainerRecord::default() };
        store.insert_container(record.without_environment()).unwrap();
        assert!(store.containers.get("1234").is_none(), "the creation has not completed");
        assert!(store.containers.created("1234", v1::Container::default()).unwrap());
        let text = fs::read_to_string(store.containers.path("1234")).unwrap();
        assert!(text.contains("c.log") && !text.contains("hunter2"), "{text}");
        let reopened = Store::open(directory.path()).unwrap();
        assert_eq!(reopened.containers.get("12").unwrap().record, store.containers.get("1234").unwrap().record);
    }

    /// Rule C4: a prefix that two ids have selects neither.
    #[test]
    fn only_unique_prefixes_select_objects() {
        let all = BTreeMap::from([("ab1".to_owned(), 1), ("ab2".to_owned(), 2), ("ab".to_owned(), 3)]);
        assert_eq!(["ab1", "ab", "a", "b", ""].map(|id| only(&all, id)), [Some(1), Some(3), None, None, None]);
    }

    #[test]
    fn damaged_records_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        drop(Store::open(directory.path()).unwrap());
        fs::write(directory.path().join("sandboxes/x.json"), "{").unwrap();
        assert!(Store::open(directory.path()).unwrap().sandboxes.everything().is_empty());
    }
}
