//! The node: the daemon's configuration and state, shared by all of its tasks.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;
use executor_core::validate::ViolationReason;
use executor_images::{ImageError, Images};
use executor_providers::Providers;
use rustix::fs::StatVfs;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::access::rules::Rules;
use crate::api_error::{ApiError, Kind};
use crate::config::Config;
use crate::launcher::{Launcher, LauncherLayers, Signer};
use crate::logs::sinks::LogSinks;
use crate::logs::watch::DirectoryWatch;
use crate::model::cell::{Cell, CellState};
use crate::model::container::Handle;
use crate::model::network_checks::RunningChecks;
use crate::model::reservation::Reservation;
use crate::model::status::ContainerStatus;
use crate::names::NameServers;
use crate::store::artifacts::Artifacts;
use crate::store::event_log::EventLog;
use crate::store::ledger::{Ledger, LedgerError};
use crate::store::registry::Registry;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// Minimum free space in the state directory for a new container, in bytes. The container's exit record and first log
/// output must fit.
const STATE_FREE_MIN: u64 = 4 << 20;
/// Minimum number of free inodes in the state directory for a new container.
const INODES_FREE_MIN: u64 = 8;

/// Time limit for writing a change of the cell's state to disk.
const CELL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// An error from opening the node's state.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The ledger cannot be opened.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The kernel's boot id cannot be read.
    #[error("cannot read the boot id")]
    BootId(#[source] std::io::Error),
    /// The kernel creates no inotify instance, so logs cannot be followed.
    #[error("cannot create an inotify instance (limits: fs.inotify.max_user_instances, open files)")]
    Inotify(#[source] std::io::Error),
    /// The trace exporter cannot be created.
    #[error("cannot export traces to {0}")]
    Traces(String),
    /// The image store cannot be opened.
    #[error("cannot open the image store")]
    Images(#[source] ImageError),
}

/// State of earlier daemons, from the ledger.
#[derive(Debug, Default)]
pub struct Remembered {
    pub containers: Vec<ContainerStatus>,
    pub reservations: Vec<Reservation>,
}

/// Configuration and state of the node.
#[derive(Debug)]
pub struct Node {
    /// Current configuration.
    pub config: Arc<Config>,
    /// Containers by id, and the capacity that they hold.
    pub registry: Arc<Registry>,
    pub events: EventLog,
    /// Persistent store of containers and events.
    pub ledger: Arc<Ledger>,
    pub launcher: Arc<Launcher>,
    /// Name servers of built-in networks.
    pub names: Arc<NameServers>,
    pub images: Arc<Images<LauncherLayers>>,
    /// Client of the process that signs container certificates.
    pub signer: Signer,
    /// Rules for callers and references.
    pub rules: Arc<Rules>,
    pub providers: Arc<Providers>,
    /// Shared state of downloads and uploads.
    pub artifacts: Artifacts,
    /// Watches the directories of followed logs.
    pub log_watch: DirectoryWatch,
    pub outward: LogSinks,
    /// Number of tasks that send container output to log sinks.
    pub forwarding: watch::Sender<usize>,
    /// Boot id of the host.
    pub boot_id: String,
    /// True if the host was rebooted since the ledger was last written.
    pub booted: bool,
    pub metrics: Arc<Metrics>,
    pub traces: Traces,
    /// Start time of the daemon.
    pub started_at: Timestamp,
    /// Callers with a running network check.
    pub network_checks: RunningChecks,
    /// State of the cell: whether it accepts containers, and whether it is healthy.
    pub cell: Cell,
    /// Notifies the retention task of a completed container.
    pub completed: Notify,
    /// Disk usage of completed containers in bytes, as last measured by the retention task.
    pub completed_bytes: AtomicU64,
    /// True after the launcher's first greeting, when the registry has every container of earlier daemons.
    pub found: watch::Sender<bool>,
    /// True after every container of earlier daemons is connected or completed, or after a time limit.
    pub settled: watch::Sender<bool>,
    /// True if the daemon is stopping.
    pub stopping: watch::Sender<bool>,
}

impl Node {
    /// Opens the node's state. Also returns the state of earlier daemons. Must be called on the runtime.
    ///
    /// # Errors
    /// Returns [`NodeError`] if any part cannot be opened.
    pub fn open(config: Arc<Config>, rules: Arc<Rules>) -> Result<(Arc<Self>, Remembered), NodeError> {
        let (ledger, loaded) = Ledger::open(&config.paths.ledger())?;
        tracing::info!(starts = loaded.starts, cursor = loaded.events.next.saturating_sub(1), "ledger read");
        let ledger = Arc::new(ledger);
        let boot_id = executor_sys::identity::boot_id().map_err(NodeError::BootId)?;
        let launcher = Arc::new(Launcher::new(config.paths.launcher_socket(), config.section_digests()));
        let layers = LauncherLayers::new(Arc::clone(&launcher));
        let metrics: Arc<Metrics> = Arc::default();
        let traces = Traces::start(config.traces.as_ref(), &metrics).map_err(NodeError::Traces)?;
        let registry = Arc::new(Registry::new(config.capacity, config.capacity.percent(config.reserved_percent)));
        let networks = (&config.networks, &*config.policy.cni_conf_dir);
        let names = NameServers::new(networks, Arc::clone(&registry), Arc::clone(&launcher), Arc::clone(&metrics));
        let node = Self {
            names,
            images: Images::open(config.images.clone(), layers).map_err(NodeError::Images)?,
            providers: Arc::new(Providers::new(config.secret_providers.clone())),
            rules,
            signer: Signer::default(),
            artifacts: Artifacts::new(config.transfers.clone(), config.paths.transfers()),
            registry,
            events: EventLog::open(
                &config.paths.ledger(),
                &boot_id,
                loaded.starts,
                loaded.events,
                Arc::clone(&ledger),
                config.retention.events,
            ),
            outward: LogSinks::open(&config.logs, &config.paths.ledger(), &metrics),
            forwarding: watch::Sender::new(0),
            log_watch: DirectoryWatch::new().map_err(NodeError::Inotify)?,
            booted: loaded.boot_id.is_some_and(|last| last != boot_id),
            cell: Cell::new(CellState {
                // Containers of an earlier boot no longer exist, so their drain is obsolete.
                drain: loaded.cell.drain.filter(|drain| drain.boot_id == boot_id),
                ..loaded.cell
            }),
            boot_id,
            config,
            ledger,
            launcher,
            metrics,
            traces,
            started_at: crate::now(),
            network_checks: RunningChecks::default(),
            completed: Notify::new(),
            completed_bytes: AtomicU64::new(0),
            found: watch::Sender::new(false),
            settled: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
        };
        node.registry.set_closed(node.cell.state().drain.is_some());
        Ok((Arc::new(node), Remembered { containers: loaded.containers, reservations: loaded.reservations }))
    }

    /// Finds a container by the id in a request.
    ///
    /// # Errors
    /// Returns an error if the id is malformed, or no container has it.
    pub fn find(&self, id: &str) -> Result<Arc<Handle>, ApiError> {
        let found = self.look_up(id)?;
        match found {
            Some(handle) if handle.is_pod() => {
                Err(ApiError::not_found("id", format!("{id:?} is a pod, not a container")))
            }
            None if self.find_reservation(id).is_some() => {
                let why = format!("{id:?} is a reservation, not a container; use ReleaseReservation to release it");
                Err(ApiError::new(Kind::Precondition, why))
            }
            found => found.ok_or_else(|| ApiError::no_container(id)),
        }
    }

    /// Finds a pod by the id in a request.
    ///
    /// # Errors
    /// Returns an error if the id is malformed, or no pod has it.
    pub fn find_pod(&self, id: &str) -> Result<Arc<Handle>, ApiError> {
        self.look_up(id)?.filter(|handle| handle.is_pod()).ok_or_else(|| ApiError::no_pod(id))
    }

    /// Checks that a caller may use an id for a new object.
    ///
    /// # Errors
    /// Returns an error if the id is reserved for the self-test.
    pub(crate) fn check_id(id: &ContainerId) -> Result<(), ApiError> {
        if !id.is_self_test() {
            return Ok(());
        }
        let why = ViolationReason::NotAllowed.because("is reserved for the self-test");
        Err(ApiError::invalid_field("id", why))
    }

    /// Finds a reservation by the id in a request.
    pub(crate) fn find_reservation(&self, id: &str) -> Option<Reservation> {
        self.registry.reservation(&id.parse().ok()?)
    }

    fn look_up(&self, id: &str) -> Result<Option<Arc<Handle>>, ApiError> {
        let id: ContainerId = id
            .parse()
            .map_err(|bad| ApiError::invalid_field("id", ViolationReason::InvalidFormat.because(format!("{bad}"))))?;
        Ok(self.registry.get(&id).filter(|handle| !handle.is_self_test()))
    }

    /// Checks that the node accepts new containers.
    ///
    /// # Errors
    /// Returns an error with the reason if the daemon is stopping, draining or drained.
    pub(crate) fn check_open(&self) -> Result<(), ApiError> {
        if *self.stopping.borrow() {
            return Err(ApiError::stopping());
        }
        let Some(drain) = self.cell.state().drain else { return Ok(()) };
        let why = format!(
            "this executord accepts no new containers: it is {}; use Undrain to accept containers again",
            drain.describe()
        );
        Err(ApiError::new(Kind::Unavailable, why))
    }

    /// Checks that the node can accept a new container now.
    ///
    /// # Errors
    /// Returns an error if the daemon is stopping, draining or drained, or the ledger or the state directory has no
    /// space.
    pub fn check_room(&self) -> Result<(), ApiError> {
        self.check_open()?;
        self.check_disk()
    }

    /// Checks that the ledger and the state directory have space for a new container.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written, or the state directory is full or cannot be read.
    pub fn check_disk(&self) -> Result<(), ApiError> {
        if let Some(trouble) = self.ledger.trouble() {
            return Err(ApiError::new(Kind::Exhausted, trouble));
        }
        let state_dir = &self.config.paths.state_dir;
        match rustix::fs::statvfs(state_dir) {
            Ok(space) if is_full(&space) => Err(ApiError::new(
                Kind::Exhausted,
                format!(
                    "state directory {}: No space left on device for new containers ({} bytes and {} files are free; \
                     {STATE_FREE_MIN} bytes and {INODES_FREE_MIN} files are required)",
                    state_dir.display(),
                    space.f_bavail.saturating_mul(space.f_frsize),
                    space.f_favail
                ),
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(ApiError::new(
                Kind::Unavailable,
                format!("state directory {}: {}", state_dir.display(), std::io::Error::from(error)),
            )),
        }
    }

    /// Changes the state of the cell, and waits until the change is on disk, so that a reported change survives a
    /// restart. The wait is limited, in case the disk does not respond; the ledger itself reports such failures.
    pub(crate) async fn change_cell(&self, change: impl FnOnce(&mut CellState)) {
        let mut written = None;
        self.cell.change(change, |state| written = Some(self.ledger.put_cell(state)));
        if let Some(written) = written {
            let _ = timeout(CELL_WRITE_TIMEOUT, written).await;
        }
    }

    /// Resolves when no further container of an earlier daemon can appear. Resolves immediately while no launcher is
    /// connected, because calls that depend on the launcher are refused then.
    pub async fn until_found(&self) {
        if self.launcher.session().is_ok() {
            // The wait cannot fail, because `self` owns the sender.
            let _ = self.found.subscribe().wait_for(|found| *found).await;
        }
    }

    /// Runs work that continues if its caller disconnects.
    ///
    /// # Errors
    /// Returns the error of the work, or an error if the daemon is stopping.
    pub(crate) async fn run_detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        tokio::select! {
            done = tokio::spawn(work) => done?,
            () = self.until_stopping() => Err(ApiError::stopping()),
        }
    }

    /// Resolves when the daemon stops.
    pub async fn until_stopping(&self) {
        // The wait cannot fail, because `self` owns the sender.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }
}

/// Returns true if too little space or too few inodes are free. A total of 0 means that inodes are not counted.
fn is_full(space: &StatVfs) -> bool {
    let bytes = space.f_bavail.saturating_mul(space.f_frsize);
    bytes < STATE_FREE_MIN || (space.f_files > 0 && space.f_favail < INODES_FREE_MIN)
}
