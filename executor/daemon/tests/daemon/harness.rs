//! A node under test: the real daemon, with a launcher and shims that a test controls. Tests can produce event orders
//! that rarely occur with the real launcher and shims.
//!
//! The launcher and the shims are threads of the test that use the real protocol over real sockets and write real
//! records. The harness works with and without root; as root the daemon drops its privileges.

pub(crate) mod launcher;
pub(crate) mod shim;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{self, Container, Event, RunRequest, WatchEventsRequest};
use executor_sys::seqpacket::SeqpacketListener;
use tempfile::TempDir;
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use launcher::FakeLauncher;
use shim::FakeShim;

/// Time limit for a step of a test.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A node under test.
pub(crate) struct Node {
    pub(crate) dir: TempDir,
    pub(crate) launcher: FakeLauncher,
    daemon: Option<Child>,
    args: Vec<String>,
}

impl Node {
    /// Starts a launcher and a daemon, and waits until the daemon serves.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts the node with more flags for the daemon.
    pub(crate) async fn start_with(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("state")).unwrap();
        Self::start_in(dir, args).await
    }

    /// Starts the node in an existing directory.
    pub(crate) async fn start_in(dir: TempDir, args: &[&str]) -> Self {
        set_mode(dir.path(), 0o755); // the daemon's user must be able to enter
        let launcher = FakeLauncher::start(dir.path());
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut node = Self { dir, launcher, daemon: None, args };
        node.start_daemon();
        node.until_health(ServingStatus::Serving).await;
        node
    }

    /// Starts the daemon (again).
    pub(crate) fn start_daemon(&mut self) {
        self.start_daemon_with(&[]);
    }

    /// Starts the daemon (again) with additional flags for this start only.
    pub(crate) fn start_daemon_with(&mut self, args: &[&str]) {
        let log = std::fs::File::options().append(true).create(true).open(self.dir.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_executord"));
        command
            .args(["--log-level", "debug", "--run-dir"])
            .arg(self.run_dir())
            .arg("--state-dir")
            .arg(self.state_dir())
            .args(&self.args)
            .args(args)
            .stdin(Stdio::null())
            .stderr(log);
        self.daemon = Some(command.spawn().unwrap());
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.run_dir().join("executor.sock")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.as_ref().unwrap().id()
    }

    /// Kills the daemon (SIGKILL).
    pub(crate) fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Waits until the daemon has exited by itself.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        self.take_daemon().wait().unwrap()
    }

    /// Removes the daemon's process from the node, so that another daemon can run in parallel.
    pub(crate) fn take_daemon(&mut self) -> Child {
        self.daemon.take().unwrap()
    }

    pub(crate) fn give_daemon(&mut self, daemon: Child) {
        self.daemon = Some(daemon);
    }

    /// Stops the daemon (SIGTERM), and waits until it has exited.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let mut daemon = self.daemon.take().unwrap();
        let pid = rustix::process::Pid::from_child(&daemon);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        daemon.wait().unwrap()
    }

    /// Kills the daemon, and starts it again.
    pub(crate) async fn crash(&mut self) {
        self.kill();
        self.start_daemon();
        self.until_health(ServingStatus::Serving).await;
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket().display())).unwrap();
        retry("connect", || endpoint.connect()).await
    }

    pub(crate) async fn client(&self) -> ExecutorClient<Channel> {
        ExecutorClient::new(self.channel().await)
    }

    /// Waits for a status of the health service.
    pub(crate) async fn until_health(&self, wanted: ServingStatus) {
        let watch = async {
            loop {
                let mut client = HealthClient::new(self.channel().await);
                let Ok(stream) = client.watch(HealthCheckRequest::default()).await else { continue };
                let mut stream = stream.into_inner();
                while let Some(Ok(response)) = stream.next().await {
                    if response.status == i32::from(wanted) {
                        return;
                    }
                }
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, watch).await.expect("the health service did not report the wanted status");
    }

    /// Runs a request with a well-behaved shim. Returns the shim and the response.
    pub(crate) async fn run(&self, request: RunRequest) -> (FakeShim, v1::RunResponse) {
        let mut client = self.client().await;
        let call = tokio::spawn(async move { client.run(request).await });
        let shim = self.launcher.launched().await;
        shim.runs();
        (shim, call.await.unwrap().unwrap().into_inner())
    }

    /// Returns all retained events of a container, up to one of kind `last`.
    pub(crate) async fn events(&self, id: &str, last: v1::event::Kind) -> Vec<Event> {
        let request = WatchEventsRequest { container_id: id.to_owned(), ..Default::default() };
        let mut stream = self.client().await.watch_events(request).await.unwrap().into_inner();
        let collect = async {
            let mut events = Vec::new();
            while let Some(response) = stream.next().await {
                let event = response.unwrap().event.unwrap();
                let over = event.kind() == last;
                events.push(event);
                if over {
                    break;
                }
            }
            events
        };
        tokio::time::timeout(WAIT_TIMEOUT, collect).await.expect("the event did not arrive")
    }

    /// Returns the daemon's log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the daemon's log\n{}", self.log());
        }
    }
}

pub(crate) fn request(id: &str) -> RunRequest {
    let run = v1::RunAction { path: "/bin/true".into(), ..Default::default() };
    RunRequest {
        id: id.into(),
        action: Some(v1::Action { run: Some(run), ..Default::default() }),
        ..Default::default()
    }
}

/// Returns a request with secrets of every kind, each containing the canary.
pub(crate) fn secret_request(id: &str, canary: &str) -> RunRequest {
    let mut request = request(id);
    let run = request.action.as_mut().unwrap().run.as_mut().unwrap();
    run.args = vec![format!("--token={canary}-arg")];
    run.env = vec![v1::EnvironmentVariable {
        name: "TOKEN".into(),
        value: format!("{canary}-env"),
        ..v1::EnvironmentVariable::default()
    }];
    run.volume_mounted_files =
        vec![v1::File { path: "a".into(), content: format!("{canary}-action").into(), ..v1::File::default() }];
    request.volume_mounted_files =
        vec![v1::File { path: "/b".into(), content: format!("{canary}-own").into(), ..v1::File::default() }];
    request
}

/// Returns the names of the kinds of events.
pub(crate) fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.kind().as_str_name().trim_start_matches("KIND_")).collect()
}

pub(crate) async fn get(client: &mut ExecutorClient<Channel>, id: &str) -> Container {
    client.get(v1::GetRequest { id: id.into() }).await.unwrap().into_inner().container.unwrap()
}

pub(crate) async fn wait(client: &mut ExecutorClient<Channel>, id: &str) -> Container {
    let call = client.wait(v1::WaitRequest { id: id.into() });
    let answer = tokio::time::timeout(WAIT_TIMEOUT, call).await.expect("the container did not complete");
    answer.unwrap().into_inner().container.unwrap()
}

/// Repeats an action until it succeeds, for at most [`WAIT_TIMEOUT`].
pub(crate) async fn retry<T, E: std::fmt::Debug, F: Future<Output = Result<T, E>>>(
    what: &str,
    mut act: impl FnMut() -> F,
) -> T {
    let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
    loop {
        match act().await {
            Ok(done) => return done,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{what}: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until a condition holds; `what` describes the condition.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    retry(what, || async { if condition() { Ok(()) } else { Err("not yet") } }).await;
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Listens on a socket to which the daemon's user can connect.
fn listen(path: &Path) -> Arc<SeqpacketListener> {
    let listener = Arc::new(SeqpacketListener::bind(path).unwrap());
    set_mode(path, 0o666);
    listener
}

/// Shuts down a socket in both directions.
fn hang_up(socket: impl AsFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both); // fails if the peer has already shut it down
}
