//! Containers per second with several lanes. Each lane runs one container after the other, from call to deletion.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::task::JoinSet;

use crate::Options;
use crate::client::{Client, Shape};
use crate::processor::{IdleLoad, Meter, Used, Watched};
use crate::stage::{Ours, Stage};

/// Numbers of concurrent containers.
pub(crate) const LANES: [u32; 3] = [1, 4, 16];
/// Throughput of one contestant, in the order of [`LANES`].
pub(crate) struct Throughput {
    pub(crate) name: String,
    /// Containers per second.
    pub(crate) rates: Vec<f64>,
    pub(crate) used: Vec<Used>,
}

/// Figures of all contestants, and the load of the idle machine.
pub(crate) struct Throughputs {
    pub(crate) all: Vec<Throughput>,
    /// Number of containers in each measurement; a multiple of every number of lanes.
    pub(crate) containers: u32,
    pub(crate) rest: IdleLoad,
}

impl Throughput {
    fn named(name: &str) -> Self {
        Self { name: name.to_owned(), rates: Vec::new(), used: Vec::new() }
    }

    fn add(&mut self, containers: u32, took: Duration, used: Used) {
        self.rates.push(f64::from(containers) / took.as_secs_f64());
        self.used.push(used);
    }
}

/// Measures all contestants in turn, for each number of lanes.
pub(crate) async fn measure(options: &Options, stage: &Stage<'_>) -> anyhow::Result<Throughputs> {
    let mut rest = IdleLoad::wait().await?;
    let containers = options.lives / LANES[LANES.len() - 1] * LANES[LANES.len() - 1];
    let peers: Vec<_> = stage.peers.iter().filter(|peer| peer.runs_several()).collect();
    let mut ours = stage.ours(options);
    ours.retain(|ours| ours.shape.runs_several());
    let mut peer_figures: Vec<_> = peers.iter().map(|peer| Throughput::named(peer.name())).collect();
    let mut our_figures: Vec<_> = ours.iter().map(|ours| Throughput::named(&ours.name)).collect();
    for lanes in LANES {
        for (peer, figures) in peers.iter().zip(&mut peer_figures) {
            integration::interrupt::check()?;
            let meter = Meter::start(rest, Watched::Programs)?;
            let ended = peer.run_at_once(lanes, containers, &format!("rate-{lanes}"));
            let (_, took) = ended.with_context(|| format!("{lanes} containers at a time"))?;
            figures.add(containers, took, meter.stop(containers).await?);
        }
        for (index, (ours, figures)) in ours.iter().zip(&mut our_figures).enumerate() {
            integration::interrupt::check()?;
            warm_up(ours, &format!("rate-{index}-{lanes}-first")).await?;
            let meter = Meter::start(rest, Watched::Daemon(ours.daemon))?;
            let run = for_executor(&ours.client, ours.shape, lanes, containers, &format!("rate-{index}")).await;
            if let Some(failure) = run.failures.into_iter().next() {
                return Err(failure.context(format!("{}, {lanes} containers at a time", ours.name)));
            }
            figures.add(containers, run.took, meter.stop(containers).await?);
        }
        rest.sample().await?;
    }
    peer_figures.extend(our_figures);
    Ok(Throughputs { all: peer_figures, containers, rest })
}

/// Runs a container that is not measured, because the first container of an image fetches the image.
async fn warm_up(ours: &Ours<'_>, id: &str) -> anyhow::Result<()> {
    ours.client.run(id, ours.shape).await.map(drop)
}

pub(crate) struct Lanes {
    pub(crate) failures: Vec<anyhow::Error>,
    pub(crate) took: Duration,
}

/// Runs `count` containers of the executor in `lanes` lanes.
pub(crate) async fn for_executor(client: &Client, shape: Shape, lanes: u32, count: u32, prefix: &str) -> Lanes {
    let (mut clients, mut failures) = (Vec::new(), Vec::new());
    for _ in 0..lanes {
        match client.lane().await {
            Ok(client) => clients.push(client),
            Err(error) => failures.push(error),
        }
    }
    let start = Instant::now();
    let next = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for client in clients {
        tasks.spawn(lane(client, shape, Arc::clone(&next), count, format!("{prefix}-{lanes}")));
    }
    failures.extend(tasks.join_all().await.into_iter().flatten());
    Lanes { failures, took: start.elapsed() }
}

async fn lane(client: Client, shape: Shape, next: Arc<AtomicU32>, count: u32, prefix: String) -> Vec<anyhow::Error> {
    let mut failures = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return failures;
        }
        failures.extend(client.run(&format!("{prefix}-{number}"), shape).await.err());
    }
}
