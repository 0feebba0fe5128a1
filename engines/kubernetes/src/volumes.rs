//! Inline volumes of secrets: rules C52 and C53.
//!
//! ```text
//!  NodePublishVolume ── publish ──> read-only tmpfs with empty files on the host, record with its device
//!  CreateContainer ──── resolve ──> mounts whose source is on this device become secret files of the request
//! ```
//! A volume is identified by the device of its file system, which only executor-cri creates. Therefore, neither a
//! directory with the same names nor a link to the volume of another pod gives a container a secret. The volume on the
//! host has no values.

mod file_system;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_cri_api::v1::Mount;
use executor_sys::mutex::locked;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use tonic::Status;

use self::file_system::Place;
use crate::config::ConfigFile;
use crate::secrets::{PodToken, RequestSecrets, VolumeSecrets};
use crate::store;

/// Checks that this process can mount volumes.
///
/// # Errors
/// Returns an error if this process lacks CAP_SYS_ADMIN.
pub(crate) fn check_privilege() -> io::Result<()> {
    file_system::create(BTreeSet::new(), std::iter::empty()).map(drop)
}

/// Time limit for the lookup of a mount's source. A lookup on a dead network file system does not return.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Record of a published volume, which contains no values of secrets.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct VolumeRecord {
    /// Id of the volume, which the kubelet assigned.
    pub(crate) id: String,
    /// Path of the volume on the host.
    pub(crate) target: PathBuf,
    /// Number of the device of the volume's file system.
    pub(crate) device: u64,
    pub(crate) pod_uid: String,
    pub(crate) namespace: String,
    pub(crate) service_account: String,
    /// Role of the pod's logins at the provider.
    pub(crate) role: String,
    pub(crate) secrets: VolumeSecrets,
}

impl VolumeRecord {
    /// Returns true if `other` is from an equal request. The devices are not compared.
    fn is_same(&self, other: &Self) -> bool {
        *self == Self { device: self.device, ..other.clone() }
    }

    /// Returns true if the volume is mounted. If the volume is not mounted, another file system can have the volume's
    /// device number.
    fn is_mounted(&self) -> bool {
        file_system::root(&self.target).is_ok_and(|root| root == Some(self.device))
    }
}

/// The published volumes of all pods. Records are in memory and on disk, tokens only in memory.
#[derive(Debug)]
pub(crate) struct Volumes {
    directory: PathBuf,
    known: Mutex<BTreeMap<String, Arc<VolumeRecord>>>,
    /// Newest tokens, by the id of the volume. After a restart of executor-cri, the kubelet sends the tokens again.
    tokens: Mutex<BTreeMap<String, PodToken>>,
    /// Providers whose volumes need a token.
    with_tokens: BTreeSet<String>,
    /// Sources of mounts whose lookup has not returned.
    unanswered: Arc<Mutex<HashSet<String>>>,
}

impl Volumes {
    /// Reads the records in a directory. `with_tokens` names the providers whose volumes need a token. Creates the
    /// directory if it is missing. Removes records of volumes that are not mounted. After a reboot no volume is
    /// mounted, and the kubelet publishes each volume again.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created or read.
    pub(crate) fn open(directory: PathBuf, with_tokens: BTreeSet<String>) -> Result<Self, String> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
        let (known, tokens) = (Mutex::default(), Mutex::default());
        let all = Self { directory, known, tokens, with_tokens, unanswered: Arc::default() };
        for record in store::read_all::<VolumeRecord>(&all.directory)? {
            match record.is_mounted() {
                true => drop(locked(&all.known).insert(record.id.clone(), Arc::new(record))),
                false => store::remove_file(&all.path(&record.id)),
            }
        }
        Ok(all)
    }

    /// Creates the file system of a volume, and then mounts it at the path of the volume. The volume must not be
    /// published.
    ///
    /// # Errors
    /// Returns ALREADY_EXISTS if another volume is published at the path, RESOURCE_EXHAUSTED if the record cannot be
    /// written, or INTERNAL if the volume cannot be mounted.
    pub(crate) fn publish(&self, mut record: VolumeRecord) -> Result<(), Status> {
        if self.is_of_another(&record.id, &record.target) {
            return Err(Status::already_exists("target_path: another volume is published there"));
        }
        let target = record.target.clone();
        let failed =
            |error: io::Error| Status::internal(format!("cannot mount the volume at {}: {error}", target.display()));
        // Unmount file systems that are already mounted at the path, for example if their record was lost.
        file_system::unmount(&record.target).map_err(failed)?;
        let volume = file_system::create(record.secrets.all_paths(), record.secrets.paths()).map_err(failed)?;
        record.device = file_system::device(&volume).map_err(failed)?;
        // Write the record first, so that no volume without a record is in use after a kill.
        let json = serde_json::to_vec(&record).map_err(|error| Status::internal(error.to_string()))?;
        store::replace(&self.path(&record.id), &json)
            .map_err(|error| Status::resource_exhausted(format!("cannot write the record of the volume: {error}")))?;
        if let Err(error) = file_system::attach(&volume, &target) {
            store::remove_file(&self.path(&record.id));
            return Err(failed(error));
        }
        locked(&self.known).insert(record.id.clone(), Arc::new(record));
        Ok(())
    }

    /// Returns the volume if an equal request has published it.
    ///
    /// # Errors
    /// Returns ALREADY_EXISTS if a different request has published a volume with this id.
    pub(crate) fn published(&self, record: &VolumeRecord) -> Result<Option<Arc<VolumeRecord>>, Status> {
        let earlier = locked(&self.known).get(&record.id).cloned();
        match earlier.filter(|earlier| earlier.is_mounted()) {
            Some(earlier) if earlier.is_same(record) => Ok(Some(earlier)),
            Some(_) => Err(Status::already_exists("volume_id: another volume with this id is published")),
            None => Ok(None),
        }
    }

    /// Replaces the token of a published volume.
    pub(crate) fn set_token(&self, id: &str, token: Option<PodToken>) {
        let mut tokens = locked(&self.tokens);
        match token {
            Some(token) => drop(tokens.insert(id.to_owned(), token)),
            None => drop(tokens.remove(id)),
        }
    }

    /// Adds a volume and its token to a request.
    ///
    /// # Errors
    /// Returns UNAVAILABLE if the volume's provider requires a token and the kubelet has not sent a token.
    fn add_to(&self, record: &VolumeRecord, field: &str, request: &mut RequestSecrets) -> Result<(), Status> {
        let token = locked(&self.tokens).get(&record.id).cloned();
        let needs_token = record.secrets.provider().is_some_and(|provider| self.with_tokens.contains(provider));
        let is_missing = needs_token && token.is_none();
        request.add_volume(&record.id, token);
        let why = "executor-cri has received no token of the pod yet; the kubelet sends a token within two minutes";
        if is_missing { Err(Status::unavailable(format!("{field}: {why}"))) } else { Ok(()) }
    }

    /// Unmounts a volume, and removes its directory and its record. Succeeds if the volume does not exist.
    ///
    /// # Errors
    /// Returns INTERNAL if the volume cannot be unmounted or its directory cannot be removed.
    pub(crate) fn unpublish(&self, id: &str, target: &Path) -> Result<(), Status> {
        if self.is_of_another(id, target) {
            return Ok(()); // this volume is not published there
        }
        let removed = file_system::unmount(target).and_then(|()| match std::fs::remove_dir(target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
        removed.map_err(|error| Status::internal(format!("cannot remove the volume {}: {error}", target.display())))?;
        locked(&self.tokens).remove(id);
        if locked(&self.known).remove(id).is_some() {
            store::remove_file(&self.path(id));
        }
        Ok(())
    }

    /// Returns true if another volume is published at a path.
    fn is_of_another(&self, id: &str, target: &Path) -> bool {
        let known: Vec<_> = locked(&self.known).values().cloned().collect();
        known.iter().any(|record| record.id != id && record.target == target && record.is_mounted())
    }

    /// Adds the secret files of the volumes that a container mounts to the request. A mount belongs to a volume if its
    /// source is on the device of the volume. The source can also be a directory or a file in the volume (`subPath`).
    ///
    /// The inner result is an error if no rule allows a reference, or UNAVAILABLE if a token is missing. The inner
    /// result applies to new containers only, because a retry finds its container.
    ///
    /// # Errors
    /// Returns PERMISSION_DENIED if a volume belongs to another pod, FAILED_PRECONDITION if a source is not in its
    /// volume, or UNAVAILABLE if a file system does not respond.
    pub(crate) async fn resolve(
        &self,
        file: &ConfigFile,
        pod_uid: &str,
        mounts: &[Mount],
        request: &mut RequestSecrets,
    ) -> Result<Result<(), Status>, Status> {
        let known: Vec<_> = locked(&self.known).values().cloned().collect();
        let mut allowed = Ok(());
        if known.is_empty() {
            return Ok(allowed);
        }
        let has_volume = known.iter().any(|record| record.pod_uid == pod_uid);
        for (index, mount) in mounts.iter().enumerate().filter(|(_, mount)| !mount.host_path.is_empty()) {
            let field = format!("config.mounts[{index}].host_path");
            let Some(place) = self.locate(&mount.host_path).await else {
                if has_volume {
                    let seconds = LOOKUP_TIMEOUT.as_secs();
                    let why = format!("{field}: the file system has not responded within {seconds} s");
                    return Err(Status::unavailable(why));
                }
                // A file system that does not respond is no volume of secrets: leave the wait to executord.
                continue;
            };
            let Ok(place) = place else { continue }; // executord reports that the path does not exist
            let Some(record) = known.iter().find(|record| record.device == place.device && record.is_mounted()) else {
                continue;
            };
            if record.pod_uid != pod_uid {
                return Err(Status::permission_denied(format!("{field}: is in another pod's secrets volume")));
            }
            let inside = file_system::find(&record.target, record.secrets.all_paths(), place);
            let Ok(Some(inside)) = inside else {
                return Err(Status::failed_precondition(format!("{field}: is not in the secrets volume")));
            };
            record.secrets.add_to(request, index, &mount.container_path, &inside);
            let added = self.add_to(record, &field, request);
            let rules = || record.secrets.check_rules(file, &record.namespace, &record.service_account);
            allowed = allowed.and_then(|()| rules()).and(added);
        }
        Ok(allowed)
    }

    /// Returns the device and inode of a path, or `None` if the path's file system does not respond. At most one thread
    /// at a time looks up a path, so a hung file system blocks one thread for each of its paths.
    async fn locate(&self, path: &str) -> Option<io::Result<Place>> {
        if !locked(&self.unanswered).insert(path.to_owned()) {
            return self.locate_again(path).await;
        }
        let (path, unanswered) = (path.to_owned(), Arc::clone(&self.unanswered));
        let lookup = tokio::task::spawn_blocking(move || {
            let place = file_system::locate(Path::new(&path));
            locked(&unanswered).remove(&path);
            place
        });
        timeout(LOOKUP_TIMEOUT, lookup).await.ok()?.ok()
    }

    /// Waits until the lookup of the same path by another call has returned, and then repeats the lookup.
    async fn locate_again(&self, path: &str) -> Option<io::Result<Place>> {
        let over = async {
            while locked(&self.unanswered).contains(path) {
                // There is no notification, so this polls. Only paths that several containers mount at the same time
                // get here.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LOOKUP_TIMEOUT, over).await.ok()?;
        Box::pin(self.locate(path)).await
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{}.json", hex::encode(Sha256::digest(id))))
    }
}
