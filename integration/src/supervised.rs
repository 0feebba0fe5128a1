//! Runs executord and its launcher as a supervisor such as systemd does. The two processes do not start each other, and
//! each is restarted on the same directories after its exit.
//!
//! [`crate::daemon::Daemon`] instead runs an executord that starts its launcher. Dropping a [`Supervised`] stops the
//! containers and both processes and removes the directories, in any state.

use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use executor_sys::process::{pidfd, pidfd_signal};
use executor_sys::seqpacket::Seqpacket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tempfile::TempDir;

use crate::api::Api;
use crate::daemon::{clear, kill};
use crate::footprint::Footprint;
use crate::{dist, host, launcher, wait, warm_pool};

/// Uid of executord. No user on the host has this uid.
const USER: &str = "64123";

/// Startup timeout of each process.
const START_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The process that serves clients.
    Executord,
    /// The process that forks shims.
    Launcher,
}

/// A node that the test supervises.
pub struct Supervised {
    /// Connection to executord, renewed at each restart.
    pub api: Api,
    home: TempDir,
    /// Command-line arguments, which include the path of the configuration file.
    arguments: Vec<String>,
    /// Path of the network namespace of the simulated host. If unset, the node runs in the test's network namespace.
    network: Option<String>,
    executord: Process,
    launcher: Process,
}

/// A child that a thread of this process may trace. The child's exit is detected through a pidfd, because waiting for
/// the child would consume the tracer's stops.
struct Process {
    child: Child,
    pidfd: OwnedFd,
}

impl Process {
    fn new(child: Child) -> Result<Self, String> {
        let pidfd = pidfd(child.id() as i32).map_err(|error| format!("pidfd: {error}"))?;
        Ok(Self { child, pidfd })
    }

    /// Returns true if the process and all its threads exit within `within`. Reaps the process if no tracer has reaped
    /// it.
    fn has_ended(&mut self, within: PollTimeout) -> bool {
        let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        let ended = poll(&mut ended, within).is_ok_and(|ready| ready > 0);
        if ended {
            let _ = self.child.try_wait();
        }
        ended
    }
}

impl Supervised {
    /// Starts both processes and waits until they serve.
    ///
    /// # Panics
    /// Panics if a process does not serve in time.
    pub fn start() -> Self {
        Self::configured("")
    }

    /// Starts both processes with a configuration file, and waits until they serve.
    ///
    /// # Panics
    /// Panics if a process does not serve in time.
    pub fn configured(toml: &str) -> Self {
        Self::on_host(toml, None)
    }

    /// Starts both processes with a configuration file, in the network namespace with this path.
    ///
    /// # Panics
    /// Panics if a process does not serve in time.
    pub fn on_host(toml: &str, network: Option<String>) -> Self {
        let home = tempfile::Builder::new().prefix("ex").tempdir_in("/run").expect("a directory in /run");
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).expect("chmod");
        let arguments = warm_pool::arguments(home.path(), toml);
        let input = (home.path(), &*arguments, network.as_deref());
        let launcher = start_launcher(input).unwrap_or_else(|why| panic!("{why}"));
        let (executord, api) = start_executord(input).unwrap_or_else(|why| panic!("{why}"));
        Self { api, home, arguments, network, executord, launcher }
    }

    /// Returns the directory that holds all files of the node.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn run_dir(&self) -> PathBuf {
        self.home().join("run")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.home().join("state")
    }

    /// Returns the pid of one of the two processes.
    pub fn pid(&self, part: Part) -> i32 {
        match part {
            Part::Executord => self.executord.child.id() as i32,
            Part::Launcher => self.launcher.child.id() as i32,
        }
    }

    /// Returns the log output of both processes.
    pub fn logged(&self) -> String {
        fs::read_to_string(self.home().join("log")).unwrap_or_default()
    }

    /// Sends SIGKILL to one process and waits for its exit.
    pub fn kill(&mut self, part: Part) {
        let process = self.process(part);
        let _ = pidfd_signal(process.pidfd.as_fd(), nix::libc::SIGKILL);
        process.has_ended(PollTimeout::NONE);
    }

    fn process(&mut self, part: Part) -> &mut Process {
        match part {
            Part::Executord => &mut self.executord,
            Part::Launcher => &mut self.launcher,
        }
    }

    /// Returns true if a process has exited.
    pub fn is_dead(&mut self, part: Part) -> bool {
        self.process(part).has_ended(PollTimeout::ZERO)
    }

    /// Acts as a supervisor: restarts exited processes, and waits until both processes serve and are connected.
    ///
    /// # Errors
    /// Returns an error if a process does not serve in time.
    pub fn revive(&mut self) -> Result<(), String> {
        let dead = [Part::Launcher, Part::Executord].map(|part| self.is_dead(part));
        let input = (self.home.path(), &*self.arguments, self.network.as_deref());
        if dead[0] {
            self.launcher = start_launcher(input)?;
        }
        if dead[1] {
            (self.executord, self.api) = start_executord(input)?;
        }
        serves(&self.api)
    }

    /// Returns the pids of the node's running shims.
    pub fn shims(&self) -> Vec<i32> {
        let named = self.run_dir().display().to_string();
        let is_shim = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "executor-shim")
                && fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&named))
        };
        host::processes().into_iter().filter(is_shim).collect()
    }

    pub fn footprint(&self) -> Footprint {
        let mut footprint =
            Footprint::take(self.home(), self.pid(Part::Executord), Some(self.pid(Part::Launcher)), &self.api);
        // On a host without mount propagation, a new launcher also has mounts of other daemons that existed at its
        // start.
        let home = self.home().display().to_string();
        footprint.mounts.retain(|mount| mount.contains(&home));
        footprint
    }

    /// Waits until all resources of the node that are not in `before` are gone.
    ///
    /// # Errors
    /// Returns a description of the remaining resources if some remain after `timeout`.
    pub fn wait_until_back_at(&self, before: &Footprint, timeout: Duration) -> Result<(), String> {
        // The shim's last steps and the kernel's cleanup happen after the response.
        wait::within(timeout, || match self.footprint().added_since(before) {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        })
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of executord and launcher:\n{}", self.logged());
        }
        let run = self.run_dir();
        self.kill(Part::Executord);
        launcher::end_containers(&run);
        kill(self.pid(Part::Launcher), 15);
        self.launcher.has_ended(PollTimeout::NONE);
        clear(&run);
    }
}

/// Directory of a node, arguments of its processes, and the network namespace of the simulated host.
type NodeInput<'a> = (&'a Path, &'a [String], Option<&'a str>);

fn spawn((home, arguments, network): NodeInput<'_>, program: &str, user: &str) -> Result<Child, String> {
    let log = File::options().create(true).append(true).open(home.join("log"));
    let log = log.map_err(|error| format!("{}: {error}", home.join("log").display()))?;
    let mut command = match network {
        None => Command::new(dist::binary(program)),
        // nsenter executes the program without a fork, so the program has the pid of nsenter.
        Some(namespace) => {
            let mut nsenter = Command::new("nsenter");
            nsenter.arg(format!("--net={namespace}")).arg(dist::binary(program));
            nsenter
        }
    };
    command
        .args(arguments)
        .arg("--run-dir")
        .arg(home.join("run"))
        .arg("--state-dir")
        .arg(home.join("state"))
        .args([user, USER]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().map_err(|error| format!("{program}: {error}"))
}

fn start_launcher(input: NodeInput<'_>) -> Result<Process, String> {
    let home = input.0;
    let mut child = spawn(input, "executor-launcher", "--daemon-user")?;
    let socket = home.join("run/launcher.sock");
    // Until the new process listens, connections are refused or reach the earlier launcher's socket: a process that the
    // earlier launcher forked may still have the socket open.
    let pid = child.id() as i32;
    wait_until_ready("executor-launcher", home, Some(&mut child), || {
        let connection = Seqpacket::connect(&socket).ok()?;
        let listens = rustix::net::sockopt::socket_peercred(connection.as_fd()).ok()?.pid;
        (listens.as_raw_nonzero().get() == pid).then_some(())
    })?;
    Process::new(child)
}

fn start_executord(input: NodeInput<'_>) -> Result<(Process, Api), String> {
    let home = input.0;
    let mut child = spawn(input, "executord", "--user")?;
    let socket = home.join("run/executor.sock");
    let api = wait_until_ready("executord", home, Some(&mut child), || Api::connect(&socket).ok())?;
    serves(&api)?;
    Ok((Process::new(child)?, api))
}

/// Waits until executord is connected to its launcher.
fn serves(api: &Api) -> Result<(), String> {
    let home = Path::new("");
    wait_until_ready("executord's connection to its launcher", home, None, || {
        api.try_info().ok().filter(|info| info.launcher_connected).map(drop)
    })
}

fn wait_until_ready<T>(
    what: &str,
    home: &Path,
    mut child: Option<&mut Child>,
    mut ask: impl FnMut() -> Option<T>,
) -> Result<T, String> {
    let log = || fs::read_to_string(home.join("log")).unwrap_or_default();
    let answer = wait::within(START_TIMEOUT, || match ask() {
        Some(answer) => Ok(Ok(answer)),
        None => match child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
            Some(status) => Ok(Err(format!("{what} exited during its start ({status}):\n{}", log()))),
            None => Err(()),
        },
    });
    answer.unwrap_or_else(|()| Err(format!("{what} did not start within {} s:\n{}", START_TIMEOUT.as_secs(), log())))
}
