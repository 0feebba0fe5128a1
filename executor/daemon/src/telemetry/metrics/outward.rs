//! Log sink counters, by sink.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Labels1, family};

/// Counters of all log sinks.
#[derive(Debug)]
pub(super) struct SinkFamilies {
    sent_lines: Family<Labels1, Counter>,
    sent_bytes: Family<Labels1, Counter>,
    dropped_lines: Family<Labels1, Counter>,
    dropped_bytes: Family<Labels1, Counter>,
    waiting: Family<Labels1, Gauge>,
    deleted_bytes: Family<Labels1, Gauge>,
    connected: Family<Labels1, Gauge>,
}

/// Counters of one log sink.
#[derive(Debug)]
pub(crate) struct SinkMetrics {
    /// Number of sent lines or partial lines.
    pub(crate) sent_lines: Counter,
    /// Output bytes in the sent lines.
    pub(crate) sent_bytes: Counter,
    /// Number of lines or partial lines that were dropped.
    pub(crate) dropped_lines: Counter,
    /// Output bytes in the dropped lines.
    pub(crate) dropped_bytes: Counter,
    /// Number of containers with unsent output.
    pub(crate) waiting: Gauge,
    /// Unsent log bytes of deleted containers.
    pub(crate) deleted_bytes: Gauge,
    /// 1 while the sink is connected, otherwise 0.
    pub(crate) connected: Gauge,
}

impl Default for SinkFamilies {
    fn default() -> Self {
        fn targets<M: Default>() -> Family<Labels1, M> {
            family("target", ["journald", "syslog"])
        }
        Self {
            sent_lines: targets(),
            sent_bytes: targets(),
            dropped_lines: targets(),
            dropped_bytes: targets(),
            waiting: targets(),
            deleted_bytes: targets(),
            connected: targets(),
        }
    }
}

impl SinkFamilies {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "executor_log_sent_lines",
            "Lines or partial lines of output that were sent, by target",
            self.sent_lines.clone(),
        );
        registry.register(
            "executor_log_sent_bytes",
            "Bytes of output that were sent, by target",
            self.sent_bytes.clone(),
        );
        registry.register(
            "executor_log_unsent_lines",
            "Lines or partial lines of output that were dropped before they could be sent, by target",
            self.dropped_lines.clone(),
        );
        registry.register(
            "executor_log_unsent_bytes",
            "Bytes of output that were dropped before they could be sent, by target",
            self.dropped_bytes.clone(),
        );
        registry.register(
            "executor_log_waiting_containers",
            "Containers with unsent output, by target",
            self.waiting.clone(),
        );
        registry.register(
            "executor_log_waiting_deleted_bytes",
            "Bytes of deleted containers' logs that wait to be sent, by target",
            self.deleted_bytes.clone(),
        );
        registry.register(
            "executor_log_target_connected",
            "1 while executord is connected to the log sink",
            self.connected.clone(),
        );
    }

    pub(super) fn for_target(&self, target: &'static str) -> SinkMetrics {
        let label = [("target", target)];
        SinkMetrics {
            sent_lines: self.sent_lines.get_or_create_owned(&label),
            sent_bytes: self.sent_bytes.get_or_create_owned(&label),
            dropped_lines: self.dropped_lines.get_or_create_owned(&label),
            dropped_bytes: self.dropped_bytes.get_or_create_owned(&label),
            waiting: self.waiting.get_or_create_owned(&label),
            deleted_bytes: self.deleted_bytes.get_or_create_owned(&label),
            connected: self.connected.get_or_create_owned(&label),
        }
    }
}
