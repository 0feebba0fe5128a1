//! Decides which process of a tree of actions is started, cancelled or waited for next.
//!
//! This is a pure state machine: its input is events ([`Steps::ended`], [`Steps::expired`], ...), and its output is
//! commands. The shim executes the commands by starting and signalling processes. The state machine reads no clock,
//! because each event contains its time. The semantics are the same as in Cloud Foundry's executor (depot/steps):
//!
//! | action | ends | error |
//! |---|---|---|
//! | run | with its process | exit status other than 0; cancelled |
//! | download, upload | with the transfer | `Failed to download ARTIFACT: reason`; cancelled |
//! | serial | at the first error, or after the last action; when cancelled, with the running action | that error |
//! | parallel | when all have ended | all errors, joined by `; ` |
//! | codependent | when all have ended; the first end cancels the others | `Codependent step exited`; all errors |
//! | try | with its action | none |
//! | timeout | with its action, which is cancelled at the time limit | `exceeded 30s timeout` |
//! | emit_progress | with its action | the error of its action |
//!
//! Sidecars and the main action are like codependent actions, but success is not an error. A restart policy restarts
//! the main action and the sidecars after they finish (`restart.rs`); setup is not restarted.

mod error;
mod pace;
mod restart;

use std::time::Duration;

use crate::plan::{Action, Actions, Direction, Messages, PlannedProcess, PlannedTransfer};
use crate::record::{Exit, StepRecord, StepState};
use crate::time::Timestamp;
use error::{Cause, StepError, Why, join_errors};
pub use restart::RestartOutcome;
use restart::Restarts;

/// Result of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The process was not started.
    NotStarted {
        /// Reason why the process was not started, on one line.
        why: String,
        /// Error number if the program could not be executed; otherwise 0.
        errno: i32,
    },
    /// The process exited.
    Exited {
        /// Exit status of the process.
        exit: Exit,
        /// True if the kernel killed a process of the container during the run, because the memory limit was reached.
        out_of_memory: bool,
        /// True if the process got SIGKILL because it exceeded its grace period.
        killed: bool,
    },
}

/// Result of a download or an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferEnd {
    /// Completed; holds the byte count.
    Done(u64),
    /// Failed; holds the reason, on one line.
    Failed(String),
    /// The transfer was cancelled.
    Cancelled,
}

/// A command for the shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOrder {
    /// Start the process with this index.
    Start(usize),
    /// Terminate the process with this index: send the stop signal, and SIGKILL after the grace period.
    Cancel(usize),
    /// Start the transfer with this index.
    Transfer(usize),
    /// Abort the transfer with this index.
    CancelTransfer(usize),
    /// Call [`Steps::expired`] with this timer after this time.
    Expire(Timer, Duration),
    /// Kill leftover processes in the container, and write this line to the log as a message of the executor.
    Clear(String),
    /// Write a line to the container's log.
    Say {
        /// Log source of the line.
        log_source: String,
        /// True if the line reports a failure.
        failed: bool,
        /// Text, without a newline.
        text: String,
    },
}

/// A timer of a step. A later run of the same step ignores the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    step: usize,
    run: u64,
}

/// Result of a whole tree of actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    /// Exit status of the container: 0 after success. After a failure, this is the status of the process that caused
    /// the error of the tree; after a cancellation, the status of a cancelled process. Unset if no process ran, or if
    /// `errno` is set.
    pub exit: Option<Exit>,
    /// Error of the tree; unset if the tree succeeded or was only cancelled.
    pub failure: Option<String>,
    /// Error number if the tree failed because a program could not be executed; otherwise 0.
    pub errno: i32,
}

/// Kind of a step, which determines the execution of its child steps.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Run(usize),
    Transfer {
        index: usize,
        direction: Direction,
        artifact: String,
    },
    Serial,
    Parallel,
    Codependent {
        /// True if this step fails when a child succeeds.
        fails_on_exit: bool,
    },
    Try,
    Timeout {
        after: Duration,
        expired: bool,
    },
    Progress(Messages),
    Restart(Box<Restarts>),
}

#[derive(Debug)]
struct Step {
    record: StepRecord,
    role: Role,
    parent: Option<usize>,
    children: Vec<usize>,
    cancelled: bool,
    error: Option<StepError>,
    /// Errors of codependent child steps, in the order in which they occurred.
    errors: Vec<StepError>,
    /// Number of earlier runs of the step under a restart policy.
    run: u64,
}

/// Steps of a container: all actions of its tree, with their states.
#[derive(Debug)]
pub struct Steps {
    steps: Vec<Step>,
    orders: Vec<StepOrder>,
    /// Uptime of the machine, as last set by the caller.
    uptime: Duration,
}

/// Index of the root step.
const ROOT: usize = 0;

impl Steps {
    /// Creates the steps of these actions, all in the state pending.
    pub fn new(actions: &Actions, processes: &[PlannedProcess], transfers: &[PlannedTransfer]) -> Self {
        let mut steps = Self { steps: Vec::new(), orders: Vec::new(), uptime: Duration::ZERO };
        let root = steps.add("", "", Role::Serial, None);
        let mut below = root;
        for (path, action) in actions.roots() {
            if path == "action" {
                if let Some(policy) = &actions.restart {
                    below = steps.add("", "", Role::Restart(Box::new(Restarts::new(policy))), Some(below));
                }
                if !actions.sidecars.is_empty() {
                    below = steps.add("", "", Role::Codependent { fails_on_exit: false }, Some(below));
                }
            }
            steps.add_action(&path, action, (processes, transfers), below);
        }
        steps
    }

    /// Sets the uptime of the machine. Durations of runs are measured with the uptime, because the wall clock can be
    /// changed.
    pub fn set_uptime(&mut self, uptime: Duration) {
        self.uptime = uptime;
    }

    /// Starts the tree of actions.
    pub fn start(&mut self, now: Timestamp) -> Vec<StepOrder> {
        self.start_step(ROOT, now);
        std::mem::take(&mut self.orders)
    }

    /// Records the start of a process.
    pub fn started(&mut self, process: usize, pid: i32, now: Timestamp) {
        if let Some(step) = self.step_of(process) {
            let record = &mut self.steps[step].record;
            (record.pid, record.started_at) = (pid, Some(now));
        }
    }

    /// Records that a process has exited, or was not started.
    pub fn ended(&mut self, process: usize, end: RunEnd, now: Timestamp) -> Vec<StepOrder> {
        if let Some(step) = self.step_of(process).filter(|step| self.is_running(*step)) {
            let error = self.evaluate(step, end);
            self.finish(step, error, now);
        }
        std::mem::take(&mut self.orders)
    }

    /// Records the completion of a transfer.
    pub fn transferred(&mut self, transfer: usize, end: TransferEnd, now: Timestamp) -> Vec<StepOrder> {
        if let Some(step) = self.step_of_transfer(transfer).filter(|step| self.is_running(*step)) {
            if let TransferEnd::Done(bytes) = end {
                self.steps[step].record.bytes = Some(bytes);
            }
            let error = self.transfer_error(step, end);
            self.finish(step, error, now);
        }
        std::mem::take(&mut self.orders)
    }

    /// Returns the start time of a transfer in progress.
    pub fn transfer_began(&self, transfer: usize) -> Option<Timestamp> {
        let step = self.step_of_transfer(transfer).filter(|step| self.is_running(*step))?;
        self.steps[step].record.started_at
    }

    /// Handles an expired timer.
    pub fn expired(&mut self, Timer { step, run }: Timer, now: Timestamp) -> Vec<StepOrder> {
        if self.is_running(step) && self.steps[step].run == run {
            match &mut self.steps[step].role {
                Role::Timeout { expired, .. } => {
                    *expired = true;
                    self.cancel_children(step, now);
                }
                Role::Restart(_) => self.run_again(step, now),
                _ => {}
            }
        }
        std::mem::take(&mut self.orders)
    }

    /// Cancels the whole tree of actions.
    pub fn cancel(&mut self, now: Timestamp) -> Vec<StepOrder> {
        if self.steps[ROOT].record.state == StepState::Pending {
            self.steps[ROOT].cancelled = true;
            self.finish(ROOT, Some(StepError::from_why(Why::Cancelled)), now);
        } else {
            self.cancel_step(ROOT, now);
        }
        std::mem::take(&mut self.orders)
    }

    /// Adds the receipt of the wipe of a process's secret files.
    pub fn wiped(&mut self, process: usize, receipt: crate::record::WipeRecord) {
        if let Some(step) = self.step_of(process) {
            self.steps[step].record.wipe = Some(receipt);
        }
    }

    /// Returns the result of the tree after its completion.
    pub fn conclusion(&self) -> Option<Conclusion> {
        let root = &self.steps[ROOT];
        if matches!(root.record.state, StepState::Pending | StepState::Running) {
            return None;
        }
        let exit = match &root.error {
            None => Some(Exit::Code(0)),
            // The main action and its sidecars only cancelled one another.
            Some(error) if error.is_cancellation() && !root.cancelled => Some(Exit::Code(0)),
            Some(error) => error.exit(),
        };
        let failed = root.error.as_ref().filter(|error| !error.is_cancellation());
        let errno = failed.map_or(0, StepError::errno);
        Some(Conclusion { exit, failure: failed.map(ToString::to_string), errno })
    }

    /// Returns the state of each action of the request, in the order of [`Actions::visit`].
    pub fn records(&self) -> Vec<StepRecord> {
        let of_request = self.steps.iter().filter(|step| !step.record.path.is_empty());
        of_request.map(|step| step.record.clone()).collect()
    }

    fn add(&mut self, path: &str, kind: &str, role: Role, parent: Option<usize>) -> usize {
        let record = StepRecord { path: path.to_owned(), kind: kind.to_owned(), ..StepRecord::default() };
        let (children, errors) = (Vec::new(), Vec::new());
        self.steps.push(Step { record, role, parent, children, cancelled: false, error: None, errors, run: 0 });
        let index = self.steps.len() - 1;
        if let Some(parent) = parent {
            self.steps[parent].children.push(index);
        }
        index
    }

    fn add_action(
        &mut self,
        path: &str,
        action: &Action,
        leaves @ (processes, transfers): (&[PlannedProcess], &[PlannedTransfer]),
        parent: usize,
    ) {
        let transfer = |index: usize, direction: Direction| Role::Transfer {
            index,
            direction,
            artifact: transfers.get(index).map(|planned| planned.artifact.clone()).unwrap_or_default(),
        };
        let role = match action {
            Action::Run(process) => Role::Run(*process),
            Action::Download(index) => transfer(*index, Direction::Download),
            Action::Upload(index) => transfer(*index, Direction::Upload),
            Action::Serial(_) => Role::Serial,
            Action::Parallel(_) => Role::Parallel,
            Action::Codependent(_) => Role::Codependent { fails_on_exit: true },
            Action::Try(_) => Role::Try,
            Action::Timeout { after, .. } => Role::Timeout { after: *after, expired: false },
            Action::EmitProgress { messages, .. } => Role::Progress(messages.clone()),
        };
        let index = self.add(path, action.kind(), role, Some(parent));
        self.steps[index].record.log_source = match action {
            Action::Run(process) => processes.get(*process).map(|run| run.log_source.clone()).unwrap_or_default(),
            Action::Download(index) | Action::Upload(index) => {
                transfers.get(*index).map(|planned| planned.log_source.clone()).unwrap_or_default()
            }
            Action::EmitProgress { messages, .. } => messages.log_source.clone(),
            _ => String::new(),
        };
        for (below, child) in action.children() {
            self.add_action(&format!("{path}{below}"), child, leaves, index);
        }
    }

    fn step_of(&self, process: usize) -> Option<usize> {
        self.steps.iter().position(|step| step.role == Role::Run(process))
    }

    fn step_of_transfer(&self, transfer: usize) -> Option<usize> {
        self.steps.iter().position(|step| matches!(step.role, Role::Transfer { index, .. } if index == transfer))
    }

    fn is_running(&self, step: usize) -> bool {
        self.steps.get(step).is_some_and(|step| step.record.state == StepState::Running)
    }

    fn start_step(&mut self, index: usize, now: Timestamp) {
        let step = &mut self.steps[index];
        step.record.state = StepState::Running;
        step.record.started_at = Some(now);
        match &step.role {
            Role::Run(process) => return self.orders.push(StepOrder::Start(*process)),
            Role::Transfer { index: transfer, direction, artifact } => {
                let transfer = *transfer;
                let text = match direction {
                    Direction::Download => format!("Downloading {artifact}..."),
                    Direction::Upload => format!("Uploading {artifact}..."),
                };
                if !artifact.is_empty() {
                    let log_source = step.record.log_source.clone();
                    self.orders.push(StepOrder::Say { log_source, failed: false, text });
                }
                return self.orders.push(StepOrder::Transfer(transfer));
            }
            Role::Timeout { after, .. } => {
                self.orders.push(StepOrder::Expire(Timer { step: index, run: step.run }, *after));
            }
            Role::Progress(messages) => push_message(&mut self.orders, messages, false, &messages.start),
            Role::Serial | Role::Parallel | Role::Codependent { .. } | Role::Try | Role::Restart(_) => {}
        }
        let at_once = matches!(step.role, Role::Parallel | Role::Codependent { .. });
        if let (Role::Restart(_), [child]) = (&step.role, &step.children[..]) {
            let child = *child;
            return self.start_run(index, child, now);
        }
        let count = if at_once { step.children.len() } else { step.children.len().min(1) };
        let children = step.children[..count].to_vec();
        for child in children {
            self.start_step(child, now);
        }
    }

    fn cancel_step(&mut self, index: usize, now: Timestamp) {
        if !self.is_running(index) || self.steps[index].cancelled {
            return;
        }
        self.steps[index].cancelled = true;
        match &self.steps[index].role {
            Role::Run(process) => self.orders.push(StepOrder::Cancel(*process)),
            Role::Transfer { index: transfer, .. } => self.orders.push(StepOrder::CancelTransfer(*transfer)),
            Role::Restart(restarts) if restarts.is_delayed() => self.cancel_wait(index, now),
            _ => self.cancel_children(index, now),
        }
    }

    fn cancel_children(&mut self, index: usize, now: Timestamp) {
        for child in self.steps[index].children.clone() {
            self.cancel_step(child, now);
        }
    }

    /// Records the exit of a process. Returns the error if the process failed or was not started.
    fn evaluate(&mut self, index: usize, end: RunEnd) -> Option<StepError> {
        let Step { record, cancelled, .. } = &mut self.steps[index];
        record.pid = 0;
        let (exit, out_of_memory, killed) = match end {
            RunEnd::NotStarted { .. } if *cancelled => return Some(StepError::from_why(Why::Cancelled)),
            RunEnd::NotStarted { why, errno } => {
                let cause = (errno != 0).then_some(Cause::NotExecuted(errno));
                return Some(StepError { why: Why::Plain(why), cause });
            }
            RunEnd::Exited { exit, out_of_memory, killed } => (exit, out_of_memory, killed),
        };
        record.exit = Some(exit);
        if *cancelled {
            let why = if killed { Why::GraceExceeded } else { Why::Cancelled };
            return Some(StepError { why, cause: Some(Cause::Exit(exit)) });
        }
        let why = Why::Message(exit_failure(&record.log_source, exit, out_of_memory)?);
        Some(StepError { why, cause: Some(Cause::Exit(exit)) })
    }

    /// Returns the error of a completed transfer. The result is logged in the wording of Cloud Foundry's executor.
    fn transfer_error(&mut self, index: usize, end: TransferEnd) -> Option<StepError> {
        let Step { record, role, cancelled, .. } = &self.steps[index];
        let Role::Transfer { direction, artifact, .. } = role else { return None };
        let (verb, doing, done) = match direction {
            Direction::Download => ("download", "Downloading", "Downloaded"),
            Direction::Upload => ("upload", "Uploading", "Uploaded"),
        };
        let named = |words: &str| if artifact.is_empty() { words.to_owned() } else { format!("{words} {artifact}") };
        let (failed, text, error) = match end {
            _ if *cancelled => return Some(StepError::from_why(Why::Cancelled)),
            TransferEnd::Cancelled => return Some(StepError::from_why(Why::Cancelled)),
            TransferEnd::Done(_) if artifact.is_empty() => return None,
            TransferEnd::Done(bytes) => (false, format!("{done} {artifact} ({})", short_size(bytes)), None),
            TransferEnd::Failed(why) => {
                let reported = format!("{}: {why}", named(&format!("Failed to {verb}")));
                (true, format!("{} failed: {why}", named(doing)), Some(StepError::from_why(Why::Message(reported))))
            }
        };
        self.orders.push(StepOrder::Say { log_source: record.log_source.clone(), failed, text });
        error
    }

    /// Completes a step and notifies its parent.
    fn finish(&mut self, index: usize, error: Option<StepError>, now: Timestamp) {
        let step = &mut self.steps[index];
        step.record.finished_at = Some(now);
        step.record.state = match &error {
            None => StepState::Succeeded,
            Some(error) if error.is_cancellation() => StepState::Cancelled,
            Some(_) => StepState::Failed,
        };
        step.record.error = error.as_ref().map(ToString::to_string);
        step.error.clone_from(&error);
        if let Some(parent) = step.parent {
            self.child_ended(parent, index, error, now);
        }
    }

    /// Continues after the completion of a child step.
    fn child_ended(&mut self, index: usize, child: usize, error: Option<StepError>, now: Timestamp) {
        let step = &self.steps[index];
        match &step.role {
            Role::Run(_) | Role::Transfer { .. } => {}
            Role::Serial => {
                let next = step.children.iter().skip_while(|other| **other != child).nth(1).copied();
                match next {
                    Some(next) if error.is_none() && !step.cancelled => self.start_step(next, now),
                    _ => self.finish(index, error, now),
                }
            }
            Role::Parallel => {
                if !self.has_running_child(index) {
                    let children = self.steps[index].children.iter();
                    let errors = children.filter_map(|child| self.steps[*child].error.clone()).collect();
                    self.finish(index, join_errors(errors), now);
                }
            }
            Role::Codependent { fails_on_exit } => {
                let exited = || StepError::from_why(Why::Plain("Codependent step exited".to_owned()));
                let error = error.or_else(|| fails_on_exit.then(exited));
                self.steps[index].errors.extend(error);
                // When the first child ends, the other children are cancelled; steps that are already cancelled are
                // skipped.
                self.cancel_children(index, now);
                if !self.has_running_child(index) {
                    let errors = std::mem::take(&mut self.steps[index].errors);
                    self.finish(index, join_errors(errors), now);
                }
            }
            Role::Try => self.finish(index, None, now),
            Role::Timeout { after, expired: true } => {
                let also = error.as_ref().and_then(StepError::reported).map(|reported| format!("; {reported}"));
                let text = format!("exceeded {} timeout{}", go_duration(*after), also.unwrap_or_default());
                let cause = error.and_then(|error| error.cause);
                self.finish(index, Some(StepError { why: Why::Message(text), cause }), now);
            }
            Role::Timeout { expired: false, .. } => self.finish(index, error, now),
            Role::Progress(messages) => {
                let text = match &error {
                    None => messages.success.clone(),
                    Some(_) if messages.failure_prefix.is_empty() => String::new(),
                    Some(error) => {
                        let reported = error.reported().map(|reported| format!(": {reported}"));
                        format!("{}{}", messages.failure_prefix, reported.unwrap_or_default())
                    }
                };
                push_message(&mut self.orders, messages, error.is_some(), &text);
                self.finish(index, error, now);
            }
            Role::Restart(_) => self.run_ended(index, error, now),
        }
    }

    fn has_running_child(&self, index: usize) -> bool {
        self.steps[index].children.iter().any(|child| self.is_running(*child))
    }
}

fn push_message(orders: &mut Vec<StepOrder>, messages: &Messages, failed: bool, text: &str) {
    if !text.is_empty() {
        let (log_source, text) = (messages.log_source.clone(), text.to_owned());
        orders.push(StepOrder::Say { log_source, failed, text });
    }
}

/// Returns the failure message for the exit of a process, in Diego's wording:
/// `APP: Exited with status 137 (out of memory)`. `None` for exit status 0.
pub fn exit_failure(log_source: &str, exit: Exit, out_of_memory: bool) -> Option<String> {
    let status = status_of(exit);
    if status == 0 {
        return None;
    }
    let source = if log_source.is_empty() { String::new() } else { format!("{log_source}: ") };
    let why = if out_of_memory { " (out of memory)" } else { "" };
    Some(format!("{source}Exited with status {status}{why}"))
}

/// Returns the log line about a process's exit, in Diego's wording: `Exit status 137 (out of memory)`. If the process
/// was killed after its grace period, `exceeded` is the grace period.
pub fn exit_line(exit: Exit, out_of_memory: bool, exceeded: Option<Duration>) -> String {
    let status = status_of(exit);
    let exceeded = exceeded
        .map_or_else(String::new, |grace| format!(" (exceeded {} graceful shutdown interval)", go_duration(grace)));
    let why = if out_of_memory && status != 0 { " (out of memory)" } else { "" };
    format!("Exit status {status}{exceeded}{why}")
}

fn status_of(exit: Exit) -> i32 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128 + signal,
    }
}

/// Formats a number of bytes as Cloud Foundry does: `0`, `512B`, `1.5K`, `12M`.
pub fn short_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    if bytes == 0 {
        return "0".to_owned();
    }
    let unit = (bytes.ilog2() / 10) as usize;
    // Tenths, rounded; in 128 bits, because ten times the largest size exceeds 64 bits.
    let tenths = (u128::from(bytes) * 10 + (1u128 << (10 * unit)) / 2) >> (10 * unit);
    let fraction = if tenths.is_multiple_of(10) { String::new() } else { format!(".{}", tenths % 10) };
    format!("{}{fraction}{}", tenths / 10, UNITS[unit])
}

/// Formats a duration in Go's notation, as Diego does: `500ms`, `1.5s`, `1m30s`, `1h0m0s`.
pub fn go_duration(duration: Duration) -> String {
    let fraction = |value: u128, unit: u128| -> String {
        let digits = unit.ilog10() as usize;
        let text = format!("{:0digits$}", value % unit);
        let text = text.trim_end_matches('0');
        if text.is_empty() { (value / unit).to_string() } else { format!("{}.{text}", value / unit) }
    };
    let nanos = duration.as_nanos();
    let seconds = duration.as_secs();
    let below_a_minute = format!("{}s", fraction(nanos % 60_000_000_000, 1_000_000_000));
    match (nanos, seconds) {
        (0, _) => "0s".to_owned(),
        (1..1_000, _) => format!("{nanos}ns"),
        (1_000..1_000_000, _) => format!("{}µs", fraction(nanos, 1_000)),
        (1_000_000..1_000_000_000, _) => format!("{}ms", fraction(nanos, 1_000_000)),
        (_, 0..60) => below_a_minute,
        (_, 60..3600) => format!("{}m{below_a_minute}", seconds / 60),
        _ => format!("{}h{}m{below_a_minute}", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
