//! `agent-cli NAME`, if NAME is not a command: runs the program `agent-cli-NAME`, like git and docker do.
//!
//! agent-cli searches its own directory for the program, then the absolute directories of PATH. The program's arguments
//! are passed on unchanged. The program gets the selected executord in EXECUTOR_SOCKET, or in EXECUTOR_ADDRESS with
//! EXECUTOR_TLS_CERT and so on; `--json` is passed as EXECUTOR_JSON. The program replaces agent-cli. With --local
//! before NAME, the program runs as a child process, and the private executord is stopped after its exit.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use executor_cli_kit::contexts::{Server, export_server};
use executor_cli_kit::execute::{block_on, with_private_daemon};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::global::{Global, JSON};
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::output::Output;
use executor_cli_kit::report::PROGRAM;
use executor_cli_kit::{executables, exit};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

const PREFIX: &str = "agent-cli-";

/// A program could not be executed.
#[derive(Debug, thiserror::Error)]
#[error("cannot run {}", .program.display())]
struct NotRun {
    program: PathBuf,
    source: io::Error,
}

/// A program with its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Call {
    /// Finds the program with this name.
    pub(crate) fn find(name: &str, arguments: Vec<OsString>) -> Option<Self> {
        let program = executables::find(&file_name(name)?)?;
        Some(Self { program, arguments })
    }

    /// Runs the program. With a private executord, runs it as a child and returns its exit status; otherwise replaces
    /// this process.
    pub(crate) fn run(self, global: &Global) -> Result<u8, Failure> {
        global.check()?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if !global.local {
            global.export_to(&mut command)?;
        }
        if global.json {
            command.env(JSON, "1");
        }
        let program = self.program;
        let failed = |source| Failure::wrap(NotRun { program, source }, exit::NOT_EXECUTABLE);
        if !global.local {
            return Err(failed(command.exec()));
        }
        block_on(async {
            let output = Output::start(PROGRAM).map_err(Failure::System)?;
            let mut interrupts = Interrupts::install().map_err(Failure::System)?;
            let work = async |client: executor_cli_kit::connect::Client, interrupts: &mut Interrupts| {
                export_server(&mut command, &Server::Socket(client.address().socket().unwrap_or(Path::new("")).into()));
                let child = tokio::process::Command::from(command).kill_on_drop(true).spawn().map_err(failed)?;
                Ok(status(ended(child, interrupts).await.map_err(Failure::System)?))
            };
            with_private_daemon(&output, &mut interrupts, work).await
        })
    }
}

/// Waits until the program exits. SIGTERM reaches only this process, so it is forwarded; signals from the terminal also
/// reach the program.
async fn ended(mut child: Child, interrupts: &mut Interrupts) -> io::Result<ExitStatus> {
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    loop {
        tokio::select! {
            status = child.wait() => return status,
            signal = interrupts.next() => if let (Some(pid), true) = (pid, signal == Signal::TERM.as_raw()) {
                let _ = kill_process(pid, Signal::TERM); // the process may have exited
            },
        }
    }
}

/// Converts a program's exit status to the exit status of this process.
fn status(ended: ExitStatus) -> u8 {
    match (ended.code(), ended.signal()) {
        (Some(code), _) => (code & 0xff) as u8,
        (None, Some(signal)) => exit::after_signal(signal),
        (None, None) => exit::OURS,
    }
}

/// Returns the file name of a program, or `None` if `name` is invalid.
pub(crate) fn file_name(name: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = !name.is_empty() && !name.starts_with('-') && name.bytes().all(plain);
    fits.then(|| format!("{PREFIX}{name}"))
}

/// Lists the names of all external programs.
pub(crate) fn names() -> impl Iterator<Item = String> {
    executables::list(PREFIX).into_iter().filter(|name| file_name(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_program_names_are_ignored() {
        for name in ["cnab", "k8s", "7z", "a-b"] {
            assert_eq!(file_name(name), Some(format!("agent-cli-{name}")));
        }
        for name in ["", "-a", "A", "a.b", "a/b", "../a", "ä", "a b"] {
            assert_eq!(file_name(name), None, "{name}");
        }
    }
}
