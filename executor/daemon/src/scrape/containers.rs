//! Collects per-container metrics, up to the configured number of containers, with the configured labels.

use std::sync::Arc;

use executor_core::lifecycle::State;
use executor_core::usage::Usage;
use executor_sys::mutex::locked;
use tokio::time::Instant;

use super::families::{Families, Kind, Label};
use crate::config::label_name;
use crate::model::container::Handle;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::stats::{self, UsageReading};

/// A metric that has a series for each container.
struct Metric {
    kind: Kind,
    name: &'static str,
    help: &'static str,
    value: fn(&ContainerStatus, &Usage) -> Option<f64>,
}

#[allow(clippy::cast_precision_loss)]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[allow(clippy::cast_precision_loss)]
fn number(value: u64) -> f64 {
    value as f64
}

const METRICS: [Metric; 15] = [
    Metric {
        kind: Kind::Counter,
        name: "executor_container_cpu_seconds",
        help: "CPU time of a container",
        value: |_, usage| Some(seconds(usage.cpu.total)),
    },
    Metric {
        kind: Kind::Counter,
        name: "executor_container_cpu_throttled_seconds",
        help: "Time for which a container was throttled by its CPU limit",
        value: |_, usage| Some(seconds(usage.cpu.throttled)),
    },
    Metric {
        kind: Kind::Gauge,
        name: "executor_container_memory_working_set_bytes",
        help: "Memory of a container without page cache that is not in active use",
        value: |_, usage| Some(number(usage.memory.working_set)),
    },
    Metric {
        kind: Kind::Gauge,
        name: "executor_container_memory_usage_bytes",
        help: "Memory of a container, page cache included",
        value: |_, usage| Some(number(usage.memory.usage)),
    },
    Metric {
        kind: Kind::Gauge,
        name: "executor_container_memory_limit_bytes",
        help: "Limit on the memory of a container",
        value: |facts, _| Some(number(facts.plan.limits.memory_bytes)),
    },
    Metric {
        kind: Kind::Gauge,
        name: "executor_container_processes",
        help: "Processes and threads of a container",
        value: |_, usage| usage.pids.map(number),
    },
    Metric {
        kind: Kind::Counter,
        name: "executor_container_disk_read_bytes",
        help: "Bytes that a container read from disks",
        value: |_, usage| usage.io.map(|io| number(io.read_bytes)),
    },
    Metric {
        kind: Kind::Counter,
        name: "executor_container_disk_written_bytes",
        help: "Bytes that a container wrote to disks",
        value: |_, usage| usage.io.map(|io| number(io.written_bytes)),
    },
    Metric {
        kind: Kind::Counter,
        name: "executor_container_network_received_bytes",
        help: "Bytes that a container received in its own network",
        value: |_, usage| usage.network.map(|network| number(network.received.bytes)),
    },
    Metric {
        kind: Kind::Counter,
        name: "executor_container_network_sent_bytes",
        help: "Bytes that a container sent in its own network",
        value: |_, usage| usage.network.map(|network| number(network.sent.bytes)),
    },
    Metric {
        kind: Kind::Counter,
        name: "executor_container_network_received_dropped",
        help: "Packets to a container that were dropped",
        value: |_, usage| usage.network.map(|network| number(network.received.dropped)),
    },
    Metric {
        kind: Kind::Counter,
        name: "executor_container_network_sent_dropped",
        help: "Packets of a container that were dropped",
        value: |_, usage| usage.network.map(|network| number(network.sent.dropped)),
    },
    Metric {
        kind: Kind::Counter,
        name: "executor_container_log_bytes",
        help: "Bytes of a container's output that were written to its log",
        value: |_, usage| usage.log.map(|log| number(log.bytes)),
    },
    Metric {
        kind: Kind::Counter,
        name: "executor_container_log_dropped_bytes",
        help: "Bytes of a container's output that are missing from its log",
        value: |_, usage| usage.log.map(|log| number(log.limited_bytes.saturating_add(log.lost_bytes))),
    },
    Metric {
        kind: Kind::Gauge,
        name: "executor_container_start_time_seconds",
        help: "Start of a container's program, in seconds since the epoch",
        value: |facts, _| facts.started_at.map(|at| seconds(at.0)),
    },
];

/// Adds the series of running containers if the configuration enables them. The totals of log output and the number of
/// containers that did not respond are always updated.
pub(super) async fn put(families: &mut Families, node: &Node, deadline: Instant) {
    let settings = &node.config.metrics;
    let most = if settings.containers { settings.containers_max } else { 0 };
    let mut chosen = Vec::new();
    let mut count = 0;
    node.registry.visit(None, |handle: &Arc<Handle>| {
        let runs = matches!(handle.state(), Some(State::Running | State::Stopping));
        if runs && !handle.is_pod() {
            chosen.push((Arc::clone(handle), count >= most));
            count += 1;
        }
        true
    });
    let all = chosen.len();
    let readings = stats::read_within(node, chosen, Some(deadline)).await;
    let answered = readings.iter().filter(|(facts, usage)| facts.end.is_some() || usage.is_some()).count();
    let mut logs = locked(&node.metrics.logs);
    for (facts, usage) in readings.iter().filter(|(facts, _)| facts.end.is_none()) {
        if let Some(log) = usage.as_ref().and_then(|usage| usage.log) {
            logs.read(&facts.plan.id, log, facts.created_at < node.started_at);
        }
    }
    drop(logs);
    let help = "Containers whose shim did not answer this scrape in time";
    families.put(Kind::Gauge, "executor_containers_unanswered", help, all.saturating_sub(answered) as u64);
    if !settings.containers {
        return;
    }
    let help = "Running containers without series of their own, because there are more than max_containers";
    families.put(Kind::Gauge, "executor_containers_unreported", help, all.saturating_sub(most) as u64);
    let shown = readings.iter().filter(|(facts, _)| facts.end.is_none()).take(most);
    series(families, &shown.collect::<Vec<_>>(), &settings.labels);
}

/// Adds the series of these containers.
pub(super) fn series(families: &mut Families, readings: &[&UsageReading], names: &[String]) {
    let labelled: Vec<(Vec<Label>, &UsageReading)> =
        readings.iter().map(|reading| (labels(&reading.0, names), *reading)).collect();
    for Metric { kind, name, help, value } in &METRICS {
        let series = labelled.iter().filter_map(|(labels, (facts, usage))| {
            let value = value(facts, usage.as_ref()?)?;
            Some((labels.clone(), value))
        });
        families.series(*kind, name, help, series.collect::<Vec<_>>());
    }
}

/// Returns the labels of a container's series: its id, and its configured labels.
fn labels(facts: &ContainerStatus, names: &[String]) -> Vec<Label> {
    let mut labels = vec![("container".into(), facts.plan.id.to_string().into())];
    for name in names {
        let value = facts.plan.labels.get(name).cloned().unwrap_or_default();
        labels.push((label_name(name).into(), value.into()));
    }
    labels
}
