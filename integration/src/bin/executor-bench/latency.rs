//! Latency of single containers. Every contestant runs in every round, and the order is shuffled in each round. Then
//! the CPU time is measured in blocks of consecutive containers, because work after the last response must count too.

use std::time::Duration;

use crate::Options;
use crate::peer::Peer;
use crate::processor::{IdleLoad, Meter, Used, Watched};
use crate::run::Run;
use crate::stage::{Ours, Stage};
use crate::stats::{Sample, Shuffle};

/// Number of warm-up rounds, which are not counted. In these rounds caches are filled, and the daemon fills its warm
/// pool.
const WARM_UP: u32 = 5;
/// Number of rounds between two checks of the machine's load.
const ROUNDS: u32 = 10;
/// Number of consecutive containers of a contestant whose CPU time is measured together.
const BLOCK: u32 = 20;

/// Figures of one contestant.
pub(crate) struct Latency {
    pub(crate) name: String,
    /// Time until the exit is known. A runtime's driver knows the exit of the process. The executor's client knows the
    /// exit of the container after the secrets have been wiped and the result has been recorded on disk.
    pub(crate) exit: Sample,
    /// Time until the container is also deleted. The floor and bubblewrap have nothing to delete.
    pub(crate) gone: Sample,
    /// Durations of the reported phases. The phase `rest` is the time until the exit is known, minus all reported
    /// phases.
    pub(crate) phases: Vec<(&'static str, Sample)>,
    /// CPU time until the container is deleted.
    pub(crate) used: Used,
}

/// Figures of all contestants, and the load of the idle machine.
pub(crate) struct Latencies {
    pub(crate) all: Vec<Latency>,
    pub(crate) rest: IdleLoad,
}

impl Latency {
    fn from_contestant(contestant: &Contestant<'_>) -> Self {
        let name = contestant.name().to_owned();
        let (exit, gone, phases) = (Sample::default(), Sample::default(), Vec::new());
        Self { name, exit, gone, phases, used: Used::default() }
    }

    fn add(&mut self, run: &Run) {
        self.exit.add(run.exit);
        self.gone.add(run.gone);
        if run.phases.is_empty() {
            return;
        }
        let reported: Duration = run.phases.iter().map(|(_, took)| *took).sum();
        for (name, took) in run.phases.iter().chain([&("rest", run.exit.saturating_sub(reported))]) {
            let at = self.phases.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
                self.phases.push((*name, Sample::default()));
                self.phases.len() - 1
            });
            self.phases[at].1.add(*took);
        }
    }
}

/// A measured method to run a container.
pub(crate) enum Contestant<'a> {
    Peer(&'a Peer),
    Executor(Box<Ours<'a>>),
}

impl Contestant<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Peer(peer) => peer.name(),
            Self::Executor(ours) => &ours.name,
        }
    }

    async fn run(&self, id: String) -> anyhow::Result<Run> {
        match self {
            Self::Peer(peer) => peer.run(&peer.prepare(id)?),
            Self::Executor(ours) => ours.client.run(&id, ours.shape).await,
        }
    }

    /// Returns the CPU time of a block of consecutive containers.
    async fn block(&self, rest: IdleLoad, prefix: &str) -> anyhow::Result<Used> {
        match self {
            Self::Peer(peer) => {
                let prepared = (0..BLOCK).map(|number| peer.prepare(format!("{prefix}-{number}")));
                let prepared = prepared.collect::<anyhow::Result<Vec<_>>>()?;
                let meter = Meter::start(rest, Watched::Programs)?;
                for one in &prepared {
                    peer.run(one)?;
                }
                meter.stop(BLOCK).await
            }
            Self::Executor(ours) => {
                let meter = Meter::start(rest, Watched::Daemon(ours.daemon))?;
                for number in 0..BLOCK {
                    ours.client.run(&format!("{prefix}-{number}"), ours.shape).await?;
                }
                meter.stop(BLOCK).await
            }
        }
    }
}

/// Measures the peers and the executor.
pub(crate) async fn measure(options: &Options, stage: &Stage<'_>) -> anyhow::Result<Latencies> {
    let peers = stage.peers.iter().map(Contestant::Peer);
    let contestants: Vec<_> =
        peers.chain(stage.ours(options).into_iter().map(Box::new).map(Contestant::Executor)).collect();
    rounds(options, "bench", &contestants).await
}

/// Runs all rounds and blocks. The first failure stops the measurement, because incomplete figures are not usable.
pub(crate) async fn rounds(
    options: &Options,
    prefix: &str,
    contestants: &[Contestant<'_>],
) -> anyhow::Result<Latencies> {
    let mut all: Vec<_> = contestants.iter().map(Latency::from_contestant).collect();
    let mut order: Vec<_> = (0..contestants.len()).collect();
    let mut shuffle = Shuffle::default();
    let mut rest = IdleLoad::wait().await?;
    for round in 0..WARM_UP + options.runs {
        if round % ROUNDS == ROUNDS - 1 {
            rest.sample().await?;
        }
        shuffle.shuffle(&mut order);
        for &index in &order {
            integration::interrupt::check()?;
            let run = contestants[index].run(format!("{prefix}-{index}-{round}")).await?;
            if round >= WARM_UP {
                all[index].add(&run);
            }
        }
    }
    rest.renew().await?;
    for block in 0..options.runs.div_ceil(BLOCK) {
        shuffle.shuffle(&mut order);
        for &index in &order {
            integration::interrupt::check()?;
            let used = contestants[index].block(rest, &format!("{prefix}-{index}-block-{block}")).await?;
            all[index].used.add(used);
        }
        rest.sample().await?;
    }
    Ok(Latencies { all, rest })
}
