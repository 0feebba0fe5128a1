//! What this program remembers between two plays: keyed digests of the secrets of each container, so that a play that changes nothing does
//! nothing. No value is kept, and the file is in memory alone, below /run: it goes with the containers when the machine stops. Whoever loses it
//! loses nothing: the next play compares by executord's own means, and rotates once more where that does not tell.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use executor_kube::plan::{Member, Tag};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::KubeError;

/// Most bytes of the file.
const BYTES_MAX: u64 = 16 << 20;

#[derive(Default, Deserialize, Serialize)]
struct Kept {
    #[serde(default)]
    key: String,
    #[serde(default)]
    containers: BTreeMap<String, Entry>,
}

/// What is kept of a container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Entry {
    /// Time of its creation, which tells it from an earlier one of the same id.
    created_at: String,
    environment: String,
    files: String,
}

/// The memory, locked: two plays at once of one user wait for one another.
pub(crate) struct Memory {
    path: PathBuf,
    kept: Kept,
    key: Tag,
    /// None of one that is only looked at.
    _lock: Option<File>,
}

/// What changed of a container's secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) environment: bool,
    pub(crate) files: bool,
}

impl Memory {
    /// Opens the memory of a play of this user: `$XDG_RUNTIME_DIR/executor-kube/NAME.json`, else below /run. `waits` is called where
    /// another command of the play is under way, which is waited for.
    pub(crate) async fn open(play: &str, waits: impl FnOnce()) -> Result<Self, KubeError> {
        Self::open_in(&directory(), play, waits).await
    }

    /// Reads the memory of a play without waiting for others.
    pub(crate) fn look(play: &str) -> Result<Self, KubeError> {
        Self::read(path_of(&directory(), play), None)
    }

    /// Tells whether there is one for a play.
    pub(crate) fn exists(play: &str) -> bool {
        path_of(&directory(), play).exists()
    }

    async fn open_in(directory: &Path, play: &str, waits: impl FnOnce()) -> Result<Self, KubeError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| KubeError::Write { path, source }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed(directory))?;
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
                // On a thread of its own, so that signals are heard meanwhile.
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
            kept = Kept { key: hex::encode(key), containers: BTreeMap::new() };
        }
        Ok(Self { path, kept, key, _lock: lock })
    }

    /// Compares a container with what it was started or rotated with; `None` of one that is not known.
    pub(crate) fn compare(&self, created_at: &str, member: &Member) -> Option<Changed> {
        let (environment, files) = self.tags(member);
        let entry = self.kept.containers.get(&member.request.id).filter(|entry| entry.created_at == created_at)?;
        Some(Changed { environment: entry.environment != environment, files: entry.files != files })
    }

    /// Remembers what a container has now.
    pub(crate) fn remember(&mut self, created_at: &str, member: &Member) -> Result<(), KubeError> {
        let (environment, files) = self.tags(member);
        let entry = Entry { created_at: created_at.to_owned(), environment, files };
        if self.kept.containers.insert(member.request.id.clone(), entry.clone()) != Some(entry) {
            self.save()?;
        }
        Ok(())
    }

    /// Forgets containers that were removed.
    pub(crate) fn forget(&mut self, ids: &[String]) -> Result<(), KubeError> {
        let before = self.kept.containers.len();
        ids.iter().for_each(|id| drop(self.kept.containers.remove(id)));
        if self.kept.containers.len() < before { self.save() } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

    use super::*;
    use executor_client::Wiped;
    use executor_client::v1::{Action, EnvironmentVariable, RunAction, RunRequest};
    use executor_kube::plan::Role;

    fn member(value: &str) -> Member {
        let variable = EnvironmentVariable { name: "A".into(), value: value.into(), ..EnvironmentVariable::default() };
        let run = RunAction { secret_environment: vec![variable], ..RunAction::default() };
        let action = Some(Action { run: Some(run), ..Action::default() });
        let request = Wiped::new(RunRequest { id: "x".into(), action, ..RunRequest::default() });
        let (rotating, name) = (Default::default(), "x".into());
        Member { name, role: Role::Main, request, rotating, post_start: None, pre_stop: None, non_root: false }
    }

    /// No value is on disk, and what is kept tells a change from none.
    #[tokio::test]
    async fn p13_digests_are_kept_and_no_values() {
        let dir = tempfile::tempdir().unwrap();
        let never = || panic!("nobody has it");
        let mut memory = Memory::open_in(dir.path(), "p", never).await.unwrap();
        memory.remember("then", &member("canary-of-a-variable")).unwrap();
        drop(memory);
        let text = fs::read_to_string(dir.path().join("p.json")).unwrap();
        assert!(!text.contains("canary"));
        let memory = Memory::open_in(dir.path(), "p", never).await.unwrap();
        let same = Changed { environment: false, files: false };
        assert_eq!(memory.compare("then", &member("canary-of-a-variable")), Some(same));
        assert_eq!(memory.compare("then", &member("other")), Some(Changed { environment: true, files: false }));
        assert_eq!(memory.compare("now", &member("canary-of-a-variable")), None);
    }

    /// P64: a second command of a play waits for the first one, and says so.
    #[tokio::test]
    async fn p64_commands_of_one_play_wait_for_one_another() {
        let dir = tempfile::tempdir().unwrap();
        let first = Memory::open_in(dir.path(), "p", || panic!("nobody has it")).await.unwrap();
        Memory::open_in(dir.path(), "other", || panic!("nobody has that one")).await.unwrap();
        let (told, waits) = tokio::sync::oneshot::channel();
        let path = dir.path().to_owned();
        let second =
            tokio::spawn(async move { Memory::open_in(&path, "p", || told.send(()).unwrap()).await.map(drop) });
        waits.await.unwrap();
        assert!(!second.is_finished());
        drop(first);
        second.await.unwrap().unwrap();
    }
}
