//! The executor's own processes and their memory: the proportional set size (PSS) reported by the kernel.
//!
//! Own processes are executord, its workers, the launcher, and all descendants of the launcher that run the launcher's
//! program: shims, helpers and waiting inits. Programs of containers are not counted.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use anyhow::Context as _;
use integration::host;
use nix::libc;

use crate::daemon::Daemon;

/// Memory of the executor's own processes in units of 1,024 bytes.
pub(crate) struct Memory {
    /// PSS by role: `executord`, `launcher`, `shims`.
    pub(crate) pss: BTreeMap<&'static str, u64>,
    /// Resident memory (RSS) of executord.
    pub(crate) executord_rss: u64,
    pub(crate) processes: usize,
}

impl Memory {
    /// Reads the memory of a daemon's processes.
    pub(crate) fn read(daemon: &Daemon) -> anyhow::Result<Self> {
        let executord = daemon.pid().cast_signed();
        let launcher = daemon.launcher()?.cast_signed();
        let program = program(launcher).context("the launcher has exited")?;
        let below = host::descendants(launcher);
        let workers = host::descendants(executord).into_iter().filter(|pid| *pid != launcher && !below.contains(pid));
        let mut roles: Vec<_> = workers.map(|pid| ("executord", pid)).collect();
        roles.extend([("executord", executord), ("launcher", launcher)]);
        roles.extend(below.iter().filter(|pid| self::program(**pid) == Some(program)).map(|pid| ("shims", *pid)));
        let mut pss = BTreeMap::from([("executord", 0), ("launcher", 0), ("shims", 0)]);
        for (role, pid) in &roles {
            let text = match std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
                // The process has exited since it was listed, as the short-lived parent of a warm container's first
                // process does.
                Err(error) if [Some(libc::ENOENT), Some(libc::ESRCH)].contains(&error.raw_os_error()) => continue,
                text => text.with_context(|| format!("cannot read the memory map of process {pid}"))?,
            };
            *pss.entry(role).or_insert(0) += kilobytes(&text, "Pss:")?;
        }
        let status = std::fs::read_to_string(format!("/proc/{executord}/status"))?;
        Ok(Self { pss, executord_rss: kilobytes(&status, "VmRSS:")?, processes: roles.len() })
    }

    pub(crate) fn together(&self) -> u64 {
        self.pss.values().sum()
    }
}

/// Returns the number of descendants of a launcher that run another program: the processes of containers.
pub(crate) fn contained(daemon: &Daemon) -> anyhow::Result<usize> {
    let launcher = daemon.launcher()?.cast_signed();
    let own = program(launcher).context("the launcher has exited")?;
    let others = host::descendants(launcher).into_iter().filter_map(program).filter(|program| *program != own);
    Ok(others.count())
}

/// Returns the device and inode of a process's program; `None` for a zombie or an exited process.
fn program(pid: i32) -> Option<(u64, u64)> {
    let found = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((found.dev(), found.ino()))
}

fn kilobytes(text: &str, key: &str) -> anyhow::Result<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .with_context(|| format!("/proc/PID has no field {key}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
