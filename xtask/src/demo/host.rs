//! Inspects a daemon and its containers from the host: processes, mounts, cgroups.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Source of the executor's tmpfs mounts for secrets, as in mount tables.
const SECRETS: &str = "executor-secrets";

/// A process, identified by pid and start time.
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
    /// True if the process is in the PID namespace of a container that is not a warm container.
    pub(super) contained: bool,
    /// True if the process is a warm container's shim or a descendant of such a shim.
    is_warm: bool,
    /// True if the process is PID 1 in a container's PID namespace.
    pub(super) is_init: bool,
    parent: u32,
    started: String,
    uid: String,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // The name is in parentheses and may contain any character.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let numbers: Vec<_> = line("NSpid:").split_ascii_whitespace().collect();
        if fields.first() == Some(&"Z") {
            return None;
        }
        Some(Self {
            pid,
            name: name.to_owned(),
            contained: numbers.len() > 1,
            is_warm: name == "executor-warm",
            is_init: numbers.len() > 1 && numbers.last() == Some(&"1"),
            parent: fields.get(1)?.parse().ok()?,
            started: (*fields.get(19)?).to_owned(),
            uid: line("Uid:").split_ascii_whitespace().nth(1)?.to_owned(),
        })
    }

    /// Returns true if the process still exists. A later process with the same pid is ignored.
    pub(super) fn is_alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self {
            Self { is_warm: true, .. } => "warm container",
            Self { contained: true, .. } => "in the container",
            _ => "",
        };
        let line = format!("{:<18} pid {:<7} uid {:<6} {place}", self.name, self.pid, self.uid);
        out.write_str(line.trim_end())
    }
}

/// Returns a process and all its descendants, parents first.
pub(super) fn processes_below(root: u32) -> anyhow::Result<Vec<Process>> {
    let pids = std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut others: Vec<_> = pids.filter_map(Process::read).collect();
    let mut found: Vec<Process> = Vec::new();
    let mut wanted = vec![(root, false)];
    while let Some((pid, is_warm)) = wanted.pop() {
        let (hits, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(|process: &Process| process.pid == pid);
        others = rest;
        for mut process in hits {
            if is_warm {
                (process.is_warm, process.contained, process.is_init) = (true, false, false);
            }
            let children = others.iter().filter(|other| other.parent == pid);
            wanted.extend(children.map(|child| (child.pid, process.is_warm)));
            found.push(process);
        }
    }
    Ok(found)
}

/// Returns the lines of a process's mount table that contain this directory or a tmpfs for the executor's secrets.
pub(super) fn mounts(process: &str, directory: &Path) -> anyhow::Result<Vec<String>> {
    let directory = directory.to_str().context("the temporary directory's name is not UTF-8")?;
    let table = std::fs::read_to_string(format!("/proc/{process}/mountinfo"))?;
    let ours = |line: &&str| line.contains(directory) || line.contains(SECRETS);
    Ok(table.lines().filter(ours).map(str::to_owned).collect())
}

/// Returns every cgroup with this name, in all hierarchies.
pub(super) fn cgroups(name: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut queue = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = queue.pop() {
        // Cgroups may disappear during the walk.
        let Ok(entries) = directory.read_dir() else { continue };
        for entry in entries.filter_map(Result::ok).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name() == name {
                found.push(entry.path());
            }
            queue.push(entry.path());
        }
    }
    Ok(found)
}
