//! Handle of a container in the daemon. One task changes the container's status, and all other tasks watch it.
//!
//! ```text
//!  admit ──> Handle ── presence: watch ──> Get, List, Wait, StreamLogs
//!              │  └── shim: link ────────> Stop, Signal
//!              └── driven by one task (actor), from the container's launch or recovery to its completion
//! ```
//!
//! The handle outlives the task, and then holds only the status of the completed container. After the container has
//! completed and before the task returns, the shim releases the container's node resources.

pub mod link;
pub(crate) mod reading;
pub mod records;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_providers::WorkloadLogins;
use executor_sys::mutex::locked;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::api_error::{ApiError, Kind};
use crate::model::sources::{SourceChange, SourceUpdate};
use crate::model::status::ContainerStatus;
use link::{ShimLink, shim_is_gone};
use reading::LatestReading;

/// Maximum time for which a request to a container waits until the shim is connected. The shim may not have started
/// yet, or its connection may have broken.
const SHIM_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of client connections to the ports of one pod.
const CONNECTIONS_MAX: usize = 128;
/// Time for a quarantined container to exit after a stop.
const QUARANTINE_GRACE_PERIOD: Duration = Duration::from_secs(2);

/// Time limit for the container's task to apply a change of sources, and for writing the change to disk. In the worst
/// case the task is between two connections to the shim.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(5);

/// Presence of a container, as published to watchers.
#[derive(Clone, Debug)]
pub enum Presence {
    /// The container exists.
    Present(Arc<ContainerStatus>),
    /// The container could not be created as requested, and was removed.
    Refused(ApiError),
    /// The container was deleted; holds its last status.
    Deleted(Arc<ContainerStatus>),
}

impl Presence {
    fn is_on_network(&self) -> bool {
        matches!(self, Self::Present(facts) if facts.network().is_some())
    }
}

#[derive(Debug)]
pub struct Handle {
    id: ContainerId,
    request_tag: String,
    is_pod: bool,
    /// True for a pod that accepts no new members.
    closed: AtomicBool,
    presence: watch::Sender<Presence>,
    /// Incremented when a container joins or leaves a network.
    networks: watch::Sender<u64>,
    shim: Mutex<Option<Arc<ShimLink>>>,
    /// Latest reading of the counters.
    pub(crate) reading: LatestReading,
    /// True after all node resources of the container were removed. Only files remain, until the deletion.
    removed: watch::Sender<bool>,
    /// Notified when the launcher has cleaned up the container after its shim was lost.
    pub(crate) shim_lost: Notify,
    /// Held during the deletion of the container.
    pub(crate) deleting: tokio::sync::Mutex<()>,
    /// Held during an update of files, egress or limits, and during Start, Pause and Resume.
    pub(crate) updating: tokio::sync::Mutex<()>,
    /// Logins of the workload at its secret providers. Empty after a restart of this daemon.
    pub(crate) logins: WorkloadLogins,
    /// Notified when the client has sent new tokens.
    pub(crate) tokens_changed: Notify,
    /// Permits for connections of clients to ports of a pod.
    pub(crate) connections: Arc<Semaphore>,
    /// Sends changes of the secret sources to the container's task.
    sources: mpsc::UnboundedSender<SourceUpdate>,
    /// Receiver of `sources`, until the task takes it.
    source_updates: Mutex<Option<mpsc::UnboundedReceiver<SourceUpdate>>>,
}

impl Handle {
    /// Returns the error for a call to the shim whose response was lost. `advice` describes how a client can check the
    /// result.
    pub(crate) fn response_lost(&self, advice: &str) -> ApiError {
        if self.state().is_none_or(|state| state >= State::Wiping) {
            return shim_is_gone(self.id());
        }
        let why = format!("the connection to the shim of container {} was lost: {advice}", self.id());
        ApiError::new(Kind::Unavailable, why)
    }

    /// Creates the handle of a container with this status. `networks` is incremented when the container joins or leaves
    /// a network.
    pub fn new(facts: ContainerStatus, networks: watch::Sender<u64>) -> Self {
        let (sources, source_updates) = mpsc::unbounded_channel();
        Self {
            networks,
            id: facts.plan.id.clone(),
            request_tag: facts.request_tag.clone(),
            is_pod: facts.plan.is_pod(),
            closed: AtomicBool::new(false),
            presence: watch::Sender::new(Presence::Present(Arc::new(facts))),
            shim: Mutex::new(None),
            reading: LatestReading::default(),
            removed: watch::Sender::new(false),
            shim_lost: Notify::new(),
            deleting: tokio::sync::Mutex::new(()),
            updating: tokio::sync::Mutex::new(()),
            logins: WorkloadLogins::default(),
            tokens_changed: Notify::new(),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            sources,
            source_updates: Mutex::new(Some(source_updates)),
        }
    }

    pub fn id(&self) -> &ContainerId {
        &self.id
    }

    /// Returns the digest of the request that created the container.
    pub fn request_tag(&self) -> &str {
        &self.request_tag
    }

    pub fn is_pod(&self) -> bool {
        self.is_pod
    }

    /// Returns true if the container exists and is kept until a client deletes it.
    pub(crate) fn is_kept_until_deleted(&self) -> bool {
        self.facts().is_some_and(|facts| facts.plan.keep_until_deleted)
    }

    /// Returns true for the self-test's container.
    pub(crate) fn is_self_test(&self) -> bool {
        self.id.is_self_test()
    }

    /// Returns true for a pod that is being stopped or deleted.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Makes a pod reject new members. Only the registry calls this, under its lock.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Returns the status; `None` if the container was refused or deleted.
    pub fn facts(&self) -> Option<Arc<ContainerStatus>> {
        match &*self.presence.borrow() {
            Presence::Present(facts) => Some(Arc::clone(facts)),
            Presence::Refused(_) | Presence::Deleted(_) => None,
        }
    }

    /// Returns the state; `None` if the container was refused or deleted.
    pub fn state(&self) -> Option<State> {
        match &*self.presence.borrow() {
            Presence::Present(facts) => Some(facts.state),
            Presence::Refused(_) | Presence::Deleted(_) => None,
        }
    }

    /// Returns true if the container is completed, refused or deleted.
    pub fn is_over(&self) -> bool {
        self.state().is_none_or(|state| state == State::Completed)
    }

    /// Returns true if a completed container still holds node resources: cgroup, mounts, writable layer.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_over() && !*self.removed.borrow()
    }

    /// Waits until all node resources of a completed, refused or deleted container were removed. Only files may remain,
    /// until the deletion.
    pub(crate) async fn until_removed(&self) {
        // The wait cannot fail, because `self` owns the sender.
        let _ = self.removed.subscribe().wait_for(|removed| *removed).await;
    }

    /// Notifies waiters that the container holds no node resources any more. Only the registry calls this.
    pub(crate) fn set_removed(&self) {
        self.removed.send_replace(true);
    }

    pub fn watch(&self) -> watch::Receiver<Presence> {
        self.presence.subscribe()
    }

    /// Waits until Run can respond: the process has started, can no longer start, or is held until Start.
    ///
    /// # Errors
    /// Returns an error if the container could not be created as requested, or is in quarantine.
    pub async fn created(&self) -> Result<Arc<ContainerStatus>, ApiError> {
        self.wait_unless_quarantined(|facts| facts.is_held() || facts.start_is_decided()).await
    }

    /// Waits until the process has started, or can no longer start.
    ///
    /// # Errors
    /// Returns an error if the container could not be created as requested, or is in quarantine.
    pub async fn started(&self) -> Result<Arc<ContainerStatus>, ApiError> {
        self.wait_unless_quarantined(ContainerStatus::start_is_decided).await
    }

    async fn wait_unless_quarantined(
        &self,
        condition: impl Fn(&ContainerStatus) -> bool,
    ) -> Result<Arc<ContainerStatus>, ApiError> {
        let facts = self.wait_for(|facts| condition(facts) || facts.quarantine.is_some()).await?;
        if condition(&facts) { Ok(facts) } else { Err(self.quarantine_error(&facts)) }
    }

    /// Waits until a container that received a stop request is completed.
    ///
    /// # Errors
    /// Returns an error if the container could not be created as requested, or does not exit in time.
    pub(crate) async fn ended(&self) -> Result<Arc<ContainerStatus>, ApiError> {
        // A quarantined container may still react to this stop.
        if let Ok(ended) = timeout(QUARANTINE_GRACE_PERIOD, self.completed()).await {
            return ended;
        }
        let facts = self.wait_for(|facts| facts.state == State::Completed || facts.quarantine.is_some()).await?;
        if facts.state == State::Completed { Ok(facts) } else { Err(self.quarantine_error(&facts)) }
    }

    /// Returns the error for a quarantined container.
    fn quarantine_error(&self, facts: &ContainerStatus) -> ApiError {
        let since = facts.quarantine.map(|quarantine| (quarantine.phase.name(), quarantine.since.rfc3339()));
        let (phase, since) = since.unwrap_or_default();
        let why = format!(
            "container {} has been in quarantine since {since}: phase `{phase}` exceeded its time limit",
            self.id
        );
        ApiError::new(Kind::Unavailable, why)
    }

    /// Waits until the container is completed.
    ///
    /// # Errors
    /// Returns an error if the container could not be created as requested.
    pub async fn completed(&self) -> Result<Arc<ContainerStatus>, ApiError> {
        self.wait_for(|facts| facts.state == State::Completed).await
    }

    /// Waits until the shim is connected, or the container is completed, refused or deleted.
    pub(crate) async fn settled(&self) {
        let mut watch = self.watch();
        let over =
            |presence: &Presence| !matches!(presence, Presence::Present(facts) if facts.state != State::Completed);
        // Both changes wake this wait: a connection is set before the shim's first report is published.
        let _ = watch.wait_for(|presence| over(presence) || self.shim().is_some()).await;
    }

    /// Waits like [`Self::settled`], for a limited time.
    ///
    /// # Errors
    /// Returns an error if the shim is not connected in time.
    pub(crate) async fn settled_in_time(&self) -> Result<(), ApiError> {
        timeout(SHIM_TIMEOUT, self.settled()).await.map_err(|_| {
            let (state, limit) = (self.state().map_or("gone", State::name), SHIM_TIMEOUT.as_secs());
            let why =
                format!("container {} is {state}, and its shim was not connected for {limit} s: try again", self.id);
            ApiError::new(Kind::Unavailable, why)
        })
    }

    async fn wait_for(&self, condition: impl Fn(&ContainerStatus) -> bool) -> Result<Arc<ContainerStatus>, ApiError> {
        let mut watch = self.watch();
        let presence =
            watch.wait_for(|presence| !matches!(presence, Presence::Present(facts) if !condition(facts))).await;
        match presence.as_deref() {
            Ok(Presence::Present(facts) | Presence::Deleted(facts)) => Ok(Arc::clone(facts)),
            Ok(Presence::Refused(problem)) => Err(problem.clone()),
            // This cannot happen, because `self` owns the sender.
            Err(_) => Err(ApiError::no_container(self.id.as_str())),
        }
    }

    /// Sends a change of the secret sources to the container's task, and waits until the task has applied it. Has no
    /// effect if the task has finished.
    pub(crate) async fn report_sources(&self, change: SourceChange) {
        let (done, taken) = oneshot::channel();
        if self.sources.send(SourceUpdate { change, done }).is_ok() {
            let _ = timeout(SOURCES_TIMEOUT, taken).await;
        }
    }

    /// Returns the receiver of changes of the secret sources; only the first call returns it.
    pub(crate) fn take_source_updates(&self) -> Option<mpsc::UnboundedReceiver<SourceUpdate>> {
        locked(&self.source_updates).take()
    }

    /// Publishes the presence to all watchers.
    pub(crate) fn publish(&self, presence: Presence) {
        let is_on_network = presence.is_on_network();
        let before = self.presence.send_replace(presence);
        if before.is_on_network() != is_on_network {
            self.networks.send_modify(|version| *version += 1);
        }
    }

    /// Returns the connection to the shim, if there is one.
    pub(crate) fn shim(&self) -> Option<Arc<ShimLink>> {
        locked(&self.shim).clone()
    }

    pub(crate) fn set_shim(&self, link: Option<Arc<ShimLink>>) {
        *locked(&self.shim) = link;
    }
}
