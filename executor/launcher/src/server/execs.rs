//! Manages the supervisors of exec processes: limits their number, reaps them, and kills an exec process whose
//! supervisor was killed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::payload::BYTES_MAX;
use executor_core::protocol::{
    Archive, ArchiveWork, Done, EXECS_MAX, EXECS_MAX_IN_ALL, Exec, LauncherAnswer, Reason, Refused,
};
use executor_core::time::Timestamp;
use executor_secrets::volume::Stored;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, ChildExit, Fork};
use executor_sys::ready::is_readable;
use executor_sys::seqpacket::Seqpacket;

use super::Server;
use crate::dirs::Dirs;
use crate::errors::failed;
use crate::exec;
use crate::host::Host;

/// Maximum time that the launcher blocks until the killed descendants of an exec process have exited.
const EXIT_TIMEOUT: Duration = Duration::from_millis(100);

pub(super) struct Supervisor {
    container: ContainerId,
    pub(super) pid: i32,
    pidfd: OwnedFd,
    /// Connection over which the supervisor sends the pidfd of its process.
    lifeline: Option<Seqpacket>,
    process: Option<OwnedFd>,
}

impl Supervisor {
    /// Returns the descriptors to wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.pidfd.as_fd()).chain(self.lifeline.iter().map(AsFd::as_fd))
    }

    /// Kills the descendants of the exec process after the supervisor was killed.
    fn kill_descendants(&self, host: &Host) {
        if let (Some(record), Ok(pid)) = (Dirs::new(host, &self.container).read_record(), u32::try_from(self.pid)) {
            drop(host.hierarchies.exec_cgroup(&record.cgroup, pid, EXIT_TIMEOUT));
        }
    }

    fn recv(&mut self) {
        let mut buffer = [0; 8];
        while let Some(lifeline) = &self.lifeline {
            match lifeline.recv(&mut buffer) {
                Ok(Some((_, fds))) => self.process = fds.into_iter().next().or(self.process.take()),
                Ok(None) => self.lifeline = None,
                Err(_) => return, // no more messages
            }
        }
    }
}

impl Server {
    /// Starts a supervisor that copies files, like the supervisor of an exec process.
    pub(super) fn archive(&mut self, archive: Archive, fds: Vec<OwnedFd>) -> Result<LauncherAnswer, Refused> {
        let work = ArchiveWork::try_from(archive.work).ok();
        match (work.filter(|work| *work != ArchiveWork::Nothing), archive.exec) {
            (work @ Some(_), Some(exec)) => self.exec(exec, work, fds),
            _ => Err(Refused::new(Reason::Invalid, "an archive request needs an exec description, and `get` or `put`")),
        }
    }

    /// Forks a supervisor. The supervisor itself reports the result.
    pub(super) fn exec(
        &mut self,
        exec: Exec,
        archive: Option<ArchiveWork>,
        fds: Vec<OwnedFd>,
    ) -> Result<LauncherAnswer, Refused> {
        let id: ContainerId =
            exec.container_id.parse().map_err(|bad| Refused::new(Reason::Invalid, format!("container id: {bad}")))?;
        let Ok([session, payload]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(Refused::new(Reason::Invalid, "an exec needs two descriptors: session and payload"));
        };
        let invalid = |error: io::Error| Refused::new(Reason::Invalid, error.to_string());
        let payload = MemFile::from_fd_to_wipe(payload, BYTES_MAX as u64).map_err(invalid)?;
        let session = Seqpacket::from_peer(session).map_err(invalid)?;
        self.reap_execs();
        let in_container = self.execs.iter().filter(|exec| exec.container == id).count();
        if in_container >= EXECS_MAX || self.execs.len() >= EXECS_MAX_IN_ALL {
            let why = format!(
                "too many exec processes: {in_container} in container {id} (at most {EXECS_MAX}), {} on this host (at \
                 most {EXECS_MAX_IN_ALL})",
                self.execs.len()
            );
            return Err(Refused::new(Reason::Exhausted, why));
        }
        let environment = exec.container_environment.then(|| self.environment(&id, exec.created_at)).transpose()?;
        let (lifeline, theirs) = Seqpacket::pair().map_err(|error| failed("cannot create the lifeline", &error))?;
        lifeline.set_nonblocking(true);
        let room =
            process::room_for_one(lifeline.as_fd()).map_err(|error| failed("cannot fork a supervisor", &error))?;
        let pid = match process::fork().map_err(|error| failed("cannot fork a supervisor", &error))? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                drop((lifeline, room));
                self.abandon();
                let input = exec::ExecInput { id, exec, archive, session, payload, environment };
                process::exit_now(exec::run(&self.host, &self.filter, input, &theirs))
            }
        };
        drop(room);
        let pidfd = process::pidfd(pid).map_err(|error| failed("cannot open the supervisor process", &error))?;
        self.execs.push(Supervisor { container: id, pid, pidfd, lifeline: Some(lifeline), process: None });
        Ok(LauncherAnswer::Done(Done {}))
    }

    /// Opens the stored environment of a container through the launcher's handle on the container's volume. The
    /// launcher does not read the environment.
    fn environment(&mut self, id: &ContainerId, created_at: u64) -> Result<Stored, Refused> {
        let shim = self.recv_from_shim(id).filter(|shim| shim.created_at == Timestamp(created_at));
        let volume = shim.and_then(|shim| shim.volume.as_ref()).ok_or_else(|| {
            let why = format!("the environment of container {id} is not accessible: the container is exiting");
            Refused::new(Reason::Precondition, why)
        })?;
        volume.environment().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => exec::no_environment(id),
            _ => failed("cannot open the stored environment", &error),
        })
    }

    /// Reaps supervisors that have exited, and kills exec processes whose supervisor was killed.
    pub(super) fn reap_execs(&mut self) {
        let host = &self.host;
        self.execs.retain_mut(|exec| {
            exec.recv();
            if !is_readable(&exec.pidfd) {
                return true;
            }
            exec.recv(); // read the last messages
            if let Some(process) = &exec.process {
                let _ = process::pidfd_signal(process.as_fd(), libc::SIGKILL); // the process has usually exited already
            }
            if let Ok(ChildExit::Signal(_)) = process::wait_for(exec.pid) {
                exec.kill_descendants(host);
            }
            false
        });
    }
}
