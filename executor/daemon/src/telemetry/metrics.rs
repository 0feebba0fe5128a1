//! Counts and times the daemon's work: starts, failures, wipes, connections, calls. A scrape adds the current state of
//! the node.
//!
//! No label value comes from a client: methods, codes, phases and kinds are all from lists in this program. Counting
//! begins with the daemon's start.

pub(crate) mod calls;
mod logs;
mod outward;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::record::{Exit, FailureKind};
use executor_core::usage::LogUsage;
use executor_sys::mutex::locked;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::model::status::{ContainerResult, ContainerStatus, Phase};
pub(crate) use logs::Logs;
pub(crate) use outward::SinkMetrics;

/// Bucket bounds of durations, in seconds.
const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// One label and its value.
type Labels1 = [(&'static str, &'static str); 1];
/// Two labels and their values.
type Labels2 = [(&'static str, &'static str); 2];

/// Counters and durations of a daemon.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    starts: Histogram,
    phases: Family<Labels1, Histogram>,
    failures: Family<Labels1, Counter>,
    ends: Family<Labels1, Counter>,
    oom_kills: Counter,
    restarts: Counter,
    wipes: Family<Labels1, Counter>,
    wiped_bytes: Counter,
    rotations: Counter,
    egress_updates: Counter,
    limits_updates: Counter,
    name_queries: Family<Labels1, Counter>,
    cache: Family<Labels1, Counter>,
    connections: Family<Labels1, Gauge>,
    accepted: Family<Labels1, Counter>,
    refused: Family<Labels1, Counter>,
    strangers: Counter,
    in_progress: Gauge,
    /// Number of requests to shims for counters.
    pub(crate) readings: Counter,
    calls: Family<Labels2, Counter>,
    call_times: Family<Labels1, Histogram>,
    pub(crate) spans: Spans,
    /// Counters of containers' logs.
    pub(crate) logs: Mutex<Logs>,
    outward: outward::SinkFamilies,
}

/// Result of a container's query to the daemon's name server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NameQuery {
    /// The name or address belongs to the network.
    Answered,
    /// A name server of the host or of the request responded.
    Forwarded,
    /// No name server responded.
    Failed,
    /// The container is not allowed to query any name server.
    Closed,
    /// The container exceeded its own limit, or all containers together exceeded a limit.
    Limited,
    /// The query is malformed or of a kind that is not supported.
    Malformed,
    /// The source address belongs to no container of the network.
    Stranger,
}

impl NameQuery {
    const ALL: [Self; 7] =
        [Self::Answered, Self::Forwarded, Self::Failed, Self::Closed, Self::Limited, Self::Malformed, Self::Stranger];

    const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Forwarded => "forwarded",
            Self::Failed => "failed",
            Self::Closed => "closed",
            Self::Limited => "limited",
            Self::Malformed => "malformed",
            Self::Stranger => "stranger",
        }
    }
}

/// Counters of exported and dropped spans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    pub(crate) exported: Counter,
    dropped: Family<Labels1, Counter>,
}

/// Reason why spans were not exported.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpanLoss {
    QueueFull,
    /// The collector did not accept the spans.
    ExportFailed,
}

impl Spans {
    pub(crate) fn lost(&self, why: SpanLoss, spans: usize) {
        let why = match why {
            SpanLoss::QueueFull => "queue_full",
            SpanLoss::ExportFailed => "export_failed",
        };
        self.dropped.get_or_create(&[("reason", why)]).inc_by(spans as u64);
    }
}

fn times() -> Histogram {
    Histogram::new(SECONDS)
}

/// Creates the metric family of a label. The family has all values of the label from the start.
fn family<M: Default>(label: &'static str, values: impl IntoIterator<Item = &'static str>) -> Family<Labels1, M> {
    let family = Family::default();
    values.into_iter().for_each(|value| drop(family.get_or_create(&[(label, value)])));
    family
}

/// Returns the name of a failure in metrics and spans.
pub(crate) const fn failure_name(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Exec => "exec",
        FailureKind::Prepare => "prepare",
        FailureKind::SupervisorLost => "supervisor_lost",
        FailureKind::HostStopped => "host_stopped",
        FailureKind::Action => "action",
        FailureKind::Unhealthy => "unhealthy",
        FailureKind::NotStarted => "not_started",
        FailureKind::TargetEnded => "target_ended",
    }
}

const FAILURES: [FailureKind; 8] = [
    FailureKind::Exec,
    FailureKind::Prepare,
    FailureKind::SupervisorLost,
    FailureKind::HostStopped,
    FailureKind::Action,
    FailureKind::Unhealthy,
    FailureKind::NotStarted,
    FailureKind::TargetEnded,
];

impl Default for Metrics {
    fn default() -> Self {
        let phases: Family<Labels1, Histogram> = Family::new_with_constructor(times);
        Phase::ALL.iter().for_each(|phase| drop(phases.get_or_create(&[("phase", phase.name())])));
        let sockets = ["control", "runtime"];
        let mut metrics = Self {
            registry: Registry::default(),
            starts: times(),
            phases,
            failures: family("kind", FAILURES.map(failure_name)),
            ends: family("exit", ["zero", "nonzero", "signal", "none"]),
            oom_kills: Counter::default(),
            restarts: Counter::default(),
            wipes: family("result", ["verified", "unverified", "missing"]),
            wiped_bytes: Counter::default(),
            rotations: Counter::default(),
            egress_updates: Counter::default(),
            limits_updates: Counter::default(),
            name_queries: family("result", NameQuery::ALL.map(NameQuery::name)),
            cache: family("result", ["hit", "miss"]),
            connections: family("socket", sockets),
            accepted: family("socket", sockets),
            refused: family("socket", sockets),
            strangers: Counter::default(),
            in_progress: Gauge::default(),
            readings: Counter::default(),
            calls: Family::default(),
            call_times: Family::new_with_constructor(times),
            spans: Spans { dropped: family("reason", ["queue_full", "export_failed"]), ..Spans::default() },
            logs: Mutex::default(),
            outward: outward::SinkFamilies::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let mut registry = Registry::default();
        registry.register(
            "executor_container_start_seconds",
            "Time from a container's admission until its program runs, without held containers",
            self.starts.clone(),
        );
        registry.register(
            "executor_container_phase_seconds",
            "Time of each phase that a caller waits for",
            self.phases.clone(),
        );
        registry.register(
            "executor_container_failures",
            "Containers that failed because of the executor or an action, by kind of failure",
            self.failures.clone(),
        );
        registry.register(
            "executor_container_ends",
            "Completed containers, by the exit of their process; none if it never ran or its exit is unknown",
            self.ends.clone(),
        );
        registry.register(
            "executor_container_oom_kills",
            "Containers in which the kernel killed a process because memory ran out",
            self.oom_kills.clone(),
        );
        registry.register(
            "executor_container_restarts",
            "Restarts of containers with a restart policy",
            self.restarts.clone(),
        );
        registry.register(
            "executor_wipes",
            "Wipes of containers with secrets; missing if no process was left to confirm the wipe",
            self.wipes.clone(),
        );
        registry.register(
            "executor_wiped_bytes",
            "Bytes of secret files that were overwritten",
            self.wiped_bytes.clone(),
        );
        registry.register("executor_secret_rotations", "Updates of a container's secret files", self.rotations.clone());
        registry.register(
            "executor_egress_updates",
            "Updates of a container's egress rules",
            self.egress_updates.clone(),
        );
        registry.register("executor_limits_updates", "Updates of a container's limits", self.limits_updates.clone());
        registry.register(
            "executor_name_queries",
            "Queries to the name servers of built-in networks, by result",
            self.name_queries.clone(),
        );
        registry.register(
            "executor_artifact_cache_requests",
            "Downloads with a cache key, by result: hit or miss",
            self.cache.clone(),
        );
        registry.register("executor_connections", "Connections that are open, by socket", self.connections.clone());
        registry.register(
            "executor_connections_accepted",
            "Connections that were served, by socket",
            self.accepted.clone(),
        );
        registry.register(
            "executor_connections_refused",
            "Connections that were closed immediately because no slot was free or the owner connected too often, by socket",
            self.refused.clone(),
        );
        registry.register(
            "executor_strangers_refused",
            "TCP clients that were refused before they were authenticated",
            self.strangers.clone(),
        );
        registry.register(
            "executor_container_readings",
            "Requests to shims for the counters of their containers",
            self.readings.clone(),
        );
        registry.register("executor_calls_in_progress", "Calls in progress", self.in_progress.clone());
        registry.register("executor_calls", "Calls that ended, by method and gRPC code", self.calls.clone());
        registry.register(
            "executor_call_seconds",
            "Duration of calls by method, except streams and Wait",
            self.call_times.clone(),
        );
        registry.register(
            "executor_spans_exported",
            "Spans that the trace collector accepted",
            self.spans.exported.clone(),
        );
        registry.register("executor_spans_dropped", "Dropped spans, by reason", self.spans.dropped.clone());
        self.outward.register(&mut registry);
        self.registry = registry;
    }

    /// Returns the counters of a log sink.
    pub(crate) fn outward(&self, target: &'static str) -> SinkMetrics {
        self.outward.for_target(target)
    }

    /// Returns the registry of the counters.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Records the duration of a lifecycle phase.
    pub(crate) fn phase(&self, phase: Phase, took: Duration) {
        self.phases.get_or_create(&[("phase", phase.name())]).observe(took.as_secs_f64());
    }

    /// Starts counting the log output of an admitted container.
    pub(crate) fn admitted(&self, facts: &ContainerStatus) {
        locked(&self.logs).read(&facts.plan.id, LogUsage::default(), false);
    }

    /// Records the start duration of a running container. Skips held containers, because a client delays their start.
    pub(crate) fn started(&self, facts: &ContainerStatus) {
        let Some(started) = facts.started_at.filter(|_| !facts.plan.hold) else { return };
        self.starts.observe(started.since(facts.created_at).as_secs_f64());
        for (phase, from, to) in facts.start_phases() {
            self.phase(phase, to.since(from));
        }
    }

    /// Counts a completed container.
    pub(crate) fn ended(&self, facts: &ContainerStatus, end: &ContainerResult) {
        let exit = match end.exit {
            Some(Exit::Code(0)) => "zero",
            Some(Exit::Code(_)) => "nonzero",
            Some(Exit::Signal(_)) => "signal",
            None => "none",
        };
        self.ends.get_or_create(&[("exit", exit)]).inc();
        if let Some(failure) = &end.failure {
            self.failures.get_or_create(&[("kind", failure_name(failure.kind))]).inc();
        }
        self.oom_kills.inc_by(u64::from(end.oom_killed));
        let wiped = |result| {
            self.wipes.get_or_create(&[("result", result)]).inc();
        };
        match &end.wipe {
            Some(wipe) if wipe.files > 0 => {
                wiped(if wipe.verified { "verified" } else { "unverified" });
                self.wiped_bytes.inc_by(wipe.bytes);
            }
            None if !facts.plan.files.is_empty() && facts.prepared.is_some() => wiped("missing"),
            _ => {}
        }
        if facts.started_at.is_some() && end.exit.is_some() {
            self.phase(Phase::Finish, end.timings.finish);
        }
        locked(&self.logs).ended(&facts.plan.id, end.usage.as_ref().and_then(|usage| usage.log));
    }

    pub(crate) fn restarted(&self, times: u64) {
        self.restarts.inc_by(times);
    }

    /// Counts an update of secret files.
    pub(crate) fn rotated(&self) {
        self.rotations.inc();
    }

    /// Counts an update of egress rules.
    pub(crate) fn egress_updated(&self) {
        self.egress_updates.inc();
    }

    /// Counts an update of limits.
    pub(crate) fn limits_updated(&self) {
        self.limits_updates.inc();
    }

    /// Counts a container's query to the daemon's name server.
    pub(crate) fn name_query(&self, result: NameQuery) {
        self.name_queries.get_or_create(&[("result", result.name())]).inc();
    }

    /// Counts a cache lookup of a download.
    pub(crate) fn looked_up(&self, hit: bool) {
        self.cache.get_or_create(&[("result", if hit { "hit" } else { "miss" })]).inc();
    }

    /// Counts a connection that was refused because no slot was free or its owner connected too often.
    pub(crate) fn connection_refused(&self, socket: &'static str) {
        self.refused.get_or_create(&[("socket", socket)]).inc();
    }

    /// Counts a TCP client that was refused.
    pub(crate) fn stranger_refused(&self) {
        self.strangers.inc();
    }

    /// Counts a connection as open until the result is dropped.
    pub(crate) fn connected(&self, socket: &'static str) -> OpenConnection {
        self.accepted.get_or_create(&[("socket", socket)]).inc();
        let open = self.connections.get_or_create_owned(&[("socket", socket)]);
        open.inc();
        OpenConnection(open)
    }

    /// Starts a timer for a call to the method at `path`.
    pub(crate) fn call(self: &Arc<Self>, path: &str) -> calls::CallTimer {
        calls::CallTimer::new(Arc::clone(self), path)
    }
}

#[derive(Debug)]
pub(crate) struct OpenConnection(Gauge<i64, std::sync::atomic::AtomicI64>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
