//! Requests many containers at the same time, and measures the times until the first, the median and the last container
//! has exited.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::task::JoinSet;

use crate::Options;
use crate::client::{Client, TRUE_WITH_SECRET};
use crate::peer::Peer;
use crate::processor::{IdleLoad, Meter, Used, Watched};
use crate::stage::{Executor, Stage};
use crate::stats::Sample;

/// Number of bursts for each contestant.
pub(crate) const BURSTS: u32 = 5;

/// Figures of one contestant over all bursts.
pub(crate) struct Burst {
    pub(crate) name: String,
    /// Times from the request to the exit of the first, the median and the last container.
    pub(crate) first: Sample,
    pub(crate) median: Sample,
    pub(crate) last: Sample,
    /// CPU time of the containers, including their deletions.
    pub(crate) used: Used,
}

/// Figures of all contestants, and the load of the idle machine.
pub(crate) struct Bursts {
    pub(crate) containers: u32,
    pub(crate) all: Vec<Burst>,
    pub(crate) rest: IdleLoad,
}

/// A peer or the executor, as it runs a burst.
enum Contestant<'a> {
    Peer(&'a Peer),
    Executor(&'a Executor),
}

impl Contestant<'_> {
    fn name(&self) -> String {
        match self {
            Self::Peer(peer) => peer.name().to_owned(),
            Self::Executor(executor) => format!("{}, secret file", executor.name),
        }
    }

    /// Returns the exit times in ascending order.
    async fn run(&self, count: u32, prefix: &str) -> anyhow::Result<Vec<Duration>> {
        match self {
            Self::Peer(peer) => peer.run_at_once(count, count, prefix).map(|(exits, _)| exits),
            Self::Executor(executor) => for_executor(&executor.client, count, prefix).await,
        }
    }
}

/// Measures the peers that can run several containers at once, and the executor. In each round every contestant runs
/// one burst.
pub(crate) async fn measure(options: &Options, stage: &Stage<'_>) -> anyhow::Result<Bursts> {
    let mut rest = IdleLoad::wait().await?;
    let peers = stage.peers.iter().filter(|peer| peer.runs_several()).map(Contestant::Peer);
    let contestants: Vec<_> = peers.chain(stage.executors.iter().map(Contestant::Executor)).collect();
    let empty = |contestant: &Contestant<'_>| {
        let [first, median, last] = [const { Sample::new() }; 3];
        Burst { name: contestant.name(), first, median, last, used: Used::default() }
    };
    let mut all: Vec<_> = contestants.iter().map(empty).collect();
    for number in 0..BURSTS {
        for (index, contestant) in contestants.iter().enumerate() {
            let burst = one(contestant, options.burst, rest, &format!("burst-{index}-{number}")).await;
            let (exits, used) = burst
                .with_context(|| format!("{}: {} containers at the same time", contestant.name(), options.burst))?;
            let figures = &mut all[index];
            for (sample, at) in [(&mut figures.first, 1), (&mut figures.median, exits.len().div_ceil(2))] {
                sample.add(exits[at - 1]);
            }
            figures.last.add(exits[exits.len() - 1]);
            figures.used.add(used);
        }
        rest.sample().await?;
    }
    Ok(Bursts { containers: options.burst, all, rest })
}

async fn one(
    contestant: &Contestant<'_>,
    count: u32,
    rest: IdleLoad,
    prefix: &str,
) -> anyhow::Result<(Vec<Duration>, Used)> {
    integration::interrupt::check()?;
    let watched = match contestant {
        Contestant::Peer(_) => Watched::Programs,
        Contestant::Executor(executor) => Watched::Daemon(&executor.daemon),
    };
    let meter = Meter::start(rest, watched)?;
    let exits = contestant.run(count, prefix).await?;
    Ok((exits, meter.stop(count).await?))
}

/// Requests all containers concurrently on one connection, and then deletes them.
async fn for_executor(client: &Client, count: u32, prefix: &str) -> anyhow::Result<Vec<Duration>> {
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for number in 0..count {
        let (client, id) = (client.clone(), format!("{prefix}-{number}"));
        tasks.spawn(async move { client.run_to_exit(&id, TRUE_WITH_SECRET).await });
    }
    let ended = tasks.join_all().await;
    let mut deleted = JoinSet::new();
    for number in 0..count {
        let (client, id) = (client.clone(), format!("{prefix}-{number}"));
        // A failed container is reported by its own error.
        let force = ended.iter().any(Result::is_err);
        deleted.spawn(async move { client.delete(&id, force).await });
    }
    let deleted = deleted.join_all().await;
    let mut exits = Vec::new();
    for exit in ended {
        exits.push(exit?.saturating_duration_since(start));
    }
    deleted.into_iter().collect::<anyhow::Result<()>>()?;
    exits.sort_unstable();
    Ok(exits)
}
