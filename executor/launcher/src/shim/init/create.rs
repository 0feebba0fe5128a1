//! The container itself, through libcontainer: created with its init waiting, started later with what it runs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use executor_core::protocol::{Reason, Refused};
use executor_sys::entry::Namespaces;
use executor_sys::memfile::MemFile;
use executor_sys::process;
use executor_sys::ready::{is_readable, readable_by};
use executor_sys::seqpacket::Seqpacket;
use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use oci_spec::runtime::Spec;

use super::activation::{NOT_TAKEN, Order};
use super::init_spec::InitSpec;
use super::last_steps::{Init, TERMINAL};
use crate::cgroup::Devices;
use crate::errors::{failed, failed_by, failed_by_libcontainer};
use crate::files::{ensure_dir, make_dir};
use crate::host::Host;
use crate::log;
use crate::program::{FAILURE_MAX, START_PATIENCE, StartFailure};
use crate::seccomp::Filter;
use crate::workdir;

/// The name of every container to libcontainer, each below a directory of its own.
const NAME: &str = "c";

/// A container whose init waits to be started.
pub(crate) struct Created {
    /// Until it is started: libcontainer has nothing more to do then, and its memory is given back.
    container: Option<Container>,
    pid: i32,
    pidfd: OwnedFd,
    socket: Seqpacket,
    /// Set where its init waited for its part.
    was_warm: bool,
    /// Order that makes its init the container's, where that goes with what it is to run.
    order: Option<Order>,
}

/// Why a program did not start.
pub(crate) enum NotStarted {
    /// The program was not executed: the container has failed.
    Failed {
        /// Step that failed, and why.
        message: String,
        /// Number of the system call's error, or 0.
        errno: i32,
    },
    /// Init did not become the container's first process: there is no container.
    Refused(Refused),
}

/// What a container is created of.
pub(crate) struct Creation<'a> {
    /// Directory for the files that libcontainer keeps of it.
    pub(crate) dir: &'a Path,
    /// Its cgroup, relative to each hierarchy's mount, and its devices.
    pub(crate) cgroup: (&'a Path, Devices<'a>),
    /// Cgroup of processors that it sees.
    pub(crate) cpuset: &'a Path,
    pub(crate) spec: &'a Spec,
    pub(crate) filter: Arc<Filter>,
    pub(crate) stdio: [OwnedFd; 3],
    /// Part of its init; one without waits to be told.
    pub(crate) part: Option<InitSpec>,
}

/// Creates a container in a cgroup of its own, which has no limits yet.
pub(crate) fn create(host: &Host, creation: Creation<'_>) -> Result<Created, Refused> {
    let Creation { dir, cgroup: (cgroup, devices), cpuset, spec, filter, stdio: [stdin, stdout, stderr], part } =
        creation;
    let (bundle, state) = (dir.join("bundle"), dir.join("oci"));
    let config = serde_json::to_vec(spec).map_err(|error| Refused::new(Reason::Internal, format!("spec: {error}")))?;
    ensure_dir(&bundle, 0o700) // one that was to be a shell has it
        .and_then(|()| std::fs::write(bundle.join("config.json"), config))
        .and_then(|()| make_dir(&state, 0o700, None))
        .map_err(|error| failed("run directory", &error))?;
    let (socket, theirs) = Seqpacket::pair().map_err(|error| failed("socket", &error))?;
    let was_warm = part.is_none();
    let init = Init { socket: Arc::new(theirs), filter, part: part.map(Arc::new) };
    let build = || {
        ContainerBuilder::new(NAME.into(), SyscallType::default())
            .with_root_path(&state)
            .map(|builder| builder.with_stdin(stdin).with_stdout(stdout).with_stderr(stderr).with_executor(init))
            .and_then(|builder| builder.as_init(&bundle).with_systemd(false).with_detach(true).build())
    };
    let made = host.hierarchies.make(cgroup, &devices).and_then(|()| {
        host.hierarchies.mount_view(cgroup, cpuset, &host.cgroup_view())?;
        host.hierarchies.within(cgroup, build)
    });
    let container = made.map_err(|error| failed("cgroup", &error))?.map_err(|error| {
        reap(); // an init that failed half-way stays a zombie of this process
        failed_by_libcontainer(format!("create: {}", log::chain(&error)))
    })?;
    let pid =
        container.pid().map(|pid| pid.as_raw()).ok_or_else(|| Refused::new(Reason::Internal, "create: no init"))?;
    let pidfd = process::pidfd(pid).map_err(|error| failed("init", &error))?;
    Ok(Created { container: Some(container), pid, pidfd, socket, was_warm, order: None })
}

impl Created {
    /// Lets the init of a shell go on to where it waits for its part.
    pub(crate) fn release(&mut self) -> Result<(), Refused> {
        let Some(mut container) = self.container.take() else { return Ok(()) };
        container.start().map_err(|error| failed_by(format!("libcontainer: {}", log::chain(&error))))
    }

    /// Has init become what the order says: now, or `at_once` when it is started.
    ///
    /// # Errors
    /// The step that init failed at; its end.
    pub(crate) fn order(&mut self, order: Order, at_once: bool) -> Result<(), Refused> {
        if at_once {
            self.order = Some(order);
            return Ok(());
        }
        order.execute(&self.socket)
    }

    /// Tells whether it was a shell before it was a container.
    pub(crate) fn was_warm(&self) -> bool {
        self.was_warm
    }

    /// Init, in the host's pid namespace.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Readable when init has ended.
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Hands init what it is to run, if it runs a program, and waits until it runs or has told why not. Gives its terminal, if it has one.
    /// `stage` is the root file system in the shim's mount namespace.
    pub(crate) fn start(&mut self, payload: Option<&MemFile>, stage: &Path) -> Result<Option<OwnedFd>, NotStarted> {
        let mut is_taken = true;
        let failed = |what: &str, error: &dyn std::fmt::Display| NotStarted::Failed {
            message: format!("start: {what}: {error}"),
            errno: 0,
        };
        let payload = payload.map(AsFd::as_fd);
        let sent = match self.order.take() {
            Some(order) => order.send(&self.socket, payload),
            None => self.socket.send(b"start", payload.as_slice()),
        };
        sent.map_err(|error| failed("payload", &error))?;
        if let Some(mut container) = self.container.take() {
            container.start().map_err(|error| failed("libcontainer", &log::chain(&error)))?;
        }
        let mut terminal = None;
        loop {
            self.await_word().map_err(|error| failed("init", &error))?;
            let mut reported = vec![0; FAILURE_MAX];
            match self.socket.recv(&mut reported) {
                // Its end was closed by a successful execve, or by its death: the wait tells.
                Ok(None) => return Ok(terminal),
                Ok(Some((length, fds))) if &reported[..length] == TERMINAL => terminal = fds.into_iter().next(),
                Ok(Some((length, _))) if &reported[..length] == NOT_TAKEN => is_taken = false,
                Ok(Some((length, _))) if let Some(dir) = workdir::requested(&reported[..length]) => {
                    let namespaces = Namespaces::other_than_own(self.pid).map_err(|error| failed("init", &error))?;
                    let init = self.pidfd.as_fd();
                    let within = workdir::Within { init, is_mapped: namespaces.has_user(), stage: Some(stage) };
                    within.create_and_reply(dir, &self.socket);
                }
                Ok(Some((length, _))) => {
                    let (errno, message) = StartFailure::decode(&reported[..length]);
                    return Err(if is_taken {
                        NotStarted::Failed { message, errno }
                    } else {
                        NotStarted::Refused(failed_by(format!("shell: {message}")))
                    });
                }
                Err(error) => return Err(failed("init", &error)),
            }
        }
    }

    /// Waits until init says something, or nothing more.
    fn await_word(&self) -> io::Result<()> {
        if readable_by(&self.socket, Instant::now() + START_PATIENCE)? {
            return Ok(());
        }
        Err(io::Error::other(format!("no answer within {} s", START_PATIENCE.as_secs())))
    }

    /// Tells whether init has ended already.
    pub(crate) fn has_ended(&self) -> bool {
        is_readable(&self.pidfd)
    }

    /// Ends init, if it has not ended, and takes it.
    pub(crate) fn kill(&self) {
        kill(self.pid);
    }
}

/// Ends a child and takes it.
pub(crate) fn kill(pid: i32) {
    process::kill(pid);
    let _ = process::wait_for(pid);
}

/// Takes every child that has ended.
pub(crate) fn reap() {
    while let Ok(Some(_)) = process::reap_one(|_| false) {}
}
