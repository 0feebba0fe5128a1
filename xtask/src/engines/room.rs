//! Namespaces for a run: mounts, network and processes. The kernel ends all processes in it, and with them mounts and
//! interfaces, when the first process exits. This process exits when its standard input ends: when xtask ends in any
//! way. A shell outside then removes the remaining cgroups and files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// `$1` is the directory of the run, `$2` the name of the executor's cgroups. containerd also uses two fixed directories, which are replaced by empty ones. Only
/// cgroups that are newer than the run are removed.
const SCRIPT: &str = r#"trap '' INT TERM HUP
: >"$1/began"
unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private \
    sh -c 'for dir in /run/netns /run/containerd; do mkdir -p $dir && mount -t tmpfs none $dir || exit 1; done
    ip link set lo up && echo ready && exec cat'
find /sys/fs/cgroup -depth -type d \( -path '*/k8s.io*' -o -path '*:cri-containerd:*' -o -path "*/$2*" -o -path '*/engines' -o -path '*/engines/*' \) \
    -newer "$1/began" -exec rmdir {} +
rm -r "$1""#;

/// Time limit for the start of a program.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Room {
    shell: Child,
    init: u32,
    /// Name of the executor's cgroups. Runs at the same time have different names.
    pub(super) cgroup: String,
}

impl Room {
    /// Creates the namespaces. The directory is removed when the run ends.
    pub(super) fn open(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.to_string_lossy();
        let unique = path.rsplit('-').next().unwrap_or_default().replace('/', "-");
        let cgroup = format!("executor-engines-{unique}");
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).arg(directory).arg(&cgroup).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().context("sh")?;
        let mut line = String::new();
        BufReader::new(shell.stdout.take().context("a pipe")?).read_line(&mut line)?;
        let init = child_of(shell.id()).and_then(child_of).context("the namespaces cannot be made")?;
        Ok(Self { shell, init, cgroup })
    }

    /// Returns a command that runs a program in the namespaces.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--mount", "--net", "--pid"]).arg(program);
        command
    }

    /// Returns the directory of the kernel with a directory for each process in the namespaces.
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

/// Starts a program, and waits until it serves a socket.
pub(super) fn serve(mut command: Command, log: &Path, socket: &Path) -> anyhow::Result<()> {
    let file = File::create(log)?;
    let mut program = command.stdout(file.try_clone()?).stderr(file).spawn().context("nsenter")?;
    let deadline = Instant::now() + PATIENCE;
    while UnixStream::connect(socket).is_err() {
        if Instant::now() > deadline || program.try_wait()?.is_some() {
            bail!("{} is not served:\n{}", socket.display(), fs::read_to_string(log).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(50)); // between two attempts
    }
    Ok(())
}

/// Returns the only child of a process.
fn child_of(pid: u32) -> Option<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.trim().parse().ok()
}
