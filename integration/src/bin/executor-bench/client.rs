//! Our client: a kept connection for the event stream and every call but Run, and a channel for Run.
//!
//! What the daemon does to leave nothing of a secret in its buffers is part of what is measured.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_proto::v1::event::Kind;
use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{
    Action, DeleteRequest, EnvironmentVariable, File, Limits, Result as RunResult, RunAction, RunRequest,
    WatchEventsRequest, WatchEventsResponse, exit_status,
};
use tokio::sync::oneshot;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::oci;
use crate::rootfs::Rootfs;
use crate::runtime::Run;

/// For one container, from call to event.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the secret file.
const SECRET: usize = 1024;

/// What to run.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    program: &'static str,
    /// With a volume mounted file of 1 KiB.
    pub(crate) secret: bool,
}

/// The headline.
pub(crate) const TRUE_WITH_SECRET: Shape = Shape { program: "/bin/true", secret: true };
/// The same without the file.
pub(crate) const TRUE: Shape = Shape { program: "/bin/true", secret: false };
/// An idle container.
pub(crate) const PAUSE: Shape = Shape { program: "/bin/pause", secret: true };

/// The connection, the event stream, and a channel of its own.
pub(crate) struct Client {
    endpoint: Endpoint,
    connection: ExecutorClient<Channel>,
    runs: ExecutorClient<Channel>,
    waiting: Waiting,
    rootfs: String,
}

/// An exit event, and when it arrived.
type Exit = (Instant, RunResult);

/// Who waits for which container's exit event.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashMap<String, oneshot::Sender<Exit>>>>);

impl Client {
    /// Connects, and subscribes to the events to come.
    pub(crate) async fn new(endpoint: Endpoint, rootfs: &Rootfs) -> anyhow::Result<Self> {
        let mut connection = ExecutorClient::new(endpoint.connect().await?);
        let request = WatchEventsRequest { only_new: true, ..WatchEventsRequest::default() };
        let events = connection.watch_events(request).await.context("WatchEvents")?.into_inner();
        let waiting = Waiting::default();
        tokio::spawn(waiting.clone().hand_out(events));
        let runs = ExecutorClient::new(endpoint.connect_lazy());
        Ok(Self { endpoint, connection, runs, waiting, rootfs: format!("dir:{}", rootfs.path.display()) })
    }

    /// Another client, for another lane: it shares the connection and the event stream.
    pub(crate) fn lane(&self) -> Self {
        Self {
            endpoint: self.endpoint.clone(),
            connection: self.connection.clone(),
            runs: ExecutorClient::new(self.endpoint.connect_lazy()),
            waiting: self.waiting.clone(),
            rootfs: self.rootfs.clone(),
        }
    }

    /// Another client, whose containers have another root file system.
    pub(crate) fn with_rootfs(&self, reference: String) -> Self {
        Self { rootfs: reference, ..self.lane() }
    }

    /// One container: the call, its exit event, and its deletion.
    pub(crate) async fn run(&self, id: &str, shape: Shape) -> anyhow::Result<Run> {
        let request = self.request(id, shape);
        let start = Instant::now();
        let outcome = self.until_exit(request, shape).await;
        // A container that failed is no longer needed either.
        let deleted = self.delete(id, outcome.is_err()).await;
        let gone = start.elapsed();
        let (ended, result) = outcome.with_context(|| id.to_owned())?;
        deleted?;
        Ok(Run { exit: ended - start, gone, phases: phases(&result) })
    }

    async fn until_exit(&self, request: RunRequest, shape: Shape) -> anyhow::Result<Exit> {
        let event = self.waiting.expect(&request.id);
        self.runs.clone().run(request).await.context("Run")?;
        let event = tokio::time::timeout(PATIENCE, event).await.context("no exit event")?;
        let (at, result) = event.context("the event stream ended")?;
        check(&result, shape)?;
        Ok((at, result))
    }

    /// Starts a container and leaves it running.
    pub(crate) async fn start(&self, id: &str, shape: Shape) -> anyhow::Result<()> {
        self.runs.clone().run(self.request(id, shape)).await.with_context(|| format!("Run {id}"))?;
        Ok(())
    }

    /// Removes a container; with `force` even a running one.
    pub(crate) async fn delete(&self, id: &str, force: bool) -> anyhow::Result<()> {
        let request = DeleteRequest { id: id.to_owned(), force };
        self.connection.clone().delete(request).await.with_context(|| format!("Delete {id}"))?;
        Ok(())
    }

    fn request(&self, id: &str, shape: Shape) -> RunRequest {
        let file = File { path: "bench/secret".to_owned(), content: vec![b's'; SECRET], ..File::default() };
        let run = RunAction {
            path: shape.program.to_owned(),
            env: vec![EnvironmentVariable { name: "PATH".to_owned(), value: "/bin".to_owned() }],
            user: "1000:1000".to_owned(),
            volume_mounted_files: if shape.secret { vec![file] } else { Vec::new() },
            ..RunAction::default()
        };
        let limits = Limits {
            memory_bytes: oci::MEMORY_BYTES,
            pids: oci::PIDS,
            cpu_millis: oci::CPU_MILLIS,
            ..Limits::default()
        };
        RunRequest {
            id: id.to_owned(),
            action: Some(Action { run: Some(run), ..Action::default() }),
            rootfs: self.rootfs.clone(),
            limits: Some(limits),
            ..RunRequest::default()
        }
    }
}

impl Waiting {
    fn expect(&self, id: &str) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(id.to_owned(), sender);
        receiver
    }

    /// Stamps each exit event when it arrives, and hands it to whoever waits for it.
    async fn hand_out(self, mut events: Streaming<WatchEventsResponse>) {
        while let Ok(Some(message)) = events.message().await {
            let now = Instant::now();
            let Some(event) = message.event.filter(|event| event.kind() == Kind::Completed) else { continue };
            if let Some(waiter) = self.lock().remove(&event.container_id) {
                // A waiter that is gone has given up, and has told so.
                let _ = waiter.send((now, event.result.unwrap_or_default()));
            }
        }
        // No event can come any more: a dropped sender is an error at the other end.
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Exit>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run counts only if everything about it is as it must be.
fn check(result: &RunResult, shape: Shape) -> anyhow::Result<()> {
    let status = result.exit.as_ref().and_then(|exit| exit.status.as_ref());
    ensure!(matches!(status, Some(exit_status::Status::Code(0))), "it ended with {result:?}");
    let wiped = result.wipe.as_ref().is_some_and(|wipe| wipe.files == 1 && wipe.verified);
    ensure!(wiped || !shape.secret, "its secret file was not wiped: {result:?}");
    Ok(())
}

/// What the result tells of where the time went.
fn phases(result: &RunResult) -> Vec<(&'static str, Duration)> {
    let Some(timings) = &result.timings else { return Vec::new() };
    let phases =
        [("prepare", timings.prepare), ("start", timings.start), ("run", timings.run), ("finish", timings.finish)];
    phases.into_iter().filter_map(|(name, took)| Some((name, took?.try_into().ok()?))).collect()
}
