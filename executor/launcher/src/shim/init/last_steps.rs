//! The last steps of a container's init, after libcontainer and before the program: this project's implementation of
//! libcontainer's `Executor`.
//!
//! `Init` runs in the cloned process, inside the container, without privilege. It waits for the process payload on a
//! socket, opens its terminal if it has one, and becomes the program ([`crate::program`]). Failures are reported over
//! the same socket, which closes when execve succeeds. In a warm container init has privilege over its own namespaces
//! until it receives the order to activate ([`super::activation`]).

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use executor_core::payload::BYTES_MAX;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, ChildExit, Fork};
use executor_sys::pty::{self, Terminal, Window};
use executor_sys::seqpacket::Seqpacket;
use executor_sys::title;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use oci_spec::runtime::Spec;

use super::activation;
use super::init_spec::{InitRole, InitSpec};
use crate::program::{Confinement, Program, StartFailure};
use crate::seccomp::Filter;

/// Name of the executor's own init, as `ps` in the container shows it.
const INIT: &CStr = c"init";
/// Command line of an init that stays; otherwise the container would see the launcher's, with host paths.
const INIT_TITLE: &str = "executor-init";
/// Message of init that carries its terminal. Shorter than any failure.
pub(crate) const TERMINAL: &[u8] = b"tty";

/// Becomes the container's process.
#[derive(Clone)]
pub(crate) struct Init {
    /// Init's end of the start socket.
    pub socket: Arc<Seqpacket>,
    /// System call filter.
    pub filter: Arc<Filter>,
    /// Role and settings in the container; `None` in a warm container, which receives them later.
    pub part: Option<Arc<InitSpec>>,
}

impl Init {
    /// Returns only on failure.
    fn become_program(&self) -> StartFailure {
        let (part, payload) = match &self.part {
            Some(part) => (Arc::clone(part), None),
            None => match activation::execute(&self.socket) {
                Ok((part, payload)) => (Arc::new(part), payload),
                Err(failure) => return failure,
            },
        };
        if part.role == InitRole::Reaper {
            title::set(INIT_TITLE);
            return match self.await_start().and_then(|_| process::hold_signals()) {
                Ok(()) => self.serve(None),
                Err(error) => StartFailure::new("set up the init", error),
            };
        }
        let program = self.receive(payload).and_then(|payload| {
            if part.role == InitRole::Parent {
                self.stay()?;
            }
            if let Some((rows, columns)) = part.terminal {
                self.take_terminal(Window::new(rows, columns))
                    .map_err(|error| StartFailure::new("open a terminal", error))?;
            }
            Program::read(&payload, None, &part.device_environment, &part.user.home)
        });
        match program {
            Ok(program) => {
                let confinement = Confinement { filter: &self.filter, own_domain: part.own_domain };
                program.execute(&self.socket, confinement, &part.options)
            }
            Err(failure) => failure,
        }
    }

    /// Returns in a child. The first process itself has read nothing of the payload, closes all its descriptors, is
    /// confined like the program, and its memory, a copy of the shim's, cannot be inspected by any process in the
    /// container.
    fn stay(&self) -> Result<(), StartFailure> {
        let failed = |error: io::Error| StartFailure::new("set up the init", error);
        process::hold_signals().map_err(failed)?;
        // Before a child exists that could inherit the name; the child gets its own name when it becomes the program.
        rustix::thread::set_name(INIT).map_err(|error| failed(error.into()))?;
        title::set(INIT_TITLE);
        let child = match process::fork().map_err(failed)? {
            Fork::Child => return Ok(()),
            Fork::Parent(child) => child,
        };
        self.serve(Some(child))
    }

    /// Waits for its child, or for processes that others start.
    fn serve(&self, child: Option<i32>) -> ! {
        let serve = || child.map_or_else(process::serve_as_reaper, process::serve_as_init);
        let served = rustix::thread::set_name(INIT)
            .map_err(io::Error::from)
            .and_then(|()| process::forbid_dumps())
            .and_then(|()| process::close_all_but(&[]))
            .map_err(drop)
            .and_then(|()| self.filter.install().map_err(drop))
            .and_then(|()| serve().map_err(drop));
        // Other processes end with the first process of the pid namespace.
        process::exit_now(match served {
            Ok(ChildExit::Code(code)) => code,
            Ok(ChildExit::Signal(signal)) => 128 + signal,
            Err(()) => 127,
        })
    }

    /// Receives the payload, with the order to start if it has not come before.
    fn receive(&self, come: Option<OwnedFd>) -> Result<MemFile, StartFailure> {
        let failed = |error: io::Error| StartFailure::new("receive the payload", error);
        let fd = match come {
            Some(fd) => fd,
            None => {
                let fd = self.await_start().map_err(failed)?.into_iter().next();
                fd.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?
            }
        };
        MemFile::from_fd(fd, BYTES_MAX as u64).map_err(failed)
    }

    /// Waits for the order to start and returns its descriptors.
    fn await_start(&self) -> io::Result<Vec<OwnedFd>> {
        let (_, fds) = self.socket.recv(&mut [0; 8])?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(fds)
    }

    /// Opens a terminal in the container's own devpts and sends the other end to the shim.
    fn take_terminal(&self, window: Window) -> io::Result<()> {
        let master = Terminal::open()?.control()?;
        pty::resize(master.as_fd(), window)?;
        self.socket.send(TERMINAL, &[master.as_fd()])
    }
}

impl Executor for Init {
    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let failure = self.become_program();
        let _ = self.socket.send(&failure.encode(), &[]);
        process::exit_now(127)
    }

    /// Accepts everything: the program is not known yet when libcontainer asks.
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }

    /// Does nothing: the environment is built together with the arguments, just before execve.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}
