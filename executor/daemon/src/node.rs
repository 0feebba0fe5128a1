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
use crate::model::reservation::Reservation;
use crate::model::status::ContainerStatus;
use crate::store::artifacts::Artifacts;
use crate::store::event_log::EventLog;
use crate::store::ledger::{Ledger, LedgerError};
use crate::store::registry::Registry;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// Least free bytes under the state directory at which a new container is taken: its exit record and the beginning of
/// its log must find room.
const STATE_FREE_MIN: u64 = 4 << 20;
/// Least free inodes, for the same reason.
const INODES_FREE_MIN: u64 = 8;

/// Longest time for which a change of the cell's state waits for the disk.
const CELL_WRITTEN: Duration = Duration::from_secs(5);

/// Why the node's state cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The ledger cannot be opened.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The kernel's boot id cannot be read.
    #[error("cannot read the boot id")]
    BootId(#[source] std::io::Error),
    /// No inotify instance is left to follow logs.
    #[error("no inotify instance is left for this user (fs.inotify.max_user_instances)")]
    Inotify(#[source] std::io::Error),
    /// The exporter of traces cannot be made.
    #[error("cannot export traces to {0}")]
    Traces(String),
    /// The store of images cannot be opened.
    #[error("cannot open the store of images")]
    Images(#[source] ImageError),
}

/// What the ledger remembers of earlier daemons.
#[derive(Debug, Default)]
pub struct Remembered {
    /// Containers.
    pub containers: Vec<ContainerStatus>,
    /// Reservations.
    pub reservations: Vec<Reservation>,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Configuration in force.
    pub config: Arc<Config>,
    /// Containers by id, and the capacity that they hold.
    pub registry: Registry,
    /// Events of containers.
    pub events: EventLog,
    /// Durable memory of containers and events.
    pub ledger: Arc<Ledger>,
    /// Connection to the launcher.
    pub launcher: Arc<Launcher>,
    /// Store of images.
    pub images: Arc<Images<LauncherLayers>>,
    /// Process that signs certificates of containers.
    pub signer: Signer,
    /// Rules of callers and of references.
    pub rules: Arc<Rules>,
    /// Providers of secrets.
    pub providers: Arc<Providers>,
    /// What downloads and uploads share.
    pub artifacts: Artifacts,
    /// Watch over the directories of followed logs.
    pub log_watch: DirectoryWatch,
    /// Where output is sent.
    pub outward: LogSinks,
    /// Number of tasks that send output.
    pub forwarding: watch::Sender<usize>,
    /// Id of this boot.
    pub boot_id: String,
    /// True where the ledger was last written before the machine was started.
    pub booted: bool,
    /// What the daemon counts of its own work.
    pub metrics: Arc<Metrics>,
    /// Traces of containers.
    pub traces: Traces,
    /// Start of the daemon.
    pub started_at: Timestamp,
    /// Whether it takes containers, and whether it is healthy.
    pub cell: Cell,
    /// Notified when a container is completed, for the retention.
    pub completed: Notify,
    /// Bytes on the disk of completed containers, as the retention measured them last.
    pub completed_bytes: AtomicU64,
    /// True when every container of an earlier daemon is in the registry: from the launcher's first greeting on.
    pub found: watch::Sender<bool>,
    /// True when every container of an earlier daemon is connected or completed.
    pub settled: watch::Sender<bool>,
    /// True when the daemon stops.
    pub stopping: watch::Sender<bool>,
}

impl Node {
    /// Opens the node's state. Returns what the ledger remembers, too. Must be called on the runtime.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub fn open(config: Arc<Config>, rules: Arc<Rules>) -> Result<(Arc<Self>, Remembered), NodeError> {
        let (ledger, loaded) = Ledger::open(&config.paths.ledger())?;
        tracing::info!(starts = loaded.starts, cursor = loaded.events.next.saturating_sub(1), "ledger read");
        let ledger = Arc::new(ledger);
        let boot_id = executor_sys::identity::boot_id().map_err(NodeError::BootId)?;
        let launcher = Arc::new(Launcher::new(config.paths.launcher_socket(), config.section_digests()));
        let layers = LauncherLayers::new(Arc::clone(&launcher));
        let metrics: Arc<Metrics> = Arc::default();
        let traces = Traces::start(config.traces.as_ref(), &metrics).map_err(NodeError::Traces)?;
        let node = Self {
            images: Images::open(config.images.clone(), layers).map_err(NodeError::Images)?,
            providers: Arc::new(Providers::new(config.secret_providers.clone())),
            rules,
            signer: Signer::default(),
            artifacts: Artifacts::new(config.transfers.clone(), config.paths.transfers()),
            registry: Registry::new(config.capacity, config.capacity.percent(config.reserved_percent)),
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
                // The containers of an earlier boot are gone, and with them what was to be drained.
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
            completed: Notify::new(),
            completed_bytes: AtomicU64::new(0),
            found: watch::Sender::new(false),
            settled: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
        };
        node.registry.set_closed(node.cell.state().drain.is_some());
        Ok((Arc::new(node), Remembered { containers: loaded.containers, reservations: loaded.reservations }))
    }

    /// Finds the container of an id as a caller wrote it.
    ///
    /// # Errors
    /// The id is malformed, or no container has it.
    pub fn find(&self, id: &str) -> Result<Arc<Handle>, ApiError> {
        let found = self.look_up(id)?;
        match found {
            Some(handle) if handle.is_pod() => {
                Err(ApiError::not_found("id", format!("{id:?} is a pod, not a container")))
            }
            None if self.find_reservation(id).is_some() => {
                let why = format!("{id:?} is a reservation, not a container: ReleaseReservation ends it");
                Err(ApiError::new(Kind::Precondition, why))
            }
            found => found.ok_or_else(|| ApiError::no_container(id)),
        }
    }

    /// Finds the pod of an id as a caller wrote it.
    ///
    /// # Errors
    /// The id is malformed, or no pod has it.
    pub fn find_pod(&self, id: &str) -> Result<Arc<Handle>, ApiError> {
        self.look_up(id)?.filter(|handle| handle.is_pod()).ok_or_else(|| ApiError::no_pod(id))
    }

    /// Checks that a caller may use an id for something new.
    ///
    /// # Errors
    /// The id belongs to the self-test.
    pub(crate) fn check_id(id: &ContainerId) -> Result<(), ApiError> {
        if !id.is_self_test() {
            return Ok(());
        }
        let why = ViolationReason::NotAllowed.because("belongs to the daemon's test of itself");
        Err(ApiError::invalid_field("id", why))
    }

    /// Finds the reservation of an id as a caller wrote it.
    pub(crate) fn find_reservation(&self, id: &str) -> Option<Reservation> {
        self.registry.reservation(&id.parse().ok()?)
    }

    fn look_up(&self, id: &str) -> Result<Option<Arc<Handle>>, ApiError> {
        let id: ContainerId = id
            .parse()
            .map_err(|bad| ApiError::invalid_field("id", ViolationReason::InvalidFormat.because(format!("{bad}"))))?;
        Ok(self.registry.get(&id).filter(|handle| !handle.is_self_test()))
    }

    /// Checks that new containers are taken: the daemon neither stops nor is drained.
    ///
    /// # Errors
    /// It is, with the reason.
    pub(crate) fn check_open(&self) -> Result<(), ApiError> {
        if *self.stopping.borrow() {
            return Err(ApiError::stopping());
        }
        let Some(drain) = self.cell.state().drain else { return Ok(()) };
        let why = format!("this executord takes no new containers: it is {}; Undrain ends that", drain.describe());
        Err(ApiError::new(Kind::Unavailable, why))
    }

    /// Checks that a new container can be taken at the moment.
    ///
    /// # Errors
    /// The daemon is stopping or drained, or the ledger or the state directory has no room.
    pub fn check_room(&self) -> Result<(), ApiError> {
        self.check_open()?;
        self.check_disk()
    }

    /// Checks that the ledger and the state directory have room for a new container.
    ///
    /// # Errors
    /// The ledger cannot be written, or the state directory is full or cannot be read.
    pub fn check_disk(&self) -> Result<(), ApiError> {
        if let Some(trouble) = self.ledger.trouble() {
            return Err(ApiError::new(Kind::Exhausted, trouble));
        }
        let state_dir = &self.config.paths.state_dir;
        match rustix::fs::statvfs(state_dir) {
            Ok(space) if is_full(&space) => Err(ApiError::new(
                Kind::Exhausted,
                format!(
                    "state directory {}: No space left on device ({} bytes and {} files free)",
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

    /// Changes the state of the cell, and waits until it is on the disk: who is told of it may rely on it over a restart. A disk that
    /// does not take it is waited for a while only; the ledger tells of that by itself.
    pub(crate) async fn change_cell(&self, change: impl FnOnce(&mut CellState)) {
        let mut written = None;
        self.cell.change(change, |state| written = Some(self.ledger.put_cell(state)));
        if let Some(written) = written {
            let _ = timeout(CELL_WRITTEN, written).await;
        }
    }

    /// Resolves when no further container of an earlier daemon can turn up; at once while there is no launcher, because
    /// calls that depend on it are refused then.
    pub async fn until_found(&self) {
        if self.launcher.session().is_ok() {
            // The sender lives as long as `self`.
            let _ = self.found.subscribe().wait_for(|found| *found).await;
        }
    }

    /// Runs work that goes on when its caller goes away.
    ///
    /// # Errors
    /// Those of the work; the daemon stops.
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
        // The sender lives as long as `self`.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }
}

/// File systems that do not count inodes report a total of 0.
fn is_full(space: &StatVfs) -> bool {
    let bytes = space.f_bavail.saturating_mul(space.f_frsize);
    bytes < STATE_FREE_MIN || (space.f_files > 0 && space.f_favail < INODES_FREE_MIN)
}
