//! Executes a process in a container: converts the request, sends it to the launcher, and opens a session with the
//! process's supervisor.
//!
//! The decoded message is passed by value, because it holds the only copies of arguments and values; the result is a
//! running process with its own descriptors. The launcher forks the supervisor; the process's input and output pass
//! through no other executor process.

use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::payload::{self, ProcessPayload};
use executor_core::protocol::{
    self, ARCHIVE_DOWNLOAD, ARCHIVE_FOLLOW, ARCHIVE_STAT, ArchiveWork, ExecNews, ExecOrder, ExecReport, LauncherAnswer,
    LauncherCall,
};
use executor_core::record::Exit;
use executor_core::validate::{ExecDraft, Violation, ViolationReason, validate_exec};
use executor_proto::{Wiped, v1};
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;
use executor_transport::registration::watched;
use prost::Message as _;
use tokio::io::unix::AsyncFd;
use zeroize::Zeroizing;

use crate::api_error::{ApiError, Kind};
use crate::ipc::memfiles::{self, WipedPayload};
use crate::ipc::packets::Packets;
use crate::model::container::Handle;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::requests::{draft, references};

/// Time limit for the supervisor's first report. The supervisor limits the start of the program to 60 s.
const START_TIMEOUT: Duration = Duration::from_secs(70);

/// Name of the memory file with program, arguments and environment.
const PAYLOAD: &str = "executor-process";

/// Result of an executed process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExecEnd {
    Exit(Exit),
    /// The process and its descendants were killed because the time limit had passed.
    TimedOut,
}

/// An executed process, killed on drop.
#[derive(Debug)]
pub(crate) struct ExecSession {
    packets: Packets,
    /// Pid on the host.
    pub(crate) pid: i32,
}

/// The daemon's descriptors of a process's input and output.
#[derive(Debug)]
pub(crate) struct Stdio {
    /// True if the process has a terminal. In that case all descriptors refer to the terminal.
    pub(crate) terminal: bool,
    pub(crate) input: Option<Arc<StdioFd>>,
    pub(crate) stdout: Arc<StdioFd>,
    pub(crate) stderr: Option<Arc<StdioFd>>,
}

/// A descriptor of a process's input or output: a pipe or a terminal.
#[derive(Debug)]
pub(crate) struct StdioFd(AsyncFd<Owned>);

#[derive(Debug)]
struct Owned(OwnedFd);

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Result of a request to execute a process.
#[derive(Debug)]
pub(crate) enum ExecOutcome {
    /// The process runs.
    Running(ExecSession, Stdio),
    /// The program could not be executed.
    Failed(v1::ExecFailure),
}

impl StdioFd {
    fn new(fd: OwnedFd) -> std::io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        watched(Owned(fd)).map(Self)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().0.as_fd()
    }

    /// Waits for data and reads it; returns 0 at the end of the input.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.async_io(tokio::io::Interest::READABLE, |owned| read(owned.0.as_fd(), buffer)).await
    }

    /// Reads the available data without waiting.
    pub(crate) fn read_now(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        read(self.fd(), buffer)
    }

    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let interest = tokio::io::Interest::WRITABLE;
            let written = self.0.async_io(interest, |owned| Ok(rustix::io::write(&owned.0, bytes)?)).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }
}

/// Reads from a pipe or a terminal. EIO means the end of the data: no process holds the terminal open.
fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> std::io::Result<usize> {
    match rustix::io::read(fd, buffer) {
        Err(rustix::io::Errno::IO) => Ok(0),
        result => Ok(result?),
    }
}

impl ExecSession {
    /// Sends a signal to the process through its supervisor.
    ///
    /// # Errors
    /// Returns an error if the supervisor has exited.
    pub(crate) async fn signal(&self, signal: i32) -> std::io::Result<()> {
        self.packets.send(&ExecOrder { signal }.encode_to_vec(), &[]).await
    }

    /// Waits for the exit of a process that has no time limit; returns `None` if the supervisor is lost.
    pub(crate) async fn ended(&self) -> Option<Exit> {
        match self.ended_in_time().await? {
            ExecEnd::Exit(exit) => Some(exit),
            ExecEnd::TimedOut => None,
        }
    }

    /// Waits for the exit of the process; returns `None` if the supervisor is lost.
    pub(crate) async fn ended_in_time(&self) -> Option<ExecEnd> {
        loop {
            match self.packets.recv::<ExecReport>().await.ok()??.news {
                Some(ExecNews::Code(code)) => return Some(ExecEnd::Exit(Exit::Code(code))),
                Some(ExecNews::Signal(signal)) => return Some(ExecEnd::Exit(Exit::Signal(signal))),
                Some(ExecNews::TimedOut(_)) => return Some(ExecEnd::TimedOut),
                _ => {} // sent by a newer launcher
            }
        }
    }
}

/// Executes a process.
///
/// # Errors
/// Returns the errors that the interface lists for Exec.
pub(crate) async fn start(node: &Arc<Node>, start: Wiped<v1::ExecStart>) -> Result<ExecOutcome, ApiError> {
    let request = &*start;
    let window = request.window.unwrap_or_default();
    let draft = ExecDraft {
        path: &request.path,
        args: request.args.iter().map(String::as_str).collect(),
        env: draft::variables(&request.env),
        dir: &request.dir,
        user: &request.user,
        window: (window.rows, window.columns),
    };
    let (limit, fault) = match time_limit(request) {
        Ok(limit) => (limit, None),
        Err(fault) => (None, Some(fault)),
    };
    let found = validate_exec(&draft, &node.config.policy).err().unwrap_or_default();
    let violations: Vec<Violation> = found.into_iter().chain(fault).collect();
    if !violations.is_empty() {
        return Err(ApiError::invalid(violations));
    }
    let sources = references::plain_variables("start.env", &request.env);
    if !sources.is_empty() {
        return Err(ApiError::invalid(sources));
    }
    let (handle, facts) = running(node, &request.id, "a process can be executed in it")?;
    if facts.is_paused() {
        let why = format!("container {} is paused: no process can be executed in it before Resume", handle.id());
        return Err(ApiError::new(Kind::Precondition, why));
    }
    if request.container_environment && !facts.plan.keep_environment {
        let id = handle.id();
        let why = format!("container {id} does not keep its environment: it was run without keep_environment");
        let violation = Violation::new("start.container_environment", ViolationReason::Unsuitable.because(why));
        return Err(ApiError { kind: Kind::Precondition, ..ApiError::invalid(vec![violation]) });
    }
    let payload = WipedPayload(load(request, &facts).map_err(|error| exhausted(handle.id(), &error))?);
    let exec = protocol::Exec {
        container_id: request.id.clone(),
        user: request.user.clone(),
        terminal: request.terminal,
        rows: window.rows,
        columns: window.columns,
        stdin: request.stdin,
        created_at: facts.created_at.0,
        container_environment: request.container_environment,
        timeout_ms: limit.map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)),
        leave_processes: request.leave_processes,
    };
    let terminal = exec.terminal;
    drop(start);
    send_to_launcher(node, handle.id(), LauncherCall::Exec(exec), terminal, payload).await
}

/// Returns the time limit of the program, if it has one.
pub(crate) fn time_limit(start: &v1::ExecStart) -> Result<Option<Duration>, Violation> {
    let limit = draft::duration("start.timeout", start.timeout.as_ref())?;
    if limit == Some(Duration::ZERO) {
        let why = ViolationReason::OutOfRange.because("is 0; leave it unset for no limit");
        return Err(Violation::new("start.timeout", why));
    }
    Ok(limit)
}

/// Copies files through an executor process in the container. The process runs as `user`, or as the container's user if
/// `user` is empty.
///
/// # Errors
/// Returns the same errors as [`start`].
pub(crate) async fn archive(
    node: &Arc<Node>,
    id: &str,
    path: &str,
    user: &str,
    direction: CopyDirection,
) -> Result<ExecOutcome, ApiError> {
    let (handle, facts) = running(node, id, "files can be copied from and to it")?;
    let (work, flags): (ArchiveWork, Vec<&[u8]>) = match direction {
        CopyDirection::Out { follow, stat } => {
            let flags = [(follow, ARCHIVE_FOLLOW), (stat, ARCHIVE_STAT)].into_iter().filter(|(set, _)| *set);
            (ArchiveWork::Get, flags.map(|(_, flag)| flag.as_bytes()).collect())
        }
        CopyDirection::In { download } => {
            (ArchiveWork::Put, download.then_some(ARCHIVE_DOWNLOAD.as_bytes()).into_iter().collect())
        }
    };
    let count = flags.len().to_string();
    let strings = ProcessPayload::strings(path.as_bytes(), b"/", count.as_bytes(), &flags, &[]);
    let payload =
        WipedPayload(MemFile::with_strings(PAYLOAD, &strings).map_err(|error| exhausted(handle.id(), &error))?);
    let exec = protocol::Exec {
        container_id: id.to_owned(),
        user: user.to_owned(),
        stdin: work == ArchiveWork::Put,
        created_at: facts.created_at.0,
        ..protocol::Exec::default()
    };
    let call = LauncherCall::Archive(protocol::Archive { exec: Some(exec), work: work.into() });
    send_to_launcher(node, handle.id(), call, false, payload).await
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyDirection {
    /// Copies files out of the container.
    Out {
        /// True to follow a symbolic link at the end of the path.
        follow: bool,
        /// True to return only the status of the path.
        stat: bool,
    },
    /// Copies files into the container.
    In {
        /// True for a download: missing directories are created, and device nodes are refused.
        download: bool,
    },
}

/// Finds a running or stopping container. In other states, the error is `what` followed by "only while it runs".
fn running(node: &Node, id: &str, what: &str) -> Result<(Arc<Handle>, Arc<ContainerStatus>), ApiError> {
    let handle = node.find(id)?;
    let facts = handle.facts().ok_or_else(|| ApiError::no_container(id))?;
    if matches!(facts.state, State::Running | State::Stopping) {
        return Ok((handle, facts));
    }
    let why = format!("container {id} is {}: {what} only while it runs", facts.state.name());
    Err(ApiError::new(Kind::Precondition, why))
}

fn exhausted(id: &ContainerId, error: &std::io::Error) -> ApiError {
    let why = format!("no memory or descriptors for a process in container {id}: {error}");
    ApiError::new(Kind::Exhausted, why)
}

/// Sends the request to the launcher, and waits until the process runs.
async fn send_to_launcher(
    node: &Node,
    id: &ContainerId,
    call: LauncherCall,
    terminal: bool,
    payload: WipedPayload,
) -> Result<ExecOutcome, ApiError> {
    let exhausted = |error: std::io::Error| exhausted(id, &error);
    let session = node.launcher.session()?;
    let (ours, theirs) = Seqpacket::pair().map_err(exhausted)?;
    let packets = Packets::new(ours).map_err(exhausted)?;
    let lost = || {
        let seconds = START_TIMEOUT.as_secs();
        let why = format!("the process was killed: its supervisor exited, or sent no report within {seconds} s");
        ApiError::new(Kind::Unavailable, why)
    };
    match session.call(call, &[theirs.as_fd(), payload.0.as_fd()]).await {
        Ok(LauncherAnswer::Done(_)) => {}
        Ok(LauncherAnswer::Refused(refused)) => return Err(refused.into()),
        Ok(_) => return Err(ApiError::new(Kind::Internal, "the launcher sent an unexpected response")),
        Err(error) => {
            return Err(ApiError::new(Kind::Unavailable, format!("the launcher did not confirm the process: {error}")));
        }
    }
    drop(theirs);
    let reported = tokio::time::timeout(START_TIMEOUT, packets.recv_with_fds::<ExecReport>()).await;
    let (report, fds) = reported.ok().and_then(Result::ok).flatten().ok_or_else(lost)?;
    drop(payload); // the process has its own copy
    match report.news {
        Some(ExecNews::Started(started)) => {
            let stdio = fds.and_then(|fds| stdio(terminal, fds)).map_err(exhausted)?;
            Ok(ExecOutcome::Running(ExecSession { packets, pid: started.pid }, stdio))
        }
        Some(ExecNews::NotExecuted(failed)) => {
            Ok(ExecOutcome::Failed(v1::ExecFailure { message: failed.message, errno: failed.errno }))
        }
        Some(ExecNews::Refused(refused)) => Err(refused.into()),
        _ => Err(ApiError::new(Kind::Internal, "the process's supervisor sent an unexpected report")),
    }
}

fn stdio(terminal: bool, fds: Vec<OwnedFd>) -> std::io::Result<Stdio> {
    let mut fds = fds.into_iter();
    let mut next = || fds.next().map(StdioFd::new).transpose().map(|fd| fd.map(Arc::new));
    let stdout = next()?.ok_or_else(|| std::io::Error::other("the process's output descriptor is missing"))?;
    if terminal {
        return Ok(Stdio { terminal, input: Some(Arc::clone(&stdout)), stdout, stderr: None });
    }
    Ok(Stdio { terminal, stderr: next()?, input: next()?, stdout })
}

/// Returns true if the container's retained environment has the variable.
fn is_inherited(name: &str, facts: &ContainerStatus) -> bool {
    let first = facts.plan.first_process().and_then(|first| facts.plan.processes.get(first));
    let listed = first.is_some_and(|process| {
        process.environment_names.iter().chain(&process.secret_environment_names).any(|one| one == name)
    });
    // Every process has PATH, and a process with a terminal has TERM.
    listed || name == "PATH" || (name == "TERM" && facts.plan.terminal)
}

/// Writes program, arguments and environment into a memory file.
fn load(start: &v1::ExecStart, facts: &ContainerStatus) -> std::io::Result<MemFile> {
    let own_dir = facts.plan.main().map_or("/", |main| &main.dir);
    let dir = if start.dir.is_empty() { own_dir } else { &start.dir };
    let count = start.args.len().to_string();
    let args: Vec<&[u8]> = start.args.iter().map(String::as_bytes).collect();
    let variables = start.env.iter();
    let joined: Vec<Zeroizing<Vec<u8>>> = variables.map(memfiles::environment_string).collect();
    let mut env: Vec<&[u8]> = joined.iter().map(|variable| &variable[..]).collect();
    // Add no defaults for variables that the process inherits from the container's retained environment.
    let inherits = |name: &str| start.container_environment && is_inherited(name, facts);
    let has = |name: &str| start.env.iter().any(|variable| variable.name == name) || inherits(name);
    env.extend(payload::default_environment(has, start.terminal));
    let strings = ProcessPayload::strings(start.path.as_bytes(), dir.as_bytes(), count.as_bytes(), &args, &env);
    MemFile::with_strings(PAYLOAD, &strings)
}
