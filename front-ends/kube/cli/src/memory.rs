//! Stores state between plays: keyed digests of each container's secrets, so that a play without changes does nothing.
//! Values are not stored. The file is normally in a tmpfs below /run, and thus removed at shutdown like the containers.
//! If the file is lost, the next play compares the requests through executord, and rotates files once more if
//! necessary.
//!
//! Rules are numbered as in `docs/guides/kube-rules.md`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use executor_kube::config::Config;
use executor_kube::plan::{Member, Tag};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::KubeError;

/// Maximum size of the file, in bytes.
const BYTES_MAX: u64 = 16 << 20;

#[derive(Default, Deserialize, Serialize)]
struct Kept {
    #[serde(default)]
    key: String,
    #[serde(default)]
    containers: BTreeMap<String, Entry>,
    /// Played ConfigMaps and Secrets, by kind, namespace and name.
    #[serde(default)]
    objects: BTreeMap<String, Played>,
}

/// Properties of a ConfigMap or Secret that must not change (rule P10).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Played {
    secret_type: Option<String>,
    /// Keyed digest of immutable data.
    immutable: Option<String>,
}

/// Digests of a container's secrets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Entry {
    /// Creation time, which distinguishes the container from earlier containers with the same id.
    created_at: String,
    environment: String,
    files: String,
}

/// State of a play. The state is locked, so that concurrent commands of one user on the same play wait for each other.
pub(crate) struct Memory {
    path: PathBuf,
    kept: Kept,
    key: Tag,
    /// Lock on the state; `None` if it was opened only for reading.
    _lock: Option<File>,
}

/// Kinds of a container's secrets that have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) environment: bool,
    pub(crate) files: bool,
}

impl Memory {
    /// Opens and locks the state of a play of this user: `$XDG_RUNTIME_DIR/executor-kube/NAME.json`. If the variable is
    /// unset, the file is below /run for root, and below the temporary directory for other users. If another command
    /// of the play is running, calls `waits` and waits for that command.
    pub(crate) async fn open(play: &str, waits: impl FnOnce()) -> Result<Self, KubeError> {
        Self::open_in(&directory(), play, waits).await
    }

    /// Reads the state of a play without locking it.
    pub(crate) fn peek(play: &str) -> Result<Self, KubeError> {
        let directory = directory();
        check_private(&directory).map_err(|source| KubeError::Read { path: directory.clone(), source })?;
        Self::read(path_of(&directory, play), None)
    }

    /// Returns true if the state of a play exists.
    pub(crate) fn exists(play: &str) -> bool {
        path_of(&directory(), play).exists()
    }

    async fn open_in(directory: &Path, play: &str, waits: impl FnOnce()) -> Result<Self, KubeError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| KubeError::Write { path, source }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed(directory))?;
        check_private(directory).map_err(failed(directory))?;
        let lock = directory.join(format!("{play}.lock"));
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock)
            .map_err(failed(&lock))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                waits();
                // Block in a separate thread, so that this thread still handles signals.
                let locked = tokio::task::spawn_blocking(move || {
                    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)).map(|()| file)
                });
                let locked = locked.await.map_err(|error| failed(&lock)(io::Error::other(error)))?;
                file = locked.map_err(|errno| failed(&lock)(errno.into()))?;
            }
            Err(errno) => return Err(failed(&lock)(errno.into())),
        }
        Self::read(path_of(directory, play), Some(file))
    }

    fn read(path: PathBuf, lock: Option<File>) -> Result<Self, KubeError> {
        let small = fs::metadata(&path).is_ok_and(|metadata| metadata.len() <= BYTES_MAX);
        let text = if small { fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        let mut kept: Kept = serde_json::from_str(&text).unwrap_or_default();
        let mut key = Tag::default();
        if hex::decode_to_slice(&kept.key, &mut key).is_err() {
            getrandom::fill(&mut key).map_err(|error| KubeError::Write {
                path: path.clone(),
                source: io::Error::other(error.to_string()),
            })?;
            kept = Kept { key: hex::encode(key), ..Kept::default() };
        }
        Ok(Self { path, kept, key, _lock: lock })
    }

    /// Compares a container's secrets with the digests from its start or last rotation; `None` if no digests are
    /// stored.
    pub(crate) fn compare(&self, created_at: &str, member: &Member) -> Option<Changed> {
        let (environment, files) = self.tags(member);
        let entry = self.kept.containers.get(&member.request.id).filter(|entry| entry.created_at == created_at)?;
        Some(Changed { environment: entry.environment != environment, files: entry.files != files })
    }

    /// Stores the digests of a container's current secrets.
    pub(crate) fn record_secrets(&mut self, created_at: &str, member: &Member) -> Result<(), KubeError> {
        let (environment, files) = self.tags(member);
        let entry = Entry { created_at: created_at.to_owned(), environment, files };
        if self.kept.containers.insert(member.request.id.clone(), entry.clone()) != Some(entry) {
            self.save()?;
        }
        Ok(())
    }

    /// Removes the stored digests of deleted containers.
    pub(crate) fn remove(&mut self, ids: &[String]) -> Result<(), KubeError> {
        let before = self.kept.containers.len();
        ids.iter().for_each(|id| drop(self.kept.containers.remove(id)));
        if self.kept.containers.len() < before { self.save() } else { Ok(()) }
    }

    /// Refuses forbidden changes of ConfigMaps and Secrets (rule P10).
    pub(crate) fn check(&self, configs: &[Config]) -> Result<(), KubeError> {
        for config in configs {
            let name = named(config);
            let Some(before) = self.kept.objects.get(&name) else { continue };
            let now = self.played(config);
            let field = match (&before.immutable, &now.immutable) {
                _ if before.secret_type != now.secret_type => "type",
                (Some(_), None) => "immutable",
                (Some(before), Some(now)) if before != now => "data",
                _ => continue,
            };
            return Err(KubeError::Frozen { object: name, field });
        }
        Ok(())
    }

    /// Replaces the stored ConfigMaps and Secrets of a play.
    pub(crate) fn store(&mut self, configs: &[Config]) -> Result<(), KubeError> {
        let objects = configs.iter().map(|config| (named(config), self.played(config))).collect();
        if self.kept.objects == objects {
            return Ok(());
        }
        self.kept.objects = objects;
        self.save()
    }

    fn played(&self, config: &Config) -> Played {
        let immutable = config.immutable.then(|| hex::encode(config.tag(&self.key)));
        Played { secret_type: config.secret_type.clone(), immutable }
    }

    fn tags(&self, member: &Member) -> (String, String) {
        let (environment, files) = member.tags(&self.key);
        (hex::encode(environment), hex::encode(files))
    }

    fn save(&self) -> Result<(), KubeError> {
        let failed = |source| KubeError::Write { path: self.path.clone(), source };
        let text = serde_json::to_vec(&self.kept).map_err(|error| failed(error.into()))?;
        let new = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&new).map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
        fs::rename(&new, &self.path).map_err(failed)
    }
}

fn named(config: &Config) -> String {
    let kind = if config.is_secret() { "Secret" } else { "ConfigMap" };
    format!("{kind} {}/{}", config.namespace, config.name)
}

fn path_of(directory: &Path, play: &str) -> PathBuf {
    directory.join(format!("{play}.json"))
}

fn directory() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()).map(PathBuf::from);
    let shared = || if rustix::process::geteuid().is_root() { "/run".into() } else { std::env::temp_dir() };
    let user = rustix::process::geteuid().as_raw();
    match runtime {
        Some(runtime) => runtime.join("executor-kube"),
        None => shared().join(if user == 0 { "executor-kube".to_owned() } else { format!("executor-kube-{user}") }),
    }
}

/// Returns an error if another user owns the directory or can write to it: that user could replace the state, or place
/// links to other files.
fn check_private(directory: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.is_dir() && is_own && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other(
        "must be a directory of this user that no other user can write to; set XDG_RUNTIME_DIR to such a directory",
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap fails the test

    use super::*;
    use executor_client::Wiped;
    use executor_client::v1::{Action, EnvironmentVariable, RunAction, RunRequest};
    use executor_kube::plan::Role;
    use executor_kube::report::Strictness;

    fn member(value: &str) -> Member {
        let variable = EnvironmentVariable { name: "A".into(), value: value.into(), ..EnvironmentVariable::default() };
        let run = RunAction { secret_environment: vec![variable], ..RunAction::default() };
        let action = Some(Action { run: Some(run), ..Action::default() });
        let request = Wiped::new(RunRequest { id: "x".into(), action, ..RunRequest::default() });
        let (rotating, name) = (Default::default(), "x".into());
        Member {
            name,
            role: Role::Main,
            request,
            rotating,
            post_start: None,
            pre_stop: None,
            non_root: false,
            path: String::new(),
        }
    }

    /// If a secret changes, the stored digests detect the change, and the file contains no value.
    #[tokio::test]
    async fn p13_memory_has_digests_without_values() {
        let dir = tempfile::tempdir().unwrap();
        let never = || panic!("the memory of the play is locked");
        let mut memory = Memory::open_in(dir.path(), "p", never).await.unwrap();
        memory.record_secrets("then", &member("canary-of-a-variable")).unwrap();
        drop(memory);
        let text = fs::read_to_string(dir.path().join("p.json")).unwrap();
        assert!(!text.contains("canary"));
        let memory = Memory::open_in(dir.path(), "p", never).await.unwrap();
        let same = Changed { environment: false, files: false };
        assert_eq!(memory.compare("then", &member("canary-of-a-variable")), Some(same));
        assert_eq!(memory.compare("then", &member("other")), Some(Changed { environment: true, files: false }));
        assert_eq!(memory.compare("now", &member("canary-of-a-variable")), None);
    }

    /// A directory that another user can replace or write to is refused, whatever it contains.
    #[tokio::test]
    async fn memory_of_other_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: PathBuf| async move { Memory::open_in(&path, "p", || panic!("the play is locked")).await };
        let private = dir.path().join("private");
        open(private.clone()).await.unwrap();
        let (link, shared) = (dir.path().join("link"), dir.path().join("shared"));
        std::os::unix::fs::symlink(&private, &link).unwrap();
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        for path in [link, shared] {
            let error = open(path.clone()).await.err().unwrap();
            assert!(matches!(error, KubeError::Write { .. }), "{error} {}", path.display());
        }
    }

    /// If an object is immutable, a change of its data or of the `immutable` flag is refused. A change of the type of a
    /// Secret is also refused. After `down`, changes are permitted.
    #[tokio::test]
    async fn p10_immutable_objects_cannot_change() {
        let configs = |secret: &str, map: &str| -> Vec<Config> {
            let text = format!(
                "apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n{secret}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\n{map}\n"
            );
            let mut report = executor_kube::object::report(Strictness::Strict);
            let objects = executor_kube::object::read([("file", text.as_str())], &mut report);
            assert_eq!(report.violations().len(), 0, "{:?}", report.violations());
            objects.config_maps.into_values().chain(objects.secrets.into_values()).collect()
        };
        let frozen = "stringData: {a: canary-1}\nimmutable: true";
        let map = "data: {a: b}";
        let dir = tempfile::tempdir().unwrap();
        let mut memory = Memory::open_in(dir.path(), "p", || panic!("the memory of the play is locked")).await.unwrap();
        memory.check(&configs(frozen, map)).unwrap();
        memory.store(&configs(frozen, map)).unwrap();
        drop(memory);
        assert!(!fs::read_to_string(dir.path().join("p.json")).unwrap().contains("canary"));
        let mut memory = Memory::open_in(dir.path(), "p", || panic!("the memory of the play is locked")).await.unwrap();
        for (secret, map, wrong) in [
            (frozen, map, None),
            (frozen, "data: {a: c}", None),
            (frozen, "data: {a: c}\nimmutable: true", None),
            ("stringData: {a: canary-1}\nimmutable: true\ntype: example.com/x", map, Some("type")),
            ("stringData: {a: canary-2}\nimmutable: true", map, Some("data")),
            ("stringData: {a: canary-1, b: ''}\nimmutable: true", map, Some("data")),
            ("stringData: {a: canary-1}", map, Some("immutable")),
            ("stringData: {a: canary-1}\nimmutable: false", map, Some("immutable")),
        ] {
            let reported = memory.check(&configs(secret, map)).err().map(|error| error.to_string());
            let expected = wrong.map(|field| {
                format!("Secret default/s: {field}: cannot be changed (P10): take the play down first, or play with --replace")
            });
            assert_eq!(reported, expected, "{secret}");
        }
        memory.store(&[]).unwrap();
        memory.check(&configs("stringData: {a: canary-2}", map)).unwrap();
    }

    /// If a command of a play is running, a second command waits and prints a message (rule P64).
    #[tokio::test]
    async fn p64_commands_of_one_play_are_serialized() {
        let dir = tempfile::tempdir().unwrap();
        let first = Memory::open_in(dir.path(), "p", || panic!("the memory of the play is locked")).await.unwrap();
        Memory::open_in(dir.path(), "other", || panic!("the memory of the other play is locked")).await.unwrap();
        let (reported, waits) = tokio::sync::oneshot::channel();
        let path = dir.path().to_owned();
        let second =
            tokio::spawn(async move { Memory::open_in(&path, "p", || reported.send(()).unwrap()).await.map(drop) });
        waits.await.unwrap();
        assert!(!second.is_finished());
        drop(first);
        second.await.unwrap().unwrap();
    }
}
