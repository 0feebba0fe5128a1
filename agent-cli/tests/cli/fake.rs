//! An executord that does what a test tells it: containers are entries in a map, their processes are the test.
//!
//! The fake can die like a killed executord (every connection breaks, nothing is answered) and come back with the same
//! containers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::result::Result;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use executor_proto::v1::executor_server::{Executor, ExecutorServer};
use executor_proto::v1::{self, *};
use prost_types::Timestamp;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

/// Longest time that a test waits for an event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The one runtime token that is taken.
pub(crate) const TOKEN: &str = "a.0123";

/// Request of a client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Run(Box<RunRequest>),
    Wait(String),
    Logs(StreamLogsRequest),
    Stop(StopRequest),
    Signal(SignalRequest),
    Update(UpdateFilesRequest),
    Delete(DeleteRequest),
    List(ListRequest),
    Watch(WatchEventsRequest),
    Outputs(GetOutputsRequest),
}

/// Behaviour of a container when it is started.
pub(crate) type OnRun = Box<dyn Fn(&Shared, &str) + Send + Sync>;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) calls: Vec<Call>,
    pub(crate) containers: BTreeMap<String, Container>,
    logs: BTreeMap<String, Vec<StreamLogsResponse>>,
    requests: BTreeMap<String, RunRequest>,
    events: Vec<Event>,
    /// Stream of GetOutputs, for every requested path.
    pub(crate) outputs: Vec<get_outputs_response::Part>,
    /// The stream of outputs does not end.
    pub(crate) hold_outputs: bool,
    /// Answers the next Run instead of carrying it out.
    pub(crate) refuse_run: Option<Status>,
    /// Answers every StreamLogs.
    pub(crate) refuse_logs: Option<Status>,
    /// The process ignores SIGTERM.
    pub(crate) ignores_term: bool,
    /// The process is kept, the connection breaks before Run is answered.
    pub(crate) hold_run: bool,
    pub(crate) page_size: usize,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    ticks: watch::Sender<u64>,
    on_run: Option<OnRun>,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn touch(&self) {
        self.changed.notify_all();
        self.ticks.send_modify(|tick| *tick += 1);
    }

    fn call(&self, call: Call) {
        self.state().calls.push(call);
        self.touch();
    }

    fn event(&self, id: &str, kind: event::Kind, result: Option<v1::Result>) {
        let mut state = self.state();
        let cursor = state.events.len() as u64 + 1;
        state.events.push(Event {
            cursor,
            time: Some(Timestamp { seconds: cursor as i64, nanos: 0 }),
            container_id: id.into(),
            kind: kind.into(),
            result,
            files_generation: 0,
            step: None,
            restart: None,
            egress_generation: 0,
            quarantine_phase: 0,
        });
        drop(state);
        self.touch();
    }

    /// The process writes. Entries of one container carry the times they are given here.
    pub(crate) fn log_at(&self, id: &str, nanos: i32, stream: LogStream, data: &[u8]) {
        let time = Some(Timestamp { seconds: 1, nanos });
        let mut state = self.state();
        let log = state.logs.entry(id.into()).or_default();
        let (offset, sequence) = (log.last().map_or(0, end_of), log.len() as u64 + 1);
        let (stream, data) = (stream.into(), data.into());
        log.push(StreamLogsResponse { time, stream, data, offset, sequence, ..StreamLogsResponse::default() });
        drop(state);
        self.touch();
    }

    pub(crate) fn log(&self, id: &str, stream: LogStream, data: &[u8]) {
        let nanos = self.state().logs.get(id).map_or(0, Vec::len) as i32;
        self.log_at(id, nanos, stream, data);
    }

    /// The process ends.
    pub(crate) fn complete(&self, id: &str, result: v1::Result) {
        let mut state = self.state();
        let container = state.containers.get_mut(id).expect("no such container");
        if container.state() != v1::State::Completed {
            container.set_state(v1::State::Completed);
            container.result = Some(result.clone());
            drop(state);
            self.event(id, event::Kind::Completed, Some(result));
        }
    }

    /// Counters of containers.
    fn usage(&self, ids: &[String]) -> Result<Vec<ContainerStats>, Status> {
        let one = |id: &String| {
            let container = self.get(id)?;
            let cpu = Some(CpuUsage { total_ns: 1_500_000_000, ..CpuUsage::default() });
            let memory = Some(MemoryUsage { working_set_bytes: 3 << 20, ..MemoryUsage::default() });
            let usage = Some(Usage { cpu, memory, ..Usage::default() });
            Ok(ContainerStats { id: id.clone(), state: container.state, usage, limits: None })
        };
        ids.iter().map(one).collect()
    }

    fn get(&self, id: &str) -> Result<Container, Status> {
        self.state().containers.get(id).cloned().ok_or_else(|| Status::not_found(format!("no container {id}")))
    }
}

/// The place in the output behind an entry.
fn end_of(entry: &StreamLogsResponse) -> u64 {
    entry.offset + if entry.stream() == LogStream::Executor { 0 } else { entry.data.len() as u64 }
}

/// The process exits.
pub(crate) fn exited(code: i32) -> v1::Result {
    v1::Result { exit: Some(ExitStatus { status: Some(exit_status::Status::Code(code)) }), ..Default::default() }
}

/// A signal ends the process.
pub(crate) fn signaled(signal: i32) -> v1::Result {
    v1::Result { exit: Some(ExitStatus { status: Some(exit_status::Status::Signal(signal)) }), ..Default::default() }
}

/// The process never ran, or was lost.
pub(crate) fn failed(kind: failure::Kind, errno: i32, message: &str) -> v1::Result {
    let failure = Failure { kind: kind.into(), message: message.into(), errno };
    v1::Result { failure: Some(failure), ..Default::default() }
}

pub(crate) struct Fake {
    pub(crate) shared: Arc<Shared>,
    socket: PathBuf,
    serving: Option<Runtime>,
    connection_age: Option<Duration>,
    _home: tempfile::TempDir,
}

impl Fake {
    /// Containers run until the test, or a signal, ends them.
    pub(crate) fn start() -> Self {
        Self::new(None)
    }

    /// `on_run` decides what a container does, before Run is answered.
    pub(crate) fn with(on_run: impl Fn(&Shared, &str) + Send + Sync + 'static) -> Self {
        Self::new(Some(Box::new(on_run)))
    }

    fn new(on_run: Option<OnRun>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let state = State { page_size: 1000, ..State::default() };
        let shared = Shared { state: state.into(), changed: Condvar::new(), ticks: watch::channel(0).0, on_run };
        let socket = home.path().join("executor.sock");
        let mut fake = Self { shared: Arc::new(shared), socket, serving: None, connection_age: None, _home: home };
        fake.revive();
        fake
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Dies as by `kill -9`: connections break, the socket stays behind.
    pub(crate) fn die(&mut self) {
        if let Some(runtime) = self.serving.take() {
            runtime.shutdown_timeout(PATIENCE);
        }
    }

    /// From now on says goodbye (GOAWAY) to every connection of this age, as executord does to those that
    /// carried secrets.
    pub(crate) fn limit_connections(&mut self, age: Duration) {
        self.die();
        self.connection_age = Some(age);
        self.revive();
    }

    pub(crate) fn revive(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(async { UnixListener::bind(&self.socket).unwrap() });
        let service = Service(Arc::clone(&self.shared));
        let mut server = tonic::transport::Server::builder();
        if let Some(age) = self.connection_age {
            server = server.max_connection_age(age);
        }
        runtime.spawn(async move {
            let (health, health_service) = tonic_health::server::health_reporter();
            health.set_serving::<ExecutorServer<Service>>().await;
            server
                .add_service(health_service)
                .add_service(ExecutorServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .unwrap();
        });
        self.serving = Some(runtime);
    }

    /// Waits until `found` finds something in the state.
    pub(crate) fn wait_for<T>(&self, what: &str, mut found: impl FnMut(&mut State) -> Option<T>) -> T {
        let deadline = std::time::Instant::now() + PATIENCE;
        let mut state = self.shared.state();
        loop {
            if let Some(found) = found(&mut state) {
                return found;
            }
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            assert!(!left.is_zero(), "waited in vain for {what}; calls: {:?}", state.calls);
            state = self.shared.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Waits for the first Run and tells the container's id.
    pub(crate) fn started(&self) -> String {
        self.wait_for("Run", |state| {
            let run = state.calls.iter().find_map(|call| if let Call::Run(run) = call { Some(run) } else { None })?;
            state.containers.contains_key(&run.id).then(|| run.id.clone())
        })
    }

    /// Waits until `wanted` was called at least `times`.
    pub(crate) fn called(&self, what: &str, times: usize, wanted: impl Fn(&Call) -> bool) {
        self.wait_for(what, |state| (state.calls.iter().filter(|call| wanted(call)).count() >= times).then_some(()));
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Call) -> bool) -> usize {
        self.shared.state().calls.iter().filter(|call| wanted(call)).count()
    }

    pub(crate) fn is_there(&self, id: &str) -> bool {
        self.shared.state().containers.contains_key(id)
    }

    /// A container that was there before.
    pub(crate) fn add(&self, id: &str, state: v1::State) {
        let container = container(id, state, &RunRequest::default());
        self.shared.state().containers.insert(id.into(), container);
    }
}

fn container(id: &str, state: v1::State, request: &RunRequest) -> Container {
    let run = request.action.clone().unwrap_or_default().run.unwrap_or_default();
    Container {
        id: id.into(),
        state: state.into(),
        spec: Some(ContainerSpec {
            rootfs: request.rootfs.clone(),
            path: run.path,
            labels: request.labels.clone(),
            grace_period: request.grace_period,
            outputs: request.outputs.clone(),
            limits: Some(Limits { memory_bytes: 64 << 20, ..Limits::default() }),
            ..ContainerSpec::default()
        }),
        created_at: Some(SystemTime::now().into()),
        ..Container::default()
    }
}

#[derive(Clone)]
struct Service(Arc<Shared>);

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Executor for Service {
    type StreamLogsStream = Streamed<StreamLogsResponse>;
    type WatchEventsStream = Streamed<WatchEventsResponse>;
    type WatchStatsStream = Streamed<WatchStatsResponse>;
    type GetOutputsStream = Streamed<GetOutputsResponse>;
    type ExecStream = Streamed<ExecResponse>;
    type AttachStream = Streamed<AttachResponse>;
    type GetArchiveStream = Streamed<GetArchiveResponse>;

    async fn exec(&self, _: Request<tonic::Streaming<ExecRequest>>) -> Result<Response<Self::ExecStream>, Status> {
        Err(Status::unimplemented("this fake executes nothing"))
    }

    async fn attach(
        &self,
        _: Request<tonic::Streaming<AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::unimplemented("this fake has no processes"))
    }

    async fn get_archive(&self, _: Request<GetArchiveRequest>) -> Result<Response<Self::GetArchiveStream>, Status> {
        Err(Status::unimplemented("this fake has no files"))
    }

    async fn put_archive(
        &self,
        _: Request<tonic::Streaming<PutArchiveRequest>>,
    ) -> Result<Response<PutArchiveResponse>, Status> {
        Err(Status::unimplemented("this fake has no files"))
    }

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        // Who reads its output is no part of a container.
        let request = RunRequest { await_reader: false, ..request.into_inner() };
        let id = request.id.clone();
        let hold = {
            let mut state = self.0.state();
            if let Some(refusal) = state.refuse_run.take() {
                return Err(refusal);
            }
            match state.requests.get(&id) {
                Some(earlier) if *earlier != request => {
                    return Err(Status::already_exists(format!("the id {id} is in use")));
                }
                Some(_) => {
                    let container = state.containers.get(&id).cloned();
                    state.calls.push(Call::Run(Box::new(request)));
                    drop(state);
                    self.0.touch();
                    return Ok(Response::new(RunResponse { container, created: false }));
                }
                None => {}
            }
            state.containers.insert(id.clone(), container(&id, v1::State::Running, &request));
            state.requests.insert(id.clone(), request.clone());
            state.hold_run
        };
        self.0.event(&id, event::Kind::Running, None);
        if let Some(on_run) = &self.0.on_run {
            on_run(&self.0, &id);
        }
        self.0.call(Call::Run(Box::new(request)));
        if hold {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(RunResponse { container: Some(self.0.get(&id)?), created: true }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        Ok(Response::new(GetResponse { container: Some(self.0.get(&request.into_inner().id)?) }))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let request = request.into_inner();
        self.0.call(Call::List(request.clone()));
        let state = self.0.state();
        let mut containers: Vec<Container> = state
            .containers
            .values()
            .filter(|container| container.id.as_str() > request.page_token.as_str())
            .filter(|container| container.id.starts_with(&request.id_prefix))
            .filter(|container| request.states.is_empty() || request.states.contains(&container.state))
            .take(state.page_size + 1)
            .cloned()
            .collect();
        let more = containers.len() > state.page_size;
        containers.truncate(state.page_size);
        let last = containers.last().map(|container| container.id.clone());
        Ok(Response::new(ListResponse { containers, next_page_token: last.filter(|_| more).unwrap_or_default() }))
    }

    async fn wait(&self, request: Request<WaitRequest>) -> Result<Response<WaitResponse>, Status> {
        let id = request.into_inner().id;
        self.0.call(Call::Wait(id.clone()));
        let mut ticks = self.0.ticks.subscribe();
        loop {
            let container = self.0.get(&id)?;
            if container.state() == v1::State::Completed {
                return Ok(Response::new(WaitResponse { container: Some(container) }));
            }
            let _ = ticks.changed().await;
        }
    }

    async fn stream_logs(
        &self,
        request: Request<StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        let request = request.into_inner();
        self.0.call(Call::Logs(request.clone()));
        if let Some(refusal) = self.0.state().refuse_logs.clone() {
            return Err(refusal);
        }
        self.0.get(&request.id)?;
        let (entries, stream) = mpsc::channel(1);
        let shared = Arc::clone(&self.0);
        let since = request.since.map_or((0, 0), |since| (since.seconds, since.nanos));
        tokio::spawn(async move {
            let mut ticks = shared.ticks.subscribe();
            let mut next = 0;
            loop {
                let (fresh, completed) = {
                    let state = shared.state();
                    let log = state.logs.get(&request.id).map_or(&[][..], Vec::as_slice);
                    let completed = state.containers.get(&request.id).is_none_or(|c| c.state() == v1::State::Completed);
                    (log[next..].to_vec(), completed)
                };
                next += fresh.len();
                for entry in fresh {
                    let time = entry.time.unwrap_or_default();
                    let from = request.offset.unwrap_or(0);
                    let own_words = entry.stream() == LogStream::Executor && entry.offset >= from;
                    let wanted = (time.seconds, time.nanos) >= since && (own_words || end_of(&entry) > from);
                    if wanted && entries.send(Ok(entry)).await.is_err() {
                        return;
                    }
                }
                if completed || !request.follow {
                    return;
                }
                let _ = ticks.changed().await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        let request = request.into_inner();
        let mut container = self.0.get(&request.id)?;
        self.0.call(Call::Stop(request.clone()));
        container.set_state(v1::State::Stopping);
        if !self.0.state().ignores_term {
            self.0.complete(&request.id, v1::Result { stopped: true, ..signaled(15) });
        }
        Ok(Response::new(StopResponse { container: Some(container) }))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Result<Response<SignalResponse>, Status> {
        let request = request.into_inner();
        self.0.get(&request.id)?;
        self.0.call(Call::Signal(request.clone()));
        if request.signal == 9 {
            self.0.complete(&request.id, signaled(9));
        }
        Ok(Response::new(SignalResponse {}))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        let request = request.into_inner();
        let container = self.0.get(&request.id)?;
        if container.state() != v1::State::Completed && !request.force {
            return Err(Status::failed_precondition(format!("{} is running", request.id)));
        }
        self.0.state().containers.remove(&request.id);
        self.0.call(Call::Delete(request));
        Ok(Response::new(DeleteResponse {}))
    }

    async fn watch_events(
        &self,
        request: Request<WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let request = request.into_inner();
        self.0.call(Call::Watch(request.clone()));
        let shared = Arc::clone(&self.0);
        let mut next = request.after_cursor as usize;
        let ticks = tokio_stream::wrappers::WatchStream::new(shared.ticks.subscribe());
        let stream = ticks.map(move |_| {
            let fresh: Vec<Event> = shared.state().events.iter().skip(next).cloned().collect();
            next += fresh.len();
            fresh
        });
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Some(fresh) = stream.next().await {
                for event in fresh {
                    let response = WatchEventsResponse { event: Some(event), gap: false };
                    if sender.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn update_files(
        &self,
        request: Request<UpdateFilesRequest>,
    ) -> Result<Response<UpdateFilesResponse>, Status> {
        let request = request.into_inner();
        self.0.call(Call::Update(request.clone()));
        let mut container = self.0.get(&request.id)?;
        if request.expected_generation.is_some_and(|expected| expected != container.files_generation) {
            return Err(Status::aborted(format!("the files are of generation {}", container.files_generation)));
        }
        container.files_generation += 1;
        container.files_updated_at = Some(Timestamp { seconds: 9, nanos: 0 });
        self.0.state().containers.insert(request.id, container.clone());
        Ok(Response::new(UpdateFilesResponse { container: Some(container) }))
    }

    async fn update_egress(
        &self,
        request: Request<UpdateEgressRequest>,
    ) -> Result<Response<UpdateEgressResponse>, Status> {
        let request = request.into_inner();
        let mut container = self.0.get(&request.id)?;
        container.egress_generation += 1;
        let mut spec = container.spec.unwrap_or_default();
        (spec.egress, spec.egress_rules) = (request.egress, request.egress_rules);
        container.spec = Some(spec);
        self.0.state().containers.insert(request.id, container.clone());
        Ok(Response::new(UpdateEgressResponse { container: Some(container) }))
    }

    async fn get_secrets(&self, request: Request<GetSecretsRequest>) -> Result<Response<GetSecretsResponse>, Status> {
        let presented = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        if presented != Some(&format!("Bearer {TOKEN}")) {
            return Err(Status::permission_denied("this is no runtime token of a running container"));
        }
        let variable = |name: &str, value: &str| EnvironmentVariable {
            name: name.into(),
            value: value.into(),
            ..EnvironmentVariable::default()
        };
        let file = |path: &str, content: &[u8]| File { path: path.into(), content: content.into(), ..File::default() };
        Ok(Response::new(GetSecretsResponse {
            files: vec![file("/etc/a", b"x\ny"), file("/etc/b", b"\xff\0")],
            environment: vec![variable("PW", "canary one")],
            arguments: vec![SecretArgument { index: 3, value: "canary two\n".into(), ..SecretArgument::default() }],
        }))
    }

    async fn get_outputs(
        &self,
        request: Request<GetOutputsRequest>,
    ) -> Result<Response<Self::GetOutputsStream>, Status> {
        let request = request.into_inner();
        self.0.get(&request.id)?;
        let (parts, hold) = {
            let state = self.0.state();
            (state.outputs.clone(), state.hold_outputs)
        };
        self.0.call(Call::Outputs(request));
        let (sender, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            for part in parts {
                if sender.send(Ok(GetOutputsResponse { part: Some(part) })).await.is_err() {
                    return;
                }
            }
            if hold {
                sender.closed().await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        let containers = self.0.usage(&request.into_inner().ids)?;
        Ok(Response::new(StatsResponse { containers, next_page_token: String::new() }))
    }

    /// Two readings, the first one in two messages.
    async fn watch_stats(
        &self,
        request: Request<WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let containers = self.0.usage(&request.into_inner().ids)?;
        let part = |containers: &[ContainerStats], end_of_reading| {
            Ok(WatchStatsResponse { containers: containers.to_vec(), end_of_reading })
        };
        let parts = vec![part(&containers, false), part(&[], true), part(&containers, true)];
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        let cursor = self.0.state().events.len() as u64;
        let capacity = Capacity { memory_bytes: 8 << 30, pids: 4096, containers: 250, disk_bytes: 100 << 30 };
        Ok(Response::new(InfoResponse {
            version: "9.9.9".into(),
            total: Some(capacity),
            remaining: Some(capacity),
            launcher_connected: true,
            cursor,
            ..InfoResponse::default()
        }))
    }
}
