//! Runs network tasks in separate processes: lists, checks, garbage collection, and repeated detachments. In the
//! launcher's loop, reading a thousand large files or running plugins would delay every start of a container.
//!
//! A task waits while the maximum number of processes of its kind is running. Then a process is forked for the task.
//! The process sends its reply, with a memory file, to the launcher. The launcher forwards the reply after the
//! process's exit.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use executor_core::backoff::Backoff;
use executor_core::ident::ContainerId;
use executor_core::protocol::{
    CheckNetwork, LauncherAnswer, LauncherReply, ListNetworks, NetworkChecked, NetworksListed, Reason, Refused,
};
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, Fork};
use executor_sys::ready::is_readable;
use executor_sys::seqpacket::Seqpacket;
use prost::Message as _;

use super::Server;
use crate::errors::failed;
use crate::host::Host;
use crate::layers::ReplyDestination;
use crate::log::{self, Level};
use crate::network;

/// Maximum number of waiting requests for lists.
const LISTS_WAITING_MAX: usize = 64;
/// Maximum number of waiting checks, each of which can take a minute.
const CHECKS_WAITING_MAX: usize = 1;
/// Pause before the first retry to detach a container whose plugins failed.
const DETACH_DELAY: Duration = Duration::from_secs(5);
/// Pauses before further retries to detach a container.
const DETACH_BACKOFF: Backoff = Backoff::new(DETACH_DELAY, Duration::from_secs(300));
/// Maximum length of a process's reply, in bytes.
const REPLY_MAX: usize = 8192;

pub(super) enum NetworkTask {
    List(ListNetworks),
    /// Let plugins check the containers of a network.
    Check(CheckNetwork),
    /// Let plugins remove stale attachments.
    Collect,
    /// Detach exited containers that could not be detached earlier.
    Detach,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    Check,
    Collect,
    Detach,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::List => "lists",
            Self::Check => "checks",
            Self::Collect => "collections",
            Self::Detach => "detachments",
        }
    }

    /// Returns the maximum number of processes of this kind that run at the same time. Plugins are the operator's
    /// programs, and each can keep a processor busy.
    fn running_max(self) -> usize {
        match self {
            Self::List => 2,
            Self::Check | Self::Collect | Self::Detach => 1,
        }
    }

    /// Returns the maximum number of waiting tasks of this kind.
    fn waiting_max(self) -> usize {
        match self {
            Self::List => LISTS_WAITING_MAX,
            Self::Check => CHECKS_WAITING_MAX,
            Self::Collect | Self::Detach => 1, // one task covers all failures so far
        }
    }
}

impl NetworkTask {
    fn kind(&self) -> Kind {
        match self {
            Self::List(_) => Kind::List,
            Self::Check(_) => Kind::Check,
            Self::Collect => Kind::Collect,
            Self::Detach => Kind::Detach,
        }
    }
}

struct WaitingTask {
    task: NetworkTask,
    client: Option<ReplyDestination>,
}

struct RunningTask {
    kind: Kind,
    client: Option<ReplyDestination>,
    pid: i32,
    pidfd: OwnedFd,
    reported: Seqpacket,
}

/// Waiting tasks and running processes.
#[derive(Default)]
pub(super) struct NetworkTasks {
    waiting: VecDeque<WaitingTask>,
    running: Vec<RunningTask>,
    detach_retry: DetachRetry,
}

/// Time of the next attempt to detach containers.
struct DetachRetry {
    pauses: Backoff,
    due: Option<Instant>,
}

impl Default for DetachRetry {
    fn default() -> Self {
        Self { pauses: DETACH_BACKOFF, due: None }
    }
}

impl NetworkTasks {
    /// Returns true if no process runs and no task waits.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Returns the pidfds of running processes, readable after their exit.
    pub(super) fn pidfds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.running.iter().map(|running| running.pidfd.as_fd())
    }

    /// Returns the pids of running processes.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        self.running.iter().map(|running| running.pid)
    }

    /// Returns the time of the next attempt to detach containers.
    pub(super) fn due(&self) -> Option<Instant> {
        self.detach_retry.due
    }

    /// Schedules the detachment of containers that are left attached, after a pause.
    pub(super) fn detach_later(&mut self) {
        let DetachRetry { pauses, due } = &mut self.detach_retry;
        due.get_or_insert_with(|| Instant::now() + pauses.pause());
    }

    /// Schedules the detachment of a container whose plugins have just failed, after [`DETACH_DELAY`], even if the next
    /// attempt was scheduled for later.
    fn detach_soon(&mut self) {
        let soon = Instant::now() + DETACH_DELAY;
        let due = &mut self.detach_retry.due;
        *due = Some(due.map_or(soon, |due| due.min(soon)));
    }

    /// Queues the next attempt to detach containers if the attempt is due.
    fn queue_detachment(&mut self) {
        let is_due = self.detach_retry.due.take_if(|due| *due <= Instant::now()).is_some();
        if is_due && self.has_waiting_room(Kind::Detach) {
            self.waiting.push_back(WaitingTask { task: NetworkTask::Detach, client: None });
        }
    }

    fn has_waiting_room(&self, kind: Kind) -> bool {
        self.waiting.iter().filter(|waiting| waiting.task.kind() == kind).count() < kind.waiting_max()
    }

    /// Removes and returns the first waiting task whose kind has fewer running processes than the maximum.
    fn next(&mut self) -> Option<WaitingTask> {
        let has_room = |kind: Kind| self.running.iter().filter(|one| one.kind == kind).count() < kind.running_max();
        let index = self.waiting.iter().position(|waiting| has_room(waiting.task.kind()))?;
        self.waiting.remove(index)
    }

    /// Reaps processes that have exited, and forwards their replies.
    pub(super) fn reap(&mut self, host: &Host) {
        let (ended, running) = std::mem::take(&mut self.running).into_iter().partition(|one| is_readable(&one.pidfd));
        self.running = running;
        let ended: Vec<RunningTask> = ended;
        for RunningTask { kind, client, pid, reported, .. } in ended {
            let exit = process::wait_for(pid);
            if kind == Kind::Detach {
                match network::has_left_attached(host) {
                    true => self.detach_later(),
                    false => self.detach_retry.pauses.reset(),
                }
            }
            let mut buffer = vec![0; REPLY_MAX];
            let reply = match reported.recv(&mut buffer) {
                Ok(Some((length, fds))) => {
                    LauncherReply::decode(&buffer[..length]).ok().map(|reply| (reply.answer, fds))
                }
                _ => None,
            };
            let Some(client) = client else { continue }; // a task without a client logs its own failure
            if let Some((Some(answer), fds)) = reply {
                let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
                client.answer_with_fds(answer, &fds);
            } else {
                let exit = exit.map_or_else(|error| error.to_string(), |exit| exit.to_string());
                let why = format!("the network worker exited without a reply ({exit})");
                log::line(Level::Error, "", &why);
                client.answer(LauncherAnswer::Refused(Refused::new(Reason::Internal, why)));
            }
        }
    }
}

impl Server {
    /// Accepts a request about networks. The response is sent later.
    ///
    /// # Errors
    /// Returns a refusal if too many tasks wait.
    pub(super) fn queue_network_task(&mut self, task: NetworkTask, client: ReplyDestination) -> Result<(), Refused> {
        if !self.network_tasks.has_waiting_room(task.kind()) {
            let (max, what) = (task.kind().waiting_max(), task.kind().name());
            let why = format!("too many {what} of networks are waiting (at most {max}); try again");
            return Err(Refused::new(Reason::Busy, why));
        }
        self.network_tasks.waiting.push_back(WaitingTask { task, client: Some(client) });
        Ok(())
    }

    /// Queues garbage collection of CNI networks, if the operator enabled it.
    pub(super) fn queue_collection(&mut self) {
        if self.host.cni_gc && self.network_tasks.has_waiting_room(Kind::Collect) {
            self.network_tasks.waiting.push_back(WaitingTask { task: NetworkTask::Collect, client: None });
        }
    }

    /// Schedules another attempt to detach a container, and garbage collection, if needed.
    pub(super) fn follow_up_detachment(&mut self, id: &ContainerId) {
        if network::is_left_attached(&self.host, id) {
            self.network_tasks.detach_soon();
        }
        if network::needs_gc(&self.host, id) {
            self.queue_collection();
        }
    }

    /// Starts waiting tasks, up to the maximum number of processes of each kind.
    pub(super) fn advance_network_tasks(&mut self) {
        self.network_tasks.queue_detachment();
        while let Some(WaitingTask { task, client }) = self.network_tasks.next() {
            match self.start_network_task(&task) {
                Ok(running) => self.network_tasks.running.push(RunningTask { client, ..running }),
                Err(error) => {
                    let refused = failed("cannot start the network worker", &error);
                    if task.kind() == Kind::Detach {
                        self.network_tasks.detach_later();
                    }
                    match client {
                        Some(client) => drop(client.answer(LauncherAnswer::Refused(refused))),
                        None => log::line(Level::Error, "", refused.message),
                    }
                }
            }
        }
    }

    fn start_network_task(&mut self, task: &NetworkTask) -> io::Result<RunningTask> {
        let (reported, theirs) = Seqpacket::pair()?;
        reported.set_nonblocking(true);
        let parent = std::process::id();
        let room = process::room_for_one(reported.as_fd())?;
        let pid = match process::fork()? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                drop((reported, room));
                self.abandon();
                self.host.show_role(&["networks"]);
                process::exit_now(self.run_network_task(task, parent, &theirs))
            }
        };
        drop(room);
        Ok(RunningTask { kind: task.kind(), client: None, pid, pidfd: process::pidfd(pid)?, reported })
    }

    /// Executes a task in its process, and returns the exit status.
    fn run_network_task(&self, task: &NetworkTask, parent: u32, reported: &Seqpacket) -> i32 {
        let started = process::die_with(parent).and_then(|()| Ok(rustix::thread::set_name(c"executor-net")?));
        if started.is_err() {
            return 1;
        }
        let (answer, made): (LauncherAnswer, Result<MemFile, Refused>) = match task {
            NetworkTask::List(request) => {
                (LauncherAnswer::NetworksListed(NetworksListed {}), network::list(&self.host, request))
            }
            NetworkTask::Check(request) => {
                (LauncherAnswer::NetworkChecked(NetworkChecked {}), network::check(&self.host, request))
            }
            NetworkTask::Collect => {
                network::collect_garbage(&self.host);
                return 0;
            }
            NetworkTask::Detach => {
                network::retry_detachments(&self.host);
                return 0;
            }
        };
        let (answer, fds) = match &made {
            Ok(file) => (answer, vec![file.as_fd()]),
            Err(refused) => (LauncherAnswer::Refused(refused.clone()), Vec::new()),
        };
        let reply = LauncherReply { sequence: 0, answer: Some(answer) };
        i32::from(reported.send(&reply.encode_to_vec(), &fds).is_err())
    }

    /// Kills the processes of running tasks. Called when the launcher exits.
    pub(super) fn kill_network_tasks(&mut self) {
        self.network_tasks.waiting.clear();
        let kinds: Vec<Kind> = self.network_tasks.running.iter().map(|running| running.kind).collect();
        for running in self.network_tasks.running.drain(..) {
            let _ = process::pidfd_signal(running.pidfd.as_fd(), libc::SIGKILL); // the process may have just exited
            let _ = process::wait_for(running.pid);
        }
        if kinds.contains(&Kind::Collect) {
            network::kill_gc_plugins(&self.host);
        }
        if kinds.contains(&Kind::Detach) {
            network::kill_detach_plugins(&self.host);
        }
    }
}
