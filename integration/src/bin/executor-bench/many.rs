//! Many simultaneous idle containers: the time to start and delete them, their memory, and leftovers on the host.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use integration::footprint;
use tokio::task::JoinSet;

use crate::Options;
use crate::client::PAUSE;
use crate::daemon::Daemon;
use crate::processes::{self, Memory};
use crate::processor::{IdleLoad, Meter, Used, Watched};
use crate::stage::Executor;

/// Number of concurrent calls.
pub(crate) const LANES: u32 = 8;
/// Number of starts in the first and in the last group, whose average start times are reported.
const PART: u32 = 100;
/// Timeout for resources that are released after the response.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Many {
    pub(crate) name: String,
    pub(crate) containers: u32,
    /// Number of starts in [`Self::first`] and in [`Self::last`].
    pub(crate) part: u32,
    pub(crate) start: Duration,
    /// Average time of the first starts and of the last starts.
    pub(crate) first: Duration,
    pub(crate) last: Duration,
    /// CPU time of all starts and deletions. The CPU time of a shim is known only after its exit.
    pub(crate) start_used: Used,
    pub(crate) delete_used: Used,
    pub(crate) delete: Duration,
    /// Memory while all containers are idle.
    pub(crate) memory: Memory,
    pub(crate) left: ResourceCounts,
    /// Load of the idle machine.
    pub(crate) rest: IdleLoad,
}

/// Numbers of a daemon's resources on the host, or their increase since an earlier count.
#[derive(Clone, Copy)]
pub(crate) struct ResourceCounts {
    pub(crate) processes: usize,
    pub(crate) cgroups: usize,
    pub(crate) mounts: usize,
    /// Files and directories below the run and state directories, except the ledger, the warm pool and `cni/versions`.
    pub(crate) files: usize,
}

impl ResourceCounts {
    /// Counts the daemon's resources that exist on the host now.
    fn count(daemon: &Daemon) -> anyhow::Result<Self> {
        let (run, launcher) = (daemon.run_dir(), Some(daemon.launcher()?.cast_signed()));
        Ok(Self {
            processes: footprint::processes(run, launcher).len(),
            cgroups: footprint::cgroups(run).len(),
            mounts: footprint::mounts(run, launcher).len(),
            files: footprint::files(run, daemon.state_dir()).len(),
        })
    }

    pub(crate) fn named(self) -> [(&'static str, usize); 4] {
        [("processes", self.processes), ("cgroups", self.cgroups), ("mounts", self.mounts), ("files", self.files)]
    }

    fn since(self, before: Self) -> Self {
        Self {
            processes: self.processes.saturating_sub(before.processes),
            cgroups: self.cgroups.saturating_sub(before.cgroups),
            mounts: self.mounts.saturating_sub(before.mounts),
            files: self.files.saturating_sub(before.files),
        }
    }

    /// Returns true if all counts are 0.
    pub(crate) fn is_zero(self) -> bool {
        self.named().iter().all(|(_, count)| *count == 0)
    }
}

/// Starts the containers, measures, and deletes them.
pub(crate) async fn measure(options: &Options, executor: &Executor) -> anyhow::Result<Many> {
    let (count, daemon) = (options.many, &executor.daemon);
    // The first container creates directories that remain afterwards.
    executor.client.start("many-first", PAUSE).await?;
    executor.client.delete("many-first", true).await?;
    let mut rest = IdleLoad::wait().await?;
    let before = ResourceCounts::count(daemon)?;

    let (meter, began) = (Meter::start(rest, Watched::Daemon(daemon))?, Instant::now());
    let started = for_all(executor, count, Call::Start).await;
    let measured = async {
        let mut started = started?;
        let (start, start_used) = (began.elapsed(), meter.stop(count).await?);
        started.sort_unstable();
        let contained = processes::contained(daemon)?;
        ensure!(contained >= count as usize, "{contained} containers run, expected {count}");
        let there = ResourceCounts::count(daemon)?.since(before);
        let all_seen = there.processes >= 2 * count as usize && there.cgroups >= count as usize;
        ensure!(
            all_seen && there.files > 0,
            "control failed: the resources of {count} containers are not counted: {:?}",
            there.named()
        );
        let part = PART.min(count);
        let since = |from: u32| started.last().map_or(began, |last| *last) - started[(count - from) as usize];
        let first = started[part as usize - 1] - began;
        Ok((start, start_used, first / part, since(part) / part.saturating_sub(1).max(1), part, Memory::read(daemon)?))
    };
    let measured: anyhow::Result<_> = measured.await;

    let (meter, began) = (Meter::start(rest, Watched::Daemon(daemon))?, Instant::now());
    let deleted = for_all(executor, count, Call::Delete).await;
    let delete = began.elapsed();
    let (start, start_used, first, last, part, memory) = measured?;
    deleted?;
    let delete_used = meter.stop(count).await?;
    let left = wait_until_released(daemon, before).await?;
    rest.sample().await?;
    let name = executor.name.clone();
    let containers = count;
    Ok(Many { name, containers, part, start, first, last, start_used, delete_used, delete, memory, left, rest })
}

/// Waits until no resource is left, up to the timeout. Returns the remaining resources.
async fn wait_until_released(daemon: &Daemon, before: ResourceCounts) -> anyhow::Result<ResourceCounts> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        let left = ResourceCounts::count(daemon)?.since(before);
        if left.is_zero() || Instant::now() > deadline {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[derive(Clone, Copy)]
enum Call {
    Start,
    Delete,
}

/// Makes a call for each container, [`LANES`] at a time. Returns the times of the responses. An error is returned after
/// all lanes have finished.
async fn for_all(executor: &Executor, count: u32, call: Call) -> anyhow::Result<Vec<Instant>> {
    integration::interrupt::check()?;
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let client = executor.client.lane().await?;
        lanes.spawn(async move {
            let mut answered = Vec::new();
            for number in (lane..count).step_by(LANES as usize) {
                let id = format!("many-{number}");
                match call {
                    Call::Start => client.start(&id, PAUSE).await?,
                    Call::Delete => client.delete(&id, true).await?,
                }
                answered.push(Instant::now());
            }
            anyhow::Ok(answered)
        });
    }
    let answered = lanes.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>();
    Ok(answered.context("cannot start or delete one of many containers")?.concat())
}
