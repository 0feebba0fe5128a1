//! A daemon for one test: executord and its launcher, with their own directories below /run.
//!
//! Dropping the daemon also stops its containers and its launcher and removes its directories, in any state.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use executor_core::record::ContainerRecord;
use executor_sys::process::{pidfd, pidfd_signal};
use tempfile::TempDir;

use crate::api::Api;
use crate::footprint::{self, Footprint};
use crate::mount::{self, RelocatedDirectory, Tmpfs};
use crate::{dist, host, launcher, wait, warm_pool};

/// Uid of executord in tests. The uid is fixed so that a test can prepare files for this user.
pub const USER: u32 = 61_000;

/// File with the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Configuration of a daemon that has not been started.
pub struct Setup {
    /// Separate tmpfs for the state directory. Declared before `home`, which contains the mount point, so that the
    /// tmpfs is dropped first.
    disk: Option<Tmpfs>,
    /// State directory on another file system. Also declared before `home`, so that it is unmounted first.
    state: Option<RelocatedDirectory>,
    home: TempDir,
    arguments: Vec<OsString>,
    binaries: Option<PathBuf>,
    /// Network namespace for the daemon. If unset, the daemon runs in the test's network namespace.
    network: Option<OsString>,
    /// Value of executord's option `--user`.
    user: Option<u32>,
    /// True if executord runs with a simulated boot id instead of the kernel's boot id.
    simulates_boots: bool,
    /// Environment variables of executord in addition to the test's own variables.
    environment: Vec<(&'static str, OsString)>,
}

pub struct Daemon {
    pub api: Api,
    setup: Setup,
    child: Child,
}

impl Default for Setup {
    fn default() -> Self {
        let home = mount::directory_below(Path::new("/run"));
        let state = mount::state(home.path());
        Self {
            disk: None,
            state,
            home,
            arguments: Vec::new(),
            binaries: None,
            network: None,
            user: Some(USER),
            simulates_boots: false,
            environment: Vec::new(),
        }
    }
}

impl Setup {
    /// Adds arguments to executord's command line.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(OsString::from));
        self
    }

    /// Starts executord without the option `--user`.
    pub fn without_user(mut self) -> Self {
        self.user = None;
        self
    }

    /// Uses the control binaries, which do not wipe secrets. A test uses them to verify that its search finds residue.
    pub fn control(mut self) -> Self {
        self.binaries = Some(dist::control());
        self
    }

    pub fn config(mut self, toml: &str) -> Self {
        self.replace_config(toml);
        self.arguments.extend([OsString::from("--config"), self.config_file().into()]);
        self
    }

    pub fn config_file(&self) -> PathBuf {
        self.home.path().join("executor.toml")
    }

    /// Replaces the configuration file atomically, even while the daemon runs.
    pub fn replace_config(&self, toml: &str) {
        let new = self.home.path().join(".executor.toml");
        fs::write(&new, warm_pool::configured(toml)).expect("write");
        fs::rename(&new, self.config_file()).expect("rename");
    }

    /// Runs the daemon in the network namespace at this path.
    pub fn network(mut self, path: &str) -> Self {
        self.network = Some(path.into());
        self
    }

    /// Runs the daemon in its own mount namespace, with a boot id that [`Daemon::reboot`] changes.
    pub fn simulate_boots(mut self) -> Self {
        self.simulates_boots = true;
        fs::write(self.boot_id_file(), "11111111-1111-4111-8111-111111111111\n").expect("write");
        self
    }

    fn boot_id_file(&self) -> PathBuf {
        self.home().join("boot_id")
    }

    /// Preloads a library into executord, which must not be statically linked.
    pub fn preload(self, library: &Path) -> Self {
        self.env("LD_PRELOAD", library)
    }

    pub fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Puts the state directory on a tmpfs of this many bytes.
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk = Some(Tmpfs::mount(&self.state_dir(), bytes));
        self
    }

    /// Puts the state directory on the file system of `dir`.
    pub fn state_below(mut self, dir: &Path) -> Self {
        self.state = None; // unmounts an earlier directory first
        self.state = Some(RelocatedDirectory::mount(&self.state_dir(), dir));
        self
    }

    /// Returns the tmpfs that [`Self::disk`] created for the state directory.
    pub fn state_disk(&self) -> &Tmpfs {
        self.disk.as_ref().expect("Setup::disk was called")
    }

    /// Returns the directory that holds all files of the daemon.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn state_dir(&self) -> PathBuf {
        self.home().join("state")
    }

    pub fn run_dir(&self) -> PathBuf {
        self.home().join("run")
    }

    /// Starts the daemon and waits until it serves and has a launcher.
    pub fn start(self) -> Daemon {
        let (child, api) = self.spawn();
        Daemon { api, setup: self, child }
    }

    /// Returns the command that starts the daemon.
    pub fn command(&self) -> Command {
        let log = File::options().create(true).append(true).open(self.home().join("daemon.log")).expect("a log");
        let program = self.binaries.as_ref().map_or_else(|| dist::binary("executord"), |dir| dir.join("executord"));
        let mut words: Vec<OsString> = Vec::new();
        if let Some(path) = &self.network {
            let mut option = OsString::from("--net=");
            option.push(path);
            words.extend(["nsenter".into(), option]);
        }
        if self.simulates_boots {
            let script = format!("mount --bind \"$0\" {BOOT_ID} && exec \"$@\"");
            words.extend(["unshare", "--mount", "sh", "-c", &script].map(OsString::from));
            words.push(self.boot_id_file().into());
        }
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.arg("--run-dir").arg(self.run_dir()).arg("--state-dir").arg(self.state_dir());
        if !self.arguments.iter().any(|argument| argument == "--config") {
            command.args(warm_pool::arguments(self.home(), ""));
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let is_named = |argument: &OsString| argument == "--user" || argument == "--keep-root";
        if let Some(user) = self.user.filter(|_| !self.arguments.iter().any(is_named)) {
            command.arg("--user").arg(user.to_string());
        }
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    /// Returns the log output of executord and the launcher.
    pub fn logged(&self) -> String {
        fs::read_to_string(self.home().join("daemon.log")).unwrap_or_default()
    }

    fn spawn(&self) -> (Child, Api) {
        let mut child = self.command().spawn().expect("executord starts");
        let socket = self.run_dir().join("executor.sock");
        let api = wait::until("executord serves", || {
            if let Some(status) = child.try_wait().expect("wait") {
                panic!("executord exited ({status}):\n{}", self.logged());
            }
            // The socket of an earlier daemon refuses connections until the new daemon listens.
            Api::connect(&socket).ok()
        });
        let connected = wait::within(wait::DEFAULT_TIMEOUT, || match api.try_info() {
            Ok(info) if info.launcher_connected => Ok(()),
            Ok(_) => Err("executord is not connected to its launcher".to_owned()),
            Err(status) => Err(status.to_string()),
        });
        connected.unwrap_or_else(|why| panic!("{why}:\n{}", self.logged()));
        if self.simulates_boots {
            // The kernel refuses a new procfs in a user namespace while a mount covers a file of the old procfs.
            for pid in [Some(child.id() as i32), launcher_of(&self.run_dir())].into_iter().flatten() {
                let target = format!("--target={pid}");
                let _ = Command::new("nsenter").args([&*target, "--mount", "umount", BOOT_ID]).output();
            }
        }
        (child, api)
    }
}

impl Daemon {
    /// Starts a daemon with the default configuration.
    pub fn start() -> Self {
        Setup::default().start()
    }

    /// Returns the configuration and directories of the daemon.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    pub fn socket(&self) -> PathBuf {
        self.setup.run_dir().join("executor.sock")
    }

    /// Returns the pid of executord.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns the pid of the launcher.
    pub fn launcher(&self) -> Option<i32> {
        launcher_of(&self.setup.run_dir())
    }

    /// Reads the record that the shim of a running container keeps.
    pub fn record(&self, id: &str) -> ContainerRecord {
        let path = self.setup.run_dir().join("containers").join(id).join("container.json");
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_slice(&bytes).expect("a record")
    }

    /// Sends SIGKILL to executord and waits for its exit.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Sends SIGTERM to executord and waits for its exit.
    pub fn terminate(&mut self) -> ExitStatus {
        kill(self.pid(), 15);
        self.child.wait().expect("wait")
    }

    /// Simulates a restart of the host: kills all processes with SIGKILL, empties the run directory, changes the boot
    /// id, and starts executord again. Requires [`Setup::simulate_boots`].
    pub fn reboot(&mut self) {
        let launcher = self.launcher();
        self.kill();
        launcher.into_iter().for_each(|pid| kill(pid, 9));
        // Stop all processes before killing them, so that none observes the exit of another or waits for it to be
        // reaped.
        let all = footprint::processes(&self.setup.run_dir(), None);
        for signal in [19, 9] {
            all.iter().for_each(|&pid| kill(pid, signal));
        }
        clear(&self.setup.run_dir());
        fs::remove_dir_all(self.setup.run_dir()).expect("the run directory is removed");
        let id = fs::read_to_string(self.setup.boot_id_file()).expect("Setup::simulate_boots was called");
        fs::write(self.setup.boot_id_file(), id.replace('1', "2")).expect("write");
        self.start_again();
    }

    /// Starts another executord on the same directories.
    pub fn start_again(&mut self) {
        (self.child, self.api) = self.setup.spawn();
    }

    /// Waits until a container has released all host resources after its exit was reported. The container's run
    /// directory is removed last.
    pub fn wait_until_removed(&self, id: &str) {
        let path = self.setup.run_dir().join("containers").join(id);
        wait::until("the container is removed", || (!path.exists()).then_some(()));
    }

    pub fn footprint(&self) -> Footprint {
        Footprint::take(self.setup.home(), self.pid(), self.launcher(), &self.api)
    }

    /// Waits until all resources of the daemon that are not in `before` are gone. Resources in `before` may be gone
    /// too: for example, a shim exits just after its container.
    ///
    /// # Panics
    /// Panics if such resources remain after [`wait::DEFAULT_TIMEOUT`]; the message lists the remaining resources.
    pub fn wait_until_back_at(&self, before: &Footprint) {
        wait::until_ok("all resources that the daemon added are gone", || match self.footprint().added_since(before) {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        });
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of executord and launcher:\n{}", self.setup.logged());
        }
        let launcher = self.launcher();
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            kill(self.pid(), 15);
            let _ = self.child.wait();
        }
        launcher::end_containers(&self.setup.run_dir());
        if let Some(pid) = launcher {
            kill(pid, 15);
            wait::until("the launcher has exited", || has_ended(pid).then_some(()));
        }
        clear(&self.setup.run_dir());
    }
}

/// Returns the pid of the launcher that serves a run directory: the process that holds its lock. The function makes no
/// connection, because a connection would appear among the launcher's descriptors.
pub fn launcher_of(run_dir: &Path) -> Option<i32> {
    let lock = fs::metadata(run_dir.join("launcher.lock")).ok()?;
    let device = lock.dev();
    let file = format!("{:02x}:{:02x}:{}", rustix::fs::major(device), rustix::fs::minor(device), lock.ino());
    // The kernel returns its list in pieces. A lock can be missing if other processes lock or unlock at the same time.
    (0..3).find_map(|_| holder_of_lock(&file))
}

fn holder_of_lock(file: &str) -> Option<i32> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 815 00:1b:4711 0 EOF
    let mut locks = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let lock = locks.find(|lock| lock.get(5) == Some(&file))?;
    lock[4].parse().ok().filter(|pid| *pid > 0)
}

/// Kills the remaining processes of a daemon without a launcher and removes its cgroups. Needed only if the launcher is
/// not restarted, because a new launcher would clean up.
pub fn clear(run_dir: &Path) {
    for pid in footprint::processes(run_dir, None) {
        kill(pid, 9);
        wait::until("a leftover process has exited", || has_ended(pid).then_some(()));
    }
    for cgroup in footprint::all_cgroups(run_dir).into_iter().rev() {
        let _ = fs::remove_dir(cgroup);
    }
}

/// Sends a signal to a process, which may have exited already.
pub fn kill(pid: i32, signal: i32) {
    if let Ok(pidfd) = pidfd(pid) {
        let _ = pidfd_signal(pidfd.as_fd(), signal);
    }
}

/// Returns true if a process has exited. A zombie that its parent has not reaped counts as exited.
pub fn has_ended(pid: i32) -> bool {
    host::status(pid, "State").is_none_or(|state| state.starts_with('Z'))
}
