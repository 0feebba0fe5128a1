//! The measured client: one connection for the event stream and every call but Run, and one for Run.
//!
//! The measurement includes the work that the daemon does to keep secrets out of its buffers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_client::v1::event::Kind;
use executor_client::v1::{Result as RunResult, exit_status};
use executor_client::{Events, Run as Request, Secret};
use tokio::sync::oneshot;

use crate::oci;
use crate::rootfs::Rootfs;
use crate::runtime::Run;

/// Longest time for one container, from call to event.
const PATIENCE: Duration = Duration::from_secs(60);
/// Size of the secret file in bytes.
const SECRET: usize = 1024;

/// The program of a container, and its secret.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    program: &'static str,
    /// True for a container with a secret file of 1 KiB on its own tmpfs.
    pub(crate) secret: bool,
}

/// The container of the headline.
pub(crate) const TRUE_WITH_SECRET: Shape = Shape { program: "/bin/true", secret: true };
/// The container of the headline without its secret file.
pub(crate) const TRUE: Shape = Shape { program: "/bin/true", secret: false };
/// An idle container.
pub(crate) const PAUSE: Shape = Shape { program: "/bin/pause", secret: true };

/// Both connections and the event stream.
pub(crate) struct Client {
    connection: executor_client::Client,
    runs: executor_client::Client,
    waiting: Waiting,
    rootfs: String,
}

/// An exit event and its time of arrival.
type Exit = (Instant, RunResult);

/// Waiters for exit events, by container id.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashMap<String, oneshot::Sender<Exit>>>>);

impl Client {
    /// Connects, and subscribes to the events to come.
    pub(crate) async fn new(connection: executor_client::Client, rootfs: &Rootfs) -> anyhow::Result<Self> {
        let events = connection.events(None, "").await.context("WatchEvents")?;
        let waiting = Waiting::default();
        tokio::spawn(waiting.clone().hand_out(events));
        let runs = executor_client::Client::connect(connection.socket()).await?;
        Ok(Self { connection, runs, waiting, rootfs: format!("dir:{}", rootfs.path.display()) })
    }

    /// Makes a client for another lane, which shares the event stream and its connection.
    pub(crate) async fn lane(&self) -> anyhow::Result<Self> {
        let runs = executor_client::Client::connect(self.connection.socket()).await?;
        Ok(Self { runs, ..self.with_rootfs(self.rootfs.clone()) })
    }

    /// Makes a client whose containers have another root file system.
    pub(crate) fn with_rootfs(&self, rootfs: String) -> Self {
        let (connection, runs) = (self.connection.clone(), self.runs.clone());
        Self { connection, runs, waiting: self.waiting.clone(), rootfs }
    }

    /// Measures one container: the call, its exit event, and its deletion.
    pub(crate) async fn run(&self, id: &str, shape: Shape) -> anyhow::Result<Run> {
        let request = self.request(id, shape);
        let start = Instant::now();
        let outcome = self.until_exit(id, &request, shape).await;
        // A failed container is not needed either.
        let deleted = self.delete(id, outcome.is_err()).await;
        let gone = start.elapsed();
        let (ended, result) = outcome.with_context(|| id.to_owned())?;
        deleted?;
        Ok(Run { exit: ended - start, gone, phases: phases(&result) })
    }

    async fn until_exit(&self, id: &str, request: &Request, shape: Shape) -> anyhow::Result<Exit> {
        let event = self.waiting.expect(id);
        self.runs.run(request).await.context("Run")?;
        let event = tokio::time::timeout(PATIENCE, event).await.context("no exit event")?;
        let (at, result) = event.context("the event stream ended")?;
        check(&result, shape)?;
        Ok((at, result))
    }

    /// Starts a container and leaves it running.
    pub(crate) async fn start(&self, id: &str, shape: Shape) -> anyhow::Result<()> {
        self.runs.run(&self.request(id, shape)).await.with_context(|| format!("Run {id}"))?;
        Ok(())
    }

    /// Deletes a container; with `force` even a running one.
    pub(crate) async fn delete(&self, id: &str, force: bool) -> anyhow::Result<()> {
        self.connection.delete(id, force).await.with_context(|| format!("Delete {id}"))
    }

    fn request(&self, id: &str, shape: Shape) -> Request {
        let request = Request::new(self.rootfs.clone(), shape.program)
            .id(id)
            .env("PATH", "/bin")
            .user("1000:1000")
            .memory_bytes(oci::MEMORY_BYTES)
            .pids(oci::PIDS)
            .cpu_millis(oci::CPU_MILLIS);
        match shape.secret {
            true => request.secret_file("bench/secret", Secret::from(vec![b's'; SECRET])),
            false => request,
        }
    }
}

impl Waiting {
    fn expect(&self, id: &str) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(id.to_owned(), sender);
        receiver
    }

    /// Timestamps each exit event on arrival and passes it to its waiter.
    async fn hand_out(self, mut events: Events) {
        while let Ok(message) = events.next().await {
            let now = Instant::now();
            let Some(event) = message.event.filter(|event| event.kind() == Kind::Completed) else { continue };
            if let Some(waiter) = self.lock().remove(&event.container_id) {
                // A waiter that is gone has given up and reported that itself.
                let _ = waiter.send((now, event.result.unwrap_or_default()));
            }
        }
        // No further event can come: dropped senders are errors for the receivers.
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Exit>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that a run was correct in every respect; only such runs count.
fn check(result: &RunResult, shape: Shape) -> anyhow::Result<()> {
    let status = result.exit.as_ref().and_then(|exit| exit.status.as_ref());
    ensure!(matches!(status, Some(exit_status::Status::Code(0))), "the container ended with {result:?}");
    let wiped = result.wipe.as_ref().is_some_and(|wipe| wipe.files == 1 && wipe.verified);
    ensure!(wiped || !shape.secret, "the secret file was not wiped: {result:?}");
    Ok(())
}

/// Durations of the phases, as the result reports them.
fn phases(result: &RunResult) -> Vec<(&'static str, Duration)> {
    let Some(timings) = &result.timings else { return Vec::new() };
    let phases =
        [("prepare", timings.prepare), ("start", timings.start), ("run", timings.run), ("finish", timings.finish)];
    phases.into_iter().filter_map(|(name, took)| Some((name, took?.try_into().ok()?))).collect()
}
