//! Runs agent-cli as a user does.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::dist;

/// Output and exit status of agent-cli.
#[derive(Debug)]
pub struct CliOutput {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CliOutput {
    /// Parses standard output as one JSON document.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Parses standard output as JSON, one value per line.
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        let lines = self.stdout.lines();
        lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }
}

/// Builds a command line of agent-cli without starting the process.
pub fn command<S: AsRef<OsStr>>(socket: Option<&Path>, arguments: &[S]) -> Command {
    let mut command = Command::new(dist::binary("agent-cli"));
    match socket {
        Some(socket) => command.arg("--socket").arg(socket),
        None => command.arg("--local"),
    };
    command.env_remove("EXECUTOR_SOCKET").args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the exit of agent-cli.
pub fn finish(child: Child) -> CliOutput {
    let Output { status, stdout, stderr } = child.wait_with_output().expect("output");
    CliOutput {
        status: status.code().unwrap_or_else(|| panic!("agent-cli was killed by a signal: {status}")),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Runs agent-cli against a daemon.
pub fn run(socket: &Path, arguments: &[&str]) -> CliOutput {
    finish(command(Some(socket), arguments).spawn().expect("agent-cli starts"))
}

/// Runs agent-cli with `--local`, which starts a private daemon.
pub fn local(arguments: &[&str]) -> CliOutput {
    finish(command(None, arguments).spawn().expect("agent-cli starts"))
}
