//! Status of a container, during its lifecycle and after completion.
//!
//! Registry, ledger and API share this type. A status is built from the admitted plan and the shim's records, and holds
//! no secrets, because the plan and the records hold none.

use std::sync::Arc;
use std::time::Duration;

use executor_core::checks::Health;
use executor_core::lifecycle::State;
use executor_core::plan::{Plan, SETUP};
use executor_core::record::{
    Attached, ContainerRecord, Exit, ExitRecord, Failure, FailureKind, OutputsRecord, PreparedContainer, RestartRecord,
    StepRecord, StepState, Timings, WipeRecord,
};
use executor_core::time::Timestamp;
use executor_core::usage::Usage;
use serde::{Deserialize, Serialize};

use crate::model::identity::IdentityRecord;
use crate::model::quarantine::Quarantine;
use crate::model::sources::SourceRecord;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// Plan with which the container was admitted, or the current plan after an update.
    pub plan: Arc<Plan>,
    /// Keyed digest of the request.
    pub request_tag: String,
    /// Time of admission.
    pub created_at: Timestamp,
    /// Id of the boot in which the container was admitted.
    pub boot_id: String,
    pub state: State,
    /// Start of the shim, from the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_at: Option<Timestamp>,
    /// Result of the preparation; set from `created` on.
    pub prepared: Option<PreparedContainer>,
    /// Start of the process; set from `running` on.
    pub started_at: Option<Timestamp>,
    /// True if the container was requested to stop.
    pub stopped: bool,
    /// Generation of the secret files, from the record.
    #[serde(default)]
    pub files_generation: u64,
    /// Time of the last update of the secret files, from the record.
    #[serde(default)]
    pub files_updated_at: Option<Timestamp>,
    /// First id of the host id range of the container or its pod, from the record.
    #[serde(default)]
    pub id_range_start: Option<u32>,
    /// Process id of the shim, from the record; 0 before the shim starts.
    #[serde(default)]
    pub shim_pid: i32,
    /// Steps of an action tree, from the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRecord>,
    /// Number of egress updates, from the record.
    #[serde(default)]
    pub egress_generation: u64,
    /// Number of limits updates, from the record.
    #[serde(default)]
    pub limits_generation: u64,
    /// True while the container is paused, from the record.
    #[serde(default)]
    pub paused: bool,
    /// Results of the container's checks; unset before the first result, or if the container has no checks.
    #[serde(default)]
    pub health: Option<Arc<Health>>,
    /// Restarts of the main action, from the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartRecord>,
    /// Set while the container is in quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
    /// Trace of the container, if traces are exported.
    pub trace: Option<TraceContext>,
    /// Inputs that are references to secret providers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceRecord>,
    /// Certificate of the container, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityRecord>,
    /// Result of the container; set at completion.
    pub end: Option<Arc<ContainerResult>>,
}

/// Result of a completed container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerResult {
    /// Exit of the process; unset if the process never ran or its exit was not observed.
    pub exit: Option<Exit>,
    /// True if the kernel killed a process because memory ran out.
    pub oom_killed: bool,
    /// True if the container was requested to stop.
    pub stopped: bool,
    pub failure: Option<Failure>,
    /// Durations of the lifecycle phases.
    pub timings: Timings,
    pub wipe: Option<WipeRecord>,
    /// Captured outputs.
    #[serde(default)]
    pub outputs: Option<OutputsRecord>,
    /// True if the last output may be missing from the log.
    #[serde(default)]
    pub output_incomplete: bool,
    /// Final counters of the container's resource usage.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Termination message that the process wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub termination_message: String,
    /// Time of completion.
    pub finished_at: Timestamp,
    /// True if there is an exit record. False if no process was left that could write the record.
    #[serde(default)]
    pub recorded: bool,
    /// True if the exit record was missing or damaged after the host had restarted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub record_lost: bool,
}

/// Trace context of a container. Ids are hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    pub trace_id: String,
    /// Span id of the container.
    pub span_id: String,
    /// Span id of the caller; zeros if the caller has no span.
    pub parent_id: String,
    /// Time at which the request was received.
    pub received_at: Timestamp,
}

/// A lifecycle phase that affects the latency of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Phase from the request to its admission: validation and image pull.
    Admit,
    /// Phase from admission to the shim's first step.
    Launch,
    /// Phase from the shim's first step until the container is created.
    Prepare,
    /// Phase from creation until the program runs.
    Start,
    /// Phase from the process's exit until the secrets are wiped and the exit record is written.
    Finish,
}

impl Phase {
    /// All phases in order.
    pub(crate) const ALL: [Self; 5] = [Self::Admit, Self::Launch, Self::Prepare, Self::Start, Self::Finish];

    /// Returns the phase's name in metrics and spans.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Launch => "launch",
            Self::Prepare => "prepare",
            Self::Start => "start",
            Self::Finish => "finish",
        }
    }
}

impl ContainerStatus {
    /// Returns the network and the addresses of a container on a network, until its processes have exited.
    pub(crate) fn network(&self) -> Option<&Attached> {
        let prepared = self.prepared.as_ref().filter(|_| self.state < State::Wiping)?;
        prepared.network.as_ref()
    }

    /// Creates the status of a newly admitted container.
    pub fn admitted(plan: Plan, request_tag: String, created_at: Timestamp, boot_id: String) -> Self {
        Self {
            plan: Arc::new(plan),
            request_tag,
            created_at,
            boot_id,
            state: State::Reserved,
            begun_at: None,
            prepared: None,
            started_at: None,
            stopped: false,
            files_generation: 0,
            files_updated_at: None,
            id_range_start: None,
            shim_pid: 0,
            steps: Vec::new(),
            egress_generation: 0,
            limits_generation: 0,
            paused: false,
            health: None,
            restarts: None,
            quarantine: None,
            trace: None,
            sources: Vec::new(),
            identity: None,
            end: None,
        }
    }

    /// Creates the status of a container that is known only from its record.
    pub fn from_record(record: ContainerRecord) -> Self {
        Self {
            plan: Arc::new(record.plan),
            request_tag: record.request_tag,
            created_at: record.created_at,
            boot_id: record.shim.boot_id,
            // `completed` requires an exit record.
            state: record.state.min(State::Wiping),
            begun_at: Some(record.begun_at),
            prepared: record.prepared,
            started_at: record.started_at,
            stopped: record.stopped,
            files_generation: record.files_generation,
            files_updated_at: record.files_updated_at,
            id_range_start: record.pod_range_start.or(record.id_range_start),
            shim_pid: record.shim.pid,
            steps: record.steps,
            egress_generation: record.egress_generation,
            limits_generation: record.limits_generation,
            paused: record.paused,
            health: None,
            restarts: record.restarts,
            quarantine: None,
            trace: None,
            sources: Vec::new(),
            identity: None,
            end: None,
        }
    }

    /// Applies the shim's record, including its plan. The caller advances the state.
    pub fn update(&mut self, record: ContainerRecord) {
        if self.is_replanned(&record) {
            self.replan(record.plan.clone());
        }
        self.progress(record);
    }

    /// Returns true if the record's plan differs from the current plan, because files, egress or limits were replaced.
    /// The first files of a container that is being created are not a difference: the plan already has them.
    pub fn is_replanned<P>(&self, record: &ContainerRecord<P>) -> bool {
        let first = self.prepared.is_none() && record.files_generation == 1 && self.files_generation == 0;
        (record.files_generation != self.files_generation && !first)
            || record.egress_generation != self.egress_generation
            || record.limits_generation != self.limits_generation
    }

    /// Applies the plan of a record.
    pub fn replan(&mut self, plan: Plan) {
        self.plan = Arc::new(plan);
    }

    /// Applies a record without its plan. The caller advances the state.
    pub fn progress<P>(&mut self, record: ContainerRecord<P>) {
        self.files_generation = record.files_generation;
        self.files_updated_at = record.files_updated_at;
        self.id_range_start = record.pod_range_start.or(record.id_range_start);
        self.shim_pid = record.shim.pid;
        self.steps = record.steps;
        self.egress_generation = record.egress_generation;
        self.limits_generation = record.limits_generation;
        self.paused = record.paused;
        self.begun_at = Some(record.begun_at);
        self.prepared = record.prepared;
        // After a reboot only the first record is left, which has no start time.
        self.started_at = record.started_at.or(self.started_at);
        self.stopped = record.stopped;
        // Check results of an earlier run do not apply to this run.
        if run_of(self.restarts.as_ref()) != run_of(record.restarts.as_ref()) {
            self.health = None;
        }
        self.restarts = record.restarts;
    }

    /// Returns the number of the current run of the main action, starting at 0, and its start time; `None` while
    /// waiting for a restart, before the start and during `setup`.
    pub fn run(&self) -> Option<(u64, Timestamp)> {
        match &self.restarts {
            None => Some((0, self.main_began_at()?)),
            Some(restarts) => run_of(Some(restarts)).zip(restarts.started_at),
        }
    }

    /// Returns the start time of the main action: the end of `setup` if there is one, otherwise the start of the
    /// container's process.
    fn main_began_at(&self) -> Option<Timestamp> {
        match self.steps.iter().find(|step| step.path == SETUP) {
            Some(setup) => setup.finished_at.filter(|_| setup.state == StepState::Succeeded),
            None => self.started_at,
        }
    }

    /// Returns the completed start phases, with the start and end time of each.
    pub(crate) fn start_phases(&self) -> impl Iterator<Item = (Phase, Timestamp, Timestamp)> + use<> {
        let prepared = self.prepared.as_ref().map(|prepared| prepared.at);
        let phase = |phase, from: Option<Timestamp>, to: Option<Timestamp>| Some((phase, from?, to?));
        let phases = [
            phase(Phase::Launch, Some(self.created_at), self.begun_at),
            phase(Phase::Prepare, self.begun_at, prepared),
            phase(Phase::Start, prepared, self.started_at),
        ];
        phases.into_iter().flatten()
    }

    /// Applies the exit record without its plan.
    pub fn conclude<P>(&mut self, record: ExitRecord<P>) {
        self.progress(record.container);
        self.end = Some(Arc::new(ContainerResult {
            exit: record.exit,
            oom_killed: record.oom_killed,
            stopped: self.stopped,
            failure: record.failure,
            timings: record.timings,
            wipe: record.wipe,
            outputs: record.outputs,
            output_incomplete: record.output_incomplete,
            usage: record.usage,
            termination_message: record.termination_message,
            finished_at: record.finished_at,
            recorded: true,
            record_lost: false,
        }));
    }

    /// Completes the container without an exit record. Call this only if no process is left that could write the
    /// record.
    pub fn conclude_without_record(&mut self, kind: FailureKind, message: impl Into<String>, now: Timestamp) {
        self.end = Some(Arc::new(ContainerResult {
            exit: None,
            oom_killed: false,
            stopped: self.stopped,
            failure: Some(Failure { kind, message: message.into(), errno: 0 }),
            timings: Timings::default(),
            wipe: None,
            outputs: None,
            output_incomplete: self.started_at.is_some(),
            usage: None,
            termination_message: String::new(),
            finished_at: now,
            recorded: false,
            record_lost: false,
        }));
        self.steps.iter_mut().for_each(StepRecord::lose);
        self.restarts.iter_mut().for_each(|restarts| restarts.next_at = None);
    }

    /// Returns true if the container is ready according to its checks.
    pub fn is_ready(&self) -> bool {
        let healthy = self.health.as_ref().map_or(self.plan.checks.is_none(), |health| health.ready);
        self.state == State::Running && self.run().is_some() && healthy && !self.paused
    }

    /// Returns true while the container is running and paused.
    pub fn is_paused(&self) -> bool {
        self.state == State::Running && self.paused
    }

    /// Returns true if the container is created and held until Start.
    pub fn is_held(&self) -> bool {
        self.plan.hold && self.state == State::Created
    }

    /// Returns true if the container was held and exited before Start.
    pub fn was_not_started(&self) -> bool {
        let failure = self.end.as_ref().and_then(|end| end.failure.as_ref());
        failure.is_some_and(|failure| failure.kind == FailureKind::NotStarted)
    }

    /// Returns true if the process ran, or can no longer start.
    pub fn start_is_decided(&self) -> bool {
        (self.started_at.is_some() && self.state >= State::Running) || self.state == State::Completed
    }

    /// Returns the time at which the process exited, if known.
    pub fn process_finished_at(&self) -> Option<Timestamp> {
        let (started, end) = (self.started_at?, self.end.as_ref()?);
        end.exit?;
        let run = u64::try_from(end.timings.run.as_nanos()).unwrap_or(u64::MAX);
        Some(Timestamp(started.0.saturating_add(run)))
    }

    /// Returns the time since completion; `None` before completion.
    pub fn completed_for(&self, now: Timestamp) -> Option<Duration> {
        Some(now.since(self.end.as_ref()?.finished_at))
    }
}

/// Returns the number of the current run of a container with a restart policy; `None` while waiting for the next run.
fn run_of(restarts: Option<&RestartRecord>) -> Option<u64> {
    restarts.map_or(Some(0), |restarts| restarts.next_at.is_none().then_some(restarts.count))
}
