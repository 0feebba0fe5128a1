//! A measured daemon: `executord --ephemeral` in a temporary directory with its own configuration.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;
use crate::rootfs::Rootfs;

/// Timeout of the daemon's start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the launcher's cleanup after executord has exited.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

/// A running daemon. Dropping it stops the daemon, which removes its containers and directories.
pub(crate) struct Daemon {
    child: Child,
    run: PathBuf,
    state: PathBuf,
    log: PathBuf,
}

/// Paths and configuration of a daemon.
pub(crate) struct Setup<'a> {
    /// Directory of the product's binaries.
    pub(crate) dist: &'a Path,
    /// Parent directory of the daemon's state directory, on a disk.
    pub(crate) scratch: &'a Path,
    /// Parent directory of the daemon's run directory.
    pub(crate) run: &'a Path,
    /// Name of the daemon's directories in `scratch` and `run`.
    pub(crate) name: &'a str,
    /// Content of the daemon's configuration file.
    pub(crate) config: &'a str,
    /// Path of the daemon's network namespace; if unset, the daemon runs in this process's network namespace.
    pub(crate) network: Option<&'a str>,
}

impl Daemon {
    /// Starts the daemon and waits until it can run containers.
    pub(crate) async fn start(setup: &Setup<'_>, rootfs: &Rootfs) -> anyhow::Result<(Self, Client)> {
        let mut daemon = Self::spawn(setup)?;
        let connection = daemon.connection().await?;
        let client = Client::new(connection, rootfs).await?;
        Ok((daemon, client))
    }

    fn spawn(setup: &Setup<'_>) -> anyhow::Result<Self> {
        let (run, state) = (setup.run.join(setup.name), setup.scratch.join(setup.name));
        let [log, config] = ["log", "toml"].map(|kind| setup.scratch.join(format!("{}.{kind}", setup.name)));
        std::fs::write(&config, setup.config)?;
        // Each daemon has its own copy of the programs. Otherwise daemons would share file pages, which would distort
        // the comparison of their memory.
        let programs = setup.scratch.join(format!("{}.bin", setup.name));
        std::fs::create_dir(&programs)?;
        for name in ["executord", "executor-launcher"] {
            let from = setup.dist.join(name);
            std::fs::copy(&from, programs.join(name)).with_context(|| from.display().to_string())?;
        }
        let program = programs.join("executord");
        let mut command = match setup.network {
            None => Command::new(&program),
            Some(namespace) => {
                // nsenter executes the program without a fork, so the child's pid is the pid of executord.
                let mut entered = Command::new("nsenter");
                entered.arg(format!("--net={namespace}")).arg(&program);
                entered
            }
        };
        command.arg("--ephemeral").arg("--run-dir").arg(&run).arg("--state-dir").arg(&state);
        command.arg("--config").arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        // Ctrl-C must not end the daemon before its containers are deleted.
        command.process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child, run, state, log })
    }

    /// Waits until the daemon is ready and connects.
    async fn connection(&mut self) -> anyhow::Result<executor_client::Client> {
        let socket = self.run.join("executor.sock");
        let start = Instant::now();
        loop {
            let error = match ask(&socket).await {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait()? {
                bail!("executord exited ({status}):\n{}", self.logged());
            }
            ensure!(start.elapsed() < START_TIMEOUT, "executord does not respond ({error:#}):\n{}", self.logged());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn launcher(&self) -> anyhow::Result<u32> {
        let pid = integration::daemon::launcher_of(&self.run).context("executord has no launcher")?;
        Ok(pid.unsigned_abs())
    }

    pub(crate) fn run_dir(&self) -> &Path {
        &self.run
    }

    pub(crate) fn state_dir(&self) -> &Path {
        &self.state
    }

    /// Sends SIGTERM, waits until executord exits, and then until the launcher exits. The launcher removes the run
    /// directory last.
    pub(crate) fn end(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        let start = Instant::now();
        while self.run.exists() {
            ensure!(start.elapsed() < CLEANUP_TIMEOUT, "{} still exists\n{}", self.run.display(), self.logged());
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
            eprintln!("executor-bench: cannot stop the daemon: {error:#}");
        }
    }
}

async fn ask(socket: &Path) -> anyhow::Result<executor_client::Client> {
    let client = executor_client::Client::connect(socket).await?;
    ensure!(client.info().await?.launcher_connected, "executord has no launcher");
    Ok(client)
}
