//! A fake executord. Containers are entries in a map, and tests act as their processes.
//!
//! The fake can stop like a killed executord (all connections break, and calls get no response) and restart with the
//! same containers.

mod service;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::result::Result;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use executor_proto::v1::executor_server::ExecutorServer;
use executor_proto::v1::{self, *};
use prost_types::Timestamp;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;

use service::Service;

/// Maximum time that a test waits for an event.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The only valid runtime token.
pub(crate) const TOKEN: &str = "a.0123";

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

/// Behaviour of a container at its start.
pub(crate) type OnRun = Box<dyn Fn(&Shared, &str) + Send + Sync>;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) calls: Vec<Call>,
    pub(crate) containers: BTreeMap<String, Container>,
    logs: BTreeMap<String, Vec<StreamLogsResponse>>,
    requests: BTreeMap<String, RunRequest>,
    events: Vec<Event>,
    /// Parts of the response stream of GetOutputs, whatever path is requested.
    pub(crate) outputs: Vec<get_outputs_response::Part>,
    /// True if the stream of outputs does not end.
    pub(crate) hold_outputs: bool,
    /// Error to return for the next Run, which is then not executed.
    pub(crate) refuse_run: Option<Status>,
    /// Error to return for every StreamLogs.
    pub(crate) refuse_logs: Option<Status>,
    /// True if the process ignores SIGTERM.
    pub(crate) ignores_term: bool,
    /// True if Run creates the container but does not return.
    pub(crate) hold_run: bool,
    pub(crate) page_size: usize,
    pub(crate) networks: Vec<NodeNetwork>,
    /// Warnings of ListNetworks.
    pub(crate) network_warnings: Vec<String>,
    /// Responses to CheckNetwork, by the network's name.
    pub(crate) network_checks: BTreeMap<String, CheckNetworkResponse>,
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
            limits_generation: 0,
            quarantine_phase: 0,
        });
        drop(state);
        self.touch();
    }

    /// Simulates output of the process. `nanos` is the timestamp of the entry.
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

    /// Simulates the exit of the process.
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

    fn usage(&self, ids: &[String]) -> Result<Vec<ContainerStats>, Status> {
        let one = |id: &String| {
            let container = self.get(id)?;
            let cpu = Some(CpuUsage { total_ns: 1_500_000_000, ..CpuUsage::default() });
            let memory = Some(MemoryUsage { working_set_bytes: 3 << 20, ..MemoryUsage::default() });
            let usage = Some(Usage { cpu, memory, ..Usage::default() });
            Ok(ContainerStats { id: id.clone(), state: container.state, usage, limits: None, ready: None })
        };
        ids.iter().map(one).collect()
    }

    fn set_paused(&self, id: &str, paused: bool) -> Result<Container, Status> {
        let container = Container { paused, ..self.get(id)? };
        self.state().containers.insert(id.to_owned(), container.clone());
        Ok(container)
    }

    fn get(&self, id: &str) -> Result<Container, Status> {
        self.state().containers.get(id).cloned().ok_or_else(|| Status::not_found(format!("no container {id}")))
    }
}

/// Offset of the end of an entry in the output.
fn end_of(entry: &StreamLogsResponse) -> u64 {
    entry.offset + if entry.stream() == LogStream::Executor { 0 } else { entry.data.len() as u64 }
}

pub(crate) fn exited(code: i32) -> v1::Result {
    v1::Result { exit: Some(ExitStatus { status: Some(exit_status::Status::Code(code)) }), ..Default::default() }
}

pub(crate) fn signaled(signal: i32) -> v1::Result {
    v1::Result { exit: Some(ExitStatus { status: Some(exit_status::Status::Signal(signal)) }), ..Default::default() }
}

/// Returns the result of a process that never ran or was lost.
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
    /// Starts a fake. Its containers run until the test or a signal stops them.
    pub(crate) fn start() -> Self {
        Self::new(None)
    }

    /// Starts a fake. `on_run` is called for each new container before Run returns.
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

    /// Simulates `kill -9`: connections break, and the socket file stays.
    pub(crate) fn die(&mut self) {
        if let Some(runtime) = self.serving.take() {
            runtime.shutdown_timeout(EVENT_TIMEOUT);
        }
    }

    /// Restarts the fake. After the restart, the fake sends GOAWAY to every connection that reaches this age, as
    /// executord does to connections that carried secrets.
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

    /// Waits until `found` returns a value for the state of the fake.
    pub(crate) fn wait_for<T>(&self, what: &str, mut found: impl FnMut(&mut State) -> Option<T>) -> T {
        let deadline = std::time::Instant::now() + EVENT_TIMEOUT;
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

    /// Waits for the first Run and returns the container's id.
    pub(crate) fn started(&self) -> String {
        self.wait_for("Run", |state| {
            let run = state.calls.iter().find_map(|call| if let Call::Run(run) = call { Some(run) } else { None })?;
            state.containers.contains_key(&run.id).then(|| run.id.clone())
        })
    }

    /// Waits until at least `times` calls match `wanted`.
    pub(crate) fn called(&self, what: &str, times: usize, wanted: impl Fn(&Call) -> bool) {
        self.wait_for(what, |state| (state.calls.iter().filter(|call| wanted(call)).count() >= times).then_some(()));
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Call) -> bool) -> usize {
        self.shared.state().calls.iter().filter(|call| wanted(call)).count()
    }

    pub(crate) fn is_there(&self, id: &str) -> bool {
        self.shared.state().containers.contains_key(id)
    }

    /// Adds a container, as if an earlier command had created it.
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
