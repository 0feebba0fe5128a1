//! crun and runc, driven as a container manager drives a runtime: create, start, wait, delete.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use serde_json::Value;

use crate::host::Host;
use crate::oci;
use crate::rootfs::Rootfs;
use crate::run::{Run, call, program};

/// A runtime with one set of options.
pub(crate) struct Runtime {
    /// Name of the contestant, for example `crun, full seccomp`.
    pub(crate) name: String,
    /// Version as printed by the runtime, for example `crun version 1.8.1`.
    pub(crate) version: String,
    program: PathBuf,
    root: PathBuf,
    bundles: PathBuf,
    config: Value,
    cgroup: String,
}

/// Finds crun and runc. Each runtime is measured without a filter and, if a profile is given, a second time with the
/// profile.
pub(crate) fn find(run: &Path, rootfs: &Rootfs, seccomp: Option<&Value>, host: &Host) -> anyhow::Result<Vec<Runtime>> {
    let mut found = Vec::new();
    for name in ["crun", "runc"] {
        let Some(program) = program(name) else { continue };
        let version = Command::new(&program).arg("--version").output().with_context(|| format!("cannot run {name}"))?;
        let version = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default().to_owned();
        for seccomp in [None, seccomp].iter().take(if seccomp.is_some() { 2 } else { 1 }) {
            found.push(Runtime {
                name: if seccomp.is_some() { format!("{name}, full seccomp") } else { name.to_owned() },
                version: version.clone(),
                program: program.clone(),
                root: run.join(name),
                bundles: run.join("bundles"),
                config: oci::config(rootfs, "ID", &host.cgroup, *seccomp),
                cgroup: host.cgroup.clone(),
            });
        }
    }
    Ok(found)
}

/// A bundle on disk. The creation is not measured.
pub(crate) struct Bundle {
    id: String,
    path: PathBuf,
}

impl Runtime {
    /// Writes config.json. `id` must be unused.
    pub(crate) fn bundle(&self, id: &str) -> anyhow::Result<Bundle> {
        let path = self.bundles.join(id);
        std::fs::create_dir_all(&path)?;
        let mut config = self.config.clone();
        config["hostname"] = id.into();
        config["linux"]["cgroupsPath"] = format!("{}/{id}", self.cgroup).into();
        std::fs::write(path.join("config.json"), config.to_string())?;
        Ok(Bundle { id: id.to_owned(), path })
    }

    /// Runs one container from create to delete.
    pub(crate) fn run(&self, bundle: &Bundle) -> anyhow::Result<Run> {
        let result = self.try_run(bundle);
        if result.is_err() {
            // The run may have failed at any stage. An error of this command would hide the first error.
            let _ = self.command(&["delete", "--force", &bundle.id]).stderr(Stdio::null()).status();
        }
        std::fs::remove_dir_all(&bundle.path)?;
        result.with_context(|| format!("{} {}", self.name, bundle.id))
    }

    fn try_run(&self, bundle: &Bundle) -> anyhow::Result<Run> {
        let pid_file = bundle.path.join("pid");
        let start = Instant::now();
        call(self.command(&["create", "--bundle"]).arg(&bundle.path).arg("--pid-file").arg(&pid_file).arg(&bundle.id))?;
        let pid = std::fs::read_to_string(&pid_file).context("cannot read the pid file")?;
        let pid = Pid::from_raw(pid.trim().parse()?).context("the pid file does not contain a pid")?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("cannot open a pidfd")?;
        call(&mut self.command(&["start", &bundle.id]))?;
        // This process is the subreaper, so the container's init has become its child.
        let status = waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)), WaitIdOptions::EXITED)?;
        let exit = start.elapsed();
        let code = status.and_then(|status| status.exit_status());
        call(&mut self.command(&["delete", &bundle.id]))?;
        let gone = start.elapsed();
        ensure!(code == Some(0), "the process exited with {code:?}, expected 0");
        Ok(Run { exit, gone, phases: Vec::new() })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(&self.root).args(args).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}
