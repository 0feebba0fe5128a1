//! Runs of an action under a restart policy: whether another one follows an end, and when.
//!
//! ```text
//! runs ── end ──> policy ── pause ──> runs again, everything below it as in the beginning
//!                    └── none ──> the step ends with the last run's error
//! ```
//! The first restart is at once. Ends that follow wait, twice as long each time, until a run lasts ([`RestartPolicy`]). A
//! cancellation ends the policy, also in a pause. However short the pauses are, [`RestartPacer`] bounds the number of restarts.

use std::time::Duration;

use super::pace::RestartPacer;
use super::{Order, Role, StepError, StepState, Steps, Timer, Why, go_duration};
use crate::backoff::Backoff;
use crate::plan::RestartPolicy;
use crate::record::{Exit, LastEnd, RestartRecord, StepRecord};
use crate::time::Timestamp;

/// A restart policy at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Restarts {
    policy: RestartPolicy,
    record: RestartRecord,
    /// Pauses of ends in a row, after the first one.
    pauses: Option<Backoff>,
    pace: RestartPacer,
    /// Error of the last run.
    error: Option<StepError>,
    /// Reason for which the present run is being ended, to begin again.
    asked: Option<String>,
    /// No further run follows.
    over: bool,
    /// Uptime of the machine at the start of the present run.
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

    /// True in a pause.
    pub(super) fn waits(&self) -> bool {
        self.record.next_at.is_some()
    }

    /// True when another run follows a failure.
    fn permits_after_failure(&self) -> bool {
        !self.over && self.policy.permits(true, self.record.count)
    }

    /// Returns the pause after a run that ends now.
    fn pause(&mut self, uptime: Duration) -> Duration {
        let ran = self.started.map(|started| uptime.saturating_sub(started)).unwrap_or_default();
        if ran >= self.policy.forget_after() {
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

/// What became of a request to run the action again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedAgain {
    /// The run is being ended, and another one follows.
    Follows(Vec<Order>),
    /// It is ending or has ended already.
    IsEnding,
    /// There is no restart policy, or it permits no further run.
    NotPermitted,
}

impl Steps {
    /// Returns the restarts, where there is a restart policy.
    pub fn restarts(&self) -> Option<&RestartRecord> {
        self.steps.iter().find_map(|step| match &step.role {
            Role::Restart(restarts) => Some(&restarts.record),
            _ => None,
        })
    }

    /// Ends the present run as a failure for this reason, if the policy permits another one.
    pub fn run_again_for(&mut self, reason: String, now: Timestamp) -> AskedAgain {
        let Some(index) = self.steps.iter().position(|step| matches!(step.role, Role::Restart(_))) else {
            return AskedAgain::NotPermitted;
        };
        let (is_running, cancelled) = (self.is_running(index), self.steps[index].cancelled);
        let Role::Restart(restarts) = &mut self.steps[index].role else { return AskedAgain::NotPermitted };
        if cancelled || !restarts.permits_after_failure() {
            return AskedAgain::NotPermitted;
        }
        if !is_running || restarts.waits() || restarts.asked.is_some() {
            return AskedAgain::IsEnding;
        }
        restarts.asked = Some(reason);
        self.cancel_children(index, now);
        AskedAgain::Follows(std::mem::take(&mut self.orders))
    }

    /// Has no further run follow. A pause ends with the last run's error.
    pub fn forbid_restarts(&mut self, now: Timestamp) {
        for index in 0..self.steps.len() {
            if let Role::Restart(restarts) = &mut self.steps[index].role {
                restarts.over = true;
                if restarts.waits() {
                    let error = restarts.error.clone();
                    restarts.record.next_at = None;
                    self.finish(index, error, now);
                }
            }
        }
    }

    /// True when a process has ended and will not run again: nobody needs its secrets any more.
    pub fn is_done(&self, process: usize) -> bool {
        self.step_of(process).is_none_or(|step| self.is_step_done(step))
    }

    /// True when a transfer has ended and will not begin again.
    pub fn is_transfer_done(&self, transfer: usize) -> bool {
        self.step_of_transfer(transfer).is_none_or(|step| self.is_step_done(step))
    }

    /// True when a process does not run again after its end.
    pub fn is_last_run(&self, process: usize) -> bool {
        self.step_of(process).is_none_or(|step| self.is_last_run_of(step))
    }

    fn is_step_done(&self, step: usize) -> bool {
        match self.restart_above(step) {
            // One that a later run did not come to is pending.
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

    /// Returns the step above this one that has it run again.
    fn restart_above(&self, step: usize) -> Option<usize> {
        let mut above = std::iter::successors(self.steps[step].parent, |index| self.steps[*index].parent);
        above.find(|index| matches!(self.steps[*index].role, Role::Restart(_)))
    }

    /// Goes on after the end of a run.
    pub(super) fn run_ended(&mut self, index: usize, error: Option<StepError>, now: Timestamp) {
        let step = &mut self.steps[index];
        let Role::Restart(restarts) = &mut step.role else { return };
        let error = match restarts.asked.take() {
            Some(_) if step.cancelled => error,
            Some(reason) => Some(StepError { why: Why::Message(reason), exit: error.and_then(|error| error.exit) }),
            None => error,
        };
        let failed = error.as_ref().filter(|error| !error.is_cancellation());
        let again =
            !step.cancelled && !restarts.over && restarts.policy.permits(failed.is_some(), restarts.record.count);
        if !again {
            return self.finish(index, error, now);
        }
        let exit = failed.map_or(Some(Exit::Code(0)), |error| error.exit);
        let reason = failed.map_or_else(|| "Exited with status 0".to_owned(), ToString::to_string);
        let pause = restarts.pause(self.uptime);
        let words = if pause.is_zero() { "now".to_owned() } else { format!("in {}", go_duration(pause)) };
        self.orders.push(Order::Clear(format!("restarting {words}: {reason}")));
        let started_at = restarts.record.started_at;
        restarts.record.last = Some(LastEnd { exit, reason, started_at, finished_at: now });
        restarts.record.next_at = Some(now.after(pause));
        restarts.error = error;
        step.run += 1;
        self.orders.push(Order::Expire(Timer { step: index, run: step.run }, pause));
    }

    /// Begins the next run.
    pub(super) fn run_again(&mut self, index: usize, now: Timestamp) {
        let Role::Restart(restarts) = &mut self.steps[index].role else { return };
        if !restarts.waits() {
            return;
        }
        restarts.record.next_at = None;
        restarts.record.count += 1;
        let children = self.steps[index].children.clone();
        for child in children {
            self.renew(child);
            self.start_run(index, child, now);
        }
    }

    /// Starts a run.
    pub(super) fn start_run(&mut self, index: usize, child: usize, now: Timestamp) {
        if let Role::Restart(restarts) = &mut self.steps[index].role {
            restarts.record.started_at = Some(now);
            restarts.started = Some(self.uptime);
        }
        self.start_step(child, now);
    }

    /// Ends a pause, because the step was cancelled. The status is that of the last run.
    pub(super) fn end_wait(&mut self, index: usize, now: Timestamp) {
        let Role::Restart(restarts) = &mut self.steps[index].role else { return };
        restarts.record.next_at = None;
        let exit = restarts.record.last.as_ref().and_then(|last| last.exit);
        self.finish(index, Some(StepError { why: Why::Cancelled, exit }), now);
    }

    /// Makes a step and all below it as they were in the beginning.
    fn renew(&mut self, index: usize) {
        let step = &mut self.steps[index];
        let StepRecord { path, kind, log_source, .. } = std::mem::take(&mut step.record);
        step.record = StepRecord { path, kind, log_source, ..StepRecord::default() };
        (step.cancelled, step.error, step.run) = (false, None, step.run + 1);
        step.errors.clear();
        if let Role::Timeout { expired, .. } = &mut step.role {
            *expired = false;
        }
        for child in step.children.clone() {
            self.renew(child);
        }
    }
}
