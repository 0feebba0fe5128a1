//! Runs agent-cli and reads its output while it runs.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use crate::fake::{EVENT_TIMEOUT, Fake};

/// Returns a command that connects to the fake, with standard output and standard error piped.
pub(crate) fn agent_cli(fake: &Fake, args: &[&str]) -> Command {
    let mut command = bare(Path::new(env!("CARGO_BIN_EXE_agent-cli")), args);
    command.env("EXECUTOR_SOCKET", fake.socket());
    command
}

/// Returns a command whose environment names no socket.
pub(crate) fn bare(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env_remove("EXECUTOR_SOCKET").env_remove("EXECUTOR_JSON").env_remove("NO_COLOR");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Installs agent-cli in the directory `dir`, and returns its path.
pub(crate) fn agent_cli_in(dir: &Path) -> PathBuf {
    let program = dir.join("agent-cli");
    if std::fs::hard_link(env!("CARGO_BIN_EXE_agent-cli"), &program).is_err() {
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_agent-cli")).arg(&program).status().unwrap();
        assert!(copied.success());
    }
    program
}

/// Creates an executable shell script. A child process writes the file: if this process wrote it, a concurrent fork
/// could inherit the open file, and executing the script would fail with `ETXTBSY`.
pub(crate) fn script(path: &Path, lines: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut child = install.spawn().unwrap();
    feed(&mut child, format!("#!/bin/sh\n{lines}\n").as_bytes());
    assert!(child.wait().unwrap().success());
}

/// Exit status and output of agent-cli.
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Ended {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {:?} {}", self.out(), self.err()))
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self { status: output.status.code(), stdout: output.stdout, stderr: output.stderr }
    }
}

/// Runs agent-cli until it exits.
pub(crate) fn run(fake: &Fake, args: &[&str]) -> Ended {
    finish(agent_cli(fake, args).spawn().unwrap())
}

/// Waits until the child exits; fails the test after a timeout.
pub(crate) fn finish(child: Child) -> Ended {
    let pid = pid(&child);
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    match ended.recv_timeout(EVENT_TIMEOUT * 2) {
        Ok(output) => output.unwrap().into(),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            panic!("agent-cli does not end")
        }
    }
}

pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

pub(crate) fn send(child: &Child, signal: Signal) {
    kill_process(pid(child), signal).unwrap();
}

/// Reads lines from a running child's standard output.
pub(crate) struct Lines(BufReader<ChildStdout>);

impl Lines {
    pub(crate) fn from_child(child: &mut Child) -> Self {
        Self(BufReader::new(child.stdout.take().unwrap()))
    }

    pub(crate) fn next(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn rest(mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }
}

/// Writes a child's standard input.
pub(crate) fn feed(child: &mut Child, input: &[u8]) {
    child.stdin.take().unwrap().write_all(input).unwrap();
}
