//! Runs the shim: one process for each container, from its creation to its exit record.
//!
//! ```text
//! fork from the launcher, or a warm container                                      (warm.rs, init/activation.rs)
//!   prepare    creates mount namespace, directories and rootfs; resolves users        (setup/prepare.rs)
//!   create     creates the cgroup, and through libcontainer an init that waits        (init/create.rs)
//!   inject     a helper in the container's cgroup writes and mounts the secret files  (files/inject.rs)
//!   hold       if requested, waits for a separate start                               (hold.rs)
//!   start      init receives its payload and executes the program                     (init/last_steps.rs)
//!   supervise  copies output to the log, executes commands, waits for the exit        (supervise.rs, output/)
//!              runs the steps of a tree of actions                                    (steps.rs, steps/)
//!              replaces secret files, limits and egress rules                         (files/update.rs, running/)
//!   capture    copies the declared outputs into the state directory                   (end/outputs.rs)
//!   finish     wipes secrets and kills leftover processes                             (../finish.rs)
//!              sends the last output to attached clients                              (end/drain.rs)
//!              writes the exit record and reports the exit                            (../finish.rs)
//!   leave      removes cgroup, mounts, layer, directories                             (../finish.rs)
//! ```
//! A shim is forked from a process that has never mapped a secret. Arguments, environment and file contents arrive in
//! memory files, which the shim does not map before it has cloned init, so that init inherits no secret. If output is
//! masked, the shim then keeps the masked values in memory until the exit.

mod end;
mod files;
mod hold;
mod init;
mod output;
mod running;
mod setup;
mod steps;
mod supervise;
mod warm;

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::record::{ContainerRecord, Failure, FailureKind, Timings};
use executor_core::steps::exit_line;
use executor_core::time::Timestamp;
use executor_secrets::TokenDigest;
use executor_sys::heap;
use executor_sys::heartbeat::Heartbeat;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, SignalEvents};
use executor_sys::seqpacket::Seqpacket;
use nix::sys::signal::Signal;

use crate::errors::failed;
use crate::finish::{ExitRecorded, ProcessOutcome, Remains, now};
use crate::host::Host;
use crate::log::{self, Level};
use crate::network;
use crate::seccomp::Filter;
use init::create::NotStarted;
use output::termination_message;
use running::control::Control;
use running::heartbeat::HeartbeatWriter;

pub(crate) use warm::{READY as WARM_READY, STARTED as WARM_STARTED, WarmInput, run as run_warm};

/// Signals that a shim and its step starter receive as events.
const SIGNALS: [Signal; 4] = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
/// Process name of a shim.
pub(crate) const NAME: &CStr = c"executor-shim";
/// Time limit for creating a container, without attaching it to its network, and for starting its program. If the
/// container is held, creating and starting each have this time limit.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);
/// Assumed minimum rate of wiping files (overwriting and reading back) on a slow, busy machine, in bytes per second.
const WIPE_RATE_MIN: u64 = 64 << 20;
/// Time limit for finishing a container after its process has exited, without detaching it from its network. Killed
/// leftover processes have 10 s of this limit to exit.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit for cleanup, without detaching the container from its network. Includes 10 s for each cgroup hierarchy.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Input of a shim for one container.
pub(crate) struct Launch {
    /// Container id, as sent by the launcher.
    pub id: ContainerId,
    pub request_tag: String,
    /// Time at which the daemon accepted the request.
    pub created_at: Timestamp,
    /// First host id of the range that is claimed for the container's user namespace. `None` if all ranges are in use.
    pub id_range: Option<u32>,
    /// First host id of the range of the container's pod.
    pub pod_range: Option<u32>,
    /// Pid of the launcher that has claimed the id ranges.
    pub launcher: u32,
    /// Connection to the daemon.
    pub connection: Seqpacket,
    /// Heartbeat of the shim.
    pub heartbeat: Heartbeat,
    /// Plan of the container, as JSON.
    pub plan: MemFile,
    /// Process payload: arguments and environment.
    pub process: MemFile,
    pub files: MemFile,
}

/// A created container whose init waits to be started.
struct Ready {
    record: ContainerRecord,
    remains: Remains,
    container: init::create::Created,
    /// First process of the PID namespace that the container has joined (`pid_of`).
    target: Option<OwnedFd>,
    /// Reservation of the container's host ports, until the exit is recorded.
    ports: Option<network::Reserved>,
    log: output::container_log::Log,
    watch: output::redaction::MaskedValues,
    /// Digest of the runtime token, if any. The token itself is in the volume and, if output is masked, in `watch`.
    token: Option<TokenDigest>,
    /// Steps of the tree of actions, if any.
    steps: Option<steps::RunningSteps>,
    message: Option<termination_message::MessageFile>,
    interfaces: running::usage::Interfaces,
    layer_size: running::layer_size::LayerSize,
    begun: Timestamp,
    generations: files::update::Generations,
    /// `Some` while the container is paused.
    paused: Option<steps::pause::Paused>,
}

/// Runs a container until its exit and cleanup. Returns the exit status of the shim's process.
pub(crate) fn run(host: &Host, filter: &Arc<Filter>, launch: Launch, lifeline: Seqpacket) -> i32 {
    match set_up(NAME) {
        Ok(signals) => run_container(host, filter, launch, lifeline, (None, signals)),
        Err(error) => {
            log::line(Level::Error, "", format_args!("the shim cannot start: {error}"));
            let heartbeat_writer = HeartbeatWriter::new(launch.heartbeat, host.watchdog);
            Control::new(launch.connection, lifeline, host.daemon_uid, heartbeat_writer)
                .refuse(failed("cannot set up the shim", &error));
            1
        }
    }
}

/// Runs a container, in a warm container if there is one.
fn run_container(
    host: &Host,
    filter: &Arc<Filter>,
    launch: Launch,
    lifeline: Seqpacket,
    (mut warm, signals): (Option<warm::WarmContainer>, SignalEvents),
) -> i32 {
    let begun = now();
    host.show_role(&["shim", launch.id.as_str()]);
    let heartbeat_writer = HeartbeatWriter::new(launch.heartbeat, host.watchdog);
    heartbeat_writer.start(CREATE_TIMEOUT + network::longest(host));
    let mut control = Control::new(launch.connection, lifeline, host.daemon_uid, heartbeat_writer);
    let inputs = vec![launch.process, launch.files];
    let request = setup::prepare::Request {
        id: launch.id,
        plan: launch.plan,
        request_tag: launch.request_tag,
        created_at: launch.created_at,
        id_range: launch.id_range,
        pod_range: launch.pod_range,
        launcher: launch.launcher,
        begun,
    };
    match setup::prepare::prepare(host, filter, &request, (inputs, &mut warm), &mut control) {
        Ok(ready) => run_created(host, ready, &mut control, &signals),
        Err(refused) => {
            control.refuse(refused);
            if let Some(unused) = warm {
                unused.discard(host);
            }
        }
    }
    0
}

/// Moves the calling process into its own mount namespace. The namespace's mounts are not visible on the host and
/// disappear with the shim.
fn isolate() -> std::io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    Ok(())
}

/// Sets up the process: its own session, a name, subreaping, no core dumps, signals as events.
fn set_up(name: &CStr) -> std::io::Result<SignalEvents> {
    nix::unistd::setsid()?;
    rustix::thread::set_name(name)?;
    process::become_subreaper()?;
    process::forbid_dumps()?;
    SignalEvents::take(&SIGNALS)
}

/// Runs a created container until its exit and cleanup.
fn run_created(host: &Host, mut ready: Box<Ready>, control: &mut Control, signals: &SignalEvents) {
    let id = ready.record.plan.id.clone();
    let ready_at = now();
    let prepare = ready_at.since(ready.begun);
    // Open init's namespaces while init exists, so that the outputs can be captured after init's exit.
    let outputs = end::outputs::OutputsSource::from_process(&ready.record.plan, ready.container.pid());
    let mounts = hold_mounts(ready.container.pid());
    let mut stop_at = None;
    let mut may_start = Ok(());
    let mut start_at = ready_at;
    if ready.record.plan.hold {
        may_start = hold::wait_for_start(&mut ready, control, signals);
        start_at = now();
        control.heartbeat().start(CREATE_TIMEOUT);
    }
    let program = ready.steps.is_none().then(|| &ready.remains.inputs[0]);
    let started = match may_start {
        Ok(()) => ready.container.start(program, &ready.remains.dirs.stage),
        Err(failure) => Err(NotStarted::Ended(failure)),
    };
    let mut outcome = match started {
        Ok(terminal) => {
            if let Some(terminal) = terminal {
                ready.log.keep_terminal(terminal);
            }
            ready.log.start(&ready.record.plan);
            let (started_at, started) = (now(), Instant::now());
            control.heartbeat().turn(); // creation is complete
            // Wipe the payloads first. The program has its own copy, and payloads of steps are in the volume.
            for input in ready.remains.inputs.drain(..) {
                if let Err(error) = input.wipe() {
                    log::line(Level::Error, id.as_str(), format_args!("a start payload was not wiped: {error}"));
                }
            }
            ready.record.started_at = Some(started_at);
            // If the program has already exited, the report of its exit is enough.
            if ready.steps.is_some() || !ready.container.has_ended() {
                ready.record.state = State::Running;
                save(&ready);
                control.report_state(State::Running);
                keep_out_of_swap(&ready.watch, id.as_str());
            }
            let ended;
            (ended, stop_at) = supervise::run_to_exit(host, &mut ready, control, signals);
            let ended_at = now();
            let timings =
                Timings { prepare, start: started_at.since(start_at), run: started.elapsed(), ..Timings::default() };
            let (exit, failure) = ended;
            let lone = ready.record.plan.main().filter(|_| ready.record.plan.actions.is_none());
            if let (Some(exit), Some(process)) = (exit, lone) {
                let out_of_memory = host.hierarchies.own_oom_kills(&ready.record.cgroup) > 0;
                ready.log.log_exit(&ready.record.plan, process, &exit_line(exit, out_of_memory, None));
            }
            ProcessOutcome { exit, failure, timings, ended_at: Some(ended_at), ..ProcessOutcome::default() }
        }
        Err(NotStarted::Refused(refused)) => {
            setup::prepare::undo(host, id.as_str(), Some(ready.container.pid()), &mut ready.remains);
            return control.refuse(refused);
        }
        Err(NotStarted::Ended(failure)) => {
            if let Some(steps) = &mut ready.steps {
                steps.kill_starter();
            }
            ready.container.kill();
            let timings = Timings { prepare, ..Timings::default() };
            ProcessOutcome { failure: Some(failure), timings, ended_at: Some(now()), ..ProcessOutcome::default() }
        }
        Err(NotStarted::Failed { message, errno }) => {
            ready.container.kill();
            ready.log.executor_message(&message);
            let message = ready.log.masked(&message);
            let timings = Timings { prepare, start: now().since(start_at), ..Timings::default() };
            let failure = Failure { kind: FailureKind::Exec, message, errno };
            ProcessOutcome { failure: Some(failure), timings, ended_at: Some(now()), ..ProcessOutcome::default() }
        }
    };
    let ran = ready.record.started_at.is_some();
    outcome.network = ready.interfaces.usage();
    ready.interfaces = running::usage::Interfaces::default(); // releases the network namespace
    let message = take_message(&mut ready);
    ready.record.state = State::Wiping;
    ready.record.exit = outcome.exit;
    save(&ready);
    let Ready { record, mut remains, log: output, watch, ports, .. } = *ready;
    let log_path = output.path().to_owned();
    // Drop the masked values before a helper is forked and before the exit is reported.
    let (mut clients, of_log) = output.finish();
    outcome.log = Some(of_log);
    drop(watch);
    if outputs.is_none() && clients.is_delivered() && remains.can_complete_without_waiting(host, &record) {
        control.set_state(State::Wiping);
    } else {
        control.report_state(State::Wiping);
    }
    if let (Some(message), Some(planned)) = (message, &record.plan.termination_message) {
        outcome.termination_message = if termination_message::falls_back(planned, &message, outcome.exit) {
            termination_message::end_of_log(&log_path).unwrap_or_else(|error| {
                log::line(Level::Warning, id.as_str(), format_args!("the end of the log was not read: {error}"));
                String::new()
            })
        } else {
            message
        };
    }
    let mut last = end::drain::OutputDrain::new(&mut clients, record.plan.grace, stop_at);
    outcome.outputs = outputs
        .filter(|_| ran)
        .map(|source| end::outputs::capture(host, &record, &remains, source, (control, signals), &mut last));
    control.heartbeat().start(FINISH_TIMEOUT + network::longest(host) + longest_wipe(&record));
    let deliver = || last.deliver(control, signals);
    let recorded = remains.complete(host, record, outcome, deliver);
    drop(ports); // a client that sees the exit may request the same ports
    let reported = matches!(recorded, ExitRecorded::Yes);
    // If the exit record was not written, for example because the disk is full, the container's state stays `Wiping`.
    control.report_state(if reported { State::Completed } else { State::Wiping });
    // Only deletions and containers that need the capacity wait for this cleanup.
    control.heartbeat().start(CLEANUP_TIMEOUT + network::longest(host));
    drop(mounts);
    setup::prepare::unmount(&remains.dirs);
    let recorded = remains.leave(host, id.as_str(), recorded);
    if !reported && matches!(recorded, ExitRecorded::Yes) {
        control.report_state(State::Completed);
    }
}

/// Opens init's mount namespace, so that the kernel does not spend time on destroying it before the exit is reported.
fn hold_mounts(init: i32) -> Option<File> {
    File::open(format!("/proc/{init}/ns/mnt")).ok()
}

/// Reads and masks the termination message of the process.
fn take_message(ready: &mut Ready) -> Option<String> {
    let file = ready.message.take()?;
    let planned = ready.record.plan.termination_message.as_ref()?;
    match file.take() {
        Ok(content) => Some(termination_message::last_bytes(&ready.log.masked_bytes(&content), planned)),
        Err(error) => {
            let id = ready.record.plan.id.as_str();
            log::line(Level::Warning, id, format_args!("the termination message was not read: {error}"));
            Some(String::new())
        }
    }
}

/// Returns the time limit for wiping files that a process could write to.
fn longest_wipe(record: &ContainerRecord) -> Duration {
    let bytes = record.plan.writable_files.map_or(0, |writable| writable.bytes_max);
    Duration::from_secs(bytes / WIPE_RATE_MIN)
}

/// Frees memory that only the creation of the container needed, because the shim runs as long as the container.
fn shrink(watch: &output::redaction::MaskedValues, id: &str) {
    if !watch.is_empty()
        && let Err(error) = executor_sys::privileges::allow_swap()
    {
        log::line(Level::Warning, id, format_args!("unused memory was not returned to the kernel: {error}"));
    }
    heap::trim();
    if let Err(error) = process::trim_stack() {
        log::line(Level::Warning, id, format_args!("unused stack was not returned to the kernel: {error}"));
    }
    keep_out_of_swap(watch, id);
}

/// Locks the masked values in memory, if there are any.
fn keep_out_of_swap(watch: &output::redaction::MaskedValues, id: &str) {
    if watch.is_empty() {
        return;
    }
    match executor_sys::privileges::keep_out_of_swap(true) {
        Ok(true) => {}
        Ok(false) => {
            log::line(Level::Warning, id, "the masked values are not locked into memory: no CAP_IPC_LOCK");
        }
        Err(error) => {
            log::line(Level::Warning, id, format_args!("the masked values are not locked into memory: {error}"));
        }
    }
}

/// Writes the record. A failure is only logged, because the running container is more important.
fn save(ready: &Ready) {
    if let Err(error) = ready.remains.dirs.write_record(&ready.record) {
        log::line(Level::Warning, ready.record.plan.id.as_str(), format_args!("the record was not written: {error}"));
    }
}
