//! `agent-cli NAME` for a NAME that is no command: the program `agent-cli-NAME`, as git and docker do it.
//!
//! The program is looked for beside agent-cli, then in the absolute directories of PATH. Its arguments are passed on
//! unchanged; where executord is, by flags before NAME or a context, reaches it as EXECUTOR_SOCKET, or as EXECUTOR_ADDRESS with
//! EXECUTOR_TLS_CERT and the like, and `--json` as EXECUTOR_JSON. It replaces agent-cli, unless --local
//! stands before NAME: then it is a child process, and the private executord is taken down when it has ended.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

use crate::contexts::{Server, name_server};
use crate::executables;
use crate::exit;
use crate::failure::Failure;
use crate::global::{Global, JSON};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::work::with_private_daemon;

/// The name of this program.
pub(crate) const PROGRAM: &str = "agent-cli";
/// Prefix of the names of programs.
const PREFIX: &str = "agent-cli-";

/// A program that cannot be run.
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
    /// Finds the program of this name.
    pub(crate) fn find(name: &str, arguments: Vec<OsString>) -> Option<Self> {
        let program = executables::find(&file_name(name)?)?;
        Some(Self { program, arguments })
    }

    /// Runs the program: with a private executord as a child, whose exit status is returned; otherwise in the place of this one.
    pub(crate) fn run(self, global: &Global) -> Result<u8, Failure> {
        global.check()?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if !global.local {
            global.pass_on(&mut command)?;
        }
        if global.json {
            command.env(JSON, "1");
        }
        let program = self.program;
        let failed = |source| Failure::wrap(NotRun { program, source }, exit::NOT_EXECUTABLE);
        if !global.local {
            return Err(failed(command.exec()));
        }
        // One thread: a private executord is told of the death of the thread that started it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::System)?;
        let result = runtime.block_on(async {
            let output = Output::start(PROGRAM).map_err(Failure::System)?;
            let mut interrupts = Interrupts::install().map_err(Failure::System)?;
            let work = async |client: crate::connect::Client, interrupts: &mut Interrupts| {
                name_server(&mut command, &Server::Socket(client.address().socket().unwrap_or(Path::new("")).into()));
                let child = tokio::process::Command::from(command).kill_on_drop(true).spawn().map_err(failed)?;
                Ok(status(ended(child, interrupts).await.map_err(Failure::System)?))
            };
            with_private_daemon(&output, &mut interrupts, work).await
        });
        runtime.shutdown_background();
        result
    }
}

/// Waits for the end of the program. What is typed at the terminal reaches it without this program; SIGTERM, which is sent to
/// one process, is passed on.
async fn ended(mut child: Child, interrupts: &mut Interrupts) -> io::Result<ExitStatus> {
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    loop {
        tokio::select! {
            status = child.wait() => return status,
            signal = interrupts.next() => if let (Some(pid), true) = (pid, signal == Signal::TERM.as_raw()) {
                let _ = kill_process(pid, Signal::TERM); // it may have ended
            },
        }
    }
}

/// The status to exit with after a program.
fn status(ended: ExitStatus) -> u8 {
    match (ended.code(), ended.signal()) {
        (Some(code), _) => (code & 0xff) as u8,
        (None, Some(signal)) => exit::after_signal(signal),
        (None, None) => exit::OURS,
    }
}

/// The file of a program; none where the name cannot be one.
pub(crate) fn file_name(name: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = !name.is_empty() && !name.starts_with('-') && name.bytes().all(plain);
    fits.then(|| format!("{PREFIX}{name}"))
}

/// Lists the names of the programs that there are.
pub(crate) fn names() -> impl Iterator<Item = String> {
    executables::list(PREFIX).into_iter().filter(|name| file_name(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_programs() {
        for name in ["cnab", "k8s", "7z", "a-b"] {
            assert_eq!(file_name(name), Some(format!("agent-cli-{name}")));
        }
        for name in ["", "-a", "A", "a.b", "a/b", "../a", "ä", "a b"] {
            assert_eq!(file_name(name), None, "{name}");
        }
    }
}
