//! Executes the orders of [`executor_core::steps`] for a tree of actions: starts and stops processes, wipes files and
//! writes to the log.
//!
//! The payload (arguments and environment) and the files of a step are stored in the container's volume. When the step
//! begins, the shim sends a copy of the payload in a memory file to the step starter ([`starter`]), with views of the
//! files that only the new process sees. The stored payload is wiped as soon as the program runs. The files are wiped
//! after the process has exited and before its exit is reported. If a restart policy may run the process again, payload
//! and files are kept until the last exit.

pub(crate) mod pause;
pub(crate) mod starter;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use executor_core::logline::Stream;
use executor_core::plan::{Actions, PlannedProcess};
use executor_core::record::{
    ContainerRecord, Exit, Failure, FailureKind, PreparedContainer, PreparedStep, RestartRecord, StepRecord,
};
use executor_core::steps::{RestartOutcome, RunEnd, StepOrder, Steps, Timer, TransferEnd, exit_line};
use executor_core::time::Timestamp;
use executor_secrets::volume::{Receipt, Volume};
use executor_sys::memfile::MemFile;
use executor_sys::{clock, process};

use super::output::container_log::Log;
use super::steps::starter::{Starter, StarterEvent};
use super::{Ready, save};
use crate::cgroup::part_of;
use crate::errors::plain;
use crate::finish::{SHIM, now};
use crate::host::Host;
use crate::log::{self, Level};
use crate::seccomp::Filter;
use crate::signals::ends_without_handler;

/// Error message of a step that was not started because the step starter has exited.
const NO_STARTER: &str = "the step starter has exited";

/// Time limit for leftover processes to exit after SIGKILL, before a restart.
const LEFTOVERS_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct RunningSteps {
    steps: Steps,
    /// `None` after the step starter has exited.
    starter: Option<Starter>,
    /// Processes, by index, whose start was ordered and that have not exited.
    processes: BTreeMap<usize, StepProcess>,
    /// Processes that have exited and whose secrets have not been wiped yet.
    ended: BTreeSet<usize>,
    /// Completed transfers whose URLs have not been wiped yet.
    ended_transfers: BTreeSet<usize>,
    timers: Vec<(Instant, Timer)>,
    /// Time between the stop signal and SIGKILL.
    grace: Duration,
    /// Stop signal for cancelled processes.
    stop_signal: i32,
    /// Number of OOM kills that were already reported, by cgroup.
    oom_kills: BTreeMap<PathBuf, u64>,
}

struct StepProcess {
    /// Pid and pidfd. `None` until the process is in the container.
    pid: Option<(i32, OwnedFd)>,
    /// Copy of the payload. `None` after the program was executed.
    payload: Option<MemFile>,
    /// True after the process has executed its program.
    runs: bool,
    cancelled: bool,
    /// True if the process was sent the stop signal, or its grace period is zero.
    is_stopping: bool,
    /// Time at which the process is sent SIGKILL.
    kill_at: Option<Instant>,
    /// True if the process was sent SIGKILL at the end of its grace period.
    killed: bool,
}

impl RunningSteps {
    /// Creates the steps and forks the step starter.
    ///
    /// # Errors
    /// Returns an error if the step starter cannot be forked.
    pub(super) fn prepare(
        host: &Host,
        filter: &Arc<Filter>,
        record: &ContainerRecord,
        prepared: &PreparedContainer,
        actions: &Actions,
        init: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        Ok(Self {
            steps: Steps::new(actions, &record.plan.processes, &record.plan.transfers),
            starter: Some(Starter::fork(host, filter, record, prepared, init)?),
            processes: BTreeMap::new(),
            ended: BTreeSet::new(),
            ended_transfers: BTreeSet::new(),
            timers: Vec::new(),
            grace: record.plan.grace,
            stop_signal: record.plan.stop_signal.cast_signed(),
            oom_kills: BTreeMap::new(),
        })
    }

    pub(super) fn records(&self) -> Vec<StepRecord> {
        self.steps.records()
    }

    /// Returns the record of restarts, if there is a restart policy.
    pub(super) fn restarts(&self) -> Option<&RestartRecord> {
        self.steps.restarts()
    }

    /// Returns the descriptor on which messages of the step starter arrive.
    pub(super) fn starter_fd(&self) -> Option<BorrowedFd<'_>> {
        self.starter.as_ref().map(Starter::as_fd)
    }

    /// Records that the shim has reaped a child.
    pub(super) fn record_reaped(&mut self, pid: i32) {
        if let Some(starter) = &mut self.starter {
            starter.record_reaped(pid);
        }
    }

    /// Returns the next deadline.
    pub(super) fn due(&self) -> Option<Instant> {
        let kills = self.processes.values().filter_map(|process| process.kill_at);
        kills.chain(self.timers.iter().map(|(at, _)| *at)).min()
    }

    /// Returns true if the start of a process was ordered and the process has not executed its program yet.
    pub(super) fn is_starting(&self) -> bool {
        self.processes.values().any(|process| !process.runs)
    }

    /// Delays all timers by the duration of a pause.
    pub(super) fn delay(&mut self, time: Duration) {
        self.timers.iter_mut().for_each(|(at, _)| *at += time);
    }

    /// Signals the running process with this id or, without an id, all running processes. Returns true if a process was
    /// signaled.
    pub(super) fn signal(&self, processes: &[PlannedProcess], id: Option<&str>, signal: i32) -> bool {
        let named = |index: usize| id.is_none_or(|id| processes.get(index).is_some_and(|process| process.id == id));
        let mut found = false;
        for (_, process) in self.processes.iter().filter(|(index, process)| process.runs && named(**index)) {
            process.signal(signal);
            found = true;
        }
        found
    }

    /// Returns the exit status and the failure of the container. Returns `None` until the tree is complete and all its
    /// processes have exited.
    pub(super) fn conclusion(&self) -> Option<(Option<Exit>, Option<Failure>)> {
        let conclusion = self.steps.conclusion().filter(|_| self.processes.is_empty())?;
        let failure = |message| Failure { kind: FailureKind::Action, message, errno: conclusion.errno };
        Some((conclusion.exit, conclusion.failure.map(failure)))
    }

    pub(super) fn kill_starter(&mut self) {
        if let Some(starter) = self.starter.take() {
            starter.kill();
        }
    }
}

impl StepProcess {
    fn signal(&self, signal: i32) {
        if let Some((_, pidfd)) = &self.pid {
            let _ = process::pidfd_signal(pidfd.as_fd(), signal); // the process may have exited
        }
    }

    /// Kills the process and its process group.
    fn kill(&mut self) {
        self.killed = self.is_stopping;
        self.signal(libc::SIGKILL);
        if let Some((pid, pidfd)) = &self.pid {
            let _ = process::kill_group(pidfd.as_fd(), *pid); // best effort
        }
    }

    /// Sends the stop signal and sets the time of SIGKILL. If the grace period is zero, only SIGKILL is sent.
    fn stop_with(&mut self, signal: i32, grace: Duration) {
        self.is_stopping = true;
        if grace.is_zero() {
            self.kill_at = Some(Instant::now());
        } else {
            self.signal(signal);
            self.kill_at = Some(Instant::now() + grace);
        }
    }
}

/// The container's state that steps use and change, without the steps themselves.
struct StepContext<'a> {
    host: &'a Host,
    record: &'a ContainerRecord,
    log: &'a mut Log,
    volume: Option<&'a Volume>,
    wiped: &'a mut Receipt,
}

impl Ready {
    /// Starts the tree of actions.
    pub(super) fn start_steps(&mut self, host: &Host) {
        self.drive(host, |running, _| running.steps.start(now()));
    }

    /// Handles the messages of the step starter.
    pub(super) fn handle_starter_events(&mut self, host: &Host) {
        loop {
            let Some(running) = &mut self.steps else { return };
            match running.starter.as_ref().map(Starter::recv) {
                Some(Ok(Some((event, fd)))) => self.drive(host, |running, site| running.handle(event, fd, site)),
                Some(Ok(None)) | None => return,
                Some(Err(error)) => {
                    let id = self.record.plan.id.as_str();
                    log::line(Level::Error, id, format_args!("{NO_STARTER}: {error}"));
                    running.kill_starter();
                    return self.abandon_steps(host);
                }
            }
        }
    }

    /// Completes all steps in the record: running processes are recorded as killed, because their exit statuses are
    /// unknown, and running transfers as failed.
    pub(super) fn abandon_steps(&mut self, host: &Host) {
        self.drive(host, |running, _| {
            running.steps.forbid_restarts(now());
            Vec::new()
        });
        while let Some(process) = self.steps.as_ref().and_then(|running| running.processes.keys().next().copied()) {
            self.drive(host, |running, site| running.ended(process, Exit::Signal(libc::SIGKILL), site));
        }
        let transfers = 0..self.record.plan.transfers.len();
        let runs = |ready: &Self, index: &usize| {
            ready.steps.as_ref().is_some_and(|steps| steps.transfer_began(*index).is_some())
        };
        while let Some(transfer) = transfers.clone().find(|index| runs(self, index)) {
            let end = TransferEnd::Failed("the container has exited".into());
            self.finish_transfer(host, transfer, end);
        }
    }

    /// Handles expired timers of steps, and kills processes whose grace period has ended.
    pub(super) fn handle_step_timers(&mut self, host: &Host) {
        let (now, at) = (Instant::now(), now());
        let Some(running) = &mut self.steps else { return };
        for process in running.processes.values_mut().filter(|process| process.kill_at.is_some_and(|at| at <= now)) {
            // A process that is still being created is killed later, when it is in the container.
            if process.pid.is_some() {
                process.kill_at = None;
                process.kill();
            }
        }
        let (due, later) = running.timers.drain(..).partition::<Vec<_>, _>(|(at, _)| *at <= now);
        running.timers = later;
        for (_, timer) in due {
            self.drive(host, |running, _| running.steps.expired(timer, at));
        }
    }

    /// Stops the current run as a failure with this reason, so that the action runs again. Returns true if the restart
    /// policy permits another run.
    pub(super) fn run_again_for(&mut self, host: &Host, reason: &str) -> bool {
        let mut permitted = false;
        self.drive(host, |running, _| {
            let asked = running.steps.run_again_for(reason.to_owned(), now());
            permitted = asked != RestartOutcome::NotPermitted;
            if let RestartOutcome::Follows(orders) = asked { orders } else { Vec::new() }
        });
        permitted
    }

    /// Cancels the tree. Only the first call sends the signal; later calls can only shorten the grace period.
    pub(super) fn cancel_steps(&mut self, host: &Host, grace: Duration, signal: Option<i32>) {
        let Some(running) = &mut self.steps else { return };
        running.stop_signal = signal.unwrap_or(running.stop_signal);
        running.grace = grace;
        let at = Instant::now() + grace;
        for process in running.processes.values_mut() {
            process.kill_at = process.kill_at.map(|earlier| earlier.min(at));
        }
        self.drive(host, |running, _| running.steps.cancel(now()));
    }

    /// Handles the completion or cancellation of a transfer.
    pub(super) fn finish_transfer(&mut self, host: &Host, transfer: usize, end: TransferEnd) {
        self.drive(host, |running, site| running.transferred(transfer, end, site));
    }

    /// Applies an event to the steps, and executes the resulting orders.
    fn drive(&mut self, host: &Host, happen: impl FnOnce(&mut RunningSteps, &mut StepContext<'_>) -> Vec<StepOrder>) {
        let Some(running) = &mut self.steps else { return };
        let mut site = StepContext {
            host,
            record: &self.record,
            log: &mut self.log,
            volume: self.remains.volumes.first(),
            wiped: &mut self.remains.rotated.wiped,
        };
        running.steps.set_uptime(clock::uptime());
        let mut orders = happen(running, &mut site);
        running.wipe_done(&mut site);
        while !orders.is_empty() {
            orders = orders.into_iter().flat_map(|order| running.execute(order, &mut site)).collect();
            running.wipe_done(&mut site);
        }
        let (steps, restarts) = (running.steps.records(), running.steps.restarts().cloned());
        if steps != self.record.steps || restarts != self.record.restarts {
            (self.record.steps, self.record.restarts) = (steps, restarts);
            save(self);
        }
    }
}

impl RunningSteps {
    fn execute(&mut self, order: StepOrder, site: &mut StepContext<'_>) -> Vec<StepOrder> {
        match order {
            StepOrder::Start(index) => match self.start(index, site) {
                Ok(payload) => {
                    let process = StepProcess {
                        pid: None,
                        payload: Some(payload),
                        runs: false,
                        cancelled: false,
                        is_stopping: false,
                        kill_at: None,
                        killed: false,
                    };
                    self.processes.insert(index, process);
                }
                Err(error) => return self.not_started(index, &plain(&error), 0, site),
            },
            StepOrder::Cancel(index) => {
                if let Some(process) = self.processes.get_mut(&index) {
                    process.cancelled = true;
                    if process.runs {
                        process.stop_with(self.stop_signal, self.grace);
                    }
                }
            }
            // executord sees the order in the record and starts the transfer.
            StepOrder::Transfer(_) => {}
            // executord sees the order in the record and cancels the transfer.
            StepOrder::CancelTransfer(transfer) => return self.transferred(transfer, TransferEnd::Cancelled, site),
            StepOrder::Expire(timer, after) => self.timers.push((Instant::now() + after, timer)),
            StepOrder::Clear(text) => {
                site.log.executor_message(&text);
                let (record, hierarchies) = (site.record, &site.host.hierarchies);
                let init = record.prepared.as_ref().map_or(0, |prepared| prepared.init.pid);
                if let Err(error) = hierarchies.kill_all_but(init, &record.cgroup, LEFTOVERS_EXIT_TIMEOUT) {
                    log::line(
                        Level::Warning,
                        record.plan.id.as_str(),
                        format_args!("cannot kill leftover processes before a restart: {error}"),
                    );
                }
            }
            StepOrder::Say { log_source, failed, text } => {
                let stream = if failed { Stream::Stderr } else { Stream::Stdout };
                site.log.write_message(stream, &log_source, &text);
            }
        }
        Vec::new()
    }

    /// Returns the time at which a running transfer began.
    pub(super) fn transfer_began(&self, transfer: usize) -> Option<Timestamp> {
        self.steps.transfer_began(transfer)
    }

    /// Continues the tree after a transfer has completed, failed or been cancelled. Does nothing if the transfer does
    /// not run.
    fn transferred(&mut self, transfer: usize, end: TransferEnd, site: &StepContext<'_>) -> Vec<StepOrder> {
        if self.transfer_began(transfer).is_none() {
            return Vec::new();
        }
        self.ended_transfers.insert(transfer);
        let end = match end {
            TransferEnd::Failed(why) => TransferEnd::Failed(site.log.masked(&why)),
            end => end,
        };
        self.steps.transferred(transfer, end, now())
    }

    /// Sends the command to start a process. Returns the copy of its payload, which must be wiped when the program
    /// runs.
    fn start(&self, index: usize, site: &mut StepContext<'_>) -> io::Result<MemFile> {
        let missing = || io::Error::other(format!("the container has no process {index}"));
        let plan = site.record.plan.processes.get(index).ok_or_else(missing)?;
        let prepared = site.record.prepared.as_ref().and_then(|prepared| prepared.steps.get(index));
        let PreparedStep { user, mounts, .. } = prepared.ok_or_else(missing)?;
        let volume = site.volume.ok_or_else(missing)?;
        let starter = self.starter.as_ref().ok_or_else(|| io::Error::other(NO_STARTER))?;
        let views = volume.step_views(index, mounts.len())?;
        let ids = site.record.id_map();
        let stdio = site.log.step_stdio(index, plan, (ids.to_host(user.uid), ids.to_host(user.gid)))?;
        let stored = volume.step_payload(index)?;
        let mut payload = MemFile::create("executor-step", stored.len())?;
        let mut read = Ok(());
        payload.fill(|bytes| read = stored.read_into(bytes))?;
        match read.and_then(|()| starter.start(index, &payload, &stdio, &views)) {
            Ok(()) => Ok(payload),
            Err(error) => {
                wipe(&payload, site.record);
                Err(error)
            }
        }
    }

    fn handle(&mut self, event: StarterEvent, fd: Option<OwnedFd>, site: &mut StepContext<'_>) -> Vec<StepOrder> {
        match event {
            StarterEvent::Made { process: index, pid } => {
                let (signal, grace) = (self.stop_signal, self.grace);
                if let (Some(process), Some(pidfd)) = (self.processes.get_mut(&index), fd) {
                    process.pid = Some((pid, pidfd));
                    if process.cancelled && ends_without_handler(signal) {
                        process.stop_with(signal, grace);
                    } else if process.cancelled {
                        // The program may handle this signal, but is not executed yet, and by default the signal does
                        // not terminate a process. Kill the process, unless the next message reports that the program
                        // runs.
                        process.kill_at = Some(Instant::now());
                    }
                }
                Vec::new()
            }
            StarterEvent::Started { process: index } => {
                self.wipe_copy(index, site);
                if self.steps.is_last_run(index) {
                    Self::wipe_payload(index, site);
                }
                let (signal, grace) = (self.stop_signal, self.grace);
                if let Some(process) = self.processes.get_mut(&index) {
                    process.runs = true;
                    let pid = process.pid.as_ref().map_or(0, |(pid, _)| *pid);
                    self.steps.started(index, pid, now());
                    // The process was cancelled while it was being created.
                    if process.cancelled && !process.is_stopping {
                        process.stop_with(signal, grace);
                    }
                }
                Vec::new()
            }
            StarterEvent::NotStarted { process, why, errno } => self.not_started(process, &why, errno, site),
            StarterEvent::Ended { process, exit } => self.ended(process, exit, site),
        }
    }

    fn ended(&mut self, index: usize, exit: Exit, site: &mut StepContext<'_>) -> Vec<StepOrder> {
        self.wipe_copy(index, site);
        let killed = self.processes.remove(&index).is_some_and(|process| process.killed);
        site.log.drain(index);
        self.ended.insert(index);
        let actions = site.record.plan.actions.as_ref();
        let sidecar = actions.and_then(|actions| actions.limited_sidecar_of(index));
        let cgroup =
            sidecar.map_or_else(|| site.record.cgroup.clone(), |sidecar| part_of(&site.record.cgroup, sidecar));
        let oom_kills = site.host.hierarchies.own_oom_kills(&cgroup);
        let out_of_memory = oom_kills > self.oom_kills.insert(cgroup, oom_kills).unwrap_or(0);
        if let Some(process) = site.record.plan.processes.get(index) {
            let exceeded = killed.then_some(self.grace);
            site.log.log_exit(&site.record.plan, process, &exit_line(exit, out_of_memory, exceeded));
        }
        self.steps.ended(index, RunEnd::Exited { exit, out_of_memory, killed }, now())
    }

    fn not_started(&mut self, index: usize, why: &str, errno: i32, site: &mut StepContext<'_>) -> Vec<StepOrder> {
        self.wipe_copy(index, site);
        self.processes.remove(&index);
        self.ended.insert(index);
        site.log.executor_message(why);
        let why = site.log.masked(why);
        self.steps.ended(index, RunEnd::NotStarted { why, errno }, now())
    }

    /// Wipes the secrets of processes that will not run again, and the URLs of transfers that will not start again.
    fn wipe_done(&mut self, site: &mut StepContext<'_>) {
        let (done, ended) = std::mem::take(&mut self.ended).into_iter().partition(|index| self.steps.is_done(*index));
        self.ended = ended;
        for index in done {
            Self::wipe_payload(index, site);
            self.wipe_files(index, site);
        }
        let (done, ended) =
            std::mem::take(&mut self.ended_transfers).into_iter().partition(|it| self.steps.is_transfer_done(*it));
        self.ended_transfers = ended;
        done.into_iter().for_each(|transfer| Self::wipe_url(transfer, site));
    }

    fn wipe_url(transfer: usize, site: &StepContext<'_>) {
        let number = site.record.plan.processes.len() + transfer;
        if let Some(Err(error)) = site.volume.map(|volume| volume.wipe_step(number, &mut Receipt::default())) {
            let id = site.record.plan.id.as_str();
            log::line(Level::Error, id, format_args!("the URL of a transfer was not wiped: {error}"));
        }
    }

    /// Wipes the copy of a payload that was made for the step starter.
    fn wipe_copy(&mut self, index: usize, site: &StepContext<'_>) {
        if let Some(payload) = self.processes.get_mut(&index).and_then(|process| process.payload.take()) {
            wipe(&payload, site.record);
        }
    }

    /// Wipes the payload of a process in the volume.
    fn wipe_payload(index: usize, site: &StepContext<'_>) {
        if let Some(Err(error)) = site.volume.map(|volume| volume.wipe_step_payload(index)) {
            let id = site.record.plan.id.as_str();
            log::line(Level::Error, id, format_args!("a start payload was not wiped: {error}"));
        }
    }

    /// Wipes the secret files of a process.
    fn wipe_files(&mut self, index: usize, site: &mut StepContext<'_>) {
        let files = site.record.plan.processes.get(index).map_or(0, |process| process.files.len());
        let Some(volume) = site.volume else { return };
        let mut receipt = Receipt::default();
        match volume.wipe_step(index, &mut receipt) {
            Ok(()) if files > 0 => self.steps.wiped(index, receipt.record(SHIM, now())),
            Ok(()) => {}
            Err(error) => {
                let id = site.record.plan.id.as_str();
                log::line(Level::Error, id, format_args!("the files of a step were not wiped: {error}"));
            }
        }
        *site.wiped = std::mem::take(site.wiped).and(receipt);
    }
}

fn wipe(payload: &MemFile, record: &ContainerRecord) {
    if let Err(error) = payload.wipe() {
        log::line(Level::Error, record.plan.id.as_str(), format_args!("a start payload was not wiped: {error}"));
    }
}
