//! State that all calls share: the connection to executord, the records, and the watchers of events.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use executor_client::Client;
use executor_cri_api::v1::ContainerEventResponse;
use executor_streams::Streams;
use executor_sys::mutex::locked;
use tokio::sync::{OwnedMutexGuard, broadcast};
use tonic::Status;

use crate::config::{Config, ConfigFile, UserNamespaces};
use crate::options::Options;
use crate::store::{Container, Sandbox, Store};
use crate::volumes::Volumes;

/// Maximum number of events that a watcher can lag behind before it is disconnected.
const EVENTS: usize = 1024;

/// State of executor-cri that all calls share.
pub(crate) struct Node {
    pub(crate) client: Client,
    /// Socket of executord, for calls with connections of their own.
    pub(crate) executor: PathBuf,
    pub(crate) store: Store,
    /// Published volumes of secrets.
    pub(crate) volumes: Volumes,
    /// Events for watchers (rule C42).
    pub(crate) events: broadcast::Sender<Arc<ContainerEventResponse>>,
    pub(crate) pinned_images: Vec<String>,
    /// Minimum `oom_score_adj` of containers.
    pub(crate) oom_score_adj_min: i32,
    pub(crate) user_namespaces: UserNamespaces,
    /// Prefix of annotations with references to secrets.
    pub(crate) secrets_annotation: String,
    /// Configuration file with the rules for references.
    pub(crate) config_file: ConfigFile,
    /// Registers requests for exec, attach and port-forward, and returns their URLs.
    pub(crate) streams: Streams,
    /// Locks of the names of sandboxes, containers and volumes, each held while a call works on the object.
    names: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Cached `USER` of images by image id. The configuration of an id never changes.
    image_users: Mutex<HashMap<String, String>>,
}

impl Node {
    pub(crate) fn new(
        client: Client,
        store: Store,
        volumes: Volumes,
        streams: Streams,
        options: &Options,
        config: Config,
        config_file: ConfigFile,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            executor: options.executor.clone(),
            store,
            volumes,
            events: broadcast::Sender::new(EVENTS),
            pinned_images: options.pinned_images.clone(),
            oom_score_adj_min: options.oom_score_adj_min,
            user_namespaces: config.user_namespaces,
            secrets_annotation: config.secrets_annotation,
            config_file,
            streams,
            names: Mutex::default(),
            image_users: Mutex::default(),
        })
    }

    /// Locks a name of a sandbox or a container, so that a retry waits for the first call (rule C8).
    pub(crate) async fn lock_name(&self, name: &str) -> OwnedMutexGuard<()> {
        self.lock_of(name).lock_owned().await
    }

    /// Locks a name, or returns `None` if a call holds the lock.
    pub(crate) fn try_lock_name(&self, name: &str) -> Option<OwnedMutexGuard<()>> {
        self.lock_of(name).try_lock_owned().ok()
    }

    fn lock_of(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut names = locked(&self.names);
        names.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(names.entry(name.to_owned()).or_default())
    }

    /// Returns a client with its own connection, for a call with secrets. The buffers of the connection are freed after
    /// the call.
    ///
    /// # Errors
    /// Returns UNAVAILABLE if executord does not listen.
    pub(crate) async fn own_client(&self) -> Result<Client, Status> {
        let client = Client::connect_with_keepalive(&self.executor).await;
        client.map_err(|error| Status::unavailable(error.to_string()))
    }

    /// Returns a sandbox by its id or a unique prefix of the id.
    ///
    /// # Errors
    /// Returns NOT_FOUND if no sandbox has the id.
    pub(crate) fn sandbox(&self, id: &str) -> Result<Sandbox, Status> {
        self.store.sandboxes.get(id).ok_or_else(|| Status::not_found(format!("there is no sandbox with the id {id:?}")))
    }

    /// Returns a container by its id or a unique prefix of the id.
    ///
    /// # Errors
    /// Returns NOT_FOUND if no container has the id.
    pub(crate) fn container(&self, id: &str) -> Result<Container, Status> {
        self.store
            .containers
            .get(id)
            .ok_or_else(|| Status::not_found(format!("there is no container with the id {id:?}")))
    }

    /// Returns the `USER` of an image, and caches it.
    ///
    /// # Errors
    /// Returns an error if executord does not have the image, or the call fails.
    pub(crate) async fn image_user(&self, id: &str, digest: &str) -> Result<String, executor_client::Error> {
        if let Some(user) = locked(&self.image_users).get(id) {
            return Ok(user.clone());
        }
        let user = self.client.images().inspect(digest).await?.config.unwrap_or_default().user;
        locked(&self.image_users).insert(id.to_owned(), user.clone());
        Ok(user)
    }

    /// Deletes the cached users of images that are not listed.
    pub(crate) fn retain_image_users(&self, is_listed: impl Fn(&str) -> bool) {
        locked(&self.image_users).retain(|id, _| is_listed(id));
    }
}

/// Returns the time in nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos().try_into().unwrap_or(i64::MAX))
}
