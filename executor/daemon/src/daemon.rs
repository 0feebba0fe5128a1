//! Serves, from the first connection to the last record.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use executor_core::capacity::Amount;
use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;
use executor_core::validate::Policy;
use executor_images::{ImageError, Images};
use executor_sys::seqpacket::Seqpacket;
use tokio::time::timeout;

use crate::api::auth::Access;
use crate::api::serve::{self, Bounds, Entrance};
use crate::container::facts::Facts;
use crate::events::EventLog;
use crate::images::LauncherLayers;
use crate::launcher::Launcher;
use crate::ledger::{Ledger, LedgerError};
use crate::node::{Node, Parts};
use crate::paths::Paths;
use crate::retention::Retention;
use crate::{admit, api, recover, retention};

/// For calls that are under way when the daemon is told to end.
const GRACE: Duration = Duration::from_secs(5);
/// For the containers of an ephemeral daemon to end.
const CONTAINERS_END: Duration = Duration::from_secs(15);

/// Why the daemon does not serve, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The boot cannot be told from others.
    #[error("cannot read this boot's id")]
    Boot(#[source] std::io::Error),
    /// No way to follow logs.
    #[error("no inotify instance is left for this user (fs.inotify.max_user_instances)")]
    Inotify(#[source] std::io::Error),
    /// No images.
    #[error("the store of images cannot be used")]
    Images(#[source] ImageError),
    /// The listening socket cannot be used.
    #[error("the listening socket cannot be used")]
    Listen(#[source] std::io::Error),
    /// A fault of ours.
    #[error("the interface's own description is broken")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// What a daemon is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where things are.
    pub paths: Paths,
    /// What may be asked for.
    pub policy: Policy,
    /// What there is to give.
    pub capacity: Amount,
    /// Completed containers that are kept, and for how long.
    pub kept: (usize, Duration),
    /// Events that are kept.
    pub events_kept: usize,
    /// The size in bytes at which a container's log is rotated.
    pub log_bytes_max: u64,
    /// Where images come from and how many are kept.
    pub images: executor_images::Settings,
    /// Who may call.
    pub access: Access,
    /// Bounds of the server.
    pub bounds: Bounds,
    /// Take everything along at the end.
    pub ephemeral: bool,
}

/// Serves until `stop` resolves: clients, and containers where there is a second socket. `connection` is one to the launcher where there is one already, `obituary`
/// says why a launcher that went will not come back, `ready` is called when clients are heard.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    settings: Settings,
    (listener, runtime): (UnixListener, Option<UnixListener>),
    connection: Option<Seqpacket>,
    obituary: impl FnMut() -> Option<String> + Send + 'static,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let (ledger, loaded) = Ledger::open(&settings.paths.ledger())?;
    tracing::info!(starts = loaded.starts, cursor = loaded.events.next.saturating_sub(1), "ledger read");
    let ledger = Arc::new(ledger);
    let launcher = Arc::new(Launcher::new(settings.paths.launcher_socket()));
    let layers = LauncherLayers::new(Arc::clone(&launcher));
    let node = Node::new(Parts {
        images: Images::open(settings.images, layers).map_err(ServeError::Images)?,
        launcher: Arc::clone(&launcher),
        events: EventLog::new(loaded.events, Arc::clone(&ledger), settings.events_kept),
        ledger,
        paths: settings.paths,
        policy: settings.policy,
        log_bytes_max: settings.log_bytes_max,
        capacity: settings.capacity,
        retention: Retention::new(settings.kept.0, settings.kept.1),
        boot_id: executor_sys::identity::boot_id().map_err(ServeError::Boot)?,
    })
    .map_err(ServeError::Inotify)?;
    recover::recover(&node, loaded.containers);
    let finished = {
        let node = Arc::clone(&node);
        move |id: &ContainerId, created_at: Timestamp| {
            tracing::warn!(container = %id, "its shim was lost; the launcher has finished it");
            // The id may be that of another container by now, made after the lost one was refused.
            let meant = |facts: &Facts| created_at == Timestamp(0) || facts.created_at == created_at;
            let handle = node.registry.get(id).filter(|handle| handle.facts().is_some_and(|facts| meant(&facts)));
            if let Some(handle) = handle {
                handle.shim_lost.notify_one();
            }
        }
    };
    tokio::spawn(launcher.keep(connection, finished, obituary));
    tokio::spawn(retention::keep(Arc::clone(&node)));
    let routes = api::routes(&node, settings.bounds.message_bytes).await?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(ServeError::Listen)?;
    let stopping = node.stopping.subscribe();
    let pool = node.policy.userns_pool().ok();
    let main = Entrance::main(listener, routes, settings.access, settings.bounds);
    let server = tokio::spawn(serve::serve(main, stopping.clone()));
    if let Some(runtime) = runtime {
        let listener = tokio::net::UnixListener::from_std(runtime).map_err(ServeError::Listen)?;
        let runtime = Entrance::runtime(listener, api::runtime_routes(&node), pool);
        tokio::spawn(serve::serve(runtime, stopping));
    }
    ready();
    stop.await;
    tracing::info!(ephemeral = settings.ephemeral, "stopping");
    node.stopping.send_replace(true);
    if settings.ephemeral && timeout(CONTAINERS_END, admit::end_all(&node)).await.is_err() {
        tracing::error!("some containers did not end in time; the launcher will end them");
    }
    if timeout(GRACE, server).await.is_err() {
        tracing::warn!("some calls did not end in time");
    }
    // The last batch waits for the disk, and nothing else is left to do meanwhile.
    tokio::task::block_in_place(|| node.ledger.close(node.events.close()));
    if settings.ephemeral {
        // From here on the directories are the launcher's to remove.
        let _ = timeout(GRACE, node.launcher.shutdown()).await;
    }
    tracing::info!("stopped");
    Ok(())
}
