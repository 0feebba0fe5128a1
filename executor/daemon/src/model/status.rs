//! Facts of a container, at every moment of its life and after it.
//!
//! One value serves the registry, the ledger and the interface. It is made of the plan that the daemon admitted and of
//! the shim's records; it holds no secret, because neither of these does.

use std::sync::Arc;
use std::time::Duration;

use executor_core::checks::Health;
use executor_core::lifecycle::State;
use executor_core::plan::{Plan, SETUP};
use executor_core::record::{
    ContainerRecord, Exit, ExitRecord, Failure, FailureKind, OutputsRecord, Prepared, RestartRecord, StepRecord,
    StepState, Timings, WipeRecord,
};
use executor_core::time::Timestamp;
use executor_core::usage::Usage;
use serde::{Deserialize, Serialize};

use crate::model::identity::IdentityRecord;
use crate::model::quarantine::Quarantine;
use crate::model::sources::SourceRecord;

/// Facts of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// Plan that was admitted.
    pub plan: Arc<Plan>,
    /// Keyed hash of the request.
    pub request_tag: String,
    /// Time of admission.
    pub created_at: Timestamp,
    /// Id of the boot in which it was admitted.
    pub boot_id: String,
    /// State.
    pub state: State,
    /// Start of the shim, as in the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_at: Option<Timestamp>,
    /// Result of the preparation, from `created` on.
    pub prepared: Option<Prepared>,
    /// Start of the process, from `running` on.
    pub started_at: Option<Timestamp>,
    /// True when it was told to stop.
    pub stopped: bool,
    /// Generation of the secret files, as in the record.
    #[serde(default)]
    pub files_generation: u64,
    /// Time of the last update of the secret files, as in the record.
    #[serde(default)]
    pub files_updated_at: Option<Timestamp>,
    /// First id of the range of host ids of the container, or of its pod, as in the record.
    #[serde(default)]
    pub id_range_start: Option<u32>,
    /// Process id of the shim, as in the record; 0 until there is one.
    #[serde(default)]
    pub shim_pid: i32,
    /// Steps of a tree of actions, as in the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRecord>,
    /// Number of times that its egress was replaced, as in the record.
    #[serde(default)]
    pub egress_generation: u64,
    /// Number of times that its limits were replaced, as in the record.
    #[serde(default)]
    pub limits_generation: u64,
    /// True while its processes are stopped by a pause, as in the record.
    #[serde(default)]
    pub paused: bool,
    /// Results of its checks; unset before the first one, and without checks.
    #[serde(default)]
    pub health: Option<Arc<Health>>,
    /// Restarts, as in the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartRecord>,
    /// Set while it does not go on in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
    /// Trace of the container, where traces are exported.
    pub trace: Option<TraceContext>,
    /// Inputs that came by reference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceRecord>,
    /// Certificate of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityRecord>,
    /// End of the container, set when it is completed.
    pub end: Option<Arc<End>>,
}

/// End of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Exit of the process; unset where it never ran or its exit was not observed.
    pub exit: Option<Exit>,
    /// True when the kernel killed a process for lack of memory.
    pub oom_killed: bool,
    /// True when it was told to stop.
    pub stopped: bool,
    /// Failure, if there was one.
    pub failure: Option<Failure>,
    /// Durations of the phases.
    pub timings: Timings,
    /// Receipt of the wipe.
    pub wipe: Option<WipeRecord>,
    /// Outputs that were captured.
    #[serde(default)]
    pub outputs: Option<OutputsRecord>,
    /// True when the last of the output may not be in the log.
    #[serde(default)]
    pub output_incomplete: bool,
    /// Counters of the whole run.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Message that the process left about its end.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub termination_message: String,
    /// Time of completion.
    pub finished_at: Timestamp,
    /// True when there is an exit record. Without one no process was left that could write it.
    #[serde(default)]
    pub recorded: bool,
    /// True when the machine was stopped before the exit record was on the disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub record_lost: bool,
}

/// Place of a container in a trace. Ids are hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// Id of the trace.
    pub trace_id: String,
    /// Id of the container's own span.
    pub span_id: String,
    /// Id of its caller's span; zeros where there is none.
    pub parent_id: String,
    /// Time of the request.
    pub received_at: Timestamp,
}

/// A phase of a container's life that its caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// From the request to its admission: validation, and the fetch of an image.
    Admit,
    /// From the admission to the shim's first step.
    Launch,
    /// From there until the container is made.
    Prepare,
    /// From there until the program runs.
    Start,
    /// From the process's end until its secrets are wiped and its record is written.
    Finish,
}

impl Phase {
    /// All of them, in their order.
    pub(crate) const ALL: [Self; 5] = [Self::Admit, Self::Launch, Self::Prepare, Self::Start, Self::Finish];

    /// Returns the phase's name, as in metrics and spans.
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
    /// Makes the facts of a newly admitted container.
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

    /// Makes the facts of a container that only its record tells of.
    pub fn from_record(record: ContainerRecord) -> Self {
        Self {
            plan: Arc::new(record.plan),
            request_tag: record.request_tag,
            created_at: record.created_at,
            boot_id: record.shim.boot_id,
            // `completed` is reached with an exit record only.
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

    /// Takes over the shim's record with its plan. The caller advances the state.
    pub fn update(&mut self, record: ContainerRecord) {
        if self.is_replanned(&record) {
            self.replan(record.plan.clone());
        }
        self.progress(record);
    }

    /// True when the plan of a record is not the present one, because files, egress or limits were replaced. The first files of a container
    /// that is only being made are those of the plan.
    pub fn is_replanned<P>(&self, record: &ContainerRecord<P>) -> bool {
        let first = self.prepared.is_none() && record.files_generation == 1 && self.files_generation == 0;
        (record.files_generation != self.files_generation && !first)
            || record.egress_generation != self.egress_generation
            || record.limits_generation != self.limits_generation
    }

    /// Takes over the plan of a record.
    pub fn replan(&mut self, plan: Plan) {
        self.plan = Arc::new(plan);
    }

    /// Takes over a record but for its plan. The caller advances the state.
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
        self.started_at = record.started_at;
        self.stopped = record.stopped;
        // What was found out about an earlier run says nothing about this one.
        if run_of(self.restarts.as_ref()) != run_of(record.restarts.as_ref()) {
            self.health = None;
        }
        self.restarts = record.restarts;
    }

    /// Returns the number of the present run of the main action, from 0, and when it began; `None` while a restart is waited for, before
    /// the start and during `setup`.
    pub fn run(&self) -> Option<(u64, Timestamp)> {
        match &self.restarts {
            None => Some((0, self.main_began_at()?)),
            Some(restarts) => run_of(Some(restarts)).zip(restarts.started_at),
        }
    }

    /// Returns when the main action began: at the end of `setup` if there is one, else with the container's process.
    fn main_began_at(&self) -> Option<Timestamp> {
        match self.steps.iter().find(|step| step.path == SETUP) {
            Some(setup) => setup.finished_at.filter(|_| setup.state == StepState::Succeeded),
            None => self.started_at,
        }
    }

    /// Returns the phases of the start, as far as it came, with the beginning and the end of each.
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

    /// Takes over the exit record but for the plan.
    pub fn conclude<P>(&mut self, record: ExitRecord<P>) {
        self.progress(record.container);
        self.end = Some(Arc::new(End {
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

    /// Concludes without an exit record, when no process is left that could write one.
    pub fn conclude_without_record(&mut self, kind: FailureKind, message: impl Into<String>, now: Timestamp) {
        self.end = Some(Arc::new(End {
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

    /// True when the container can serve, as far as its checks say.
    pub fn is_ready(&self) -> bool {
        let healthy = self.health.as_ref().map_or(self.plan.checks.is_none(), |health| health.ready);
        self.state == State::Running && self.run().is_some() && healthy && !self.paused
    }

    /// True while the container runs and its processes are stopped by a pause.
    pub fn is_paused(&self) -> bool {
        self.state == State::Running && self.paused
    }

    /// True when Run can answer: the process ran, or certainly never will.
    pub fn start_is_decided(&self) -> bool {
        (self.started_at.is_some() && self.state >= State::Running) || self.state == State::Completed
    }

    /// Returns the time of the process's end, where it is known.
    pub fn process_finished_at(&self) -> Option<Timestamp> {
        let (started, end) = (self.started_at?, self.end.as_ref()?);
        end.exit?;
        let run = u64::try_from(end.timings.run.as_nanos()).unwrap_or(u64::MAX);
        Some(Timestamp(started.0.saturating_add(run)))
    }

    /// Returns the time since completion; `None` before it.
    pub fn completed_for(&self, now: Timestamp) -> Option<Duration> {
        Some(now.since(self.end.as_ref()?.finished_at))
    }
}

/// Number of the present run of a container with a restart policy; `None` while the next one is waited for.
fn run_of(restarts: Option<&RestartRecord>) -> Option<u64> {
    restarts.map_or(Some(0), |restarts| restarts.next_at.is_none().then_some(restarts.count))
}
