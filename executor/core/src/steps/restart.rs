//! Decides whether and when an action runs again under a restart policy.
//!
//! ```text
//! runs ── end ──> policy ── delay ──> runs again, everything below it in its initial state
//!                    └── none ──> the step ends with the last run's error
//! ```
//! The first restart is immediate. The delays of consecutive restarts double each time, until a run is long enough
//! ([`RestartPolicy`]). A cancellation prevents further runs, even during a delay. [`RestartPacer`] limits the number
//! of restarts even if the delays are short.

use std::time::Duration;

use super::pace::RestartPacer;
use super::{Cause, Role, StepError, StepOrder, StepState, Steps, Timer, Why, go_duration};
use crate::backoff::Backoff;
use crate::plan::RestartPolicy;
use crate::record::{Exit, LastEnd, RestartRecord, StepRecord};
use crate::time::Timestamp;

/// State of a restart policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Restarts {
    policy: RestartPolicy,
    record: RestartRecord,
    /// Delays of consecutive restarts, after the first restart.
    pauses: Option<Backoff>,
    pace: RestartPacer,
    /// Error of the last run.
    error: Option<StepError>,
    /// Reason why the current run is being stopped for a restart.
    asked: Option<String>,
    /// True if no further run follows, because restarts are forbidden.
    over: bool,
    /// Uptime of the machine at the start of the current run.
    started: Option<Duration>,
}

impl Restarts {
    pub(super) fn new(policy: &RestartPolicy) -> Self {
        let policy = policy.clone();
        Self {
            policy,
            record: RestartRecord::default(),
            pauses: None,
            pace: RestartPacer::default(),
            error: None,
            asked: None,
            over: false,
            started: None,
        }
    }

    /// Returns true while a restart is delayed.
    pub(super) fn is_delayed(&self) -> bool {
        self.record.next_at.is_some()
    }

    /// Returns true if another run would follow a failure.
    fn permits_after_failure(&self) -> bool {
        !self.over && self.policy.permits(true, self.record.count)
    }

    /// Returns the delay before the next run, after a run that ends now.
    fn pause(&mut self, uptime: Duration) -> Duration {
        let ran = self.started.map(|started| uptime.saturating_sub(started)).unwrap_or_default();
        if ran >= self.policy.reset_after() {
            self.pauses = None;
        }
        let pause = match &mut self.pauses {
            Some(pauses) => pauses.pause(),
            None => {
                self.pauses = Some(Backoff::new(self.policy.delay_min, self.policy.delay_max));
                Duration::ZERO
            }
        };
        pause + self.pace.take(uptime + pause)
    }
}

/// Result of a request to restart the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartOutcome {
    /// The run is being stopped, and another run follows.
    Follows(Vec<StepOrder>),
    /// The current run is already stopping, or no run is in progress.
    IsEnding,
    /// There is no restart policy, the policy permits no further run, or the action is cancelled.
    NotPermitted,
}

impl Steps {
    /// Returns the restarts, if there is a restart policy.
    pub fn restarts(&self) -> Option<&RestartRecord> {
        self.steps.iter().find_map(|step| match &step.role {
            Role::Restart(restarts) => Some(&restarts.record),
            _ => None,
        })
    }

    /// Stops the current run as a failure with this reason, if the policy permits another run.
    pub fn run_again_for(&mut self, reason: String, now: Timestamp) -> RestartOutcome {
        let Some(index) = self.steps.iter().position(|step| matches!(step.role, Role::Restart(_))) else {
            return RestartOutcome::NotPermitted;
        };
        let (is_running, cancelled) = (self.is_running(index), self.steps[index].cancelled);
        let Role::Restart(restarts) = &mut self.steps[index].role else { return RestartOutcome::NotPermitted };
        if cancelled || !restarts.permits_after_failure() {
            return RestartOutcome::NotPermitted;
        }
        if !is_running || restarts.is_delayed() || restarts.asked.is_some() {
            return RestartOutcome::IsEnding;
        }
        restarts.asked = Some(reason);
        self.cancel_children(index, now);
        RestartOutcome::Follows(std::mem::take(&mut self.orders))
    }

    /// Prevents further runs. During a delay the step completes with the last run's error.
    pub fn forbid_restarts(&mut self, now: Timestamp) {
        for index in 0..self.steps.len() {
            if let Role::Restart(restarts) = &mut self.steps[index].role {
                restarts.over = true;
                if restarts.is_delayed() {
                    let error = restarts.error.clone();
                    restarts.record.next_at = None;
                    self.finish(index, error, now);
                }
            }
        }
    }

    /// Returns true if a process has exited and will not run again: its secrets are no longer needed.
    pub fn is_done(&self, process: usize) -> bool {
        self.step_of(process).is_none_or(|step| self.is_step_done(step))
    }

    /// Returns true if a transfer has completed and will not start again.
    pub fn is_transfer_done(&self, transfer: usize) -> bool {
        self.step_of_transfer(transfer).is_none_or(|step| self.is_step_done(step))
    }

    /// Returns true if the current run of a process is its last.
    pub fn is_last_run(&self, process: usize) -> bool {
        self.step_of(process).is_none_or(|step| self.is_last_run_of(step))
    }

    fn is_step_done(&self, step: usize) -> bool {
        match self.restart_above(step) {
            // A step that the last run did not reach is still pending.
            Some(above) if self.has_ended(above) => true,
            _ => self.has_ended(step) && self.is_last_run_of(step),
        }
    }

    fn is_last_run_of(&self, step: usize) -> bool {
        let may_restart = |index: usize| {
            let over = matches!(&self.steps[index].role, Role::Restart(restarts) if restarts.over);
            !over && !self.has_ended(index) && !self.steps[index].cancelled
        };
        !self.restart_above(step).is_some_and(may_restart)
    }

    fn has_ended(&self, step: usize) -> bool {
        !matches!(self.steps[step].record.state, StepState::Pending | StepState::Running)
    }

    /// Returns the ancestor of this step that has the restart policy.
    fn restart_above(&self, step: usize) -> Option<usize> {
        let mut above = std::iter::successors(self.steps[step].parent, |index| self.steps[*index].parent);
        above.find(|index| matches!(self.steps[*index].role, Role::Restart(_)))
    }

    /// Handles the end of a run: schedules the next run if the policy permits it, and otherwise completes the step.
    pub(super) fn run_ended(&mut self, index: usize, error: Option<StepError>, now: Timestamp) {
        let step = &mut self.steps[index];
        let Role::Restart(restarts) = &mut step.role else { return };
        let error = match restarts.asked.take() {
            Some(_) if step.cancelled => error,
            Some(reason) => Some(StepError { why: Why::Message(reason), cause: error.and_then(|error| error.cause) }),
            None => error,
        };
        let failed = error.as_ref().filter(|error| !error.is_cancellation());
        let again =
            !step.cancelled && !restarts.over && restarts.policy.permits(failed.is_some(), restarts.record.count);
        if !again {
            return self.finish(index, error, now);
        }
        let exit = failed.map_or(Some(Exit::Code(0)), StepError::exit);
        let reason = failed.map_or_else(|| "Exited with status 0".to_owned(), ToString::to_string);
        let pause = restarts.pause(self.uptime);
        let words = if pause.is_zero() { "now".to_owned() } else { format!("in {}", go_duration(pause)) };
        self.orders.push(StepOrder::Clear(format!("restarting {words}: {reason}")));
        let started_at = restarts.record.started_at;
        restarts.record.last = Some(LastEnd { exit, reason, started_at, finished_at: now });
        restarts.record.next_at = Some(now.after(pause));
        restarts.error = error;
        step.run += 1;
        self.orders.push(StepOrder::Expire(Timer { step: index, run: step.run }, pause));
    }

    /// Starts the next run.
    pub(super) fn run_again(&mut self, index: usize, now: Timestamp) {
        let Role::Restart(restarts) = &mut self.steps[index].role else { return };
        if !restarts.is_delayed() {
            return;
        }
        restarts.record.next_at = None;
        restarts.record.count += 1;
        let children = self.steps[index].children.clone();
        for child in children {
            self.reset_step(child);
            self.start_run(index, child, now);
        }
    }

    /// Starts a run, and records its start time.
    pub(super) fn start_run(&mut self, index: usize, child: usize, now: Timestamp) {
        if let Role::Restart(restarts) = &mut self.steps[index].role {
            restarts.record.started_at = Some(now);
            restarts.started = Some(self.uptime);
        }
        self.start_step(child, now);
    }

    /// Cancels a delay because the step was cancelled. The step gets the status of the last run.
    pub(super) fn cancel_wait(&mut self, index: usize, now: Timestamp) {
        let Role::Restart(restarts) = &mut self.steps[index].role else { return };
        restarts.record.next_at = None;
        let cause = restarts.record.last.as_ref().and_then(|last| last.exit).map(Cause::Exit);
        self.finish(index, Some(StepError { why: Why::Cancelled, cause }), now);
    }

    /// Resets a step and all steps below it to the initial state.
    fn reset_step(&mut self, index: usize) {
        let step = &mut self.steps[index];
        let StepRecord { path, kind, log_source, .. } = std::mem::take(&mut step.record);
        step.record = StepRecord { path, kind, log_source, ..StepRecord::default() };
        (step.cancelled, step.error, step.run) = (false, None, step.run + 1);
        step.errors.clear();
        if let Role::Timeout { expired, .. } = &mut step.role {
            *expired = false;
        }
        for child in step.children.clone() {
            self.reset_step(child);
        }
    }
}
