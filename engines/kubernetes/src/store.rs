//! Records of sandboxes and containers: in memory, and on disk with mode 0600.
//!
//! A record is on disk before executord is asked to create anything, and again once it is created. It contains the
//! request without its environment (rule C43). Names are unique: a name belongs to one id until that is removed, or until
//! its creation fails (rule C8).

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use executor_client::v1;
use executor_cri_api::v1::{ContainerConfig, LinuxContainerResources, PodSandboxConfig};
use executor_sys::mutex::locked;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::ids;
use crate::lower::resources::merged;

/// Largest record that is read, in bytes. A request has at most 16 MiB.
const RECORD_MAX: u64 = 16 << 20;

/// A sandbox, as its request describes it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct SandboxRecord {
    pub(crate) id: String,
    /// Request.
    pub(crate) config: PodSandboxConfig,
    pub(crate) runtime_handler: String,
    /// Time of the request, in nanoseconds since 1970.
    pub(crate) created_at: i64,
    /// True once executord has created the pod.
    pub(crate) is_created: bool,
}

/// A container, as its request describes it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ContainerRecord {
    pub(crate) id: String,
    pub(crate) sandbox: String,
    /// Request, without values of the environment.
    pub(crate) config: ContainerConfig,
    /// Absolute path of the log; empty if there is none.
    pub(crate) log: String,
    /// Id of the image: the digest of its configuration.
    pub(crate) image_id: String,
    /// Name of the image with the digest of its manifest.
    pub(crate) image_ref: String,
    /// Resources in force.
    pub(crate) resources: LinuxContainerResources,
    /// Time of the request, in nanoseconds since 1970.
    pub(crate) created_at: i64,
    /// True once executord has created the container.
    pub(crate) is_created: bool,
}

impl SandboxRecord {
    /// Returns the name, which is unique among sandboxes.
    pub(crate) fn name(&self) -> String {
        let metadata = self.config.metadata.clone().unwrap_or_default();
        [metadata.namespace, metadata.name, metadata.uid, metadata.attempt.to_string()].join("\0")
    }
}

impl ContainerRecord {
    /// Returns the name, which is unique among containers.
    pub(crate) fn name(&self) -> String {
        let metadata = self.config.metadata.clone().unwrap_or_default();
        [&*self.sandbox, &metadata.name, &metadata.attempt.to_string()].join("\0")
    }
}

/// A sandbox with its last known state.
#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    pub(crate) record: Arc<SandboxRecord>,
    /// State at executord; `None` if executord does not have the pod.
    pub(crate) pod: Option<Arc<v1::Pod>>,
}

impl Sandbox {
    /// Returns true if the sandbox accepts containers.
    pub(crate) fn is_ready(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.state() == v1::pod::State::Ready)
    }
}

/// A container with its last known state.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) record: Arc<ContainerRecord>,
    /// State at executord; `None` if executord does not have the container.
    pub(crate) run: Option<Arc<v1::Container>>,
}

#[derive(Debug, Default)]
struct Inner {
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
    /// Ids by name: names of sandboxes have four parts, names of containers three.
    names: HashMap<String, String>,
}

/// All records.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    inner: Mutex<Inner>,
}

const SANDBOXES: &str = "sandboxes";
const CONTAINERS: &str = "containers";

impl Store {
    /// Reads the records in a directory, which is created if it is missing.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created or read.
    pub(crate) fn open(directory: &Path) -> Result<Self, String> {
        let at = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        let mut inner = Inner::default();
        for part in [SANDBOXES, CONTAINERS] {
            let path = directory.join(part);
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|error| at(&path, error))?;
        }
        for record in read_all::<SandboxRecord>(&directory.join(SANDBOXES))? {
            inner.names.insert(record.name(), record.id.clone());
            inner.sandboxes.insert(record.id.clone(), Sandbox { record: Arc::new(record), pod: None });
        }
        for record in read_all::<ContainerRecord>(&directory.join(CONTAINERS))? {
            inner.names.insert(record.name(), record.id.clone());
            inner.containers.insert(record.id.clone(), Container { record: Arc::new(record), run: None });
        }
        Ok(Self { directory: directory.to_owned(), inner: Mutex::new(inner) })
    }

    /// Begins a sandbox: gives it an id and writes its record. If the name is in use, returns the record of the earlier
    /// request.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub(crate) fn begin_sandbox(&self, mut record: SandboxRecord) -> Result<SandboxRecord, Status> {
        let mut inner = locked(&self.inner);
        let name = record.name();
        if let Some(earlier) = inner.names.get(&name).and_then(|id| inner.sandboxes.get(id)) {
            return Ok(SandboxRecord::clone(&earlier.record));
        }
        record.id = ids::new()?;
        self.write(SANDBOXES, &record.id, &record)?;
        inner.names.insert(name, record.id.clone());
        inner.sandboxes.insert(record.id.clone(), Sandbox { record: Arc::new(record.clone()), pod: None });
        Ok(record)
    }

    /// Begins a container. See [`Store::begin_sandbox`].
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub(crate) fn begin_container(&self, mut record: ContainerRecord) -> Result<ContainerRecord, Status> {
        record.config.envs.clear();
        let mut inner = locked(&self.inner);
        let name = record.name();
        if let Some(earlier) = inner.names.get(&name).and_then(|id| inner.containers.get(id)) {
            return Ok(ContainerRecord::clone(&earlier.record));
        }
        record.id = ids::new()?;
        self.write(CONTAINERS, &record.id, &record)?;
        inner.names.insert(name, record.id.clone());
        inner.containers.insert(record.id.clone(), Container { record: Arc::new(record.clone()), run: None });
        Ok(record)
    }

    /// Notes that executord has created a sandbox. Returns false if it was removed meanwhile.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub(crate) fn sandbox_created(&self, id: &str, pod: v1::Pod) -> Result<bool, Status> {
        let mut inner = locked(&self.inner);
        let Some(sandbox) = inner.sandboxes.get_mut(id) else { return Ok(false) };
        if !sandbox.record.is_created {
            let record = SandboxRecord { is_created: true, ..SandboxRecord::clone(&sandbox.record) };
            self.write(SANDBOXES, id, &record)?;
            sandbox.record = Arc::new(record);
        }
        advance_pod(sandbox, pod);
        Ok(true)
    }

    /// Notes that executord has created a container. Returns false if it was removed meanwhile.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub(crate) fn container_created(&self, id: &str, run: v1::Container) -> Result<bool, Status> {
        let mut inner = locked(&self.inner);
        let Some(container) = inner.containers.get_mut(id) else { return Ok(false) };
        if !container.record.is_created {
            let record = ContainerRecord { is_created: true, ..ContainerRecord::clone(&container.record) };
            self.write(CONTAINERS, id, &record)?;
            container.record = Arc::new(record);
        }
        advance_run(container, run);
        Ok(true)
    }

    /// Notes a change of a container's resources in its record.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub(crate) fn change_resources(&self, id: &str, changed: &LinuxContainerResources) -> Result<(), Status> {
        let mut inner = locked(&self.inner);
        let Some(container) = inner.containers.get_mut(id) else { return Ok(()) };
        let resources = merged(&container.record.resources, changed);
        let record = ContainerRecord { resources, ..ContainerRecord::clone(&container.record) };
        self.write(CONTAINERS, id, &record)?;
        container.record = Arc::new(record);
        Ok(())
    }

    /// Sets the state of a pod. An older state than the known one is ignored. Returns true if the sandbox was ready and is
    /// no longer.
    pub(crate) fn set_pod(&self, pod: v1::Pod) -> bool {
        let mut inner = locked(&self.inner);
        let Some(sandbox) = inner.sandboxes.get_mut(&pod.id) else { return false };
        let was_ready = sandbox.is_ready();
        advance_pod(sandbox, pod);
        was_ready && !sandbox.is_ready()
    }

    /// Notes that executord does not have the pod of a sandbox. Returns true if the sandbox was ready.
    pub(crate) fn lose_pod(&self, id: &str) -> bool {
        let mut inner = locked(&self.inner);
        let Some(sandbox) = inner.sandboxes.get_mut(id) else { return false };
        let was_ready = sandbox.is_ready();
        sandbox.pod = None;
        was_ready
    }

    /// Notes that executord does not have a container, if its end is not known. Returns true if it had not ended.
    pub(crate) fn lose_run(&self, id: &str) -> bool {
        let mut inner = locked(&self.inner);
        let Some(container) = inner.containers.get_mut(id) else { return false };
        container.run.take_if(|run| run.state() != v1::State::Completed).is_some()
    }

    /// Sets the state of a container. An older state than the known one is ignored. Returns the known state before.
    pub(crate) fn set_run(&self, run: v1::Container) -> Option<v1::State> {
        let mut inner = locked(&self.inner);
        let container = inner.containers.get_mut(&run.id)?;
        let before = container.run.as_ref().map(|run| run.state()).unwrap_or_default();
        advance_run(container, run);
        Some(before)
    }

    /// Removes a sandbox and frees its name.
    pub(crate) fn remove_sandbox(&self, id: &str) {
        let mut inner = locked(&self.inner);
        if let Some(sandbox) = inner.sandboxes.remove(id) {
            inner.names.remove(&sandbox.record.name());
            remove_file(&self.path(SANDBOXES, id));
        }
    }

    /// Removes a container and frees its name. Returns false if there was none.
    pub(crate) fn remove_container(&self, id: &str) -> bool {
        let mut inner = locked(&self.inner);
        let Some(container) = inner.containers.remove(id) else { return false };
        inner.names.remove(&container.record.name());
        remove_file(&self.path(CONTAINERS, id));
        true
    }

    /// Returns all sandboxes that are created.
    pub(crate) fn sandboxes(&self) -> Vec<Sandbox> {
        locked(&self.inner).sandboxes.values().filter(|sandbox| sandbox.record.is_created).cloned().collect()
    }

    /// Returns all containers that are created.
    pub(crate) fn containers(&self) -> Vec<Container> {
        locked(&self.inner).containers.values().filter(|container| container.record.is_created).cloned().collect()
    }

    /// Returns all records, of objects whose creation has not ended, too.
    pub(crate) fn everything(&self) -> (Vec<Sandbox>, Vec<Container>) {
        let inner = locked(&self.inner);
        (inner.sandboxes.values().cloned().collect(), inner.containers.values().cloned().collect())
    }

    /// Returns the sandbox with an id, or with a prefix of an id that only one has.
    pub(crate) fn sandbox(&self, id: &str) -> Option<Sandbox> {
        only(&locked(&self.inner).sandboxes, id).filter(|sandbox| sandbox.record.is_created)
    }

    /// Returns the container with an id, or with a prefix of an id that only one has.
    pub(crate) fn container(&self, id: &str) -> Option<Container> {
        only(&locked(&self.inner).containers, id).filter(|container| container.record.is_created)
    }

    fn path(&self, part: &str, id: &str) -> PathBuf {
        self.directory.join(part).join(format!("{id}.json"))
    }

    fn write(&self, part: &str, id: &str, record: &impl Serialize) -> Result<(), Status> {
        let path = self.path(part, id);
        let written =
            serde_json::to_vec(record).map_err(std::io::Error::from).and_then(|json| match json.len() as u64 {
                0..=RECORD_MAX => replace(&path, &json),
                bytes => Err(std::io::Error::other(format!("the request has {bytes} bytes; at most {RECORD_MAX}"))),
            });
        written.map_err(|error| Status::resource_exhausted(format!("cannot write {}: {error}", path.display())))
    }
}

/// Replaces a file in one step.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    // Without the synchronization a power cut could leave an empty file.
    let written = file.write_all(bytes).and_then(|()| file.sync_data()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

fn remove_file(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), "cannot remove a record: {error}");
    }
}

/// Reads all records in a directory. A record that cannot be read is left out, with a message: what it describes is
/// then ended.
fn read_all<R: DeserializeOwned>(directory: &Path) -> Result<Vec<R>, String> {
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut records = Vec::new();
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
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
        return Err(std::io::Error::other(format!("it has more than {RECORD_MAX} bytes")));
    }
    Ok(serde_json::from_reader(std::io::BufReader::new(file))?)
}

/// Returns the object with an id, or with a prefix of an id that only one has.
fn only<T: Clone>(all: &BTreeMap<String, T>, id: &str) -> Option<T> {
    if id.is_empty() {
        return None;
    }
    let mut matches = all.range(id.to_owned()..).take_while(|(key, _)| key.starts_with(id));
    let (key, found) = matches.next()?;
    (key == id || matches.next().is_none()).then(|| found.clone())
}

/// States only advance: a response that was sent before an event can arrive after it.
fn advance_pod(sandbox: &mut Sandbox, pod: v1::Pod) {
    let known = sandbox.pod.as_ref().map_or(0, |known| known.state);
    if pod.state >= known {
        sandbox.pod = Some(Arc::new(pod));
    }
}

fn advance_run(container: &mut Container, run: v1::Container) {
    let known = container.run.as_ref().map_or(0, |known| known.state);
    if run.state >= known {
        container.run = Some(Arc::new(run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_cri_api::v1::{ContainerMetadata, KeyValue, PodSandboxMetadata};

    fn record(name: &str) -> SandboxRecord {
        let metadata = PodSandboxMetadata { name: name.into(), ..PodSandboxMetadata::default() };
        let config = PodSandboxConfig { metadata: Some(metadata), ..PodSandboxConfig::default() };
        SandboxRecord { config, ..SandboxRecord::default() }
    }

    /// Rules C4, C8: a name has one id until it is removed.
    #[test]
    fn names_are_unique_until_removed() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let first = store.begin_sandbox(record("a")).unwrap();
        let again = store.begin_sandbox(record("a")).unwrap();
        assert_eq!(first.id, again.id);
        assert!(first.id.len() == 64 && first.id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        store.remove_sandbox(&first.id);
        assert_ne!(store.begin_sandbox(record("a")).unwrap().id, first.id);
    }

    /// Rule C43: records are read again, and no value of an environment is in one.
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
        let id = store.begin_container(ContainerRecord { config, ..ContainerRecord::default() }).unwrap().id;
        assert!(store.container(&id).is_none(), "its creation has not ended");
        let run = v1::Container { id: id.clone(), ..v1::Container::default() };
        assert!(store.container_created(&id, run).unwrap());
        let text = fs::read_to_string(store.path(CONTAINERS, &id)).unwrap();
        assert!(text.contains("c.log") && !text.contains("hunter2"), "{text}");
        let reopened = Store::open(directory.path()).unwrap();
        assert_eq!(reopened.container(&id[..8]).unwrap().record, store.container(&id).unwrap().record);
    }

    /// Rule C4: a prefix that two ids have names neither.
    #[test]
    fn only_unique_prefixes_are_taken() {
        let all = BTreeMap::from([("ab1".to_owned(), 1), ("ab2".to_owned(), 2), ("ab".to_owned(), 3)]);
        assert_eq!(["ab1", "ab", "a", "b", ""].map(|id| only(&all, id)), [Some(1), Some(3), None, None, None]);
    }

    #[test]
    fn damaged_records_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        drop(Store::open(directory.path()).unwrap());
        fs::write(directory.path().join(SANDBOXES).join("x.json"), "{").unwrap();
        assert!(Store::open(directory.path()).unwrap().everything().0.is_empty());
    }
}
