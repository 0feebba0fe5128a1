//! What is known of a container, at every moment of its life and after it.
//!
//! One value serves the registry, the ledger and the interface. It is made of what the daemon admitted and of
//! what the shim's records tell; it holds no secret, because neither of these does.

use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use executor_core::plan::Plan;
use executor_core::record::{
    ContainerRecord, Exit, ExitRecord, Failure, FailureKind, OutputsRecord, Prepared, Timings, WipeRecord,
};
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A container as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What was asked for.
    pub plan: Arc<Plan>,
    /// Keyed hash of the request.
    pub request_tag: String,
    /// When it was admitted.
    pub created_at: Timestamp,
    /// The boot in which it was admitted.
    pub boot_id: String,
    /// How far it is.
    pub state: State,
    /// Set from `created` on.
    pub prepared: Option<Prepared>,
    /// Set from `running` on.
    pub started_at: Option<Timestamp>,
    /// It was asked to stop.
    pub stopped: bool,
    /// As in the record.
    #[serde(default)]
    pub files_generation: u64,
    /// As in the record.
    #[serde(default)]
    pub files_updated_at: Option<Timestamp>,
    /// As in the record.
    #[serde(default)]
    pub id_range_start: Option<u32>,
    /// Set from `completed` on, and only then.
    pub end: Option<Arc<End>>,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// How its process ended; unset where it never ran or nobody saw it.
    pub exit: Option<Exit>,
    /// The kernel killed for want of memory.
    pub oom_killed: bool,
    /// It was asked to stop.
    pub stopped: bool,
    /// What went wrong.
    pub failure: Option<Failure>,
    /// Where the time went.
    pub timings: Timings,
    /// What was wiped.
    pub wipe: Option<WipeRecord>,
    /// What was captured.
    #[serde(default)]
    pub outputs: Option<OutputsRecord>,
    /// The last of the output may not be in the log.
    #[serde(default)]
    pub output_incomplete: bool,
    /// When all was done.
    pub finished_at: Timestamp,
    /// There is an exit record of it. Without one nobody was left who could write it.
    #[serde(default)]
    pub recorded: bool,
}

impl Facts {
    /// A container that was admitted just now.
    pub fn admitted(plan: Plan, request_tag: String, created_at: Timestamp, boot_id: String) -> Self {
        Self {
            plan: Arc::new(plan),
            request_tag,
            created_at,
            boot_id,
            state: State::Reserved,
            prepared: None,
            started_at: None,
            stopped: false,
            files_generation: 0,
            files_updated_at: None,
            id_range_start: None,
            end: None,
        }
    }

    /// A container that this daemon hears of for the first time from its record.
    pub fn found(record: ContainerRecord) -> Self {
        Self {
            plan: Arc::new(record.plan),
            request_tag: record.request_tag,
            created_at: record.created_at,
            boot_id: record.shim.boot_id,
            // `completed` is reached with an exit record only.
            state: record.state.min(State::Wiping),
            prepared: record.prepared,
            started_at: record.started_at,
            stopped: record.stopped,
            files_generation: record.files_generation,
            files_updated_at: record.files_updated_at,
            id_range_start: record.id_range_start,
            end: None,
        }
    }

    /// Takes over what the shim's record says. The state is the caller's to advance.
    pub fn learn(&mut self, record: ContainerRecord) {
        if record.files_generation != self.files_generation {
            self.plan = Arc::new(record.plan);
        }
        self.files_generation = record.files_generation;
        self.files_updated_at = record.files_updated_at;
        self.id_range_start = record.id_range_start;
        self.prepared = record.prepared;
        self.started_at = record.started_at;
        self.stopped = record.stopped;
    }

    /// Takes over the exit record.
    pub fn conclude(&mut self, record: ExitRecord) {
        self.learn(record.container);
        self.end = Some(Arc::new(End {
            exit: record.exit,
            oom_killed: record.oom_killed,
            stopped: self.stopped,
            failure: record.failure,
            timings: record.timings,
            wipe: record.wipe,
            outputs: record.outputs,
            output_incomplete: record.output_incomplete,
            finished_at: record.finished_at,
            recorded: true,
        }));
    }

    /// Concludes without an exit record: nobody is left who could write one.
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
            finished_at: now,
            recorded: false,
        }));
    }

    /// The answer to Run is due: the process ran, or it is certain that it never will.
    pub fn start_is_decided(&self) -> bool {
        (self.started_at.is_some() && self.state >= State::Running) || self.state == State::Completed
    }

    /// When the process ended, where that is known.
    pub fn process_finished_at(&self) -> Option<Timestamp> {
        let (started, end) = (self.started_at?, self.end.as_ref()?);
        end.exit?;
        let run = u64::try_from(end.timings.run.as_nanos()).unwrap_or(u64::MAX);
        Some(Timestamp(started.0.saturating_add(run)))
    }

    /// How long ago it was completed; `None` while it is not.
    pub fn completed_for(&self, now: Timestamp) -> Option<Duration> {
        Some(now.since(self.end.as_ref()?.finished_at))
    }
}
