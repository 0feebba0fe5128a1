//! The demo's private daemon: runs `executord --ephemeral` in a temporary directory and controls it with `agent-cli`.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::host::{Process, processes_below};

/// File with the daemon's stderr, next to its directories.
pub(super) const LOG: &str = "executord.log";
/// Timeout of the daemon's start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of the launcher's cleanup after executord has exited.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time until the launcher exits after removing the directories.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// A running daemon. On drop, the daemon is terminated and removes its containers and directories.
pub(super) struct Daemon {
    child: Child,
    directory: TempDir,
    agent_cli: PathBuf,
}

impl Daemon {
    /// Starts the daemon from a directory of programs and waits until executord responds.
    pub(super) fn start(programs: &Path) -> anyhow::Result<Self> {
        // Prefer /run: it is a tmpfs nearly everywhere, which supports overlays. The temporary directory of a container
        // is often an overlay, which does not support overlays.
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("executor-demo.");
        let directory = builder.tempdir_in("/run").or_else(|_| builder.tempdir())?;
        // The daemon drops its privileges and must still access its directories.
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
            .context("cannot start executord")?;
        let mut daemon = Self { child, directory, agent_cli: programs.join("agent-cli") };
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let Err(error) = self.agent(&["info"]) else { return Ok(()) };
            if let Some(status) = self.child.try_wait()? {
                bail!("executord exited ({status}):\n{}", self.log());
            }
            ensure!(start.elapsed() < START_TIMEOUT, "executord does not respond ({error:#}):\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns an `agent-cli` command for this daemon.
    pub(super) fn agent_command(&self) -> Command {
        let mut command = Command::new(&self.agent_cli);
        command.arg("--socket").arg(self.directory.path().join("run/executor.sock"));
        command
    }

    /// Runs `agent-cli` and returns its stdout.
    pub(super) fn agent(&self, args: &[&str]) -> anyhow::Result<String> {
        crate::workspace::output(self.agent_command().args(args))
    }

    /// Returns the directory that holds the run directory, the state directory and the log.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns executord, the launcher, the shims, and processes in containers.
    pub(super) fn processes(&self) -> anyhow::Result<Vec<Process>> {
        processes_below(self.child.id())
    }

    /// Stops the daemon, and waits until it has cleaned up. Returns its directory and the processes that still run.
    pub(super) fn stop(mut self) -> anyhow::Result<(TempDir, Vec<Process>)> {
        let mut processes = self.processes()?;
        self.terminate()?;
        let start = Instant::now();
        // The launcher removes the directory last, and then exits.
        while !processes.is_empty() && start.elapsed() < EXIT_TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
            processes.retain(Process::is_alive);
        }
        let empty = tempfile::tempdir()?;
        Ok((std::mem::replace(&mut self.directory, empty), processes))
    }

    fn terminate(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        }
        let status = self.child.wait()?;
        let run = self.directory.path().join("run");
        let start = Instant::now();
        // The launcher removes this directory last, after all other work.
        while run.exists() {
            ensure!(
                start.elapsed() < CLEANUP_TIMEOUT,
                "the launcher did not remove {} within {CLEANUP_TIMEOUT:?} of executord's exit\n{}",
                run.display(),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        ensure!(status.success(), "executord failed ({status}):\n{}", self.log());
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join(LOG)).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.terminate() {
            eprintln!("xtask: cannot stop the demo's daemon: {error:#}");
        }
    }
}
