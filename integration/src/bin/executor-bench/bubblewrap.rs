//! Runs containers with bubblewrap, which creates a sandbox and is not a container runtime: one call runs one program
//! to its exit, without a cgroup, limits or a filter.
//!
//! The program is root without capabilities. bubblewrap can change the user only in a user namespace, and the other
//! peers do not create one.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::rootfs::Rootfs;
use crate::run::{Run, call, program};

/// Namespaces and mounts as for crun and runc, as far as bubblewrap supports them.
const ARGUMENTS: [&str; 24] = [
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup",
    "--new-session",
    "--die-with-parent",
    "--cap-drop",
    "ALL",
    "--clearenv",
    "--setenv",
    "PATH",
    "/bin",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--tmpfs",
    "/run",
    "--chdir",
    "/",
    "/bin/true",
];

pub(crate) struct Bubblewrap {
    /// Version as printed by the program, for example `bubblewrap 0.8.0`.
    pub(crate) version: String,
    program: PathBuf,
    rootfs: PathBuf,
}

impl Bubblewrap {
    pub(crate) fn find(rootfs: &Rootfs) -> anyhow::Result<Option<Self>> {
        let Some(program) = program("bwrap") else { return Ok(None) };
        let version = Command::new(&program).arg("--version").output().context("cannot run bwrap")?;
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        Ok(Some(Self { version, program, rootfs: rootfs.path.clone() }))
    }

    /// Runs `/bin/true` once.
    pub(crate) fn run(&self, id: &str) -> anyhow::Result<Run> {
        let mut command = Command::new(&self.program);
        command.arg("--ro-bind").arg(&self.rootfs).args(["/", "--hostname", id]).args(ARGUMENTS);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let start = Instant::now();
        call(&mut command).with_context(|| format!("cannot run {id} with bwrap"))?;
        Ok(Run::ended(start.elapsed()))
    }
}
