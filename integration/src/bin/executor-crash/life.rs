//! One container's life, as a client lives it: Run, the output, Wait, Delete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use executor_proto::v1::{
    Container, DeleteRequest, GetRequest, LogStream, RunRequest, RunResponse, StreamLogsRequest, WaitRequest,
};
use integration::api::{Api, Rpc};
use integration::request::{Words, sh};
use tonic::Status;

/// How long a call may take. A supervisor's restart lies within it; only a fault reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The container's exit code.
pub(crate) const CODE: i32 = 7;
/// Size of the larger secret file.
const LARGE: usize = 9000;

/// Where a client is in its calls.
#[derive(Clone, Default)]
pub(crate) struct Step(Arc<AtomicU8>);

const STEPS: [&str; 5] = ["before Run", "Run", "StreamLogs", "Wait", "Delete"];

impl Step {
    fn enter(&self, step: u8) {
        self.0.store(step, Ordering::SeqCst);
    }

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        STEPS[usize::from(self.0.load(Ordering::SeqCst)).min(STEPS.len() - 1)]
    }
}

/// What a client was told.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    pub(crate) run: Option<Result<RunResponse, Status>>,
    pub(crate) output: Option<Result<Vec<u8>, Status>>,
    pub(crate) wait: Option<Result<Container, Status>>,
    pub(crate) delete: Option<Result<(), Status>>,
}

/// The request of a life: secret files in a directory of their own and on a single mount, a secret in the environment,
/// output on both streams, an exit code.
pub(crate) fn request(id: &str, canary: &str) -> RunRequest {
    let script = "read -r a < /etc/cf-service-bindings/db/password; read -r b < /etc/crash-canary; \
                  echo \"${#a} ${#b} ${#TOKEN}\"; echo done >&2; exit 7";
    let large: Vec<u8> = canary.bytes().cycle().take(LARGE).collect();
    sh(script).id(id).file("db/password", canary.as_bytes()).file("/etc/crash-canary", &large).env("TOKEN", canary)
}

/// What the container prints.
pub(crate) fn output(canary: &str) -> Vec<u8> {
    format!("{} {LARGE} {}\ndone\n", canary.len(), canary.len()).into_bytes()
}

/// Lives it, as far as it goes: it ends at the first error, as a client's does.
pub(crate) async fn live(mut rpc: Rpc, request: RunRequest, step: Step) -> Trail {
    let id = request.id.clone();
    let mut trail = Trail::default();
    step.enter(1);
    trail.run = Some(bounded(rpc.run(request)).await.map(tonic::Response::into_inner));
    if trail.run.as_ref().is_some_and(Result::is_err) {
        return trail;
    }
    step.enter(2);
    trail.output = Some(read_output(&mut rpc, &id).await);
    if trail.output.as_ref().is_some_and(Result::is_err) {
        return trail;
    }
    step.enter(3);
    trail.wait = Some(wait(&mut rpc, &id).await);
    if trail.wait.as_ref().is_some_and(Result::is_err) {
        return trail;
    }
    step.enter(4);
    trail.delete = Some(bounded(rpc.delete(DeleteRequest { id, force: false })).await.map(drop));
    trail
}

/// All that it prints, standard output first.
pub(crate) async fn read_output(rpc: &mut Rpc, id: &str) -> Result<Vec<u8>, Status> {
    let request = StreamLogsRequest { id: id.to_owned(), follow: true, since: None };
    let mut stream = bounded(rpc.stream_logs(request)).await?.into_inner();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(entry) = bounded(stream.message()).await? {
        match entry.stream() {
            LogStream::Stdout => out.extend(entry.data),
            LogStream::Stderr => err.extend(entry.data),
            _ => {}
        }
    }
    out.extend(err);
    Ok(out)
}

/// Waits for its end.
pub(crate) async fn wait(rpc: &mut Rpc, id: &str) -> Result<Container, Status> {
    let response = bounded(rpc.wait(WaitRequest { id: id.to_owned() })).await?;
    response.into_inner().container.ok_or_else(|| Status::internal("Wait answered no container"))
}

/// The container of an id.
pub(crate) async fn get(rpc: &mut Rpc, id: &str) -> Result<Container, Status> {
    let response = bounded(rpc.get(GetRequest { id: id.to_owned() })).await?;
    response.into_inner().container.ok_or_else(|| Status::internal("Get answered no container"))
}

/// A call within [`PATIENCE`].
pub(crate) async fn bounded<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(PATIENCE, call).await.unwrap_or_else(|_| {
        Err(Status::deadline_exceeded(format!("{HANGS}: no answer within {} s", PATIENCE.as_secs())))
    })
}

/// How a call that hangs is told from one that the daemon refused.
const HANGS: &str = "hangs";

/// Whether this error is ours, for a call that hung.
pub(crate) fn hung(status: &Status) -> bool {
    status.message().starts_with(HANGS)
}

/// Drives a call to its end.
pub(crate) fn drive<T>(api: &Api, call: impl AsyncFnOnce(Rpc) -> T) -> T {
    api.block_on(call(api.rpc()))
}
