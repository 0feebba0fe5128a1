//! Containers per second, several at once: each lane runs one container after the other, from call to deletion.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::task::JoinSet;

use crate::Options;
use crate::client::{Client, TRUE_WITH_SECRET};
use crate::host::Host;
use crate::runtime::{Runtime, Runtimes};

/// Numbers of concurrent containers.
pub(crate) const LANES: [u32; 3] = [1, 4, 16];
/// Number of containers of one measurement, a multiple of every number of lanes.
const CONTAINERS: u32 = 160;

/// Throughput of one contestant.
pub(crate) struct Throughput {
    pub(crate) name: String,
    /// Containers per second, in the order of [`LANES`].
    pub(crate) rates: Vec<f64>,
}

/// Measures all contestants, one after the other, for each number of lanes.
pub(crate) async fn measure(
    options: &Options,
    host: &Host,
    runtimes: &Runtimes,
    client: Option<&Client>,
) -> anyhow::Result<Vec<Throughput>> {
    let runtimes: Vec<_> = runtimes.0.iter().filter(|runtime| options.wants_contestant(&runtime.name)).collect();
    let names = runtimes.iter().map(|runtime| runtime.name.clone());
    let names = names.chain(client.map(|_| "executor, secret file".to_owned()));
    let mut all: Vec<_> = names.map(|name| Throughput { name, rates: Vec::new() }).collect();
    for lanes in LANES {
        for (index, runtime) in runtimes.iter().enumerate() {
            host.go_on().await?;
            all[index].rates.push(rate(of_runtime(runtime, lanes)?));
        }
        if let (Some(client), Some(last)) = (client, all.last_mut()) {
            host.go_on().await?;
            let (failures, took) = of_executor(client, lanes, CONTAINERS, "rate").await;
            if let Some(failure) = failures.into_iter().next() {
                return Err(failure.context(format!("{lanes} at once")));
            }
            last.rates.push(rate(took));
        }
    }
    Ok(all)
}

fn rate(took: Duration) -> f64 {
    f64::from(CONTAINERS) / took.as_secs_f64()
}

fn of_runtime(runtime: &Runtime, lanes: u32) -> anyhow::Result<Duration> {
    let bundles = (0..CONTAINERS).map(|number| runtime.bundle(&format!("rate-{lanes}-{number}")));
    let bundles = bundles.collect::<anyhow::Result<Vec<_>>>()?;
    let (bundles, next) = (&bundles, &AtomicU32::new(0));
    let lane = || -> anyhow::Result<()> {
        while let Some(bundle) = bundles.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            runtime.run(bundle)?;
        }
        Ok(())
    };
    let start = Instant::now();
    let outcome: anyhow::Result<()> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        // All threads are joined before the first failure is returned.
        ended.collect::<Vec<_>>().into_iter().collect()
    });
    let took = start.elapsed();
    outcome.with_context(|| format!("{lanes} at once"))?;
    Ok(took)
}

/// Runs `count` containers of the executor in `lanes` lanes. Returns the failures and the time.
pub(crate) async fn of_executor(
    client: &Client,
    lanes: u32,
    count: u32,
    prefix: &str,
) -> (Vec<anyhow::Error>, Duration) {
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
        tasks.spawn(lane(client, Arc::clone(&next), count, format!("{prefix}-{lanes}")));
    }
    failures.extend(tasks.join_all().await.into_iter().flatten());
    (failures, start.elapsed())
}

async fn lane(client: Client, next: Arc<AtomicU32>, count: u32, prefix: String) -> Vec<anyhow::Error> {
    let mut failures = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return failures;
        }
        failures.extend(client.run(&format!("{prefix}-{number}"), TRUE_WITH_SECRET).await.err());
    }
}
