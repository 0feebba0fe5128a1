//! The daemon under measurement: `executord --ephemeral` in a temporary directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;
use crate::rootfs::Rootfs;

/// Longest time until the daemon is ready, or ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running daemon. Dropping it ends the daemon, which removes its containers and directories.
pub(crate) struct Daemon {
    child: Child,
    run: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Starts the daemon and waits until it can run containers.
    pub(crate) async fn start(
        dist: &Path,
        scratch: &Path,
        run: &Path,
        rootfs: &Rootfs,
    ) -> anyhow::Result<(Self, Client)> {
        let mut daemon = Self::spawn(dist, scratch, run)?;
        let connection = daemon.connection().await?;
        let client = Client::new(connection, rootfs).await?;
        Ok((daemon, client))
    }

    fn spawn(dist: &Path, scratch: &Path, run: &Path) -> anyhow::Result<Self> {
        let (run, log) = (run.join("executor"), scratch.join("executord.log"));
        let program = dist.join("executord");
        let child = Command::new(&program)
            .arg("--ephemeral")
            .arg("--run-dir")
            .arg(&run)
            .arg("--state-dir")
            .arg(scratch.join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { child, run, log })
    }

    /// Waits until the daemon is ready, and connects.
    async fn connection(&mut self) -> anyhow::Result<executor_client::Client> {
        let socket = self.run.join("executor.sock");
        let start = Instant::now();
        loop {
            let error = match ask(&socket).await {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait()? {
                bail!("executord ended ({status}):\n{}", self.logged());
            }
            ensure!(start.elapsed() < PATIENCE, "executord does not answer ({error:#}):\n{}", self.logged());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Pid of executord.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM, and waits for the end of executord and then of the launcher, which removes the run directory
    /// last.
    pub(crate) fn end(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        let start = Instant::now();
        while self.run.exists() {
            ensure!(start.elapsed() < PATIENCE, "{} is still there\n{}", self.run.display(), self.logged());
            std::thread::sleep(Duration::from_millis(10));
        }
        ensure!(status.success(), "executord: {status}\n{}", self.logged());
        Ok(())
    }

    fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("executor-bench: ending the daemon: {error:#}");
        }
    }
}

async fn ask(socket: &Path) -> anyhow::Result<executor_client::Client> {
    let client = executor_client::Client::connect(socket).await?;
    ensure!(client.info().await?.launcher_connected, "executord has no launcher");
    Ok(client)
}
