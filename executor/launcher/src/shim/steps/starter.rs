//! Runs the step starter, a process that starts the steps of a tree of actions.
//!
//! The step starter is forked from the shim before the shim reads a secret, because the starter's children, which enter
//! the container, inherit the starter's memory. The shim sends the starter commands with descriptors for the payload,
//! the output and the views of secret files. The step starter is the parent of the processes and reports their exits.
//! If the shim exits, the kernel kills the step starter and the processes that it has started.
//!
//! ```text
//! shim ── start ──> starter ── fork ──> first process: joins cgroup and namespaces, mounts files, drops privileges
//!   <── made, started, ended ──┘          └── clone ──> second process, a child of the starter: executes the program
//! ```
//! Steps are started one at a time. Running steps continue during a start.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use executor_core::payload::BYTES_MAX;
use executor_core::placement::MountPoint;
use executor_core::record::{ContainerRecord, Exit, PreparedContainer};
use executor_sys::events::Events;
use executor_sys::heap;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, ChildExit, Fork, SignalEvents};
use executor_sys::seqpacket::{FDS_MAX, Seqpacket};
use serde::{Deserialize, Serialize};

use crate::capabilities;
use crate::cgroup::part_of;
use crate::exec::{Entrant, ExecTarget, GO, made_pid};
use crate::host::Host;
use crate::log::{self, Level};
use crate::program::{FAILURE_MAX, START_TIMEOUT, StartFailure};
use crate::seccomp::Filter;
use crate::shim::SIGNALS;
use crate::workdir::{self, Within};

/// Maximum size of a message in either direction, in bytes.
const MESSAGE_MAX: usize = FAILURE_MAX + 1024;
/// Number of descriptors of a command: payload, standard input, output and error.
const COMMAND_FDS: usize = 4;

/// Command from the shim to the step starter. The views of secret files follow in separate messages.
#[derive(Serialize, Deserialize)]
struct StarterCommand {
    process: usize,
    /// Number of views that follow in separate messages.
    views: usize,
}

/// A change in the state of a process.
#[derive(Serialize, Deserialize)]
pub(crate) enum StarterEvent {
    /// The process is in the container and has not executed its program yet. The message carries the pidfd of the
    /// process.
    Made {
        process: usize,
        pid: i32,
    },
    /// The process has executed its program.
    Started {
        process: usize,
    },
    /// The process has not executed its program. `errno` is the error number, or 0 if there is none.
    NotStarted {
        process: usize,
        why: String,
        errno: i32,
    },
    Ended {
        process: usize,
        exit: Exit,
    },
}

/// Error of a program that was not executed.
struct NotExecuted {
    why: String,
    /// Error number of execve or of an earlier step in the process, or 0 if there is none.
    errno: i32,
}

impl<T: Into<String>> From<T> for NotExecuted {
    fn from(why: T) -> Self {
        Self { why: why.into(), errno: 0 }
    }
}

/// The shim's handle on the step starter.
pub(crate) struct Starter {
    pid: i32,
    socket: Seqpacket,
    /// True if the shim has reaped the step starter with its other children. The pid may then belong to another
    /// process.
    is_reaped: bool,
}

impl Starter {
    /// Forks the step starter, which inherits the memory of the calling process.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be created or the process cannot be forked.
    pub(crate) fn fork(
        host: &Host,
        filter: &Arc<Filter>,
        record: &ContainerRecord,
        prepared: &PreparedContainer,
        init: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let (socket, theirs) = Seqpacket::pair()?;
        let init = init.try_clone_to_owned()?;
        let parent = std::process::id();
        match process::fork()? {
            Fork::Parent(pid) => {
                socket.set_nonblocking(true);
                Ok(Self { pid, socket, is_reaped: false })
            }
            Fork::Child => {
                drop(socket);
                host.show_role(&["steps", record.plan.id.as_str()]);
                let served = set_up(host, parent, &theirs, init.as_fd()).and_then(|signals| {
                    let target = ExecTarget::new(record.clone(), prepared.clone(), init)?;
                    Service { host, filter, target, socket: &theirs, running: BTreeMap::new() }.run(&signals)
                });
                if let Err(error) = &served {
                    let id = record.plan.id.as_str();
                    log::line(Level::Error, id, format_args!("the steps cannot be started: {error}"));
                }
                process::exit_now(i32::from(served.is_err()))
            }
        }
    }

    /// Sends the command to start a process. Waits while the socket is full.
    ///
    /// # Errors
    /// Returns an error if the step starter has exited.
    pub(crate) fn start(
        &self,
        process: usize,
        payload: &MemFile,
        stdio: &[OwnedFd; 3],
        views: &[OwnedFd],
    ) -> io::Result<()> {
        let command = serde_json::to_vec(&StarterCommand { process, views: views.len() })?;
        let [stdin, stdout, stderr] = stdio;
        self.socket.set_nonblocking(false);
        let sent = self
            .socket
            .send(&command, &[payload.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])
            .and_then(|()| {
                views.chunks(FDS_MAX).try_for_each(|views| {
                    self.socket.send(b"views", &views.iter().map(AsFd::as_fd).collect::<Vec<_>>())
                })
            });
        self.socket.set_nonblocking(true);
        sent
    }

    /// Returns the next message, with the pidfd of a new process. Returns `None` if no message has arrived.
    ///
    /// # Errors
    /// Returns an error if the step starter has exited.
    pub(crate) fn recv(&self) -> io::Result<Option<(StarterEvent, Option<OwnedFd>)>> {
        let mut buffer = [0; MESSAGE_MAX];
        match self.socket.recv(&mut buffer) {
            Ok(Some((length, fds))) => Ok(Some((serde_json::from_slice(&buffer[..length])?, fds.into_iter().next()))),
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the shim's end of the socket.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Kills the step starter. The kernel then kills the processes that it started.
    pub(crate) fn kill(self) {
        if !self.is_reaped {
            crate::shim::init::create::kill(self.pid);
        }
    }

    /// Records that the shim has reaped a child.
    pub(crate) fn record_reaped(&mut self, pid: i32) {
        self.is_reaped |= self.pid == pid;
    }
}

/// Sets up the process: the parent-death signal, a name, no core dumps, signals as events. Closes all descriptors
/// except its socket, init's pidfd, and the cpuset hierarchy, which its children need.
fn set_up(host: &Host, parent: u32, socket: &Seqpacket, init: BorrowedFd<'_>) -> io::Result<SignalEvents> {
    process::die_with(parent)?;
    let kept = [socket.as_fd(), init].into_iter().chain(host.cpusets.as_ref().map(AsFd::as_fd));
    process::close_all_but(&kept.collect::<Vec<_>>())?;
    rustix::thread::set_name(c"executor-steps")?;
    process::forbid_dumps()?;
    heap::trim();
    SignalEvents::take(&SIGNALS) // the starter exits with the shim, not by a signal to all processes
}

/// State of the step starter in its own process.
struct Service<'a> {
    host: &'a Host,
    filter: &'a Arc<Filter>,
    target: ExecTarget,
    socket: &'a Seqpacket,
    /// Indices of the running processes in the plan, by pid.
    running: BTreeMap<i32, usize>,
}

/// Events of the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Command,
    Child,
}

impl Service<'_> {
    /// Executes commands and reports exits until the shim has exited.
    fn run(mut self, signals: &SignalEvents) -> io::Result<()> {
        loop {
            let mut events = Events::default();
            events.read(signals.as_fd(), Event::Child);
            events.read(self.socket.as_fd(), Event::Command);
            let happened = events.wait()?;
            while signals.next()?.is_some() {}
            self.reap_exited()?;
            if happened.contains(&Event::Command) {
                let mut buffer = [0; MESSAGE_MAX];
                let Some((length, fds)) = self.socket.recv(&mut buffer)? else { return Ok(()) };
                let command: StarterCommand = serde_json::from_slice(&buffer[..length])?;
                let views = self.views(command.views)?;
                self.start(command.process, fds, &views)?;
            }
        }
    }

    fn views(&self, count: usize) -> io::Result<Vec<OwnedFd>> {
        let mut views = Vec::new();
        while views.len() < count {
            let (_, fds) = self.socket.recv(&mut [0; 16])?.ok_or(io::ErrorKind::UnexpectedEof)?;
            views.extend(fds);
        }
        Ok(views)
    }

    /// Reaps children that have exited, and reports the exits of steps.
    fn reap_exited(&mut self) -> io::Result<()> {
        while let Some((pid, ended)) = process::reap_one(|_| false)? {
            if let Some(process) = self.running.remove(&pid) {
                self.send(&StarterEvent::Ended { process, exit: ended.into() }, &[])?;
            }
        }
        Ok(())
    }

    fn send(&self, event: &StarterEvent, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.socket.send(&serde_json::to_vec(event)?, fds)
    }

    fn start(&mut self, process: usize, fds: Vec<OwnedFd>, views: &[OwnedFd]) -> io::Result<()> {
        match self.try_to_start(process, fds, views) {
            Ok(pid) => {
                self.running.insert(pid, process);
                self.send(&StarterEvent::Started { process }, &[])
            }
            Err(NotExecuted { why, errno }) => self.send(&StarterEvent::NotStarted { process, why, errno }, &[]),
        }
    }

    fn try_to_start(&self, process: usize, fds: Vec<OwnedFd>, views: &[OwnedFd]) -> Result<i32, NotExecuted> {
        let reported = |what: &'static str| move |error: io::Error| format!("{what}: {}", crate::errors::plain(&error));
        let Ok([payload, stdin, stdout, stderr]) = <[OwnedFd; COMMAND_FDS]>::try_from(fds) else {
            return Err(format!("a start command needs {COMMAND_FDS} descriptors").into());
        };
        let payload = MemFile::from_fd(payload, BYTES_MAX as u64).map_err(reported("cannot receive the payload"))?;
        let step = self.target.prepared.steps.get(process).ok_or("the start command is for an unknown process")?;
        let record = &self.target.record;
        let sidecar = record.plan.actions.as_ref().and_then(|actions| actions.limited_sidecar_of(process));
        let part = sidecar.map(|sidecar| part_of(&record.cgroup, sidecar));
        let isolation = &record.plan.isolation;
        let held = capabilities::held(isolation, step.user.uid);
        let (filter, _) = Filter::from_request(self.filter, isolation, &held).map_err(|refused| refused.message)?;
        let credentials =
            ExecTarget::credentials(&step.user, &held).map_err(reported("cannot determine the capabilities"))?;
        let points: Vec<(&MountPoint, BorrowedFd<'_>)> =
            step.mounts.iter().map(|mount| &mount.point).zip(views.iter().map(AsFd::as_fd)).collect();
        let (socket, theirs) = Seqpacket::pair().map_err(reported("cannot create a socket"))?;
        let starter = std::process::id();
        let first = match process::fork().map_err(reported("cannot fork"))? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                let entrant = Entrant {
                    host: self.host,
                    filter: &filter,
                    target: &self.target,
                    credentials: &credentials,
                    home: &step.user.home,
                    nofile: step.nofile,
                    terminal: None,
                    supervisor: starter,
                    environment: None,
                    archive: None,
                    secret_devices: &[],
                    mounts: &points,
                    part: part.as_deref(),
                    cgroup: None,
                };
                entrant.run(&theirs, &[stdin, stdout, stderr], &payload)
            }
        };
        drop(theirs);
        let deadline = Instant::now() + START_TIMEOUT;
        let made = recv(&socket, deadline);
        if made.is_err() {
            process::kill(first);
        }
        let ended = process::wait_for(first).map_err(reported("cannot wait for the helper"))?;
        let pid = match made? {
            Some(word) => made_pid(&word).ok_or_else(|| StartFailure::decode(&word).1)?,
            None if ended == ChildExit::Signal(libc::SIGKILL) => {
                return Err("a helper process was killed: the container or the host may be out of memory".into());
            }
            None => return Err(format!("a helper process exited unexpectedly ({ended})").into()),
        };
        let pidfd = process::pidfd(pid).map_err(reported("cannot open the process"))?;
        self.send(&StarterEvent::Made { process, pid }, &[pidfd.as_fd()])
            .map_err(reported("cannot report to the shim"))?;
        let _ = socket.send(GO, &[]); // the loop detects an exit
        loop {
            return match recv(&socket, deadline) {
                // The socket closes on execve or exit; waitpid distinguishes them.
                Ok(None) => Ok(pid),
                Ok(Some(ref word)) if let Some(dir) = workdir::requested(word) => {
                    let ExecTarget { init, namespaces, .. } = &self.target;
                    let stage = Some(self.host.stage());
                    let within =
                        Within { init: init.as_fd(), is_mapped: namespaces.has_user(), stage: stage.as_deref() };
                    within.create_and_reply(dir, &socket);
                    continue;
                }
                Ok(Some(word)) => {
                    let _ = process::wait_for(pid);
                    let (errno, why) = StartFailure::decode(&word);
                    Err(NotExecuted { why, errno })
                }
                Err(late) => {
                    process::kill(pid);
                    let _ = process::wait_for(pid);
                    Err(late.into())
                }
            };
        }
    }
}

/// Returns the next message of a helper process, or `None` if the socket was closed.
fn recv(socket: &Seqpacket, deadline: Instant) -> Result<Option<Vec<u8>>, String> {
    let mut buffer = vec![0; FAILURE_MAX];
    match socket.recv_by(&mut buffer, deadline) {
        Ok(received) => Ok(received.map(|(length, _)| {
            buffer.truncate(length);
            buffer
        })),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Err(format!("the program was not executed within {} s", START_TIMEOUT.as_secs()))
        }
        Err(error) => Err(format!("cannot receive from the helper: {}", crate::errors::plain(&error))),
    }
}
