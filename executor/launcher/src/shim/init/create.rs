//! Creates the container through libcontainer, with an init that waits, and starts the container's program later.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use executor_core::protocol::{Reason, Refused};
use executor_core::record::Failure;
use executor_sys::entry::Namespaces;
use executor_sys::memfile::MemFile;
use executor_sys::process;
use executor_sys::ready::{is_readable, readable_by};
use executor_sys::seqpacket::Seqpacket;
use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use oci_spec::runtime::Spec;

use super::activation::{ActivationMessage, NOT_ACCEPTED};
use super::init_spec::InitSpec;
use super::last_steps::{Init, TERMINAL};
use crate::cgroup::Devices;
use crate::errors::{failed, failed_by, failed_by_libcontainer};
use crate::files::{ensure_dir, make_dir};
use crate::host::Host;
use crate::log;
use crate::program::{FAILURE_MAX, START_TIMEOUT, StartFailure};
use crate::seccomp::Filter;
use crate::workdir;

/// Container id for libcontainer. All containers have the same id, because each has its own libcontainer directory.
const NAME: &str = "c";

/// A container whose init waits to be started.
pub(crate) struct Created {
    /// `None` after the start, when libcontainer's value is no longer needed.
    container: Option<Container>,
    pid: i32,
    pidfd: OwnedFd,
    socket: Seqpacket,
    was_warm: bool,
    /// Activation of init, if it is sent together with the payload.
    activation: Option<ActivationMessage>,
}

/// Error of a program that was not started.
pub(crate) enum NotStarted {
    /// The program was not executed, so the container has failed.
    Failed {
        /// The failed step and the error.
        message: String,
        /// errno of the system call, or 0.
        errno: i32,
    },
    /// The warm init was not activated, so there is no container.
    Refused(Refused),
    /// The container was held, and before its start it was stopped or its init exited.
    Ended(Failure),
}

/// Parameters for creating a container.
pub(crate) struct Creation<'a> {
    /// Directory for libcontainer's files.
    pub(crate) dir: &'a Path,
    /// Cgroup, relative to each hierarchy's mount, and the devices that it permits.
    pub(crate) cgroup: (&'a Path, Devices<'a>),
    /// Cgroup in the cpuset hierarchy that the container sees.
    pub(crate) cpuset: &'a Path,
    /// True if the container can change its cgroup.
    pub(crate) has_writable_cgroup: bool,
    pub(crate) spec: &'a Spec,
    pub(crate) filter: Arc<Filter>,
    pub(crate) stdio: [OwnedFd; 3],
    /// Role and settings of init. `None` for a warm container, whose init receives them later.
    pub(crate) part: Option<InitSpec>,
}

/// Creates a container in its own cgroup. The cgroup has no limits yet.
pub(crate) fn create(host: &Host, creation: Creation<'_>) -> Result<Created, Refused> {
    let Creation { dir, cgroup: (cgroup, devices), cpuset, has_writable_cgroup, spec, filter, stdio, part } = creation;
    let [stdin, stdout, stderr] = stdio;
    let (bundle, state) = (dir.join("bundle"), dir.join("oci"));
    let config = serde_json::to_vec(spec)
        .map_err(|error| Refused::new(Reason::Internal, format!("cannot encode the OCI specification: {error}")))?;
    ensure_dir(&bundle, 0o700) // exists for a warm container
        .and_then(|()| std::fs::write(bundle.join("config.json"), config))
        .and_then(|()| make_dir(&state, 0o700, None))
        .map_err(|error| failed("cannot create the bundle", &error))?;
    let (socket, theirs) = Seqpacket::pair().map_err(|error| failed("cannot create a socket", &error))?;
    let was_warm = part.is_none();
    let init = Init { socket: Arc::new(theirs), filter, part: part.map(Arc::new) };
    let build = || {
        ContainerBuilder::new(NAME.into(), SyscallType::default())
            .with_root_path(&state)
            .map(|builder| builder.with_stdin(stdin).with_stdout(stdout).with_stderr(stderr).with_executor(init))
            .and_then(|builder| builder.as_init(&bundle).with_systemd(false).with_detach(true).build())
    };
    let make = || host.hierarchies.make(cgroup, &devices);
    let given = host.is_given(cgroup);
    let made = if given { host.hierarchies.make_below(&host.parents(), cgroup, make) } else { make() };
    let made = made.and_then(|()| {
        host.hierarchies.mount_view(cgroup, cpuset, has_writable_cgroup, &host.cgroup_view())?;
        host.hierarchies.within(cgroup, build)
    });
    let container = made.map_err(|error| failed("cannot create the cgroup", &error))?.map_err(|error| {
        reap(); // an init that failed half-way stays a zombie of this process
        failed_by_libcontainer(format!("libcontainer cannot create the container: {}", log::chain(&error)))
    })?;
    let pid = container
        .pid()
        .map(|pid| pid.as_raw())
        .ok_or_else(|| Refused::new(Reason::Internal, "libcontainer created no init"))?;
    let pidfd = process::pidfd(pid).map_err(|error| failed("cannot open the container's init", &error))?;
    Ok(Created { container: Some(container), pid, pidfd, socket, was_warm, activation: None })
}

impl Created {
    /// Lets the init of a warm container continue until it waits for its activation.
    pub(crate) fn release(&mut self) -> Result<(), Refused> {
        let Some(mut container) = self.container.take() else { return Ok(()) };
        container
            .start()
            .map_err(|error| failed_by(format!("libcontainer cannot start the container: {}", log::chain(&error))))
    }

    /// Activates init. If `at_once` is true, the message is sent together with the payload at the start. Otherwise the
    /// message is sent now, and the call returns after init has executed the command.
    ///
    /// # Errors
    /// Returns a refusal if a step fails in init or if init has exited. The message names the failed step.
    pub(crate) fn activate(&mut self, message: ActivationMessage, at_once: bool) -> Result<(), Refused> {
        if at_once {
            self.activation = Some(message);
            return Ok(());
        }
        message.execute(&self.socket)
    }

    pub(crate) fn was_warm(&self) -> bool {
        self.was_warm
    }

    /// Returns the pid of init in the host's pid namespace.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the pidfd of init. The pidfd becomes readable when init exits.
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Sends init its payload, if it runs a program, and waits until the program runs or init reports a failure.
    /// Returns the terminal, if the program has one. `stage` is the root file system in the shim's mount namespace.
    pub(crate) fn start(&mut self, payload: Option<&MemFile>, stage: &Path) -> Result<Option<OwnedFd>, NotStarted> {
        let mut is_accepted = true;
        let failed = |what: &str, error: &dyn std::fmt::Display| NotStarted::Failed {
            message: format!("start: {what}: {error}"),
            errno: 0,
        };
        let payload = payload.map(AsFd::as_fd);
        let sent = match self.activation.take() {
            Some(message) => message.send(&self.socket, payload),
            None => self.socket.send(b"start", payload.as_slice()),
        };
        sent.map_err(|error| failed("cannot send the payload", &error))?;
        if let Some(mut container) = self.container.take() {
            container
                .start()
                .map_err(|error| failed("libcontainer cannot start the container", &log::chain(&error)))?;
        }
        let mut terminal = None;
        loop {
            self.await_message().map_err(|error| failed("cannot wait for the container's init", &error))?;
            let mut reported = vec![0; FAILURE_MAX];
            match self.socket.recv(&mut reported) {
                // The socket closes on execve or exit; waitpid distinguishes them.
                Ok(None) => return Ok(terminal),
                Ok(Some((length, fds))) if &reported[..length] == TERMINAL => terminal = fds.into_iter().next(),
                Ok(Some((length, _))) if &reported[..length] == NOT_ACCEPTED => is_accepted = false,
                Ok(Some((length, _))) if let Some(dir) = workdir::requested(&reported[..length]) => {
                    let namespaces = Namespaces::other_than_own(self.pid)
                        .map_err(|error| failed("cannot open the namespaces of the container's init", &error))?;
                    let init = self.pidfd.as_fd();
                    let within = workdir::Within { init, is_mapped: namespaces.has_user(), stage: Some(stage) };
                    within.create_and_reply(dir, &self.socket);
                }
                Ok(Some((length, _))) => {
                    let (errno, message) = StartFailure::decode(&reported[..length]);
                    return Err(if is_accepted {
                        NotStarted::Failed { message, errno }
                    } else {
                        NotStarted::Refused(failed_by(format!("warm container: {message}")))
                    });
                }
                Err(error) => return Err(failed("cannot receive from the container's init", &error)),
            }
        }
    }

    /// Waits until init sends a message or closes the socket.
    fn await_message(&self) -> io::Result<()> {
        if readable_by(&self.socket, Instant::now() + START_TIMEOUT)? {
            return Ok(());
        }
        Err(io::Error::other(format!("no response within {} s", START_TIMEOUT.as_secs())))
    }

    /// Returns true if init has exited.
    pub(crate) fn has_ended(&self) -> bool {
        is_readable(&self.pidfd)
    }

    /// Kills init if it is running, and reaps it.
    pub(crate) fn kill(&self) {
        kill(self.pid);
    }
}

/// Kills and reaps a child.
pub(crate) fn kill(pid: i32) {
    process::kill(pid);
    let _ = process::wait_for(pid);
}

/// Reaps every child that has exited.
pub(crate) fn reap() {
    while let Ok(Some(_)) = process::reap_one(|_| false) {}
}
