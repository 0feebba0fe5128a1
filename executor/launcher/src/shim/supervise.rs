//! Supervises a running container until its process exits: copies its output to the log and executes commands.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use executor_core::lifecycle::State;
use executor_core::limits::SIGNAL_MAX;
use executor_core::plan::MAIN_PROCESS;
use executor_core::protocol::{Reason, Refused, Signal};
use executor_core::record::{Exit, Failure, FailureKind, RestartRecord, StepRecord};
use executor_core::usage::Usage;
use executor_sys::events::Events;
use executor_sys::process::{self, SignalEvents};
use executor_sys::ready::readable_by;

use super::files::update;
use super::running::checks;
use super::running::control::{AnswerPayload, Command, Control};
use super::running::disclosure;
use super::running::egress;
use super::running::layer_size::LayerSize;
use super::running::limits;
use super::running::transfers;
use super::running::usage;
use super::steps::RunningSteps;
use super::steps::pause;
use super::{Ready, save, shrink};
use crate::finish::now;
use crate::host::Host;
use crate::log::{self, Level};
use crate::signals::{ends_without_handler, has_default_action};

/// Maximum duration of a single wait, so that a wrong deadline cannot block the loop forever.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Run time after which the shim returns unused memory, because the container is probably long-lived.
const SHRINK_DELAY: Duration = Duration::from_millis(50);
/// Time limit for steps to exit after SIGKILL.
const STEPS_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the exit of the first process of a joined PID namespace, after this container's init was killed.
const TARGET_EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Events of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    InitEnded,
    /// A signal arrived: SIGCHLD after the exit of a child, or SIGTERM or SIGINT at host shutdown.
    Signal,
    /// Output of the process is readable.
    Output,
    /// The daemon or the launcher sent a message or connects.
    Control,
    /// An attached client is readable or writable, or has disconnected.
    Client,
    /// The step starter sent a message.
    Steps,
}

/// Exit of a container's process, or result of its tree of actions: the exit status and the failure, if known.
pub(super) type SupervisionEnd = (Option<Exit>, Option<Failure>);

/// Runs until the container's processes have exited and all their output was read. Returns the exit and, if the
/// container was stopped, the time at which the grace period ends.
pub(super) fn run_to_exit(
    host: &Host,
    ready: &mut Ready,
    control: &mut Control,
    signals: &SignalEvents,
) -> (SupervisionEnd, Option<Instant>) {
    let mut kill_at: Option<Instant> = None;
    let mut stop_at: Option<Instant> = None;
    let mut shrink_at = Some(Instant::now() + SHRINK_DELAY);
    let (mut ending, mut late, mut reported) = (false, false, (Vec::new(), None));
    ready.start_steps(host);
    loop {
        let events = wait(ready, control, signals, [kill_at, shrink_at]);
        let has = |event| events.contains(&event);
        if shrink_at.is_some_and(|at| at <= Instant::now()) && !has(Event::InitEnded) {
            shrink(&ready.watch, ready.record.plan.id.as_str());
            shrink_at = None;
        }
        if has(Event::Signal) {
            while let Ok(Some(signal)) = signals.next() {
                if signal == libc::SIGTERM || signal == libc::SIGINT {
                    // A signal to the shim means host shutdown; stop the container gracefully.
                    let grace = ready.record.plan.grace;
                    stop(host, ready, control, (grace, 0), &mut kill_at);
                }
            }
            reap_children(ready);
        }
        if has(Event::Control) {
            for asked in control.read() {
                let (command, answer) = asked.split();
                let result = execute(host, command, ready, control, &mut kill_at);
                control.answer(&answer, result);
            }
        }
        control.remove_closed();
        if !late {
            stop_at = kill_at.or(stop_at);
        }
        if has(Event::Output) {
            ready.log.pump();
        }
        ready.log.flush_idle();
        if update::warn(&mut ready.record, &ready.log.new_masking_warnings()) {
            save(ready);
            control.report_state(ready.record.state);
        }
        if has(Event::Client) || ready.log.clients_due().is_some_and(|at| at <= Instant::now()) {
            ready.log.poll_clients();
        }
        update::wipe_due(ready);
        if ready.paused.is_none() {
            if has(Event::Steps) {
                ready.handle_starter_events(host);
            }
            ready.handle_step_timers(host);
        }
        report_steps(ready, control, &mut reported);
        if !ending && ready.steps.as_ref().is_some_and(|steps| steps.conclusion().is_some()) {
            // The kernel kills leftover processes when init exits.
            signal_init(ready, libc::SIGKILL);
            ending = true;
        }
        if kill_at.is_some_and(|at| Instant::now() >= at) {
            // Each step was sent SIGKILL individually. If a step does not exit, kill the container.
            let waits = ready.steps.is_some() && !late;
            if !waits {
                signal_init(ready, libc::SIGKILL);
            }
            kill_at = waits.then(|| Instant::now() + STEPS_EXIT_TIMEOUT);
            late = true;
        }
        if has(Event::InitEnded) {
            break;
        }
    }
    ready.layer_size = LayerSize::default(); // closes the directories of the layer
    if let Some(steps) = &mut ready.steps {
        steps.kill_starter();
        ready.abandon_steps(host);
    }
    if !ready.record.plan.owns_processes() {
        // The container has no pid namespace of its own, so its other processes survive init. Kill them before the
        // secrets are wiped.
        if let Err(error) = host.hierarchies.kill_all(&ready.record.cgroup, STEPS_EXIT_TIMEOUT) {
            log::line(
                Level::Error,
                ready.record.plan.id.as_str(),
                format_args!("the processes of the container were not killed: {error}"),
            );
        }
    }
    ready.log.pump_rest();
    let exit = match process::wait_for(ready.container.pid()) {
        Ok(ended) => ended.into(),
        Err(error) => {
            log::line(Level::Error, ready.record.plan.id.as_str(), format_args!("init was not reaped: {error}"));
            Exit::Signal(libc::SIGKILL)
        }
    };
    let end = match &ready.steps {
        None => (Some(exit), target_failure(ready, exit)),
        Some(steps) => {
            let (exit, failure) = steps.conclusion().unwrap_or_default();
            let masked = |failure: Failure| Failure { message: ready.log.masked(&failure.message), ..failure };
            (exit, failure.map(masked))
        }
    };
    (end, stop_at)
}

/// Returns the failure of a container that was killed because the first process of the joined PID namespace exited.
/// Call this after the container's init was reaped: the kernel completes the exit of the first process only after all
/// other processes of the namespace were reaped.
fn target_failure(ready: &Ready, exit: Exit) -> Option<Failure> {
    let (target, id) = ready.target.as_ref().zip(ready.record.plan.isolation.pid_of.as_ref())?;
    let was_killed = exit == Exit::Signal(libc::SIGKILL) && !ready.record.stopped;
    if !was_killed || !readable_by(target, Instant::now() + TARGET_EXIT_TIMEOUT).unwrap_or(false) {
        return None;
    }
    let message = format!("container {id} has exited; this container had joined its PID namespace (pid_of)");
    Some(Failure { kind: FailureKind::TargetEnded, message, errno: 0 })
}

/// Reaps all children except init. If the step starter was killed, its children become children of the shim, and the
/// kernel destroys the container's pid namespace only after all of them are reaped.
pub(super) fn reap_children(ready: &mut Ready) {
    while let Ok(Some((pid, _))) = process::reap_one(|pid| pid == ready.container.pid()) {
        if let Some(steps) = &mut ready.steps {
            steps.record_reaped(pid);
        }
    }
}

/// Waits for an event or the next deadline.
fn wait(ready: &Ready, control: &Control, signals: &SignalEvents, due: [Option<Instant>; 2]) -> Vec<Event> {
    let mut events = Events::default();
    events.read(ready.container.pidfd().as_fd(), Event::InitEnded);
    events.read(signals.as_fd(), Event::Signal);
    // While the container is paused, nothing is started and no timer of a step expires.
    let steps = ready.steps.as_ref().filter(|_| ready.paused.is_none());
    if let Some(starter) = steps.and_then(RunningSteps::starter_fd) {
        events.read(starter, Event::Steps);
    }
    ready.log.register_output(&mut events, Event::Output);
    control.register(&mut events, Event::Control);
    ready.log.register_clients(&mut events, Event::Client);
    let steps_due = steps.and_then(RunningSteps::due);
    let own = [ready.log.flush_at(), ready.log.clients_due(), ready.generations.due(), steps_due];
    events.due(due.into_iter().chain(own).flatten().chain([Instant::now() + WAIT_MAX]));
    control.heartbeat().rest();
    let ready = events.wait();
    control.heartbeat().turn();
    ready.unwrap_or_default() // the next iteration waits again
}

fn execute(
    host: &Host,
    command: Command,
    ready: &mut Ready,
    control: &mut Control,
    kill_at: &mut Option<Instant>,
) -> Result<Option<AnswerPayload>, Refused> {
    match command {
        Command::ReadSecrets(asked) => {
            let volume = ready.remains.volumes.first();
            disclosure::answer(&asked, ready.token.as_ref(), &ready.record, volume)
                .map(|file| Some(AnswerPayload::Secrets(file)))
        }
        Command::ReadUsage(asked) => {
            let usage = if asked.log_only {
                Some(Usage { at: now().0, ..Usage::default() })
            } else {
                let layer = ready.layer_size.read(&ready.remains.dirs.layers().0);
                usage::read(host, &ready.record.cgroup, &ready.interfaces).map(|usage| Usage { layer, ..usage })
            };
            let usage = usage.map(|usage| Usage { log: Some(ready.log.usage()), ..usage });
            let gone =
                || Refused::new(Reason::Precondition, "the container is exiting, and its cgroup no longer exists");
            usage.map(|usage| Some(AnswerPayload::Usage(usage))).ok_or_else(gone)
        }
        Command::Attach(asked, fds) => ready.log.take_client(&asked, fds).map(|()| None),
        Command::MakeSocket(asked) => checks::socket(&asked, host, ready).map(Some),
        Command::ReadTransfer(asked) => transfers::url(&asked, ready).map(|file| Some(AnswerPayload::Secrets(file))),
        Command::EndTransfer(asked) => transfers::finish(host, asked, ready).map(|()| None),
        Command::LimitWorker(worker) => transfers::limit(host, &worker, ready).map(|()| None),
        Command::NoteHealth(asked) => checks::log_health(asked, ready).map(|()| None),
        Command::EndUnhealthy(_) if ready.paused.is_some() => {
            let why = format!("container {} is paused: its checks are suspended", ready.record.plan.id);
            Err(Refused::new(Reason::Precondition, why))
        }
        Command::EndUnhealthy(asked) => {
            if checks::stop_unhealthy(&asked, host, ready)? {
                let grace = ready.record.plan.grace;
                terminate(host, ready, control, (grace, 0), kill_at);
            }
            Ok(None)
        }
        // An earlier request has started the process, and its reply may have been lost.
        Command::Start => Ok(None),
        Command::Stop(asked) => {
            if asked.signal != 0 {
                check_signal(asked.signal)?;
            }
            stop(host, ready, control, (Duration::from_millis(asked.grace_ms), asked.signal), kill_at);
            Ok(None)
        }
        Command::Signal(Signal { process_id, signal }) => {
            check_signal(signal)?;
            if ready.paused.is_some() && signal == libc::SIGCONT {
                let why =
                    format!("container {} is paused: SIGCONT would resume some of its processes", ready.record.plan.id);
                return Err(Refused::new(Reason::Precondition, why));
            }
            signal_process(ready, &process_id, signal)?;
            Ok(None)
        }
        Command::UpdateEgress(fds) => {
            control.heartbeat().start(egress::APPLY_TIMEOUT);
            egress::execute(host, ready, fds)?;
            // Report before the reply, so that the daemon reads the new record first.
            control.report_state(ready.record.state);
            Ok(None)
        }
        Command::UpdateLimits(update) => {
            limits::update(host, ready, &update)?;
            control.report_state(ready.record.state);
            Ok(None)
        }
        Command::ReopenLog => ready.log.reopen_file(host).map(|()| None),
        Command::Pause => {
            control.heartbeat().start(pause::SUSPEND_TIMEOUT);
            ready.pause(host)?;
            control.report_state(ready.record.state);
            Ok(None)
        }
        Command::Resume => {
            ready.resume(host);
            control.report_state(ready.record.state);
            Ok(None)
        }
        Command::UpdateFiles(update) => {
            let signal = update.signal;
            update::execute(host, ready, update)?;
            // Report before the reply, so that the daemon reads the new record first.
            control.report_state(ready.record.state);
            if signal != 0 {
                let _ = signal_process(ready, MAIN_PROCESS, signal); // the process may not run
            }
            Ok(None)
        }
    }
}

/// Returns a refusal if the number is not a signal.
fn check_signal(signal: i32) -> Result<(), Refused> {
    if u32::try_from(signal).is_ok_and(|number| (1..=SIGNAL_MAX).contains(&number)) {
        return Ok(());
    }
    Err(Refused::new(Reason::Invalid, format!("signal {signal} is invalid; use 1 to {SIGNAL_MAX}")))
}

/// Stops the container on behalf of a client or at host shutdown, and records that the container was stopped.
fn stop(host: &Host, ready: &mut Ready, control: &mut Control, by: (Duration, i32), kill_at: &mut Option<Instant>) {
    ready.record.stopped |= ready.record.state < State::Stopping;
    terminate(host, ready, control, by, kill_at);
}

/// Stops the container: sends `signal` now and SIGKILL after the grace period. If `signal` is 0, sends the container's
/// own stop signal. A second stop sends no signal and can only shorten the grace period.
fn terminate(
    host: &Host,
    ready: &mut Ready,
    control: &mut Control,
    (grace, signal): (Duration, i32),
    kill_at: &mut Option<Instant>,
) {
    ready.resume(host);
    let at = Instant::now() + grace;
    *kill_at = Some(kill_at.map_or(at, |earlier| earlier.min(at)));
    let first = ready.record.state < State::Stopping;
    if first {
        ready.record.state = State::Stopping;
        save(ready);
        control.report_state(State::Stopping);
    }
    let asked = if signal == 0 { ready.record.plan.stop_signal.cast_signed() } else { signal };
    ready.cancel_steps(host, grace, first.then_some(asked));
    if first && !grace.is_zero() && ready.steps.is_none() {
        signal_init(ready, if kernel_drops_signal(host, ready, asked) { libc::SIGKILL } else { asked });
    }
}

/// Returns true if init is the container's only process and this signal would terminate a normal process, but not init.
///
/// The kernel drops a signal for the first process of a pid namespace if that process has no handler, so the container
/// would not exit within the grace period.
fn kernel_drops_signal(host: &Host, ready: &Ready, signal: i32) -> bool {
    let alone = ready.record.plan.owns_processes() && host.hierarchies.pids(&ready.record.cgroup).len() == 1;
    let status = std::fs::read_to_string(format!("/proc/{}/status", ready.container.pid())).unwrap_or_default();
    alone && ends_without_handler(signal) && has_default_action(&status, signal)
}

/// Signals the process of the container with this id. In a tree of actions, [`MAIN_PROCESS`] means all running
/// processes.
fn signal_process(ready: &Ready, id: &str, signal: i32) -> Result<(), Refused> {
    let is_main = id == MAIN_PROCESS;
    let found = match &ready.steps {
        None => {
            if is_main {
                signal_init(ready, signal);
            }
            is_main
        }
        Some(steps) => steps.signal(&ready.record.plan.processes, (!is_main).then_some(id), signal) || is_main,
    };
    let why = || format!("the container has no running process `{id}`");
    if found { Ok(()) } else { Err(Refused::new(Reason::NotFound, why())) }
}

/// Reports the state after a step has started or exited or a restart was scheduled, so that the daemon reads the
/// record.
fn report_steps(ready: &Ready, control: &mut Control, reported: &mut (Vec<StepRecord>, Option<RestartRecord>)) {
    if (&ready.record.steps, &ready.record.restarts) != (&reported.0, &reported.1) {
        *reported = (ready.record.steps.clone(), ready.record.restarts.clone());
        control.report_state(ready.record.state);
    }
}

fn signal_init(ready: &Ready, signal: i32) {
    if let Err(error) = process::pidfd_signal(ready.container.pidfd().as_fd(), signal) {
        log::line(
            Level::Warning,
            ready.record.plan.id.as_str(),
            format_args!("cannot send signal {signal} to init: {error}"),
        );
    }
}
