//! Runs the daemon from startup to shutdown.

use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;
use executor_sys::seqpacket::Seqpacket;
use executor_transport::tls::{CertificateError, Certificates};
use tokio::time::timeout;

use crate::access::Access;
use crate::access::rules::Rules;
use crate::actor::forwarding;
use crate::background::authority;
use crate::background::drain;
use crate::background::reload;
use crate::background::renewal;
use crate::background::retention;
use crate::background::self_test;
use crate::config::Config;
use crate::model::container::Handle;
use crate::model::status::ContainerStatus;
use crate::node::{Node, NodeError};
use crate::operations::reserve;
use crate::run::recover;
use crate::scrape::Scraper;
use crate::server::{self, Endpoint, Listeners};
use crate::{api, scrape};

/// Time limit for calls in progress when the daemon stops.
const CALLS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for sending the last spans to the trace collector.
const TRACES_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for log sink tasks to stop.
const LOG_SINKS_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for the containers of an ephemeral daemon to exit.
const CONTAINERS_EXIT_TIMEOUT: Duration = Duration::from_secs(15);

/// An error that prevents the daemon from serving.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The node's state cannot be opened.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The listening socket cannot be used.
    #[error("cannot use the listening socket")]
    Listen(#[source] std::io::Error),
    /// The handler of SIGHUP cannot be installed.
    #[error("cannot install the SIGHUP handler")]
    Hangup(#[source] std::io::Error),
    /// The certificates of the TCP listener are invalid or unreadable.
    #[error("cannot use the certificates of listen.tcp")]
    Certificates(#[from] CertificateError),
    /// The built-in descriptor set is invalid: an internal error.
    #[error("the built-in descriptor set of the API is invalid")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves until `stop` resolves. `connection` is the connection to the launcher, if it was opened at startup;
/// `exit_reason` returns the reason for a lost connection, if known; `ready` is called when clients are served.
///
/// # Errors
/// Returns [`ServeError`] if the daemon cannot start to serve.
pub async fn serve(
    config: Arc<Config>,
    access: Access,
    listeners: Listeners,
    connection: Option<Seqpacket>,
    exit_reason: impl FnMut() -> Option<String> + Send + 'static,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let rules = Arc::new(Rules::new(config.rules()));
    // Load the certificates as the serving user, which also reloads them later.
    let certificates = match &config.tcp {
        Some(tcp) => Some(Arc::new(Certificates::load(tcp.files.clone(), "listen.tcp.client_ca", Arc::clone(&rules))?)),
        None => None,
    };
    let (node, remembered) = Node::open(Arc::clone(&config), rules)?;
    tokio::spawn(reload::run_reloads(Arc::clone(&node), renewal::hangup().map_err(ServeError::Hangup)?));
    recover::recover(&node, remembered);
    let finished = {
        let node = Arc::clone(&node);
        move |id: &ContainerId, created_at: Timestamp| {
            tracing::warn!(container = %id, "the container's shim was lost; the launcher has cleaned up the container");
            // Another container may have reused the id after the lost container was refused.
            let meant = |facts: &ContainerStatus| created_at == Timestamp(0) || facts.created_at == created_at;
            let handle = node.registry.get(id).filter(|handle| handle.facts().is_some_and(|facts| meant(&facts)));
            if let Some(handle) = handle {
                handle.shim_lost.notify_one();
            }
        }
    };
    tokio::spawn(Arc::clone(&node.launcher).run(connection, finished, exit_reason));
    tokio::spawn(Arc::clone(&node.names).run());
    tokio::spawn(retention::run_retention(Arc::clone(&node)));
    tokio::spawn(reserve::run_expiry(Arc::clone(&node)));
    tokio::spawn(drain::resume(Arc::clone(&node)));
    tokio::spawn(forwarding::run_log_sinks(Arc::clone(&node)));
    tokio::spawn(self_test::run_self_test(Arc::clone(&node)));
    tokio::spawn({
        let providers = Arc::clone(&node.providers);
        async move { providers.run_renewal().await }
    });
    let routes = api::routes(&node, config.bounds.message_bytes).await?;
    let stopping = node.stopping.subscribe();
    let pool = config.policy.userns_pool().ok();
    let main = tokio::net::UnixListener::from_std(listeners.main).map_err(ServeError::Listen)?;
    let main = Endpoint::main(main, routes.clone(), access, config.bounds, Arc::clone(&node.metrics));
    let server = tokio::spawn(server::serve(main, stopping.clone()));
    let mut remote = None;
    if let (Some(tcp), Some(listener), Some(certificates)) = (&config.tcp, listeners.tcp, certificates) {
        let hangup = renewal::hangup().map_err(ServeError::Hangup)?;
        let (server_certificates, metrics) = (Arc::clone(&certificates), Arc::clone(&node.metrics));
        let served =
            server::serve_tcp(listener, tcp, server_certificates, routes, config.bounds, metrics, stopping.clone());
        remote = Some(tokio::spawn(served.map_err(ServeError::Listen)?));
        tokio::spawn(renewal::run_certificate_reload(Arc::clone(&node), certificates, hangup));
    }
    if config.identity.is_on() {
        let hangup = renewal::hangup().map_err(ServeError::Hangup)?;
        tokio::spawn(authority::run_authority_reload(Arc::clone(&node), hangup));
    }
    if let Some(runtime) = listeners.runtime {
        let runtime = tokio::net::UnixListener::from_std(runtime).map_err(ServeError::Listen)?;
        let runtime = Endpoint::runtime(runtime, api::runtime_routes(&node), pool, Arc::clone(&node.metrics));
        tokio::spawn(server::serve(runtime, stopping));
    }
    if let Some(metrics) = listeners.metrics {
        let scraper = Scraper::new(Arc::clone(&node));
        scrape::http::serve(metrics, scraper, node.stopping.subscribe()).map_err(ServeError::Listen)?;
    }
    ready();
    stop.await;
    tracing::info!(ephemeral = config.ephemeral, "stopping");
    node.stopping.send_replace(true);
    if config.ephemeral && timeout(CONTAINERS_EXIT_TIMEOUT, kill_all(&node)).await.is_err() {
        tracing::error!(
            "some containers did not exit within {} s; the launcher will stop them",
            CONTAINERS_EXIT_TIMEOUT.as_secs()
        );
    }
    let calls_end = async {
        let _ = server.await;
        if let Some(remote) = remote {
            let _ = remote.await;
        }
    };
    if timeout(CALLS_TIMEOUT, calls_end).await.is_err() {
        tracing::warn!("some calls did not complete within {} s", CALLS_TIMEOUT.as_secs());
    }
    node.traces.flush(TRACES_TIMEOUT).await;
    forwarding::stop(&node, LOG_SINKS_TIMEOUT).await;
    // Close the ledger last, on a blocking thread, because the last batch waits for the disk.
    let last = Arc::clone(&node);
    let _ = tokio::task::spawn_blocking(move || last.ledger.close(last.events.close())).await;
    if config.ephemeral {
        // After this request, the launcher removes the directories.
        let _ = timeout(CALLS_TIMEOUT, node.launcher.shutdown()).await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Kills all containers when an ephemeral daemon stops, and waits until they have exited.
async fn kill_all(node: &Arc<Node>) {
    loop {
        // Read again: a container may have been admitted just before the daemon started to stop.
        let living: Vec<_> = node.registry.all().into_iter().filter(|handle| !handle.is_over()).collect();
        if living.is_empty() {
            return;
        }
        kill(living).await;
    }
}

async fn kill(handles: Vec<Arc<Handle>>) {
    for handle in &handles {
        if let Some(link) = handle.shim() {
            tokio::spawn(async move {
                let kill = executor_core::protocol::Stop { grace_ms: 0, signal: 0 };
                let _ = link.call(executor_core::protocol::ShimCall::Stop(kill)).await;
            });
        }
    }
    for handle in handles {
        let _ = handle.completed().await;
    }
}
