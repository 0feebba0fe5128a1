//! Measures the processor time and memory of programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

/// Maximum processor use of a machine at rest, in whole processors.
const REST_MAX: f64 = 0.1;
/// Maximum time to wait until the machine is at rest.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Resource usage of the processes of a program.
#[derive(Clone, Copy, Default)]
pub(super) struct Usage {
    /// Processor time since the start of the processes, including reaped children.
    pub(super) seconds: f64,
    /// Proportional set size in KiB.
    pub(super) memory_kib: u64,
    pub(super) processes: u32,
}

/// Returns the resource usage of all processes by program name. `processes` is the path of `/proc`.
pub(super) fn by_program(processes: &Path) -> anyhow::Result<BTreeMap<String, Usage>> {
    let mut all = BTreeMap::<String, Usage>::new();
    for entry in fs::read_dir(processes)? {
        let process = entry?.path();
        let read = |file: &str| fs::read_to_string(process.join(file)).ok();
        // The process may have exited.
        let (Some(stat), Some(memory)) = (read("stat"), read("smaps_rollup")) else { continue };
        let (before, after) = stat.rsplit_once(") ").context("cannot parse /proc/PID/stat")?;
        let name = before.split_once(" (").context("cannot parse /proc/PID/stat")?.1;
        // utime, stime, cutime and cstime.
        let ticks: f64 = after.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum();
        let memory = memory.lines().find_map(|line| line.strip_prefix("Pss:"));
        let memory = memory.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        let usage = all.entry(name.to_owned()).or_default();
        usage.seconds += ticks / rustix::param::clock_ticks_per_second() as f64;
        usage.memory_kib += memory.unwrap_or_default();
        usage.processes += 1;
    }
    Ok(all)
}

/// Returns true if a machine with this processor use is at rest. 1.0 is one whole processor.
pub(super) fn is_rest(share: f64) -> bool {
    share < REST_MAX
}

/// Waits until the machine is at rest, for a minute at most. Returns the machine's processor use; 1.0 is one whole
/// processor.
pub(super) fn rest() -> anyhow::Result<f64> {
    let deadline = Instant::now() + IDLE_TIMEOUT;
    loop {
        let (begin, busy) = (Instant::now(), busy_seconds()?);
        std::thread::sleep(Duration::from_secs(2)); // the time that is measured
        let share = (busy_seconds()? - busy) / begin.elapsed().as_secs_f64();
        if is_rest(share) || Instant::now() > deadline {
            return Ok(share);
        }
    }
}

/// Returns the processor time that the machine has used since its start.
pub(super) fn busy_seconds() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    ensure!(ticks.len() > 7, "cannot parse /proc/stat");
    // All fields except idle and iowait.
    let busy: f64 =
        ticks[..8].iter().enumerate().filter(|(index, _)| ![3, 4].contains(index)).map(|(_, time)| time).sum();
    Ok(busy / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_found() {
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        let usage = by_program(Path::new("/proc")).unwrap()[name.trim()];
        assert!(usage.processes > 0 && usage.memory_kib > 0);
    }
}
