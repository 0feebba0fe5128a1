//! Plays a revision by running the program `agent-cli-kube`, which reads the manifests from a pipe.
//!
//! The kernel kills the program when this process exits for any reason: a hidden command of `agent-cli-bundle` sets the
//! parent-death signal and then executes the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use executor_bundles::installation::Options;
use executor_cli_kit::global::{Global, JSON};
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::text::plain;
use executor_cli_kit::{executables, report};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use zeroize::Zeroizing;

const PROGRAM: &str = "agent-cli-kube";
/// Hidden command that executes a program with SIGKILL as its parent-death signal.
pub(crate) const BOUND: &str = "run-bound";
/// Maximum size of the program's output, in bytes.
const ANSWER_MAX: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PlayError {
    #[error("cannot find {PROGRAM} next to this program or in PATH")]
    NoProgram,
    #[error("cannot run {PROGRAM}")]
    Run(#[source] std::io::Error),
    #[error("{0}")]
    Failed(String),
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

/// Creates, removes and lists plays by running the program.
pub(crate) struct Player<'a> {
    pub(crate) global: &'a Global,
    pub(crate) interrupts: Interrupts,
}

impl Player<'_> {
    /// Plays manifests under a name, and waits until their pods are ready.
    pub(crate) async fn play(
        &mut self,
        name: &str,
        manifests: &Zeroizing<String>,
        options: &Options,
        wait: Duration,
    ) -> Result<(), PlayError> {
        let mut args: Vec<OsString> =
            ["play", "--name", name, "--validate", "warn", "--wait"].map(OsString::from).into();
        args.push(format!("{}ms", wait.as_millis()).into());
        if let Some(network) = &options.network {
            args.extend(["--network".into(), network.into()]);
        }
        if options.egress {
            args.push("--egress".into());
        }
        for image in &options.image_overrides {
            args.extend(["--image-override".into(), image.into()]);
        }
        args.push("-".into());
        self.run(&args, Some(manifests)).await.map(drop)
    }

    /// Removes a play. Succeeds if the play does not exist.
    pub(crate) async fn down(&mut self, name: &str) -> Result<(), PlayError> {
        if self.pods(name).await?.is_empty() {
            return Ok(());
        }
        self.run(&["down".into(), name.into()], None).await.map(drop)
    }

    /// Returns the pods of a play, as described by the program.
    pub(crate) async fn pods(&mut self, name: &str) -> Result<Vec<serde_json::Value>, PlayError> {
        let answer = self.run(&["ps".into(), "--name".into(), name.into(), "--json".into()], None).await?;
        let value: serde_json::Value = serde_json::from_slice(&answer)
            .map_err(|error| PlayError::Failed(format!("{PROGRAM} ps --json: unexpected output: {error}")))?;
        match value {
            serde_json::Value::Array(pods) => Ok(pods),
            mut other => {
                Ok(other.get_mut("pods").and_then(|pods| pods.as_array_mut()).map(std::mem::take).unwrap_or_default())
            }
        }
    }

    /// Runs the program until it exits and returns its output. The program's messages go to standard error. If the
    /// program fails, its last message becomes the error.
    async fn run(&mut self, args: &[OsString], input: Option<&Zeroizing<String>>) -> Result<Vec<u8>, PlayError> {
        let program = executables::find(PROGRAM).ok_or(PlayError::NoProgram)?;
        let own = std::env::current_exe().map_err(PlayError::Run)?;
        let mut command = tokio::process::Command::new(own);
        command.arg(BOUND).arg(rustix::process::getpid().as_raw_nonzero().to_string()).arg(program).args(args);
        self.global.export_to(command.as_std_mut()).map_err(|failure| PlayError::Failed(failure.describe()))?;
        command.env_remove(JSON);
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(PlayError::Run)?;
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                let _ = stdin.write_all(input.as_bytes()).await; // if the program exits early, it reports why
            }
        };
        let read = async {
            let mut answer = Vec::new();
            if let Some(stdout) = stdout {
                let mut stdout = tokio::io::AsyncReadExt::take(stdout, ANSWER_MAX as u64);
                let _ = tokio::io::AsyncReadExt::read_to_end(&mut stdout, &mut answer).await;
            }
            answer
        };
        let listen = async {
            let mut last = Vec::new();
            if let Some(stderr) = stderr {
                let mut lines = BufReader::new(stderr).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    eprintln!("{line}");
                    last.push(line);
                    if last.len() > 20 {
                        last.remove(0);
                    }
                }
            }
            last
        };
        let mut interrupted = None;
        let whole = async { tokio::join!(write, read, listen, child.wait()) };
        let mut whole = std::pin::pin!(whole);
        let ((), answer, said, status) = loop {
            tokio::select! {
                done = &mut whole => break done,
                // Stop the child with SIGTERM, because only a terminal signals both processes. This program cleans up,
                // not the child.
                signal = self.interrupts.next() => {
                    interrupted = Some(signal);
                    if let Some(pid) = pid {
                        let _ = kill_process(pid, Signal::TERM); // the process may have exited
                    }
                }
            }
        };
        if let Some(signal) = interrupted {
            return Err(PlayError::Interrupted(signal));
        }
        let status = status.map_err(PlayError::Run)?;
        if status.success() {
            return Ok(answer);
        }
        let prefix = format!("{}: ", report::PROGRAM);
        let own = |line: &&String| line.starts_with(&prefix);
        let why = said.iter().rev().find(own).or(said.last()).map_or_else(|| status.to_string(), |line| plain(line));
        Err(PlayError::Failed(why.strip_prefix(&prefix).unwrap_or(&why).to_owned()))
    }
}

/// Runs the hidden command `run-bound PARENT PROGRAM ARGUMENTS...`. Returns only if the program cannot be run.
pub(crate) fn run_bound(mut args: impl Iterator<Item = OsString>) -> std::process::ExitCode {
    let (Some(parent), Some(program)) = (args.next(), args.next()) else { return 125.into() };
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have exited before the signal was set.
    let is_there = getppid().is_some_and(|pid| OsStr::new(&pid.as_raw_nonzero().to_string()) == parent);
    if bound.is_err() || !is_there {
        return 125.into();
    }
    let error = Command::new(&program).args(args).exec();
    report::note(&format!("cannot run {}: {error}", program.display()));
    126.into()
}
