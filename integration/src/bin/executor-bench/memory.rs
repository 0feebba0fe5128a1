//! Memory of idle containers: the proportional set size (PSS) of every process of the executor, without any container
//! and with fifty. A container's own process, in its own pid namespace, does not count.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};

use crate::client::{Client, PAUSE};
use crate::host::Host;

/// Number of idle containers.
pub(crate) const CONTAINERS: u32 = 50;

/// Memory in units of 1,024 bytes, as the kernel reports it.
pub(crate) struct Memory {
    /// PSS by role, without a container.
    pub(crate) before: BTreeMap<&'static str, u64>,
    /// PSS by role, with [`CONTAINERS`].
    pub(crate) with: BTreeMap<&'static str, u64>,
    /// Resident memory of the daemon with [`CONTAINERS`].
    pub(crate) daemon_rss: u64,
    /// Number of the executor's processes with [`CONTAINERS`].
    pub(crate) processes: usize,
}

/// Starts the containers, measures, and removes them.
pub(crate) async fn measure(host: &Host, daemon: u32, client: &Client) -> anyhow::Result<Memory> {
    let (before, _) = pss(daemon)?;
    let mut outcome = Ok(());
    for number in 0..CONTAINERS {
        host.go_on().await?;
        outcome = client.start(&format!("idle-{number}"), PAUSE).await;
        if outcome.is_err() {
            break;
        }
    }
    let measured = outcome.and_then(|()| {
        let (with, processes) = pss(daemon)?;
        let contained = ours().filter(|process| process.contained).count();
        ensure!(contained >= CONTAINERS as usize, "only {contained} containers run");
        Ok(Memory { before, with, daemon_rss: status_kilobytes(daemon, "VmRSS:")?, processes })
    });
    for number in 0..CONTAINERS {
        let deleted = client.delete(&format!("idle-{number}"), true).await;
        if measured.is_ok() {
            deleted?;
        }
    }
    measured
}

/// Returns the PSS by role, and the number of processes.
fn pss(daemon: u32) -> anyhow::Result<(BTreeMap<&'static str, u64>, usize)> {
    let mut by_role = BTreeMap::new();
    let processes: Vec<_> = ours().filter(|process| !process.contained).collect();
    for process in &processes {
        let role = if process.pid == daemon {
            "executord"
        } else if process.parent == daemon || process.parent == std::process::id() {
            "launcher"
        } else {
            "shims"
        };
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid));
        let text = text.with_context(|| format!("the memory map of process {}", process.pid))?;
        *by_role.entry(role).or_insert(0) += kilobytes(&text, "Pss:")?;
    }
    Ok((by_role, processes.len()))
}

struct Process {
    pid: u32,
    parent: u32,
    contained: bool,
}

/// Returns every descendant of the benchmark, which is the subreaper of all of them.
fn ours() -> impl Iterator<Item = Process> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut others: Vec<_> = pids.filter_map(read).collect();
    let mut below = vec![std::process::id()];
    let mut found = Vec::new();
    while let Some(parent) = below.pop() {
        let (children, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(|process| process.parent == parent);
        others = rest;
        below.extend(children.iter().map(|process| process.pid));
        found.extend(children);
    }
    found.into_iter()
}

fn read(pid: u32) -> Option<Process> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    // A zombie has no memory.
    line("VmRSS:")?;
    let contained = line("NSpid:")?.split_ascii_whitespace().count() > 1;
    Some(Process { pid, parent: line("PPid:")?.trim().parse().ok()?, contained })
}

fn status_kilobytes(pid: u32, key: &str) -> anyhow::Result<u64> {
    kilobytes(&std::fs::read_to_string(format!("/proc/{pid}/status"))?, key)
}

fn kilobytes(text: &str, key: &str) -> anyhow::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)).with_context(|| format!("no {key}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
