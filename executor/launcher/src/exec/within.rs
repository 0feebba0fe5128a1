//! Creates a process in a container with two helper processes.
//!
//! The first process joins the container's cgroups, enters its namespaces and drops all privileges that the container
//! does not have. The first process then clones the second process as a child of the supervisor. The second process
//! executes the program or copies files. Only the second process is visible in the container. Before it executes the
//! program, it has only the executor's own program (a sealed memory file), the socket for reporting a failure, the
//! payload and, if requested, the container's environment. The container's processes cannot inspect these, because the
//! second process allows no tracing at that stage.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use executor_core::limits::CORE_FILE_MAX;
use executor_core::placement::MountPoint;
use executor_core::protocol::ArchiveWork;
use executor_secrets::volume::Stored;
use executor_sys::entry;
use executor_sys::memfile::MemFile;
use executor_sys::privileges::Credentials;
use executor_sys::process::{self, Fork};
use executor_sys::pty::{self, Terminal, Window};
use executor_sys::seqpacket::Seqpacket;
use nix::sys::resource::{Resource, setrlimit};
use rustix::process::Signal;

use super::archive::ArchiveRequest;
use super::target::ExecTarget;
use crate::cgroup::ExecCgroup;
use crate::host::Host;
use crate::program::{Confinement, Program, StartFailure, has_own_domain};
use crate::rootfs::place_view;
use crate::seccomp::Filter;
use crate::ulimits;

/// Prefix of the message in which the first process reports the second process, followed by the pid. The prefix differs
/// from all error numbers.
pub(crate) const MADE: &[u8; 4] = b"made";
/// Returns the pid of the second process if the message is [`MADE`].
pub(crate) fn made_pid(message: &[u8]) -> Option<i32> {
    let pid = message.strip_prefix(MADE)?;
    pid.try_into().ok().map(i32::from_le_bytes)
}

/// Message in which the second process sends its terminal.
pub(super) const TERMINAL: &[u8] = b"tty";
/// Message that the supervisor sends after it has started to track the second process, which waits for this message.
pub(crate) const GO: &[u8] = b"go";

/// Parameters for creating a process in a container.
pub(crate) struct Entrant<'a> {
    pub(crate) host: &'a Host,
    pub(crate) filter: &'a Filter,
    pub(crate) target: &'a ExecTarget,
    pub(crate) credentials: &'a Credentials,
    pub(crate) home: &'a Path,
    /// Limit on open files (RLIMIT_NOFILE).
    pub(crate) nofile: u64,
    /// Size of the process's terminal, if the process gets a terminal.
    pub(crate) terminal: Option<Window>,
    pub(crate) supervisor: u32,
    /// Environment of the container's process, if the new process gets it.
    pub(crate) environment: Option<&'a Stored>,
    /// `Some` if files are copied and nothing is executed.
    pub(crate) archive: Option<ArchiveWork>,
    /// Device numbers of the file systems with secret files.
    pub(crate) secret_devices: &'a [u64],
    /// Detached mounts of secret files that only this process sees, and their mount points.
    pub(crate) mounts: &'a [(&'a MountPoint, BorrowedFd<'a>)],
    /// Cgroup of the sidecar, if the process belongs to a sidecar with its own limits.
    pub(crate) part: Option<&'a Path>,
    /// Cgroup of the process and its descendants, if they have one.
    pub(crate) cgroup: Option<&'a ExecCgroup>,
}

impl Entrant<'_> {
    /// Runs the first process. Never returns, in either process.
    pub(crate) fn run(self, socket: &Seqpacket, stdio: &[OwnedFd; 3], payload: &MemFile) -> ! {
        let failure = match self.enter(socket, stdio, payload) {
            Ok(Fork::Parent(pid)) => {
                let reported = socket.send(&[&MADE[..], &pid.to_le_bytes()].concat(), &[]);
                process::exit_now(i32::from(reported.is_err()))
            }
            Ok(Fork::Child) => match self.execute(socket, payload) {
                Err(failure) => failure,
                Ok(never) => match never {},
            },
            Err((what, error)) => StartFailure::new(what, error),
        };
        let _ = socket.send(&failure.encode(), &[]);
        process::exit_now(127)
    }

    fn enter(
        &self,
        socket: &Seqpacket,
        [stdin, stdout, stderr]: &[OwnedFd; 3],
        payload: &MemFile,
    ) -> Result<Fork, (&'static str, io::Error)> {
        let ExecTarget { record, init, namespaces, oom_score_adj, .. } = self.target;
        process::die_with(self.supervisor).map_err(|error| ("cannot set the parent-death signal", error))?;
        // Join the cgroup first: from now on the container's limits apply, and killing the container kills this
        // process.
        let join = || self.host.hierarchies.join(&record.cgroup);
        self.cgroup.map_or_else(join, |cgroup| cgroup.join(join)).map_err(|error| ("cannot join the cgroup", error))?;
        let options = &record.plan.host_options;
        if let Some(cpusets) = self.host.cpusets.as_ref().filter(|_| options.has_cpuset()) {
            cpusets.join(&record.cgroup).map_err(|error| ("cannot join the cpuset", error))?;
        }
        ulimits::raise(&options.ulimits).map_err(|(_, error)| ("cannot set the ulimits", error))?;
        if let Some(part) = self.part {
            self.host.hierarchies.join_part(part).map_err(|error| ("cannot join the sidecar's cgroup", error))?;
        }
        std::fs::write("/proc/self/oom_score_adj", oom_score_adj.trim())
            .map_err(|error| ("cannot set oom_score_adj", error))?;
        setrlimit(Resource::RLIMIT_NOFILE, self.nofile, self.nofile)
            .and_then(|()| setrlimit(Resource::RLIMIT_CORE, CORE_FILE_MAX, CORE_FILE_MAX))
            .map_err(|error| ("cannot limit open files and core files", error.into()))?;
        pty::stdio(stdin.as_fd(), stdout.as_fd(), stderr.as_fd())
            .map_err(|error| ("cannot set the standard streams", error))?;
        let views = self.mounts.iter().map(|(_, view)| *view);
        let kept: Vec<BorrowedFd<'_>> = [socket.as_fd(), payload.as_fd(), init.as_fd()]
            .into_iter()
            .chain(views)
            .chain(self.environment.map(Stored::as_fd))
            .collect();
        process::close_all_but(&kept).map_err(|error| ("cannot close descriptors", error))?;
        let mut what = "cannot enter the container";
        let within = || {
            if self.mounts.is_empty() {
                return Ok(());
            }
            what = "cannot mount the secret files";
            entry::separate_mounts(*namespaces)?;
            let owner = Some((self.credentials.uid, self.credentials.gid));
            self.mounts.iter().try_for_each(|(point, view)| place_view(point, *view, owner))
        };
        entry::enter(init.as_fd(), *namespaces, self.credentials, within).map_err(|error| (what, error))
    }

    /// Runs the second process. Returns only on failure.
    fn execute(&self, socket: &Seqpacket, payload: &MemFile) -> Result<Infallible, StartFailure> {
        let kept = [socket.as_fd(), payload.as_fd()].into_iter().chain(self.environment.map(Stored::as_fd));
        process::close_all_but(&kept.collect::<Vec<_>>())
            .map_err(|error| StartFailure::new("cannot close descriptors", error))?;
        // Set this before waiting. If the supervisor has already exited, `recv` reports that the socket is closed.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| StartFailure::new("cannot set the parent-death signal", error))?;
        let go =
            socket.recv(&mut [0; 8]).map_err(|error| StartFailure::new("cannot wait for the supervisor", error))?;
        if go.is_none() {
            process::exit_now(127);
        }
        let plan = &self.target.record.plan;
        let confinement = Confinement { filter: self.filter, own_domain: has_own_domain(plan) };
        if let Some(work) = self.archive {
            rustix::process::setsid().map_err(|error| StartFailure::new("cannot call setsid", error))?;
            return ArchiveRequest::read(work, payload)?.execute(socket, confinement, self.secret_devices);
        }
        let program = Program::read(payload, self.environment, &self.target.prepared.device_environment, self.home)?;
        match self.terminal {
            Some(window) => {
                self.take_terminal(socket, window)
                    .map_err(|error| StartFailure::new("cannot open a terminal", error))?;
            }
            None => drop(rustix::process::setsid().map_err(|error| StartFailure::new("cannot call setsid", error))?),
        }
        Err(program.execute(socket, confinement, &plan.host_options))
    }

    fn take_terminal(&self, socket: &Seqpacket, window: Window) -> io::Result<()> {
        let master = Terminal::open()?.control()?;
        pty::resize(master.as_fd(), window)?;
        socket.send(TERMINAL, &[master.as_fd()])
    }
}
