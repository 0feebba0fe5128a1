//! The last steps of a container's init, after libcontainer and before the program: what this project's
//! `Executor` does.
//!
//! It runs in the cloned process, inside the container, without privilege. It waits for the process payload on a
//! socket, goes to the working directory, installs the filter on system calls and becomes the program. What fails
//! is told over the same socket; its end of it closes when execve succeeds.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use executor_core::payload::{BYTES_MAX, PATH_DEFAULT, ProcessPayload};
use executor_core::users::ResolvedUser;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, StringArray};
use executor_sys::seqpacket::Seqpacket;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use oci_spec::runtime::Spec;

use crate::seccomp::Filter;

/// Longest message of a failure.
pub(super) const FAILURE_MAX: usize = 8192;

/// Becomes the container's process.
#[derive(Clone)]
pub(super) struct Init {
    /// Init's end of the start socket.
    pub socket: Arc<Seqpacket>,
    /// Whom it runs as: gives HOME where the request does not.
    pub user: Arc<ResolvedUser>,
    /// What it may call.
    pub filter: Arc<Filter>,
}

/// Why the program was not executed.
pub(super) struct StartFailure {
    /// `exec /nope`, `chdir /x`, ...
    pub what: String,
    /// The error.
    pub error: io::Error,
}

impl StartFailure {
    fn new(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self { what: what.into(), error: error.into() }
    }

    /// As it goes over the socket: the error number, then the words.
    fn encode(&self) -> Vec<u8> {
        let code = self.error.raw_os_error().unwrap_or(0);
        let mut words = format!("{}: {}", self.what, crate::dirs::plain(&self.error));
        words.truncate(words.floor_char_boundary(FAILURE_MAX - 4));
        [&code.to_le_bytes(), words.as_bytes()].concat()
    }
}

impl Init {
    /// Comes back only with a failure.
    fn become_program(&self) -> StartFailure {
        match self.receive().and_then(|payload| self.execute(payload)) {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    fn receive(&self) -> Result<MemFile, StartFailure> {
        let failed = |error: io::Error| StartFailure::new("receive what to run", error);
        let (_, fds) = self
            .socket
            .recv(&mut [0; 8])
            .map_err(failed)?
            .ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
        let fd: OwnedFd = fds.into_iter().next().ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        MemFile::from_fd(fd, BYTES_MAX as u64).map_err(failed)
    }

    fn execute(&self, payload: MemFile) -> Result<std::convert::Infallible, StartFailure> {
        let program = payload
            .read(|bytes| self.program(bytes))
            .map_err(|error| StartFailure::new("map what to run", error))??;
        drop(payload);
        // libcontainer has only marked what init inherited: until execve, a working directory or a program below
        // /proc/self/fd would still lead to a directory of the host.
        process::close_all_but(self.socket.as_fd()).map_err(|error| StartFailure::new("close descriptors", error))?;
        let shown = |path: &CString| path.to_string_lossy().into_owned();
        rustix::process::chdir(&program.dir)
            .map_err(|error| StartFailure::new(format!("chdir {}", shown(&program.dir)), error))?;
        // The kernel says `(unreachable)` of a directory that is not below the root.
        let inside = rustix::process::getcwd(Vec::new()).is_ok_and(|cwd| cwd.as_bytes().starts_with(b"/"));
        if !inside {
            let outside = io::Error::from_raw_os_error(libc::EACCES);
            return Err(StartFailure::new(
                format!("chdir {}: it leads out of the container", shown(&program.dir)),
                outside,
            ));
        }
        process::reset_signals().map_err(|error| StartFailure::new("reset signals", error))?;
        let filter = |error: String| StartFailure::new("install the filter on system calls", io::Error::other(error));
        self.filter.install().map_err(|error| filter(crate::log::chain(&error)))?;
        if !self.filter.is_none() && !process::is_confined().map_err(|error| filter(error.to_string()))? {
            return Err(filter("it is not in force".into()));
        }
        // As execvp does: a directory that has no such file, or one that may not be executed, is passed over, and
        // the latter is told if no other has one.
        let mut error = io::Error::from_raw_os_error(libc::ENOENT);
        for candidate in &program.candidates {
            let now = process::execve(candidate, &program.args, &program.env);
            match now.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => error = now,
                _ => return Err(StartFailure::new(format!("exec {}", program.name), now)),
            }
        }
        Err(StartFailure::new(format!("exec {}", program.name), error))
    }

    /// All that execve needs, made before the filter is in force.
    fn program(&self, bytes: &[u8]) -> Result<Program, StartFailure> {
        let malformed = |error: String| StartFailure::new("read what to run", io::Error::other(error));
        let payload = ProcessPayload::decode(bytes).map_err(|error| malformed(error.to_string()))?;
        let string = |bytes: &[u8]| CString::new(bytes).map_err(|error| malformed(error.to_string()));
        let mut env = payload.env.clone();
        let home = [b"HOME=", self.user.home.as_os_str().as_encoded_bytes()].concat();
        if !env.iter().any(|pair| pair.starts_with(b"HOME=")) {
            env.push(&home);
        }
        if !env.iter().any(|pair| pair.starts_with(b"PATH=")) {
            env.push(PATH_DEFAULT);
        }
        let path = env.iter().find_map(|pair| pair.strip_prefix(b"PATH=")).unwrap_or_default();
        let candidates = candidates(payload.path, path);
        let args = std::iter::once(payload.path).chain(payload.args).map(string).collect::<Result<Vec<_>, _>>()?;
        Ok(Program {
            name: String::from_utf8_lossy(payload.path).into_owned(),
            dir: string(payload.dir)?,
            candidates: candidates.iter().map(|path| string(path)).collect::<Result<_, _>>()?,
            args: StringArray::new(args),
            env: StringArray::new(env.into_iter().map(string).collect::<Result<_, _>>()?),
        })
    }
}

struct Program {
    name: String,
    dir: CString,
    candidates: Vec<CString>,
    args: StringArray,
    env: StringArray,
}

/// Where a program may be: at its path, or in the directories of PATH where it has no slash.
fn candidates(program: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if program.contains(&b'/') {
        return vec![program.to_vec()];
    }
    path.split(|b| *b == b':')
        .map(|dir| if dir.is_empty() { program.to_vec() } else { [dir, b"/", program].concat() })
        .collect()
}

impl Executor for Init {
    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let failure = self.become_program();
        let _ = self.socket.send(&failure.encode(), &[]);
        process::exit_now(127)
    }

    /// What to run is not known yet when libcontainer asks.
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }

    /// The environment is made in one piece with the arguments, just before execve.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_and_a_path_is_not() {
        let list = |program: &str, path: &str| -> Vec<String> {
            candidates(program.as_bytes(), path.as_bytes()).into_iter().map(|p| String::from_utf8(p).unwrap()).collect()
        };
        assert_eq!(list("sh", "/usr/bin:/bin"), ["/usr/bin/sh", "/bin/sh"]);
        assert_eq!(list("./sh", "/usr/bin"), ["./sh"]);
        assert_eq!(list("sh", ":/bin"), ["sh", "/bin/sh"]);
    }
}
