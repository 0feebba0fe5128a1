//! Metrics for Prometheus: a separate listener that serves `GET /metrics`.
//!
//! ```text
//!  http ──> Scraper ──> Metrics (always counted)
//!              └──────> node: capacity, states, shims' counters, warm pool, images ──> families ──> text
//! ```
//! The resources of a scrape are limited: `http` limits requests and connections, `READ_TIMEOUT` limits the time of a
//! reading, and the configuration limits the number of series. At most one reading is made per second, regardless of
//! the number of scrapes. Containers whose shim does not respond in time are omitted.

mod containers;
pub(crate) mod families;
mod form;
pub mod http;
mod places;
mod process;

use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use executor_sys::mutex::locked;
use prometheus_client::encoding::text::encode_registry;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::model::cell::CellState;
use crate::model::quarantine::Phase;
use crate::model::sources::any_stale;
use crate::node::Node;
use crate::store::registry::CapacityUse;
use families::{Families, Kind};
pub(crate) use form::ScrapeFormat;

/// Time limit for collecting the metrics of a scrape.
const READ_TIMEOUT: Duration = Duration::from_secs(4);
/// Time for which collected metrics are reused by later scrapes.
const READING_LIFETIME: Duration = Duration::from_secs(1);

/// Collects the metrics of a node for scrapes.
#[derive(Debug)]
pub(crate) struct Scraper {
    node: Arc<Node>,
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Scraper {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node, last: Mutex::default() }
    }

    /// Returns all metrics in this format.
    pub(crate) async fn text(&self, form: ScrapeFormat) -> Arc<str> {
        let mut last = self.last.lock().await;
        let open = match &*last {
            Some((at, text)) if at.elapsed() < READING_LIFETIME => Arc::clone(text),
            _ => {
                let text: Arc<str> = read(&self.node).await.into();
                *last = Some((Instant::now(), Arc::clone(&text)));
                text
            }
        };
        drop(last);
        form.render(open)
    }
}

/// Collects all metrics as OpenMetrics.
async fn read(node: &Arc<Node>) -> String {
    let deadline = Instant::now() + READ_TIMEOUT;
    let mut families = Families::default();
    process::add_process_metrics(&mut families, node);
    capacity(&mut families, node);
    states(&mut families, node);
    health(&mut families, node);
    warm_pool(&mut families, node, deadline).await;
    images(&mut families, node).await;
    containers::put(&mut families, node, deadline).await;
    let logs = locked(&node.metrics.logs).sum(|id| node.registry.get(id).is_some());
    let counter = |families: &mut Families, name, help, value: u64| families.put(Kind::Counter, name, help, value);
    counter(&mut families, "executor_log_bytes", "Bytes of output that were written to logs", logs.bytes);
    counter(&mut families, "executor_log_lines", "Lines or partial lines that were written to logs", logs.lines);
    let help = "Bytes of output that are missing from logs, by reason: rate limit or write error";
    let dropped = [("rate_limit", logs.limited_bytes), ("write_error", logs.lost_bytes)];
    families.labelled(Kind::Counter, "executor_log_dropped_bytes", help, "reason", dropped);
    let help = "Bytes of output that are missing from log files of requests, because they were not writable";
    counter(&mut families, "executor_log_file_lost_bytes", help, logs.file_lost_bytes);
    let help = "Number of times that a container exceeded its log rate limit";
    counter(&mut families, "executor_log_rate_limits", help, logs.overages);
    let metrics = Arc::clone(&node.metrics);
    // Encode on another thread: the text may be long, and this thread serves calls.
    let text = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        let encoded = encode_registry(&mut text, metrics.registry()).and_then(|()| families.encode(&mut text));
        encoded.map(|()| text + "# EOF\n")
    });
    match text.await {
        Ok(Ok(text)) => text,
        _ => String::from("# EOF\n"), // the daemon is stopping
    }
}

fn capacity(families: &mut Families, node: &Node) {
    let CapacityUse { total, remaining: left, allocated: held, reservations, .. } = node.registry.capacity();
    let amounts = [
        ("executor_capacity_memory_bytes", "Total memory for containers", total.memory_bytes),
        ("executor_allocated_memory_bytes", "Memory that containers hold, by their limits", held.memory_bytes),
        ("executor_remaining_memory_bytes", "Memory that is left for further containers", left.memory_bytes),
        ("executor_capacity_disk_bytes", "Total disk space for containers", total.disk_bytes),
        ("executor_allocated_disk_bytes", "Disk that containers hold, by their limits", held.disk_bytes),
        ("executor_remaining_disk_bytes", "Disk that is left for further containers", left.disk_bytes),
        ("executor_capacity_processes", "Total number of processes for containers", total.pids),
        ("executor_allocated_processes", "Processes that containers hold, by their limits", held.pids),
        ("executor_remaining_processes", "Processes that are left for further containers", left.pids),
        ("executor_capacity_containers", "Maximum number of concurrent containers", total.containers),
        ("executor_allocated_containers", "Containers that hold capacity", held.containers),
        ("executor_remaining_containers", "Containers that can still be admitted", left.containers),
        (
            "executor_reservations",
            "Reservations, whose amounts are included in the allocated amounts",
            reservations as u64,
        ),
    ];
    amounts.into_iter().for_each(|(name, help, value)| families.put(Kind::Gauge, name, help, value));
}

fn states(families: &mut Families, node: &Node) {
    const STATES: [State; 7] = [
        State::Reserved,
        State::Initializing,
        State::Created,
        State::Running,
        State::Stopping,
        State::Wiping,
        State::Completed,
    ];
    let (mut containers, mut pods) = (STATES.map(|state| (state.name(), 0)), STATES.map(|state| (state.name(), 0)));
    let mut quarantined = Phase::ALL.map(|phase| (phase.name(), 0));
    let (mut not_ready, mut stale, mut old_certificate) = (0_u64, 0_u64, 0_u64);
    node.registry.visit(None, |handle| {
        let counts = if handle.is_pod() { &mut pods } else { &mut containers };
        if let Some(facts) = handle.facts() {
            counts.iter_mut().filter(|(name, _)| *name == facts.state.name()).for_each(|(_, count)| *count += 1);
            let runs = facts.state == State::Running;
            not_ready += u64::from(runs && !facts.is_ready());
            stale += u64::from(runs && any_stale(&facts.sources));
            old_certificate += u64::from(runs && facts.identity.as_ref().is_some_and(|one| one.stale.is_some()));
            let phase = facts.quarantine.map(|quarantine| quarantine.phase.name());
            quarantined.iter_mut().filter(|(name, _)| phase == Some(*name)).for_each(|(_, count)| *count += 1);
        }
        true
    });
    families.labelled(Kind::Gauge, "executor_containers", "Containers, by state", "state", containers);
    families.labelled(Kind::Gauge, "executor_pods", "Pods, by state", "state", pods);
    let help = "Running containers that are not ready according to their checks";
    families.put(Kind::Gauge, "executor_containers_not_ready", help, not_ready);
    let help = "Running containers with referenced secrets that could not be refreshed";
    families.put(Kind::Gauge, "executor_containers_stale_secrets", help, stale);
    let help = "Running containers with a certificate that could not be renewed";
    families.put(Kind::Gauge, "executor_containers_old_certificate", help, old_certificate);
    let help = "Containers and pods in quarantine, by the phase that exceeded its time limit";
    families.labelled(Kind::Gauge, "executor_quarantined", help, "phase", quarantined);
}

fn health(families: &mut Families, node: &Node) {
    let CellState { drain, unhealthy, self_test } = node.cell.state();
    let drained = u64::from(drain.is_some());
    let help = "1 while new containers are refused because the cell is draining or drained";
    families.put(Kind::Gauge, "executor_drained", help, drained);
    let help = "1 while the cell is marked unhealthy by an operator";
    families.put(Kind::Gauge, "executor_set_unhealthy", help, u64::from(unhealthy.is_some()));
    let failed = u64::from(self_test.is_some_and(|test| test.failure.is_some()));
    families.put(Kind::Gauge, "executor_self_test_failed", "1 if the last self-test failed", failed);
}

async fn warm_pool(families: &mut Families, node: &Node, deadline: Instant) {
    let session = node.launcher.session().ok();
    let connected = u64::from(session.is_some());
    families.put(Kind::Gauge, "executor_launcher_connected", "1 while the launcher is connected", connected);
    let limit = (deadline - Instant::now()).min(READING_LIFETIME);
    let counts = match session {
        Some(session) => session.warm_pool(limit).await,
        None => None,
    };
    let Some(warm_pool) = counts else { return };
    let put = |families: &mut Families, kind, name, help, value: u64| families.put(kind, name, help, value);
    let help = "Configured size of the warm pool";
    put(families, Kind::Gauge, "executor_shells_configured", help, warm_pool.configured.into());
    put(families, Kind::Gauge, "executor_shells_ready", "Warm containers that are ready", warm_pool.ready.into());
    let help = "Containers that were started from a warm container, since the launcher's start";
    put(families, Kind::Counter, "executor_shell_hits", help, warm_pool.used);
    let help = "Containers that could have used a warm container but found none, since the launcher's start";
    put(families, Kind::Counter, "executor_shell_misses", help, warm_pool.missed);
}

async fn images(families: &mut Families, node: &Arc<Node>) {
    let images = node.images.list();
    let mut layers: Vec<_> = images.iter().flat_map(|image| &image.layers).collect();
    layers.sort_by(|one, other| one.diff_id.cmp(&other.diff_id));
    layers.dedup_by(|one, other| one.diff_id == other.diff_id);
    let bytes: u64 = layers.iter().map(|layer| layer.size).sum();
    let amounts = [
        ("executor_images", "Images that are kept", images.len() as u64),
        ("executor_image_layers", "Layers of these images, each counted once", layers.len() as u64),
        ("executor_image_bytes", "Compressed size of these layers in bytes, as fetched", bytes),
        (
            "executor_image_budget_bytes",
            "Size in bytes beyond which unused images are removed; 0 means no limit",
            node.config.images.bytes_budget,
        ),
    ];
    amounts.into_iter().for_each(|(name, help, value)| families.put(Kind::Gauge, name, help, value));
    let of = Arc::clone(node);
    // Use another thread: this reads a directory, and the disk may be slow.
    let (files, bytes) = tokio::task::spawn_blocking(move || of.artifacts.cache.size()).await.unwrap_or_default();
    families.put(
        Kind::Gauge,
        "executor_artifact_cache_files",
        "Artifacts of downloads that are kept by their key",
        files,
    );
    families.put(Kind::Gauge, "executor_artifact_cache_bytes", "Bytes of these artifacts", bytes);
}
