//! The measured client. The client has one connection for the event stream and all calls except Run, and another
//! connection for Run.
//!
//! The measurement includes the daemon's work to remove secrets from its buffers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_client::v1::event::Kind;
use executor_client::v1::{Network, PortMapping, Result as RunResult, exit_status};
use executor_client::{Events, Run as Request, Secret};
use tokio::sync::oneshot;

use crate::oci;
use crate::rootfs::Rootfs;
use crate::run::Run;

/// Host port that containers publish.
const PORT: u32 = 18_080;
/// Timeout of one container, from call to event.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
/// Program, secret files and network of a container.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    program: &'static str,
    files: u32,
    /// Size of each secret file in bytes.
    file_bytes: u32,
    /// Network of the container, if it has one.
    pub(crate) network: Option<ShapeNetwork>,
}

/// Network of a container.
#[derive(Clone, Copy)]
pub(crate) enum ShapeNetwork {
    /// A CNI network.
    Cni,
    /// The built-in network.
    Bridge,
    /// The built-in network, with a published port.
    Published,
}

/// Container that runs `/bin/true`, without secret files and without a network.
pub(crate) const TRUE: Shape = Shape { program: "/bin/true", files: 0, file_bytes: 0, network: None };
/// Container of the main figures: runs `/bin/true` with one secret file.
pub(crate) const TRUE_WITH_SECRET: Shape = Shape { files: 1, file_bytes: 1024, ..TRUE };
/// Container that runs `/bin/true` with as many secrets as a large application has.
pub(crate) const TRUE_WITH_FIFTY: Shape = Shape { files: 50, file_bytes: 10_000, ..TRUE };
/// Container that runs `/bin/true` on a CNI network, without secret files.
pub(crate) const TRUE_WITH_CNI: Shape = Shape { network: Some(ShapeNetwork::Cni), ..TRUE };
/// Container that runs `/bin/true` on the built-in network, without secret files.
pub(crate) const TRUE_WITH_BRIDGE: Shape = Shape { network: Some(ShapeNetwork::Bridge), ..TRUE };
/// Container that runs `/bin/true` on the built-in network with a published port, without secret files.
pub(crate) const TRUE_WITH_PORT: Shape = Shape { network: Some(ShapeNetwork::Published), ..TRUE };
pub(crate) const PAUSE: Shape = Shape { program: "/bin/pause", ..TRUE_WITH_SECRET };

impl Shape {
    /// Returns true if several such containers can run at the same time. Only one can publish a port.
    pub(crate) fn runs_several(&self) -> bool {
        !matches!(self.network, Some(ShapeNetwork::Published))
    }
}

#[derive(Clone)]
pub(crate) struct Client {
    connection: executor_client::Client,
    runs: executor_client::Client,
    waiting: ExitWaiters,
    rootfs: String,
}

/// An exit event and its time of arrival.
type Exit = (Instant, RunResult);

/// Waiters for exit events, by container id.
#[derive(Clone, Default)]
struct ExitWaiters(Arc<Mutex<HashMap<String, oneshot::Sender<Exit>>>>);

/// Returns the socket path of a connection.
fn socket_of(connection: &executor_client::Client) -> anyhow::Result<&std::path::Path> {
    connection.address().socket().context("the benchmark's daemon has no socket")
}

impl Client {
    /// Connects and subscribes to new events.
    pub(crate) async fn new(connection: executor_client::Client, rootfs: &Rootfs) -> anyhow::Result<Self> {
        let events = connection.events(None, "").await.context("cannot watch events")?;
        let waiting = ExitWaiters::default();
        tokio::spawn(waiting.clone().dispatch(events));
        let runs = executor_client::Client::connect(socket_of(&connection)?).await?;
        Ok(Self { connection, runs, waiting, rootfs: format!("dir:{}", rootfs.path.display()) })
    }

    /// Creates a client for another lane. The lanes share the event stream and its connection.
    pub(crate) async fn lane(&self) -> anyhow::Result<Self> {
        let runs = executor_client::Client::connect(socket_of(&self.connection)?).await?;
        Ok(Self { runs, ..self.clone() })
    }

    /// Creates a client whose containers have another root file system.
    pub(crate) fn with_rootfs(&self, rootfs: String) -> Self {
        Self { rootfs, ..self.clone() }
    }

    /// Measures one container: the call, its exit event, and its deletion.
    pub(crate) async fn run(&self, id: &str, shape: Shape) -> anyhow::Result<Run> {
        let request = self.request(id, shape);
        let start = Instant::now();
        let outcome = self.until_exit(id, &request, shape).await;
        // Delete the container even if it failed.
        let deleted = self.delete(id, outcome.is_err()).await;
        let gone = start.elapsed();
        let (ended, result) = outcome.with_context(|| id.to_owned())?;
        deleted?;
        Ok(Run { exit: ended - start, gone, phases: phases(&result) })
    }

    /// Runs one container and keeps it as completed. Returns the time of its exit event.
    pub(crate) async fn run_to_exit(&self, id: &str, shape: Shape) -> anyhow::Result<Instant> {
        let request = self.request(id, shape);
        let (at, _) = self.until_exit(id, &request, shape).await.with_context(|| id.to_owned())?;
        Ok(at)
    }

    async fn until_exit(&self, id: &str, request: &Request, shape: Shape) -> anyhow::Result<Exit> {
        let event = self.waiting.expect(id);
        self.runs.run(request).await.context("cannot run the container")?;
        let event = tokio::time::timeout(RUN_TIMEOUT, event)
            .await
            .with_context(|| format!("the exit event did not arrive within {RUN_TIMEOUT:?}"))?;
        let (at, result) = event.context("the event stream was closed")?;
        check(&result, shape)?;
        Ok((at, result))
    }

    /// Starts a container and keeps it running.
    pub(crate) async fn start(&self, id: &str, shape: Shape) -> anyhow::Result<()> {
        self.runs.run(&self.request(id, shape)).await.with_context(|| format!("cannot run {id}"))?;
        Ok(())
    }

    /// Deletes a container. With `force`, the container may be running.
    pub(crate) async fn delete(&self, id: &str, force: bool) -> anyhow::Result<()> {
        self.connection.delete(id, force).await.with_context(|| format!("cannot delete {id}"))
    }

    fn request(&self, id: &str, shape: Shape) -> Request {
        let request = Request::new(self.rootfs.clone(), shape.program)
            .id(id)
            .env("PATH", "/bin")
            .user("1000:1000")
            .memory_bytes(oci::MEMORY_BYTES)
            .pids(oci::PIDS)
            .cpu_millis(oci::CPU_MILLIS);
        let request = match shape.network {
            None => request,
            Some(ShapeNetwork::Cni) => request.network(Network::Cni),
            Some(ShapeNetwork::Bridge) => request.on_network("bridge"),
            Some(ShapeNetwork::Published) => request.on_network("bridge").port(port()),
        };
        let add =
            |request: Request, number| request.secret_file(format!("bench/secret-{number}"), shape.secret(number));
        (0..shape.files).fold(request, add)
    }
}

/// Returns the mapping of the port that a container publishes.
fn port() -> PortMapping {
    PortMapping { host_port: PORT, container_port: 80, ..PortMapping::default() }
}

impl ExitWaiters {
    fn expect(&self, id: &str) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(id.to_owned(), sender);
        receiver
    }

    /// Timestamps each exit event on arrival and passes it to its waiter.
    async fn dispatch(self, mut events: Events) {
        while let Ok(message) = events.next().await {
            let now = Instant::now();
            let Some(event) = message.event.filter(|event| event.kind() == Kind::Completed) else { continue };
            if let Some(waiter) = self.lock().remove(&event.container_id) {
                // If the receiver was dropped, the waiter has timed out and has reported the error itself.
                let _ = waiter.send((now, event.result.unwrap_or_default()));
            }
        }
        // No further event can arrive. Dropping the senders returns errors to the receivers.
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Exit>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shape {
    /// Creates the content of a secret file. Each file has different content.
    fn secret(self, number: u32) -> Secret {
        let letter = |at: u32| b'a' + ((at * 7 + at / 26 + number * 11) % 26) as u8;
        Secret::from((0..self.file_bytes).map(letter).collect::<Vec<u8>>())
    }
}

/// Checks that a run was completely correct. Only correct runs are counted.
fn check(result: &RunResult, shape: Shape) -> anyhow::Result<()> {
    let status = result.exit.as_ref().and_then(|exit| exit.status.as_ref());
    ensure!(
        matches!(status, Some(exit_status::Status::Code(0))),
        "the container exited with {result:?}, expected code 0"
    );
    let wiped =
        result.wipe.as_ref().is_some_and(|wipe| u64::from(wipe.files) == u64::from(shape.files) && wipe.verified);
    ensure!(wiped || shape.files == 0, "not every secret file was wiped: {result:?}");
    Ok(())
}

/// Returns the durations of the phases from the result.
fn phases(result: &RunResult) -> Vec<(&'static str, Duration)> {
    let Some(timings) = &result.timings else { return Vec::new() };
    let phases =
        [("prepare", timings.prepare), ("start", timings.start), ("run", timings.run), ("finish", timings.finish)];
    phases.into_iter().filter_map(|(name, took)| Some((name, took?.try_into().ok()?))).collect()
}
