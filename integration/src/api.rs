//! Blocking client of the gRPC interface. A call that does not return within [`DEFAULT_TIMEOUT`] fails the test.

use std::path::Path;
use std::sync::Arc;

use executor_client::{Client, ConnectError};
use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{
    Container, DeleteRequest, GetArchiveRequest, GetRequest, InfoRequest, InfoResponse, ListRequest, ListResponse,
    LogStream, PutArchiveRequest, PutArchiveResponse, PutArchiveStart, Result as Ending, RunRequest, RunResponse,
    SignalRequest, State, StopRequest, StreamLogsRequest, StreamLogsResponse, UpdateFilesRequest, WaitRequest,
    WatchEventsRequest, WatchEventsResponse, exit_status, get_archive_response, put_archive_request,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::wait::{self, DEFAULT_TIMEOUT};

/// The generated gRPC client of the executor service.
pub type Rpc = ExecutorClient<Channel>;

/// Client of one daemon, for tests that are not asynchronous. Each call is made once and returns the daemon's status
/// unchanged; the client library behind [`Api::client`] retries.
#[derive(Clone)]
pub struct Api {
    runtime: Arc<Runtime>,
    client: Client,
}

/// Output of a container, by stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Messages of the executor itself about the container.
    pub executor: Vec<u8>,
}

impl Output {
    /// Returns standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Api {
    /// Connects to a daemon's socket.
    ///
    /// # Errors
    /// Returns an error if the daemon cannot be reached.
    pub fn connect(socket: &Path) -> Result<Self, ConnectError> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let client = runtime.block_on(Client::connect(socket))?;
        Ok(Self { runtime: Arc::new(runtime), client })
    }

    /// Returns the client of the client library, which retries calls.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the gRPC channel, for other services on the same connection.
    pub fn channel(&self) -> Channel {
        self.client.channel()
    }

    /// Returns the generated client, for concurrent calls.
    pub fn rpc(&self) -> Rpc {
        self.client.rpc()
    }

    /// Runs a future to completion.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(DEFAULT_TIMEOUT, future).await };
        self.runtime.block_on(bounded).expect("a response within the timeout")
    }

    /// Spawns a future on the client's runtime.
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(future)
    }

    fn call<T>(&self, call: impl AsyncFnOnce(Rpc) -> Result<Response<T>, Status>) -> Result<T, Status> {
        self.block_on(call(self.rpc())).map(Response::into_inner)
    }

    /// Calls Run.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn run(&self, request: RunRequest) -> Result<RunResponse, Status> {
        self.call(async |mut rpc| rpc.run(request).await)
    }

    /// Calls PutArchive with the archive in pieces of `piece` bytes.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn put_archive(
        &self,
        id: &str,
        path: &str,
        archive: &[u8],
        piece: usize,
    ) -> Result<PutArchiveResponse, Status> {
        let start = put_archive_request::Part::Start(PutArchiveStart { id: id.into(), path: path.into() });
        let pieces = archive.chunks(piece).map(|piece| put_archive_request::Part::Data(piece.to_vec()));
        let parts = std::iter::once(start).chain(pieces).map(|part| PutArchiveRequest { part: Some(part) });
        let requests = tokio_stream::iter(parts.collect::<Vec<_>>());
        self.call(async |mut rpc| rpc.put_archive(requests).await)
    }

    /// Calls GetArchive and returns the whole archive.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn get_archive(&self, id: &str, path: &str) -> Result<Vec<u8>, Status> {
        let request = GetArchiveRequest { id: id.into(), path: path.into(), ..GetArchiveRequest::default() };
        self.block_on(async {
            let (mut archive, mut answers) = (Vec::new(), self.rpc().get_archive(request).await?.into_inner());
            while let Some(answer) = answers.message().await? {
                if let Some(get_archive_response::Part::Data(data)) = answer.part {
                    archive.extend(data);
                }
            }
            Ok(archive)
        })
    }

    /// Calls Run, which must succeed, and returns the container.
    pub fn started(&self, request: RunRequest) -> Container {
        self.run(request).expect("Run").container.expect("a container")
    }

    /// Calls Run and waits until the process has printed `up`, which a script prints after it has installed its traps.
    pub fn up(&self, request: RunRequest) -> Container {
        let container = self.started(request);
        self.follow(&container.id).until(|entry| entry.data == b"up\n");
        container
    }

    /// Calls Run and Wait, and returns the completed container.
    pub fn run_to_end(&self, request: RunRequest) -> Container {
        let id = self.started(request).id;
        self.wait(&id).expect("Wait")
    }

    /// Calls Get.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn get(&self, id: &str) -> Result<Container, Status> {
        self.call(async |mut rpc| rpc.get(GetRequest { id: id.into() }).await)
            .map(|got| got.container.expect("a container in the response"))
    }

    /// Calls List.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn list(&self, request: ListRequest) -> Result<ListResponse, Status> {
        self.call(async |mut rpc| rpc.list(request).await)
    }

    pub fn ids(&self) -> Vec<String> {
        let page = self.list(ListRequest { page_size: 1000, ..ListRequest::default() }).expect("List");
        page.containers.into_iter().map(|container| container.id).collect()
    }

    /// Calls Wait.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn wait(&self, id: &str) -> Result<Container, Status> {
        self.call(async |mut rpc| rpc.wait(WaitRequest { id: id.into() }).await)
            .map(|got| got.container.expect("a container in the response"))
    }

    /// Calls Stop. `grace_ms` (milliseconds) replaces the container's own grace period.
    pub fn stop(&self, id: &str, grace_ms: Option<i64>) -> Result<Container, Status> {
        let grace_period =
            grace_ms.map(|ms| prost_types::Duration { seconds: ms / 1000, nanos: (ms % 1000) as i32 * 1_000_000 });
        self.call(async |mut rpc| rpc.stop(StopRequest { id: id.into(), grace_period, signal: 0 }).await)
            .map(|got| got.container.expect("a container in the response"))
    }

    /// Calls Signal.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn signal(&self, id: &str, signal: u32) -> Result<(), Status> {
        let request = SignalRequest { id: id.into(), signal, process_id: String::new() };
        self.call(async |mut rpc| rpc.signal(request).await).map(drop)
    }

    /// Calls UpdateFiles and returns the container.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn update(&self, request: UpdateFilesRequest) -> Result<Container, Status> {
        self.call(async |mut rpc| rpc.update_files(request).await)
            .map(|updated| updated.container.expect("a container in the response"))
    }

    /// Calls Delete.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn delete(&self, id: &str, force: bool) -> Result<(), Status> {
        self.call(async |mut rpc| rpc.delete(DeleteRequest { id: id.into(), force }).await).map(drop)
    }

    /// Calls Info, which must succeed.
    pub fn info(&self) -> InfoResponse {
        self.try_info().expect("Info")
    }

    /// Waits until the warm pool has its configured size, and returns the response of Info. A full pool creates no warm
    /// container, so warm containers do not change the state directory afterwards.
    ///
    /// # Panics
    /// Panics if fewer warm containers are ready after [`wait::DEFAULT_TIMEOUT`].
    pub fn wait_until_warm_pool_is_ready(&self) -> InfoResponse {
        wait::until("the warm pool is full", || {
            let info = self.info();
            info.warm_pool.is_some_and(|warm_pool| warm_pool.ready == warm_pool.configured).then_some(info)
        })
    }

    /// Calls Info.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn try_info(&self) -> Result<InfoResponse, Status> {
        self.call(async |mut rpc| rpc.info(InfoRequest {}).await)
    }

    /// Calls StreamLogs.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn logs(&self, request: StreamLogsRequest) -> Result<Incoming<StreamLogsResponse>, Status> {
        let stream = self.call(async |mut rpc| rpc.stream_logs(request).await)?;
        Ok(Incoming { api: self.clone(), stream })
    }

    /// Follows the log of a container.
    pub fn follow(&self, id: &str) -> Incoming<StreamLogsResponse> {
        self.logs(StreamLogsRequest { id: id.into(), follow: true, ..StreamLogsRequest::default() })
            .expect("StreamLogs")
    }

    /// Reads the whole output of a container, until the container is completed.
    pub fn output(&self, id: &str) -> Output {
        let mut output = Output::default();
        for entry in self.follow(id).rest() {
            let stream = match entry.stream() {
                LogStream::Stdout => &mut output.stdout,
                LogStream::Stderr => &mut output.stderr,
                LogStream::Executor => &mut output.executor,
                LogStream::Unspecified => panic!("{entry:?}"),
            };
            stream.extend(entry.data);
        }
        output
    }

    /// Reads the standard output that a container has printed so far.
    pub fn logs_so_far(&self, id: &str) -> String {
        let request = StreamLogsRequest { id: id.into(), ..StreamLogsRequest::default() };
        let entries = self.logs(request).expect("StreamLogs").rest();
        let out = entries.into_iter().filter(|entry| entry.stream() == LogStream::Stdout).flat_map(|entry| entry.data);
        String::from_utf8_lossy(&out.collect::<Vec<u8>>()).into_owned()
    }

    /// Calls WatchEvents.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn events(&self, request: WatchEventsRequest) -> Result<Incoming<WatchEventsResponse>, Status> {
        let stream = self.call(async |mut rpc| rpc.watch_events(request).await)?;
        Ok(Incoming { api: self.clone(), stream })
    }

    /// Watches all events after `after_cursor`.
    pub fn events_after(&self, after_cursor: u64) -> Incoming<WatchEventsResponse> {
        self.events(WatchEventsRequest { after_cursor, ..WatchEventsRequest::default() }).expect("WatchEvents")
    }
}

/// A stream of messages from the daemon.
pub struct Incoming<T> {
    api: Api,
    stream: Streaming<T>,
}

impl<T> Incoming<T> {
    /// Returns the next message, or `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails, or a status for a broken connection.
    pub fn message(&mut self) -> Result<Option<T>, Status> {
        self.api.block_on(self.stream.message())
    }

    /// Reads messages up to and including the first for which `fits` returns true.
    pub fn until(&mut self, fits: impl Fn(&T) -> bool) -> Vec<T> {
        let mut all = Vec::new();
        loop {
            all.push(self.message().expect("no error on the stream").expect("a message before the stream is closed"));
            if all.last().is_some_and(&fits) {
                return all;
            }
        }
    }

    /// Reads every message until the stream ends.
    pub fn rest(&mut self) -> Vec<T> {
        std::iter::from_fn(|| self.message().expect("the stream ends without an error")).collect()
    }
}

/// Returns the exit status of a completed container: `Ok(code)` or `Err(signal)`.
///
/// # Panics
/// Panics if the container has no exit status.
pub fn exit(container: &Container) -> Result<i32, i32> {
    match ending(container).exit.and_then(|exit| exit.status) {
        Some(exit_status::Status::Code(code)) => Ok(code),
        Some(exit_status::Status::Signal(signal)) => Err(signal),
        None => panic!("no exit status: {container:#?}"),
    }
}

/// Returns the result of a completed container.
pub fn ending(container: &Container) -> &Ending {
    assert_eq!(container.state(), State::Completed, "{container:#?}");
    container.result.as_ref().expect("a result")
}

/// Returns the pid of a running container's first process.
pub fn pid(container: &Container) -> i32 {
    let pid = container.processes.first().map_or(0, |process| process.pid);
    assert_ne!(pid, 0, "{container:#?}");
    pid as i32
}
