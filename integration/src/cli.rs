//! agent-cli, run as a person would.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::dist;

/// What it printed, and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status.
    pub status: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ran {
    /// Standard output as the one JSON document that it is.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Standard output as JSON, one value a line.
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        let lines = self.stdout.lines();
        lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }
}

/// A command line, not started yet.
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

/// Waits for its end.
pub fn finish(child: Child) -> Ran {
    let Output { status, stdout, stderr } = child.wait_with_output().expect("output");
    Ran {
        status: status.code().unwrap_or_else(|| panic!("agent-cli was ended by a signal: {status}")),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Runs it against a daemon.
pub fn run(socket: &Path, arguments: &[&str]) -> Ran {
    finish(command(Some(socket), arguments).spawn().expect("agent-cli starts"))
}

/// Runs it with a private daemon.
pub fn local(arguments: &[&str]) -> Ran {
    finish(command(None, arguments).spawn().expect("agent-cli starts"))
}
