//! Executes the program of a process payload: for the container's first process ([`crate::shim`]) and for processes
//! that are executed in the container later ([`crate::exec`]).
//!
//! The program is executed in the container, without privileges. The process keeps only the payload and a close-on-exec
//! socket for reporting a failure. All other inherited descriptors are closed.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use executor_core::payload::{self, PATH_DEFAULT, ProcessPayload};
use executor_core::plan::{HostOptions, Plan, UserNamespace};
use executor_secrets::volume::Stored;
use executor_sys::landlock;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, StringArray};
use executor_sys::seqpacket::Seqpacket;

use zeroize::Zeroizing;

use crate::seccomp::Filter;
use crate::{apparmor, ulimits, workdir};

/// Names of capabilities that permit tracing other users' processes.
const TRACING: [&str; 2] = ["CAP_SYS_PTRACE", "ALL"];
/// Time limit for executing a program or reporting its failure.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Prefix of messages about a failure to read the container's environment.
const ENVIRONMENT: &str = "read the container's environment";
/// Maximum size of a failure message, in bytes.
pub(crate) const FAILURE_MAX: usize = 8192;

/// Error of a process that could not execute its program.
pub(crate) struct StartFailure {
    /// Failed step: `exec /nope`, `chdir /x`, ...
    pub what: String,
    pub error: io::Error,
}

impl StartFailure {
    pub(crate) fn new(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self { what: what.into(), error: error.into() }
    }

    /// Encodes the failure for the socket: the error number, then the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let code = self.error.raw_os_error().unwrap_or(0);
        let mut words = format!("{}: {}", self.what, crate::errors::plain(&self.error));
        words.truncate(words.floor_char_boundary(FAILURE_MAX - 4));
        [&code.to_le_bytes(), words.as_bytes()].concat()
    }

    /// Decodes the error number and the message from the socket.
    pub(crate) fn decode(reported: &[u8]) -> (i32, String) {
        let (errno, words) = reported.split_first_chunk::<4>().unwrap_or((&[0; 4], b"start failed"));
        (i32::from_le_bytes(*errno), String::from_utf8_lossy(words).into_owned())
    }
}

/// Arguments of execve, prepared before the filter is in force.
pub(crate) struct Program {
    name: String,
    dir: CString,
    candidates: Vec<CString>,
    args: StringArray,
    env: StringArray,
}

impl Program {
    /// Reads a payload. Adds variables that the payload does not set: first the variables of the container's
    /// environment, if it is kept, then the variables of the container's devices. `home` is the default of `HOME`.
    ///
    /// # Errors
    /// Returns an error if the payload or the environment is malformed.
    pub(crate) fn read(
        payload: &MemFile,
        kept: Option<&Stored>,
        of_devices: &[String],
        home: &Path,
    ) -> Result<Self, StartFailure> {
        let environment = match kept {
            None => None,
            Some(kept) => {
                let mut bytes = Zeroizing::new(vec![0; kept.len()]);
                kept.read_into(&mut bytes).map_err(|error| StartFailure::new(ENVIRONMENT, error))?;
                Some(bytes)
            }
        };
        let environment = environment.as_ref().map(|bytes| payload::decode(bytes)).transpose();
        let environment = environment
            .map_err(|error| StartFailure::new(ENVIRONMENT, io::Error::other(error.to_string())))?
            .unwrap_or_default();
        payload
            .read(|bytes| {
                let of_devices = of_devices.iter().map(String::as_bytes);
                Self::new(bytes, &environment, &of_devices.collect::<Vec<_>>(), home)
            })
            .map_err(|error| StartFailure::new("map the payload", error))?
    }

    fn new(bytes: &[u8], kept: &[&[u8]], of_devices: &[&[u8]], home: &Path) -> Result<Self, StartFailure> {
        let malformed = |error: String| StartFailure::new("read the payload", io::Error::other(error));
        let payload = ProcessPayload::decode(bytes).map_err(|error| malformed(error.to_string()))?;
        let string = |bytes: &[u8]| CString::new(bytes).map_err(|error| malformed(error.to_string()));
        let mut env = with_others(&with_others(&payload.env, kept), of_devices);
        let home = [b"HOME=", home.as_os_str().as_encoded_bytes()].concat();
        if !env.iter().any(|pair| pair.starts_with(b"HOME=")) {
            env.push(&home);
        }
        if !env.iter().any(|pair| pair.starts_with(b"PATH=")) {
            env.push(PATH_DEFAULT);
        }
        let path = env.iter().find_map(|pair| pair.strip_prefix(b"PATH=")).unwrap_or_default();
        let candidates = candidates(payload.path, path);
        let args = std::iter::once(payload.path).chain(payload.args).map(string).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            name: String::from_utf8_lossy(payload.path).into_owned(),
            dir: string(payload.dir)?,
            candidates: candidates.iter().map(|path| string(path)).collect::<Result<_, _>>()?,
            args: StringArray::new(args),
            env: StringArray::new(env.into_iter().map(string).collect::<Result<_, _>>()?),
        })
    }

    /// Executes the program with the filter, the limits and the AppArmor profile of its container. Returns only on
    /// failure. The supervisor creates a missing working directory on a request over `supervisor`.
    pub(crate) fn execute(
        self,
        supervisor: &Seqpacket,
        confinement: Confinement<'_>,
        options: &HostOptions,
    ) -> StartFailure {
        match self.try_execute(supervisor, confinement, options) {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    fn try_execute(
        self,
        supervisor: &Seqpacket,
        confinement: Confinement<'_>,
        options: &HostOptions,
    ) -> Result<std::convert::Infallible, StartFailure> {
        // Until now inherited descriptors were only marked close-on-exec: a working directory or a program below
        // /proc/self/fd could still lead to a directory of the host.
        process::close_all_but(&[supervisor.as_fd()]).map_err(|error| StartFailure::new("close descriptors", error))?;
        self.enter_dir(supervisor)?;
        let profile = &options.apparmor_profile;
        if !profile.is_empty() {
            apparmor::set_on_exec(profile)
                .map_err(|error| StartFailure::new(format!("AppArmor profile {profile}"), error))?;
        }
        ulimits::set(&options.ulimits).map_err(|(name, error)| StartFailure::new(format!("ulimit {name}"), error))?;
        confine(confinement)?;
        // Like execvp: skip directories in which the file does not exist or must not be executed. Report EACCES if no
        // other directory has the program.
        let mut error = io::Error::from_raw_os_error(libc::ENOENT);
        for candidate in &self.candidates {
            let now = process::execve(candidate, &self.args, &self.env);
            match now.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => error = now,
                _ => return Err(StartFailure::new(format!("exec {}", self.name), now)),
            }
        }
        Err(StartFailure::new(format!("exec {}", self.name), error))
    }

    /// Changes to the working directory. Requests its creation if it does not exist.
    fn enter_dir(&self, supervisor: &Seqpacket) -> Result<(), StartFailure> {
        let shown = self.dir.to_string_lossy();
        let mut entered = rustix::process::chdir(&self.dir);
        if entered == Err(rustix::io::Errno::NOENT) {
            workdir::request(supervisor, &self.dir)
                .map_err(|error| StartFailure::new(format!("create the working directory {shown}"), error))?;
            entered = rustix::process::chdir(&self.dir);
        }
        entered.map_err(|error| StartFailure::new(format!("chdir {shown}"), error))?;
        // The kernel returns `(unreachable)` for a directory that is not below the root.
        let inside = rustix::process::getcwd(Vec::new()).is_ok_and(|cwd| cwd.as_bytes().starts_with(b"/"));
        if !inside {
            let outside = io::Error::from_raw_os_error(libc::EACCES);
            return Err(StartFailure::new(format!("chdir {shown}: outside of the container"), outside));
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Confinement<'a> {
    pub(crate) filter: &'a Filter,
    /// True if the process enters its own Landlock domain, so that pod members that share a pid namespace cannot
    /// inspect each other's processes.
    pub(crate) own_domain: bool,
}

/// Returns true if each process of a container must get its own Landlock domain, because the container shares a pid
/// namespace with other containers or with the host. Returns false for a container in the pid namespace of the host or
/// of another container (`pid_of`) that can trace other users' processes, because it exists to inspect processes.
/// Returns false for a container that is root of the host: a domain would not stop such a container, and would prevent
/// it from mounting.
pub(crate) fn needs_own_domain(plan: &Plan) -> bool {
    let isolation = &plan.isolation;
    let traces = isolation.privileged || isolation.capabilities_added.iter().any(|one| TRACING.contains(&&**one));
    let is_root_of_host = isolation.privileged && isolation.user_namespace == UserNamespace::Host;
    !plan.owns_processes() && !is_root_of_host && (plan.shares_processes() || !traces)
}

/// Returns true if each process of a container gets its own Landlock domain, which needs support by the kernel.
pub(crate) fn has_own_domain(plan: &Plan) -> bool {
    needs_own_domain(plan) && landlock::is_supported()
}

/// Sets default signal handling, and applies the Landlock domain and the filter to the calling process. Checks that the
/// filter is in force.
pub(crate) fn confine(Confinement { filter, own_domain }: Confinement<'_>) -> Result<(), StartFailure> {
    process::reset_signals().map_err(|error| StartFailure::new("reset signals", error))?;
    if own_domain {
        landlock::enter_own_domain().map_err(|error| StartFailure::new("enter a Landlock domain", error))?;
    }
    let failed = |error: String| StartFailure::new("install the seccomp filter", io::Error::other(error));
    filter.install().map_err(|error| failed(crate::log::chain(&error)))?;
    let is_confined = || process::is_confined(filter.allows_new_privileges());
    if filter.denies_test_call() && !is_confined().map_err(|error| failed(error.to_string()))? {
        return Err(failed("the kernel does not enforce the filter".into()));
    }
    Ok(())
}

/// Returns an environment with the variables of `own`, and the variables of `others` that `own` does not set.
fn with_others<'a>(own: &[&'a [u8]], others: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let name = |pair: &'a [u8]| pair.split(|byte| *byte == b'=').next().unwrap_or_default();
    let names: BTreeSet<&[u8]> = own.iter().map(|pair| name(pair)).collect();
    let others = others.iter().copied().filter(|pair| !names.contains(name(pair)));
    own.iter().copied().chain(others).collect()
}

/// Returns the candidate paths of a program: only `program` if it contains a slash, else one path for each directory in
/// PATH.
fn candidates(program: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if program.contains(&b'/') {
        return vec![program.to_vec()];
    }
    path.split(|b| *b == b':')
        .map(|dir| if dir.is_empty() { program.to_vec() } else { [dir, b"/", program].concat() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_variables_precede_inherited_ones() {
        let merged = with_others(&[b"A=1", b"PATH=/x"], &[b"PATH=/y", b"A=", b"AB=2=3", b"B"]);
        assert_eq!(merged, [&b"A=1"[..], b"PATH=/x", b"AB=2=3", b"B"]);
        assert_eq!(with_others(&[b"A=1"], &[]), [b"A=1"]);
    }

    #[test]
    fn only_bare_names_are_searched_in_path() {
        let list = |program: &str, path: &str| -> Vec<String> {
            candidates(program.as_bytes(), path.as_bytes()).into_iter().map(|p| String::from_utf8(p).unwrap()).collect()
        };
        assert_eq!(list("sh", "/usr/bin:/bin"), ["/usr/bin/sh", "/bin/sh"]);
        assert_eq!(list("./sh", "/usr/bin"), ["./sh"]);
        assert_eq!(list("sh", ":/bin"), ["sh", "/bin/sh"]);
    }
}
