//! Runs the last steps of a container's init, between libcontainer and the program. The module is the launcher's
//! implementation of libcontainer's `Executor`.
//!
//! `Init` runs in the cloned process, in the container, without privileges. Init waits for the process payload on a
//! socket, opens its terminal if it has one, and executes the program ([`crate::program`]). Init reports failures on
//! the same socket. The socket closes when execve succeeds. In a warm container, init has privileges over its own
//! namespaces until it has executed the activation command ([`super::activation`]).

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

/// Name of the executor's own init. `ps` in the container shows it.
const INIT: &CStr = c"init";
/// Command line of an init that does not itself become the program. Without it, the container would see the launcher's
/// command line, with host paths.
const INIT_TITLE: &str = "executor-init";
/// Message in which init sends its terminal. The message is shorter than any failure message.
pub(crate) const TERMINAL: &[u8] = b"tty";

/// Implementation of libcontainer's `Executor` that executes the container's program.
#[derive(Clone)]
pub(crate) struct Init {
    /// Init's end of the start socket.
    pub socket: Arc<Seqpacket>,
    /// System call filter of the program.
    pub filter: Arc<Filter>,
    /// Role and settings of init. `None` in a warm container, where init receives them later.
    pub part: Option<Arc<InitSpec>>,
}

impl Init {
    /// Executes the program. Returns only on failure.
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
                Err(error) => StartFailure::new("cannot set up the init", error),
            };
        }
        let program = self.receive(payload).and_then(|payload| {
            if part.role == InitRole::Parent {
                self.fork_program()?;
            }
            if let Some((rows, columns)) = part.terminal {
                self.take_terminal(Window::new(rows, columns))
                    .map_err(|error| StartFailure::new("cannot open a terminal", error))?;
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

    /// Forks, and returns only in the child, which executes the program. The parent serves as PID 1: it closes all
    /// descriptors, installs the program's system call filter, and never reads the payload. No process in the container
    /// can inspect the memory of PID 1, which is a copy of the shim's memory.
    fn fork_program(&self) -> Result<(), StartFailure> {
        let failed = |error: io::Error| StartFailure::new("cannot set up the init", error);
        process::hold_signals().map_err(failed)?;
        // Set the name before the fork, so that the child inherits it. The child gets its own name when it executes the
        // program.
        rustix::thread::set_name(INIT).map_err(|error| failed(error.into()))?;
        title::set(INIT_TITLE);
        let child = match process::fork().map_err(failed)? {
            Fork::Child => return Ok(()),
            Fork::Parent(child) => child,
        };
        self.serve(Some(child))
    }

    /// Serves as the container's first process: forwards signals and reaps processes until `child` exits. Without a
    /// child, reaps processes until this process is killed.
    fn serve(&self, child: Option<i32>) -> ! {
        let serve = || child.map_or_else(process::serve_as_reaper, process::serve_as_init);
        let served = rustix::thread::set_name(INIT)
            .map_err(io::Error::from)
            .and_then(|()| process::forbid_dumps())
            .and_then(|()| process::close_all_but(&[]))
            .map_err(drop)
            .and_then(|()| self.filter.install().map_err(drop))
            .and_then(|()| serve().map_err(drop));
        // When the first process of the pid namespace exits, the kernel kills the other processes.
        process::exit_now(match served {
            Ok(ChildExit::Code(code)) => code,
            Ok(ChildExit::Signal(signal)) => 128 + signal,
            Err(()) => 127,
        })
    }

    /// Returns the payload. If `payload` is unset, waits for the start message, which carries the payload.
    fn receive(&self, payload: Option<OwnedFd>) -> Result<MemFile, StartFailure> {
        let failed = |error: io::Error| StartFailure::new("cannot receive the payload", error);
        let fd = match payload {
            Some(fd) => fd,
            None => {
                let fd = self.await_start().map_err(failed)?.into_iter().next();
                fd.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?
            }
        };
        MemFile::from_fd(fd, BYTES_MAX as u64).map_err(failed)
    }

    /// Waits for the start message and returns its descriptors.
    fn await_start(&self) -> io::Result<Vec<OwnedFd>> {
        let (_, fds) = self.socket.recv(&mut [0; 8])?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(fds)
    }

    /// Opens a terminal in the container's own devpts and sends the terminal's control end to the shim.
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

    /// Accepts every specification, because the program is not known yet when libcontainer calls this.
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }

    /// Does nothing, because the environment is built together with the arguments, immediately before execve.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}
