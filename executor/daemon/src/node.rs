//! Everything that belongs to this node, in one place, for the tasks that work on it.

use std::sync::Arc;

use executor_core::capacity::Amount;
use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;
use executor_core::validate::{Policy, ViolationReason};
use executor_images::Images;
use rustix::fs::StatVfs;
use tokio::sync::watch;

use crate::container::Handle;
use crate::events::EventLog;
use crate::images::LauncherLayers;
use crate::launcher::Launcher;
use crate::ledger::Ledger;
use crate::logs::watch::DirectoryWatch;
use crate::paths::Paths;
use crate::problem::{Kind, Problem};
use crate::registry::Registry;
use crate::retention::Retention;

/// Bytes that must be free under the state directory for a new container: its exit record and the first of its
/// log must find room, whatever it does.
const STATE_FREE_MIN: u64 = 4 << 20;

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Where things are.
    pub paths: Paths,
    /// What the operator allows and presumes.
    pub policy: Policy,
    /// The size in bytes at which a container's log is rotated.
    pub log_bytes_max: u64,
    /// How long completed containers are kept.
    pub retention: Retention,
    /// The containers.
    pub registry: Registry,
    /// What happened to them.
    pub events: EventLog,
    /// What is remembered.
    pub ledger: Arc<Ledger>,
    /// Who makes containers.
    pub launcher: Arc<Launcher>,
    /// What containers are made of.
    pub images: Arc<Images<LauncherLayers>>,
    /// Who tells of new log lines.
    pub log_watch: DirectoryWatch,
    /// This boot.
    pub boot_id: String,
    /// When the daemon began to serve.
    pub started_at: Timestamp,
    /// True when every container of an earlier daemon is in the registry: from the launcher's first greeting on.
    pub found: watch::Sender<bool>,
    /// True when the fate of every container of an earlier daemon is known.
    pub settled: watch::Sender<bool>,
    /// True when the daemon comes to its end.
    pub stopping: watch::Sender<bool>,
}

/// What a node is made of.
#[derive(Debug)]
pub struct Parts {
    /// Where things are.
    pub paths: Paths,
    /// What the operator allows and presumes.
    pub policy: Policy,
    /// The size in bytes at which a container's log is rotated.
    pub log_bytes_max: u64,
    /// What the host has to give.
    pub capacity: Amount,
    /// How long completed containers are kept.
    pub retention: Retention,
    /// What is remembered.
    pub ledger: Arc<Ledger>,
    /// The event log on it.
    pub events: EventLog,
    /// This boot.
    pub boot_id: String,
    /// What containers are made of.
    pub images: Arc<Images<LauncherLayers>>,
    /// Who makes containers.
    pub launcher: Arc<Launcher>,
}

impl Node {
    /// Puts a node together. Must be called on the runtime.
    ///
    /// # Errors
    /// The kernel has no more inotify instances for this user.
    pub fn new(parts: Parts) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            launcher: parts.launcher,
            images: parts.images,
            registry: Registry::new(parts.capacity),
            log_watch: DirectoryWatch::new()?,
            paths: parts.paths,
            policy: parts.policy,
            log_bytes_max: parts.log_bytes_max,
            retention: parts.retention,
            events: parts.events,
            ledger: parts.ledger,
            boot_id: parts.boot_id,
            started_at: crate::now(),
            found: watch::Sender::new(false),
            settled: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
        }))
    }

    /// The container of an id as a caller wrote it.
    ///
    /// # Errors
    /// The id cannot be one, or there is none.
    pub fn find(&self, id: &str) -> Result<Arc<Handle>, Problem> {
        let id: ContainerId = id
            .parse()
            .map_err(|bad| Problem::invalid_field("id", ViolationReason::InvalidFormat.because(format!("{bad}"))))?;
        self.registry.get(&id).ok_or_else(|| Problem::no_container(id.as_str()))
    }

    /// Why no new container can be taken at the moment, if so.
    ///
    /// # Errors
    /// The daemon is stopping, or what it must write would find no room.
    pub fn takes_containers(&self) -> Result<(), Problem> {
        if *self.stopping.borrow() {
            return Err(Problem::stopping());
        }
        if let Some(trouble) = self.ledger.trouble() {
            return Err(Problem::new(Kind::Exhausted, trouble));
        }
        match rustix::fs::statvfs(&self.paths.state_dir) {
            Ok(space) if is_full(&space) => Err(Problem::new(
                Kind::Exhausted,
                format!(
                    "state directory {}: No space left on device ({} bytes and {} files free)",
                    self.paths.state_dir.display(),
                    space.f_bavail.saturating_mul(space.f_frsize),
                    space.f_favail
                ),
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(Problem::new(
                Kind::Unavailable,
                format!("state directory {}: {}", self.paths.state_dir.display(), std::io::Error::from(error)),
            )),
        }
    }

    /// Resolves when no container of an earlier daemon can turn up any more; at once while there is no launcher, which
    /// refuses what depends on it.
    pub async fn until_found(&self) {
        if self.launcher.session().is_ok() {
            // The sender lives as long as `self`.
            let _ = self.found.subscribe().wait_for(|found| *found).await;
        }
    }

    /// Resolves when the daemon comes to its end.
    pub async fn until_stopping(&self) {
        // The sender lives as long as `self`.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }
}

/// Some file systems count no files: those have none at all by their own account.
fn is_full(space: &StatVfs) -> bool {
    let bytes = space.f_bavail.saturating_mul(space.f_frsize);
    bytes < STATE_FREE_MIN || (space.f_files > 0 && space.f_favail < 8)
}
