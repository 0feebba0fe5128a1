//! CPU time of the whole machine, including kernel threads, minus the load of the idle machine; and CPU time of each of
//! the executor's processes, from /proc.
//!
//! The kernel counts in steps of 10 ms, so the CPU time of one container must be measured over many containers.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::unistd::{SysconfVar, sysconf};

use crate::daemon::Daemon;

/// Duration of the load measurement on the idle machine.
const IDLE_LOAD_PERIOD: Duration = Duration::from_secs(2);
/// Duration of a load check between measurements. The kernel counts in steps of 10 ms; [`BUSY`] corresponds to five
/// steps.
const LOAD_CHECK_PERIOD: Duration = Duration::from_millis(500);
/// Maximum time to wait until the machine is idle.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// Load above which the machine is not idle, in CPU seconds per second. Above this limit, the subtracted load is not
/// small in comparison with the measured time, and varies from second to second.
const BUSY: f64 = 0.1;
/// Delay after the last container for work that follows the response: work of the executor, and the kernel's removal of
/// namespaces and cgroups.
const SETTLE_DELAY: Duration = Duration::from_millis(300);

/// Name of this process (the client) in the figures.
const CLIENT: &str = "client";

/// Load of the machine without the benchmark, in CPU seconds per second.
#[derive(Clone, Copy)]
pub(crate) struct IdleLoad {
    /// Load before the measurement, which is subtracted from CPU times.
    load: f64,
    /// Highest load that was measured before the measurement or in its pauses.
    highest: f64,
}

/// Processes that are reported separately.
#[derive(Clone, Copy)]
pub(crate) enum Watched<'a> {
    /// Processes of a daemon.
    Daemon(&'a Daemon),
    /// Programs that this process starts and waits for.
    Programs,
}

/// A running measurement of CPU time.
pub(crate) struct Meter<'a> {
    rest: IdleLoad,
    watched: Watched<'a>,
    began: Instant,
    machine: Duration,
    processes: Vec<(&'static str, Duration)>,
}

/// CPU time of a number of containers.
#[derive(Clone, Default)]
pub(crate) struct Used {
    lives: u32,
    /// CPU time of the whole machine.
    machine: Duration,
    /// CPU time by process.
    processes: Vec<(&'static str, Duration)>,
}

impl IdleLoad {
    /// Waits until the machine is idle, for a minute at most, and measures its load.
    pub(crate) async fn wait() -> anyhow::Result<Self> {
        let deadline = Instant::now() + IDLE_TIMEOUT;
        loop {
            let load = load(IDLE_LOAD_PERIOD).await?;
            if load <= BUSY || Instant::now() >= deadline {
                return Ok(Self { load, highest: load });
            }
            integration::interrupt::check()?;
            eprintln!(
                "executor-bench: waiting until the machine is idle; it uses {:.0} ms of processor time a second",
                load * 1e3
            );
        }
    }

    /// Waits and measures the load again, before a later part of the same measurement.
    pub(crate) async fn renew(&mut self) -> anyhow::Result<()> {
        let now = Self::wait().await?;
        *self = Self { load: now.load, highest: self.highest.max(now.highest) };
        Ok(())
    }

    /// Measures the load in a pause of the measurement.
    pub(crate) async fn sample(&mut self) -> anyhow::Result<()> {
        self.highest = self.highest.max(load(LOAD_CHECK_PERIOD).await?);
        Ok(())
    }

    /// Returns the load that is subtracted from CPU times.
    pub(crate) fn load(self) -> f64 {
        self.load
    }

    /// Returns the highest measured load.
    pub(crate) fn highest(self) -> f64 {
        self.highest
    }

    /// Returns true if the machine was idle in every load check.
    pub(crate) fn is_quiet(self) -> bool {
        self.highest <= BUSY
    }
}

/// Measures the load of the machine for this period, after the work of the last container is done.
async fn load(period: Duration) -> anyhow::Result<f64> {
    tokio::time::sleep(SETTLE_DELAY).await; // the kernel does not report when it has removed namespaces and cgroups
    let (began, before) = (Instant::now(), machine()?);
    tokio::time::sleep(period).await; // the period that is measured
    Ok(machine()?.saturating_sub(before).as_secs_f64() / began.elapsed().as_secs_f64())
}

impl Watched<'_> {
    /// Reads the current CPU time of each process.
    fn read(self) -> anyhow::Result<Vec<(&'static str, Duration)>> {
        let (client, programs) = counters(std::process::id())?;
        Ok(match self {
            Self::Daemon(daemon) => {
                let (executord, workers) = counters(daemon.pid())?;
                // The second value is for reaped children: shims, including their own reaped children (init, helpers
                // and the program).
                let (launcher, shims) = counters(daemon.launcher()?)?;
                vec![("executord", executord + workers), ("launcher", launcher), ("shims", shims), (CLIENT, client)]
            }
            Self::Programs => vec![("programs", programs), (CLIENT, client)],
        })
    }
}

impl<'a> Meter<'a> {
    pub(crate) fn start(rest: IdleLoad, watched: Watched<'a>) -> anyhow::Result<Self> {
        Ok(Self { rest, watched, began: Instant::now(), processes: watched.read()?, machine: machine()? })
    }

    /// Waits until the work after the last response is done, and returns the CPU times. The load of the idle machine is
    /// subtracted from the machine's CPU time.
    pub(crate) async fn stop(self, lives: u32) -> anyhow::Result<Used> {
        tokio::time::sleep(SETTLE_DELAY).await;
        let machine = machine()?.saturating_sub(self.machine);
        let machine = machine.saturating_sub(self.began.elapsed().mul_f64(self.rest.load));
        let now = self.watched.read()?.into_iter().zip(self.processes);
        let processes = now.map(|((name, now), (_, before))| (name, now.saturating_sub(before))).collect();
        Ok(Used { lives, machine, processes })
    }
}

impl Used {
    pub(crate) fn add(&mut self, other: Self) {
        self.lives += other.lives;
        self.machine += other.machine;
        if self.processes.is_empty() {
            self.processes = other.processes;
        } else {
            for ((_, sum), (_, time)) in self.processes.iter_mut().zip(other.processes) {
                *sum += time;
            }
        }
    }

    /// Returns the number of measured containers.
    pub(crate) fn lives(&self) -> u32 {
        self.lives
    }

    /// Returns the machine's CPU time per container.
    pub(crate) fn machine(&self) -> Duration {
        self.machine / self.lives.max(1)
    }

    /// Returns the CPU time of the contestant's processes per container, without the client.
    pub(crate) fn own(&self) -> Duration {
        let own = self.processes.iter().filter(|(name, _)| *name != CLIENT);
        own.map(|(_, time)| *time).sum::<Duration>() / self.lives.max(1)
    }

    /// Returns the CPU time per container by process. The last entry is the remainder of the machine's CPU time: kernel
    /// threads and interrupts.
    pub(crate) fn by_process(&self) -> Vec<(&'static str, Duration)> {
        let known: Duration = self.processes.iter().map(|(_, time)| *time).sum();
        let other = ("other", self.machine.saturating_sub(known));
        let all = self.processes.iter().chain([&other]);
        all.map(|(name, time)| (*name, *time / self.lives.max(1))).collect()
    }
}

/// Returns the current CPU time of the machine, including kernel threads.
fn machine() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).context("/proc/stat has no line `cpu`")?;
    let fields: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    // user, nice, system, irq and softirq. The fields idle and iowait are skipped.
    ticks([0, 1, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum())
}

/// Returns the CPU time of a process, and of its reaped children.
fn counters(pid: u32) -> anyhow::Result<(Duration, Duration)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("cannot read the CPU time of process {pid}"))?;
    // The name is in parentheses and may contain anything; the state is the third field, `utime` the 14th.
    let after = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let times: Vec<u64> = after.skip(11).take(4).map(str::parse).collect::<Result<_, _>>()?;
    anyhow::ensure!(times.len() == 4, "/proc/{pid}/stat is truncated");
    Ok((ticks(times[0] + times[1])?, ticks(times[2] + times[3])?))
}

fn ticks(count: u64) -> anyhow::Result<Duration> {
    let second = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100).unsigned_abs().max(1);
    Ok(Duration::from_millis(count * 1000 / second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_times_add_up_to_machine_time() {
        let processes = vec![("executord", ms(20)), ("launcher", ms(10)), ("shims", ms(100)), (CLIENT, ms(10))];
        let block = Used { lives: 10, machine: ms(200), processes };
        let mut used = Used::default();
        used.add(block.clone());
        used.add(block);
        assert_eq!((used.lives(), used.machine(), used.own()), (20, ms(20), ms(13)));
        let processes = used.by_process();
        let times: Vec<_> = processes.iter().map(|(_, time)| *time).collect();
        assert_eq!(times, [ms(2), ms(1), ms(10), ms(1), ms(6)]);
        assert_eq!(processes.last().map(|(name, _)| *name), Some("other"));
    }

    #[test]
    fn one_busy_sample_is_not_rest() {
        let quiet = IdleLoad { load: 0.01, highest: BUSY };
        assert!(quiet.is_quiet());
        assert!(!IdleLoad { highest: BUSY + 0.01, ..quiet }.is_quiet());
    }

    #[tokio::test]
    async fn sample_counts_other_processes() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut rest = IdleLoad { load: 0.0, highest: 0.0 };
        let seen = rest.sample().await;
        child.kill().unwrap();
        child.wait().unwrap();
        seen.unwrap();
        assert!(!rest.is_quiet(), "{}", rest.highest);
    }

    #[test]
    fn process_that_computes_is_charged() {
        let (before, _) = counters(std::process::id()).unwrap();
        let machine_before = machine().unwrap();
        let start = Instant::now();
        while start.elapsed() < ms(10_000) && counters(std::process::id()).unwrap().0 < before + ms(100) {}
        assert!(counters(std::process::id()).unwrap().0 >= before + ms(100));
        assert!(machine().unwrap() > machine_before);
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }
}
