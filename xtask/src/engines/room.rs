//! Mount, network and PID namespaces for a run. When the init process exits, the kernel kills all processes in the
//! namespaces, and removes the mounts and interfaces. The init process exits at the end of its standard input. This
//! input ends when xtask exits, for any reason. A shell outside of the namespaces then removes the remaining cgroups
//! and files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::workspace::output;

/// Shell script that creates the namespaces and cleans up after the run. `$1` is the directory of the run, `$2` a
/// script that prepares the namespaces, and `$3` a part of the names of the run's cgroups. Only cgroups that are newer
/// than the run are removed.
const SCRIPT: &str = r#"trap '' INT TERM HUP
: >"$1/began"
unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private sh -ec "$2"'
ip link set lo up; echo ready; exec cat' sh "$1" "$3"
exec >/dev/null
cat # until the run ends, even if the processes were killed before
find /sys/fs/cgroup -depth -type d \( -path '*/k8s.io*' -o -path '*:cri-containerd:*' -o -path "*/*$3*" \) \
    -newer "$1/began" -exec rmdir {} +
rm -r "$1""#;
/// Script that mounts empty file systems on the two fixed directories of containerd.
pub(super) const EMPTY_DIRECTORIES: &str =
    "for dir in /run/netns /run/containerd; do mkdir -p $dir; mount -t tmpfs none $dir; done\n";

/// Time limit for the start of a program.
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Room {
    shell: Child,
    init: u32,
}

impl Room {
    /// Creates the namespaces, and runs a script in them with the directory as `$1` and `cgroup` as `$2`. At the end of
    /// the run, the directory and all cgroups whose names contain `cgroup` are removed.
    pub(super) fn open(directory: &Path, script: &str, cgroup: &str) -> anyhow::Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "sh"])
            .arg(directory)
            .args([script, cgroup])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut shell = command.spawn().context("cannot start sh")?;
        let mut line = String::new();
        BufReader::new(shell.stdout.take().context("the child has no standard output")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "cannot create the namespaces");
        let init = child_of(shell.id()).and_then(child_of).context("the namespaces have no process")?;
        Ok(Self { shell, init })
    }

    /// Returns a command that runs a program in the namespaces.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--mount", "--net", "--pid"]).arg(program);
        command
    }

    /// Adds a network interface that is connected with an interface in the namespaces of `other`.
    pub(super) fn connect(&self, interface: &str, other: &Self, peer: &str) -> anyhow::Result<()> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--net", "ip", "link", "add", interface, "type", "veth"]);
        command.args(["peer", "name", peer, "netns", &other.init.to_string()]);
        output(&mut command).map(drop)
    }

    /// Kills all processes in the namespaces with SIGKILL.
    pub(super) fn kill(&self) -> anyhow::Result<()> {
        let init = Pid::from_raw(self.init.cast_signed()).context("the namespaces have no process")?;
        Ok(kill_process(init, Signal::KILL)?)
    }

    /// Returns true if a process is in the namespaces. Containers have their own PID namespaces.
    pub(super) fn contains(&self, pid: u32) -> bool {
        let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        namespace(pid).is_some_and(|own| Some(own) == namespace(self.init))
    }

    /// Returns the path of `/proc` in the namespaces.
    pub(super) fn processes(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/proc", self.init))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Starts a program, and waits until it serves a socket. Returns the process of nsenter.
pub(super) fn serve(mut command: Command, log: &Path, socket: &Path) -> anyhow::Result<Child> {
    let file = File::options().append(true).create(true).open(log)?;
    let mut program = command.stdout(file.try_clone()?).stderr(file).spawn().context("cannot start nsenter")?;
    let deadline = Instant::now() + START_TIMEOUT;
    while UnixStream::connect(socket).is_err() {
        if Instant::now() > deadline || program.try_wait()?.is_some() {
            bail!("no program listens on {}:\n{}", socket.display(), fs::read_to_string(log).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(50)); // between two attempts
    }
    Ok(program)
}

/// Makes a directory accessible only to root.
pub(super) fn make_private(directory: &Path) -> anyhow::Result<()> {
    Ok(fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?)
}

/// Returns the only child of a process.
pub(super) fn child_of(pid: u32) -> Option<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.trim().parse().ok()
}
