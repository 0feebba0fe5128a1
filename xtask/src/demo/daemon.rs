//! The demo's own daemon: `executord --ephemeral` in a temporary directory, driven by `agent-cli`.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::host::{Process, processes_below};

/// Where the daemon's stderr goes, beside its directories.
pub(super) const LOG: &str = "executord.log";
/// To get ready, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// For the launcher, after its last act.
const EXIT: Duration = Duration::from_secs(1);

/// A running daemon. Dropped, it is told to end, which takes its containers and directories along.
pub(super) struct Daemon {
    child: Child,
    directory: TempDir,
    agent_cli: PathBuf,
}

impl Daemon {
    /// Starts it out of a directory of programs and waits until it answers.
    pub(super) fn start(programs: &Path) -> anyhow::Result<Self> {
        // /run is a tmpfs nearly everywhere, on which overlays work; the temporary directory of a container
        // is often an overlay itself, on which they do not.
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("executor-demo.");
        let directory = builder.tempdir_in("/run").or_else(|_| builder.tempdir())?;
        // The daemon drops its privileges and must still get at its directories.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))?;
        let log = File::create(directory.path().join(LOG))?;
        let child = Command::new(programs.join("executord"))
            .arg("--ephemeral")
            .arg("--run-dir")
            .arg(directory.path().join("run"))
            .arg("--state-dir")
            .arg(directory.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting executord")?;
        let mut daemon = Self { child, directory, agent_cli: programs.join("agent-cli") };
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let Err(error) = self.agent(&["info"]) else { return Ok(()) };
            if let Some(status) = self.child.try_wait()? {
                bail!("executord ended ({status}):\n{}", self.log());
            }
            ensure!(start.elapsed() < PATIENCE, "executord does not answer ({error:#}):\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `agent-cli`, told which daemon.
    pub(super) fn agent_command(&self) -> Command {
        let mut command = Command::new(&self.agent_cli);
        command.arg("--socket").arg(self.directory.path().join("run/executor.sock"));
        command
    }

    /// Runs `agent-cli` and answers its stdout.
    pub(super) fn agent(&self, args: &[&str]) -> anyhow::Result<String> {
        crate::workspace::output(self.agent_command().args(args))
    }

    /// Holds the run directory, the state directory and the log.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Itself, the launcher, the shims, and what runs in containers.
    pub(super) fn processes(&self) -> anyhow::Result<Vec<Process>> {
        processes_below(self.child.id())
    }

    /// Ends it, waits until it has cleaned up, and answers the directory it lived in and what still runs.
    pub(super) fn stop(mut self) -> anyhow::Result<(TempDir, Vec<Process>)> {
        let mut processes = self.processes()?;
        self.end()?;
        let start = Instant::now();
        // The launcher's last act was to remove the directory; then it only has to exit.
        while !processes.is_empty() && start.elapsed() < EXIT {
            std::thread::sleep(Duration::from_millis(5));
            processes.retain(Process::is_alive);
        }
        let empty = tempfile::tempdir()?;
        Ok((std::mem::replace(&mut self.directory, empty), processes))
    }

    fn end(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        }
        let status = self.child.wait()?;
        let run = self.directory.path().join("run");
        let start = Instant::now();
        // The launcher removes it last, when everything else is done.
        while run.exists() {
            ensure!(start.elapsed() < PATIENCE, "{} is still there\n{}", run.display(), self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        ensure!(status.success(), "executord: {status}\n{}", self.log());
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join(LOG)).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("xtask: ending the demo's daemon: {error:#}");
        }
    }
}
