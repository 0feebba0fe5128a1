//! Executes a process in a running container, with a supervisor.
//!
//! ```text
//! fork from the launcher (never from a shim, which may hold masked values)
//!   supervisor   finds the container, resolves the user, creates the pipes          (exec/target.rs)
//!     fork         joins the cgroups, enters the namespaces, drops privileges       (exec/within.rs)
//!       clone        opens the terminal, installs the filter, executes the program
//!                    or copies files                                                (exec/archive.rs)
//!   supervisor   wipes the payload, sends the pipes or the terminal to executord, waits for the exit
//! ```
//! executord reads and writes the process's pipes or terminal directly. The supervisor runs outside of the container,
//! reports the exit status of the process, and kills the process if executord exits. If the supervisor itself exits,
//! the kernel kills the process, and the launcher kills the descendants of the process.
//!
//! An executed process has its own cgroup below the container's cgroup. The supervisor finds the descendants of the
//! process in this cgroup, and kills them after the exit of the process unless the request keeps them ([ADR
//! 59](../../../docs/adr/0059-executed-processes-have-a-cgroup-of-their-own.md)).

mod archive;
mod target;
mod within;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use executor_core::protocol::{
    ArchiveWork, Exec, ExecNews, ExecOrder, ExecReport, NotExecuted, Reason, Refused, Started,
};
use executor_core::shortage::{self, Shortage};
use executor_core::time::Timestamp;
use executor_core::validate::Violation;
use executor_secrets::volume::Stored;
use executor_sys::events::Events;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, ChildExit, Fork, SignalEvents};
use executor_sys::pty::Window;
use executor_sys::ready::is_readable;
use executor_sys::seqpacket::Seqpacket;
use nix::sys::signal::Signal;
use prost::Message;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::capabilities;
use crate::cgroup::ExecCgroup;
use crate::errors::failed;
use crate::host::Host;
use crate::log::{self, Level};
use crate::program::{FAILURE_MAX, START_TIMEOUT, StartFailure};
use crate::seccomp::Filter;
use crate::workdir;
pub(crate) use target::ExecTarget;
use target::not_running;
use within::MADE;
use within::TERMINAL;
pub(crate) use within::{Entrant, GO, made_pid};

/// Time between SIGHUP and SIGKILL for a process whose client has disconnected, and at host shutdown.
const HANGUP_GRACE_PERIOD: Duration = Duration::from_secs(2);
/// Time limit for killed processes to exit before the exit of a process is reported.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between SIGKILLs of a process group that does not exit.
const KILL_INTERVAL: Duration = Duration::from_millis(1);

/// Input of a supervisor.
pub(crate) struct ExecInput {
    pub(crate) id: ContainerId,
    pub(crate) exec: Exec,
    /// `Some` if files are copied and nothing is executed.
    pub(crate) archive: Option<ArchiveWork>,
    /// Connection to executord.
    pub(crate) session: Seqpacket,
    pub(crate) payload: MemFile,
    /// Environment of the container's process, if requested. Only the new process reads it.
    pub(crate) environment: Option<Stored>,
}

/// Executes a process and supervises it until it exits. Returns the supervisor's exit status.
pub(crate) fn run(host: &Host, filter: &Arc<Filter>, input: ExecInput, lifeline: &Seqpacket) -> i32 {
    let signals = match set_up() {
        Ok(signals) => signals,
        Err(error) => {
            log::line(Level::Error, input.id.as_str(), format_args!("a process cannot be executed: {error}"));
            let refused = ExecNews::Refused(failed("cannot set up the supervisor", &error));
            let _ = send(&input.session, refused, &[]); // best effort
            return 1;
        }
    };
    host.show_role(&["exec", input.id.as_str()]);
    let begun = start(host, filter, &input, lifeline);
    let ExecInput { id, exec, session, payload, .. } = input;
    if let Err(error) = payload.wipe() {
        log::line(Level::Error, id.as_str(), format_args!("a start payload was not wiped: {error}"));
    }
    match begun {
        Ok((process, cgroup, ends)) => {
            let fds: Vec<BorrowedFd<'_>> = ends.iter().map(AsFd::as_fd).collect();
            let reported = send(&session, ExecNews::Started(Started { pid: process.pid }), &fds);
            drop(ends);
            let limit = Some(exec.timeout_ms).filter(|limit| *limit > 0).map(Duration::from_millis);
            let terms = ExecTerms { limit, leave_processes: exec.leave_processes, abandoned: reported.is_err() };
            process.supervise(&id, &session, &signals, cgroup, &terms);
        }
        Err(news) => {
            let _ = send(&session, news, &[]); // the daemon may have exited
        }
    }
    0
}

/// Sets up the supervisor: its own session, a name, no core dumps, signals as events.
fn set_up() -> io::Result<SignalEvents> {
    nix::unistd::setsid()?;
    rustix::thread::set_name(c"executor-exec")?;
    process::forbid_dumps()?;
    SignalEvents::take(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])
}

fn send(session: &Seqpacket, news: ExecNews, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    session.send(&ExecReport { news: Some(news) }.encode_to_vec(), fds)
}

impl From<Refused> for StartError {
    fn from(refused: Refused) -> Self {
        Self(ExecNews::Refused(refused))
    }
}

/// Error of a process that could not be started; holds the report for executord.
struct StartError(ExecNews);

/// A started process, its cgroup, and the supervisor's ends of its pipes or terminal.
type StartedProcess = (ExecProcess, Option<ExecCgroup>, Vec<OwnedFd>);

/// Starts a process and waits until it has executed its program.
fn start(
    host: &Host,
    filter: &Arc<Filter>,
    input: &ExecInput,
    lifeline: &Seqpacket,
) -> Result<StartedProcess, ExecNews> {
    try_to_start(host, filter, input, lifeline).map_err(|StartError(news)| news)
}

fn try_to_start(
    host: &Host,
    filter: &Arc<Filter>,
    input: &ExecInput,
    lifeline: &Seqpacket,
) -> Result<StartedProcess, StartError> {
    let ExecInput { id, exec, archive, session, payload, environment } = input;
    let target = ExecTarget::find(host, id, Timestamp(exec.created_at))?;
    if exec.container_environment && !(target.record.plan.keep_environment && environment.is_some()) {
        return Err(no_environment(id).into());
    }
    let user = target.user(host, &exec.user)?;
    let isolation = &target.record.plan.isolation;
    let held = capabilities::held(isolation, user.uid);
    let (filter, _) = Filter::from_request(filter, isolation, &held)?; // the container has the same warnings
    let credentials =
        ExecTarget::credentials(&user, &held).map_err(|error| failed("cannot determine the capabilities", &error))?;
    let owner = target.on_host(&user)?;
    let terminal = exec.terminal.then(|| window(exec));
    let secret_devices = match archive {
        Some(_) => target
            .secret_devices()
            .map_err(|error| failed("cannot determine the devices of the secret files", &error))?,
        None => Vec::new(),
    };
    let internal = |what: &'static str| move |error: io::Error| failed(what, &error);
    let Stdio { theirs: stdio, ours: ends } = match terminal {
        Some(_) => Stdio::none(),
        None => Stdio::pipes(exec.stdin, owner),
    }
    .map_err(internal("cannot create a pipe"))?;
    let (socket, theirs) = Seqpacket::pair().map_err(internal("cannot create a socket"))?;
    let supervisor = std::process::id();
    // A process that copies files starts no other processes and needs no cgroup.
    let made = archive.is_none().then(|| host.hierarchies.make_exec(&target.record.cgroup, supervisor)).transpose();
    let cgroup = made.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => not_running(id, "is exiting"),
        _ => failed("cannot create a cgroup for the process", &error),
    })?;
    let first = match process::fork().map_err(internal("cannot fork"))? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            let entrant = Entrant {
                host,
                filter: &filter,
                target: &target,
                credentials: &credentials,
                home: &user.home,
                nofile: target.prepared.nofile,
                terminal,
                supervisor,
                environment: environment.as_ref(),
                archive: *archive,
                secret_devices: &secret_devices,
                mounts: &[],
                part: None,
                cgroup: cgroup.as_ref(),
            };
            entrant.run(&theirs, &stdio, payload)
        }
    };
    drop((theirs, stdio));
    let helper = ExecHelper { first, socket, session, id, deadline: Instant::now() + START_TIMEOUT };
    let process = helper.process(&target)?;
    // From now on the launcher can kill the process if this supervisor exits.
    let _ = lifeline.send(MADE, &[process.pidfd.as_fd()]);
    helper.wait_until_executed(&target, process, ends).map(|(process, ends)| (process, cgroup, ends))
}

/// Returns the refusal for a container whose environment is not kept.
pub(crate) fn no_environment(id: &ContainerId) -> Refused {
    let why = format!("container {id} does not keep its environment: it was run without keep_environment");
    Refused::from_fields(Reason::Precondition, &[Violation::new("start.container_environment", why)])
}

/// The two helper processes that create a process in a container.
struct ExecHelper<'a> {
    /// Pid of the process that enters the container.
    first: i32,
    /// Socket to both helper processes.
    socket: Seqpacket,
    /// Connection to the daemon.
    session: &'a Seqpacket,
    id: &'a ContainerId,
    deadline: Instant,
}

impl ExecHelper<'_> {
    /// Waits until the first helper process has created the second.
    fn process(&self, target: &ExecTarget) -> Result<ExecProcess, StartError> {
        let Self { first, id, .. } = *self;
        let internal = |what: &'static str| move |error: io::Error| failed(what, &error);
        let made = recv(&self.socket, self.session, self.deadline);
        if made.is_err() {
            process::kill(first);
        }
        let ended = process::wait_for(first).map_err(internal("cannot wait for the helper"))?;
        Ok(match made.map_err(|error| error.refused(id))? {
            Some((reported, _)) if let Some(pid) = made_pid(&reported) => {
                ExecProcess { pid, pidfd: process::pidfd(pid).map_err(internal("cannot open the process"))? }
            }
            Some((reported, _)) => return Err(not_entered(id, &StartFailure::decode(&reported)).into()),
            None if is_readable(&target.init) => return Err(not_running(id, "is exiting").into()),
            None if ended == ChildExit::Signal(libc::SIGKILL) => {
                let why = format!("a helper process was killed: container {id} or the host may be out of memory");
                return Err(Refused::new(Reason::Exhausted, why).into());
            }
            None => {
                return Err(
                    Refused::new(Reason::Internal, format!("a helper process exited unexpectedly ({ended})")).into()
                );
            }
        })
    }

    /// Lets the second process execute its program, and waits until the program is executed. Receives the terminal, if
    /// the process has one.
    fn wait_until_executed(
        &self,
        target: &ExecTarget,
        process: ExecProcess,
        mut ends: Vec<OwnedFd>,
    ) -> Result<(ExecProcess, Vec<OwnedFd>), StartError> {
        let _ = self.socket.send(GO, &[]); // the loop detects an exit
        loop {
            match recv(&self.socket, self.session, self.deadline) {
                // The socket closes on execve or exit; waitpid distinguishes them.
                Ok(None) => return Ok((process, ends)),
                Ok(Some((reported, fds))) if reported == TERMINAL => ends = fds,
                Ok(Some((ref reported, _))) if let Some(dir) = workdir::requested(reported) => {
                    let is_mapped = target.namespaces.has_user();
                    let within = workdir::Within { init: target.init.as_fd(), is_mapped, stage: None };
                    within.create_and_reply(dir, &self.socket);
                }
                Ok(Some((reported, _))) => {
                    let _ = process::wait_for(process.pid);
                    let (errno, message) = StartFailure::decode(&reported);
                    return Err(StartError(ExecNews::NotExecuted(NotExecuted { errno, message })));
                }
                Err(error) => {
                    process.kill();
                    return Err(error.refused(self.id).into());
                }
            }
        }
    }
}

fn window(exec: &Exec) -> Window {
    let side = |side: u32| u16::try_from(side).unwrap_or(u16::MAX);
    Window::new(side(exec.rows), side(exec.columns))
}

/// Returns the refusal for a process that could not enter its container.
fn not_entered(id: &ContainerId, (errno, words): &(i32, String)) -> Refused {
    match *errno {
        // The container's init has exited, its cgroup no longer exists, or its pid namespace accepts no new process.
        libc::ESRCH | libc::ENOENT | libc::ENODEV | libc::ENOMEM => not_running(id, "is exiting"),
        _ if shortage::named(words) == Some(Shortage::Processes) => {
            Refused::new(Reason::Exhausted, format!("container {id} has reached its process limit: {words}"))
        }
        _ => crate::errors::failed_by(words.clone()),
    }
}

/// Standard descriptors of a process, and the supervisor's ends in the order in which they are sent.
struct Stdio {
    theirs: [OwnedFd; 3],
    ours: Vec<OwnedFd>,
}

impl Stdio {
    /// Returns the descriptors of a process that will open a terminal.
    fn none() -> io::Result<Self> {
        Ok(Self { theirs: [null()?, null()?, null()?], ours: Vec::new() })
    }

    /// Creates pipes that belong to the process's user, so that the process can reopen /dev/stdout.
    fn pipes(input: bool, (uid, gid): (u32, u32)) -> io::Result<Self> {
        let owned = |fd: OwnedFd| -> io::Result<OwnedFd> {
            fchown(&fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            Ok(fd)
        };
        let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut ours = vec![stdout, stderr];
        let their_stdin = if input {
            let (their_stdin, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
            ours.push(stdin);
            owned(their_stdin)?
        } else {
            null()?
        };
        Ok(Self { theirs: [their_stdin, owned(their_stdout)?, owned(their_stderr)?], ours })
    }
}

fn null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Error while waiting for a message of a helper process.
enum ExecRecvError {
    /// The client has disconnected.
    Disconnected,
    /// The deadline has passed.
    TimedOut,
    Broken(io::Error),
}

impl ExecRecvError {
    fn refused(self, id: &ContainerId) -> Refused {
        match self {
            Self::Disconnected => Refused::new(Reason::Internal, "the client has disconnected"),
            Self::TimedOut => Refused::new(
                Reason::Internal,
                format!("container {id}: the program was not executed within {} s", START_TIMEOUT.as_secs()),
            ),
            Self::Broken(error) => failed("cannot receive from the helper", &error),
        }
    }
}

/// Content of a packet, and its descriptors.
type ReceivedMessage = (Vec<u8>, Vec<OwnedFd>);

/// Events while a process is created.
#[derive(Clone, Copy)]
enum StartEvent {
    /// A helper process sent a message or closed its socket.
    Message,
    /// The daemon has disconnected.
    HangUp,
}

/// Returns the next message of a helper process, or `None` at end of file.
fn recv(socket: &Seqpacket, session: &Seqpacket, deadline: Instant) -> Result<Option<ReceivedMessage>, ExecRecvError> {
    loop {
        let mut events = Events::default();
        events.read(socket.as_fd(), StartEvent::Message);
        events.hangup(session.as_fd(), StartEvent::HangUp);
        events.due([deadline]);
        match events.wait().map_err(ExecRecvError::Broken)?.first() {
            Some(StartEvent::Message) => {
                let mut buffer = vec![0; FAILURE_MAX];
                let received = socket.recv(&mut buffer).map_err(ExecRecvError::Broken)?;
                return Ok(received.map(|(length, fds)| {
                    buffer.truncate(length);
                    (buffer, fds)
                }));
            }
            Some(StartEvent::HangUp) => return Err(ExecRecvError::Disconnected),
            None if Instant::now() >= deadline => return Err(ExecRecvError::TimedOut),
            None => {} // interrupted by a signal
        }
    }
}

/// The process in the container: a child of the supervisor and the leader of its own session.
struct ExecProcess {
    pid: i32,
    pidfd: OwnedFd,
}

/// Conditions under which a process and its descendants are killed.
struct ExecTerms {
    /// Time limit of the process.
    limit: Option<Duration>,
    /// True if descendants are kept after the exit of a process that was not killed.
    leave_processes: bool,
    /// True if executord has disconnected before the supervision starts. The process must then exit.
    abandoned: bool,
}

impl ExecProcess {
    /// Supervises the process until it exits, kills its descendants, and reports its exit status.
    fn supervise(
        self,
        id: &ContainerId,
        session: &Seqpacket,
        signals: &SignalEvents,
        cgroup: Option<ExecCgroup>,
        terms: &ExecTerms,
    ) {
        let due = terms.limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut kill_at = None;
        // Time at which the timeout is reported, even if a process cannot be killed.
        let mut report_at = None;
        if terms.abandoned {
            self.hang_up(&mut kill_at);
        }
        while !is_readable(&self.pidfd) {
            self.wait(session, signals, (kill_at, due));
            while let Ok(Some(signal)) = signals.next() {
                if signal != libc::SIGHUP {
                    // SIGTERM to the supervisor means host shutdown.
                    self.hang_up(&mut kill_at);
                }
            }
            if kill_at.is_none() && self.execute(session).is_err() {
                self.hang_up(&mut kill_at);
            }
            let now = Instant::now();
            if report_at.is_none() && kill_at.is_none() && due.is_some_and(|due| now >= due) {
                (kill_at, report_at) = (Some(now), Some(now + EXIT_TIMEOUT));
            }
            if kill_at.is_some_and(|at| now >= at) {
                self.signal_all(Signal::SIGKILL);
                cgroup.iter().for_each(ExecCgroup::kill);
            }
            if report_at.is_some_and(|at| now >= at) {
                log::line(Level::Error, id.as_str(), format_args!("a process could not be killed at its time limit"));
                let _ = send(session, ExecNews::TimedOut(true), &[]); // the daemon may have exited
                report_at = None;
            }
        }
        if kill_at.is_some() {
            self.signal_all(Signal::SIGKILL); // the group's other processes; the pid stays valid until it is reaped
        }
        match &cgroup {
            Some(cgroup) if terms.leave_processes && kill_at.is_none() => cgroup.release(),
            Some(cgroup) => {
                if let Err(error) = cgroup.kill_all(EXIT_TIMEOUT) {
                    log::line(Level::Error, id.as_str(), format_args!("{error}"));
                }
            }
            None => {}
        }
        let news = match process::wait_for(self.pid) {
            Ok(ChildExit::Code(code)) => ExecNews::Code(code),
            Ok(ChildExit::Signal(signal)) => ExecNews::Signal(signal),
            Err(error) => {
                log::line(Level::Error, id.as_str(), format_args!("a process was not reaped: {error}"));
                ExecNews::Signal(libc::SIGKILL)
            }
        };
        drop(cgroup); // removes the cgroup
        let news = if report_at.is_some() { ExecNews::TimedOut(true) } else { news };
        let _ = send(session, news, &[]); // the daemon may have exited
    }

    fn wait(&self, session: &Seqpacket, signals: &SignalEvents, (kill_at, due): (Option<Instant>, Option<Instant>)) {
        let mut events = Events::default();
        events.read(self.pidfd.as_fd(), ());
        events.read(signals.as_fd(), ());
        match kill_at {
            None => {
                events.read(session.as_fd(), ());
                events.due(due);
            }
            // After the deadline, repeat SIGKILL at intervals.
            Some(at) => events.due([at.max(Instant::now() + KILL_INTERVAL)]),
        }
        let _ = events.wait(); // the caller polls all sources
    }

    /// Executes the requests that executord has sent on the session.
    ///
    /// # Errors
    /// Returns an error if the daemon has disconnected.
    fn execute(&self, session: &Seqpacket) -> Result<(), ()> {
        let mut buffer = [0; 64];
        loop {
            match session.recv(&mut buffer) {
                Ok(Some((length, _))) => {
                    let order = ExecOrder::decode(&buffer[..length]).map_err(drop)?;
                    if (1..=64).contains(&order.signal) {
                        let _ = process::pidfd_signal(self.pidfd.as_fd(), order.signal); // the process may have exited
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Ok(None) | Err(_) => return Err(()),
            }
        }
    }

    /// Sends SIGHUP to the process, and sets the time of SIGKILL. Called if the client has disconnected or the host
    /// shuts down.
    fn hang_up(&self, kill_at: &mut Option<Instant>) {
        if kill_at.is_none() {
            self.signal_all(Signal::SIGHUP);
            self.signal_all(Signal::SIGCONT); // also notifies a stopped process
            *kill_at = Some(Instant::now() + HANGUP_GRACE_PERIOD);
        }
    }

    /// Signals the process and its group.
    fn signal_all(&self, signal: Signal) {
        let _ = process::pidfd_signal(self.pidfd.as_fd(), signal as i32);
        // Best effort: the process may not lead a group yet.
        let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(self.pid), signal);
    }

    /// Kills the process and its group, and reaps the process.
    fn kill(&self) {
        self.signal_all(Signal::SIGKILL);
        let _ = process::wait_for(self.pid);
    }
}
