//! Latency of single containers: every contestant in every round, in an order shuffled anew.

use crate::Options;
use crate::client::{self, Client, Shape};
use crate::floor;
use crate::host::Host;
use crate::rootfs::Rootfs;
use crate::runtime::{Run, Runtime, Runtimes};
use crate::stats::{Sample, Shuffle};

/// Rounds that do not count: caches fill, and the daemon prepares what it keeps ready.
const WARM_UP: u32 = 5;

/// Times of one contestant.
pub(crate) struct Latency {
    pub(crate) name: String,
    /// Time until the exit is known: of the process to a runtime's driver, of the container (wiped, its record on disk)
    /// to the executor's client.
    pub(crate) exit: Sample,
    /// Time until the container is deleted as well. The floor has nothing to delete.
    pub(crate) gone: Sample,
    /// Durations of the phases that the contestant reports.
    pub(crate) phases: Vec<(&'static str, Sample)>,
}

impl Latency {
    fn add(&mut self, run: &Run) {
        self.exit.add(run.exit);
        self.gone.add(run.gone);
        for (name, took) in &run.phases {
            let at = self.phases.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
                self.phases.push((*name, Sample::default()));
                self.phases.len() - 1
            });
            self.phases[at].1.add(*took);
        }
    }
}

/// A measured runtime.
pub(crate) enum Contestant<'a> {
    Floor(&'a Rootfs),
    Runtime(&'a Runtime),
    Executor { name: String, client: &'a Client, shape: Shape },
}

impl Contestant<'_> {
    fn name(&self) -> String {
        match self {
            Self::Floor(_) => "raw floor".to_owned(),
            Self::Runtime(runtime) => runtime.name.clone(),
            Self::Executor { name, .. } => name.clone(),
        }
    }

    async fn run(&self, id: &str) -> anyhow::Result<Run> {
        match self {
            Self::Floor(rootfs) => {
                let took = floor::run(rootfs)?;
                Ok(Run { exit: took, gone: took, phases: Vec::new() })
            }
            Self::Runtime(runtime) => runtime.run(&runtime.bundle(id)?),
            Self::Executor { client, shape, .. } => client.run(id, *shape).await,
        }
    }
}

/// Measures the floor, the runtimes and the executor.
pub(crate) async fn measure(
    options: &Options,
    host: &Host,
    rootfs: &Rootfs,
    runtimes: &Runtimes,
    client: Option<&Client>,
) -> anyhow::Result<Vec<Latency>> {
    let mut contestants = vec![Contestant::Floor(rootfs)];
    contestants.extend(runtimes.0.iter().map(Contestant::Runtime));
    for (name, shape) in [("no file", client::TRUE), ("secret file", client::TRUE_WITH_SECRET)] {
        let ours = |client| Contestant::Executor { name: format!("executor, {name}"), client, shape };
        contestants.extend(client.map(ours));
    }
    contestants.retain(|contestant| options.wants_contestant(&contestant.name()));
    rounds(options, host, "bench", &contestants).await
}

/// Runs all rounds. The first failure ends the measurement: figures of some of the runs would be worth nothing.
pub(crate) async fn rounds(
    options: &Options,
    host: &Host,
    prefix: &str,
    contestants: &[Contestant<'_>],
) -> anyhow::Result<Vec<Latency>> {
    let empty = |contestant: &Contestant<'_>| Latency {
        name: contestant.name(),
        exit: Sample::default(),
        gone: Sample::default(),
        phases: Vec::new(),
    };
    let mut latencies: Vec<_> = contestants.iter().map(empty).collect();

    let mut order: Vec<_> = (0..contestants.len()).collect();
    let mut shuffle = Shuffle::default();
    for round in 0..WARM_UP + options.runs {
        shuffle.shuffle(&mut order);
        for &index in &order {
            host.go_on().await?;
            let run = contestants[index].run(&format!("{prefix}-{index}-{round}")).await?;
            if round >= WARM_UP {
                latencies[index].add(&run);
            }
        }
    }
    Ok(latencies)
}
