//! Implements the `command` provider, which runs a program of the operator, like the credential helpers of git and
//! docker.
//!
//! The program gets one JSON object on standard input: `{"provider":"...","path":"...","key":"...","version":"..."}`.
//! The program's standard output is the value. Exit status 0 means that the secret was found, and 1 that it was not.
//! The environment is empty except for PATH. The program runs in its own process group. The group is killed when the
//! program exits, and the program is killed when executord exits.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, Stdio};

use executor_core::reference::{REFERENCE_VALUE_MAX, SecretReference};
use executor_sys::process;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::process::Command;
use zeroize::Zeroizing;

use crate::config::ProviderConfig;
use crate::{ErrorKind, FetchError, Value};

/// First argument of the executord process that executes a provider's program.
pub const WORKER_ARGUMENT: &str = "secret-command-worker";
/// Executable of this process, even if another file has replaced it.
const SELF: &str = "/proc/self/exe";
/// PATH in the program's environment.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Executes a provider's program in this process. This process is killed when its parent exits. The command-line
/// arguments are the parent's pid, the program and the program's arguments.
pub fn work() -> ExitCode {
    let mut words = std::env::args_os().skip(2);
    let parent = words.next().and_then(|pid| pid.to_str()?.parse().ok());
    let (Some(parent), Some(program)) = (parent, words.next()) else { return ExitCode::from(125) };
    // Set the OOM score before forbid_dumps, which makes root the owner of the files in /proc/self.
    let settled = process::die_with(parent).and_then(|()| process::forgo_oom_protection());
    if settled.and_then(|()| process::forbid_dumps()).is_err() {
        return ExitCode::from(125);
    }
    let _not_executed = std::process::Command::new(program).args(words).exec();
    ExitCode::from(127)
}

#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    words: Vec<String>,
}

#[derive(Serialize)]
struct CommandRequest<'a> {
    provider: &'a str,
    path: &'a str,
    key: &'a str,
    version: &'a str,
}

/// Registers a descriptor with the reactor. The descriptor stays open while it is registered.
#[allow(deprecated)] // the successor is unsafe; an owned descriptor satisfies the safety contract
fn watched(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Process group of a program, which is killed on drop. The program must not have been reaped before.
struct ProcessGroup(Pid);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

impl Program {
    pub(crate) fn new(config: &ProviderConfig) -> Self {
        Self { name: config.name.clone(), words: config.command.clone() }
    }

    /// Runs the program and returns its output.
    pub(crate) async fn run(&self, reference: &SecretReference) -> Result<Value, FetchError> {
        let failed =
            |what: &str, error: std::io::Error| FetchError::unavailable(format!("{what} the program: {error}"));
        let mut command = Command::new(SELF);
        command.arg(WORKER_ARGUMENT).arg(std::process::id().to_string()).args(&self.words);
        command.env_clear().env("PATH", PATH).current_dir("/").process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| failed("cannot start", error))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| FetchError::unavailable("the program has no pid"))?;
        let group = ProcessGroup(pid);
        let ended =
            process::pidfd(pid.as_raw_pid()).and_then(watched).map_err(|error| failed("cannot watch", error))?;
        let SecretReference { path, key, version, .. } = reference;
        let question = CommandRequest { provider: &self.name, path, key, version };
        let mut question = serde_json::to_vec(&question).map_err(|error| FetchError::unavailable(error.to_string()))?;
        question.push(b'\n');
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let ask = async {
            if let Some(mut stdin) = stdin {
                // A program may respond without reading its input.
                let _ = stdin.write_all(&question).await;
            }
        };
        let mut content = Zeroizing::new(Vec::with_capacity(REFERENCE_VALUE_MAX + 1));
        let read = async {
            if let Some(stdout) = stdout {
                stdout.take(REFERENCE_VALUE_MAX as u64 + 1).read_to_end(&mut content).await?;
            }
            std::io::Result::Ok(())
        };
        // Children of the program may keep the output open, so do not wait for the end of the output after the program
        // has exited.
        let until_ended = async {
            let _ = ended.readable().await;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        };
        let output = async {
            tokio::pin!(read);
            tokio::select! {
                biased;
                done = &mut read => done,
                () = until_ended => Ok(()),
            }
        };
        let (read, ()) = tokio::join!(output, ask);
        read.map_err(|error| failed("cannot read the output of", error))?;
        if content.len() > REFERENCE_VALUE_MAX {
            return Err(FetchError::too_large());
        }
        let _ = ended.readable().await;
        drop(group);
        let status = child.wait().await.map_err(|error| failed("cannot wait for", error))?;
        match status.code() {
            Some(0) => Ok(Value { content, version: String::new(), lease: None }),
            Some(1) => Err(FetchError::new(ErrorKind::NotFound, "the program has no such secret (exit status 1)")),
            Some(127) => Err(FetchError::unavailable("the program cannot be executed (exit status 127)")),
            _ => Err(FetchError::unavailable(format!("the program failed ({status})"))),
        }
    }
}
