//! podman with netavark, a container engine with a bridge network of its own: one call creates a container, runs one
//! program to its exit, and removes the container.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;

use crate::host::Host;
use crate::rootfs::Rootfs;
use crate::run::{Run, call, program};

/// Suffixes of the contestants' names, each with the arguments of podman.
const SHAPES: [(&str, &[&str]); 3] = [
    ("no network", &["--network", "none"]),
    ("bridge network", &["--network", "podman"]),
    ("bridge network with a port", &["--network", "podman", "--publish", "18081:80"]),
];

/// podman with one kind of network.
pub(crate) struct Podman {
    /// Name of the contestant, for example `podman, no network`.
    pub(crate) name: String,
    /// Version as printed by the program, for example `podman version 4.3.1`.
    pub(crate) version: String,
    program: PathBuf,
    network: &'static [&'static str],
    /// Path of the network namespace that simulates the host.
    namespace: String,
    /// Directory of podman's files.
    directory: PathBuf,
    cgroup: String,
    rootfs: Arc<Rootfs>,
}

/// Finds podman. `namespace` is the path of the network namespace that simulates the host.
pub(crate) fn find(run: &Path, rootfs: &Arc<Rootfs>, namespace: &str, host: &Host) -> anyhow::Result<Vec<Podman>> {
    let Some(program) = program("podman") else { return Ok(Vec::new()) };
    let version = Command::new(&program).arg("--version").output().context("cannot run podman")?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let podman = |(name, network): (&str, &'static [&'static str])| Podman {
        name: format!("podman, {name}"),
        version: version.clone(),
        program: program.clone(),
        network,
        namespace: namespace.to_owned(),
        directory: run.join("podman"),
        cgroup: host.cgroup.clone(),
        rootfs: Arc::clone(rootfs),
    };
    Ok(SHAPES.into_iter().map(podman).collect())
}

impl Podman {
    /// Runs `/bin/true` once.
    pub(crate) fn run(&self, id: &str) -> anyhow::Result<Run> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace)).arg(&self.program);
        for (option, name) in
            [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp"), ("--network-config-dir", "networks")]
        {
            command.arg(option).arg(self.directory.join(name));
        }
        command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "none", "--storage-driver", "vfs"]);
        command.args(["run", "--rm", "--name", id, "--log-driver", "none", "--cgroup-parent"]).arg(&self.cgroup);
        // podman's defaults exceed the limits of a machine without CAP_SYS_RESOURCE.
        command.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]).args(self.network);
        command.arg("--rootfs").arg(format!("{}:O", self.rootfs.path.display())).arg("/bin/true");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let start = Instant::now();
        call(&mut command).with_context(|| format!("cannot run {id} with {}", self.name))?;
        Ok(Run::ended(start.elapsed()))
    }
}
