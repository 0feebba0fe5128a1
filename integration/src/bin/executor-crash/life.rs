//! One container's life, as a client lives it: Run, the output, UpdateFiles, Wait, GetOutputs, Delete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use executor_proto::v1::get_outputs_response::Part;
use executor_proto::v1::{
    Container, DeleteRequest, GetOutputsRequest, GetRequest, LogStream, Outputs, RunRequest, RunResponse, State,
    StreamLogsRequest, StreamLogsResponse, UpdateFilesRequest, WaitRequest,
};
use integration::api::{Api, Rpc};
use integration::request::{self, Words, program};
use tonic::{Code, Status, Streaming};

/// How long a call may take. A supervisor's restart lies within it; only a fault reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The container's exit code.
pub(crate) const CODE: i32 = 7;
/// Size of the larger secret file.
const LARGE: usize = 9000;

/// Where a client is in its calls.
#[derive(Clone, Default)]
pub(crate) struct Step(Arc<AtomicU8>);

const STEPS: [&str; 8] =
    ["before Run", "Run", "StreamLogs", "UpdateFiles", "StreamLogs", "Wait", "GetOutputs", "Delete"];

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
    /// All that the container printed.
    pub(crate) output: Option<Result<Vec<u8>, Status>>,
    pub(crate) update: Option<Result<(), Status>>,
    pub(crate) wait: Option<Result<Container, Status>>,
    /// Bytes of the captured file.
    pub(crate) captured: Option<Result<Vec<u8>, Status>>,
    pub(crate) delete: Option<Result<(), Status>>,
}

/// A container's secrets: what it is started with, and what its files are replaced by.
#[derive(Clone, Debug)]
pub(crate) struct Secrets {
    pub(crate) first: String,
    pub(crate) second: String,
}

/// The request of a life: every kind of secret input, a file that is captured, an exit code. The process says that it
/// has read its secrets, waits for the second generation of its files, and ends.
pub(crate) fn request(id: &str, secrets: &Secrets) -> RunRequest {
    let secret = &secrets.first;
    let large: Vec<u8> = secret.bytes().cycle().take(LARGE).collect();
    let mut request = program("/bin/sh", &["-c", SCRIPT, "sh", ""])
        .id(id)
        .file("db/password", secret.as_bytes())
        .file("/etc/crash-canary", &large)
        .secret_env("TOKEN", secret)
        .secret_arg(3, secret)
        .runtime_token("/etc/crash-token");
    request.outputs = Some(Outputs { files: vec![CAPTURED.into()], ..Outputs::default() });
    request
}

const SCRIPT: &str = "read -r a < /etc/cf-service-bindings/db/password; read -r b < /etc/crash-canary; \
    echo \"${#a} ${#b} ${#TOKEN} ${#1}\"; echo kept > /tmp/kept; \
    while [ ! -e /etc/cf-service-bindings/db/next ]; do sleep 0.005; done; \
    read -r c < /etc/cf-service-bindings/db/password; read -r d < /etc/cf-service-bindings/db/next; \
    [ \"$c\" = \"$d\" ] && [ \"$c\" != \"$a\" ] && echo changed; echo done >&2; exit 7";
const CAPTURED: &str = "/tmp/kept";
/// What the captured file holds.
pub(crate) const CONTENT: &[u8] = b"kept\n";

/// The update of a life: one file replaced, one added.
fn update(id: &str, secrets: &Secrets) -> UpdateFilesRequest {
    let content = secrets.second.as_bytes();
    request::update(id, &[("db/password", content), ("db/next", content)])
}

/// What the container prints, its standard output first.
pub(crate) fn output(secrets: &Secrets) -> Vec<u8> {
    let length = secrets.first.len();
    format!("{length} {LARGE} {length} {length}\nchanged\ndone\n").into_bytes()
}

/// Lives it, as far as it goes: it ends at the first error, as a client's does.
pub(crate) async fn live(mut rpc: Rpc, request: RunRequest, secrets: Secrets, step: Step) -> Trail {
    let mut trail = Trail::default();
    let _ = walk(&mut rpc, request, &secrets, &step, &mut trail).await;
    trail
}

/// An error was told, and is in the trail.
struct Stopped;

async fn walk(
    rpc: &mut Rpc,
    request: RunRequest,
    secrets: &Secrets,
    step: &Step,
    trail: &mut Trail,
) -> Result<(), Stopped> {
    let id = request.id.clone();
    step.enter(1);
    keep(&mut trail.run, bounded(rpc.run(request)).await.map(tonic::Response::into_inner))?;
    step.enter(2);
    let mut output = Output::default();
    if let Err(status) = output.begin(rpc, &id).await {
        return keep(&mut trail.output, Err(status));
    }
    step.enter(3);
    keep(&mut trail.update, bounded(rpc.update_files(update(&id, secrets))).await.map(drop))?;
    step.enter(4);
    keep(&mut trail.output, output.rest().await)?;
    step.enter(5);
    keep(&mut trail.wait, wait(rpc, &id).await)?;
    step.enter(6);
    keep(&mut trail.captured, captured(rpc, &id).await)?;
    step.enter(7);
    keep(&mut trail.delete, bounded(rpc.delete(DeleteRequest { id, force: false })).await.map(drop))
}

fn keep<T>(place: &mut Option<Result<T, Status>>, answer: Result<T, Status>) -> Result<(), Stopped> {
    place.insert(answer).as_ref().map(drop).map_err(|_| Stopped)
}

/// The output of a container as it comes.
#[derive(Default)]
struct Output {
    stream: Option<Streaming<StreamLogsResponse>>,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Output {
    /// Reads the first line, or all where there is none.
    async fn begin(&mut self, rpc: &mut Rpc, id: &str) -> Result<(), Status> {
        let request = StreamLogsRequest { id: id.to_owned(), follow: true, ..StreamLogsRequest::default() };
        self.stream = Some(bounded(rpc.stream_logs(request)).await?.into_inner());
        while self.out.is_empty() && self.next().await? {}
        Ok(())
    }

    async fn next(&mut self) -> Result<bool, Status> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let Some(entry) = bounded(stream.message()).await? else { return Ok(false) };
        match entry.stream() {
            LogStream::Stdout => self.out.extend(entry.data),
            LogStream::Stderr => self.err.extend(entry.data),
            _ => {}
        }
        Ok(true)
    }

    /// All that it prints, standard output first.
    async fn rest(mut self) -> Result<Vec<u8>, Status> {
        while self.next().await? {}
        self.out.extend(self.err);
        Ok(self.out)
    }
}

/// All that it prints until its end.
pub(crate) async fn read_output(rpc: &mut Rpc, id: &str) -> Result<Vec<u8>, Status> {
    let mut output = Output::default();
    output.begin(rpc, id).await?;
    output.rest().await
}

/// Waits until it has printed its first line, and has read its secrets therefore; or until it has ended.
pub(crate) async fn is_up(rpc: &mut Rpc, id: &str) -> Result<(), Status> {
    Output::default().begin(rpc, id).await
}

/// Brings a container that lives on its way to its end: updates its files, whether that was done before or not.
pub(crate) async fn bring_on(rpc: &mut Rpc, id: &str, secrets: &Secrets) -> Result<(), Status> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match bounded(rpc.update_files(update(id, secrets))).await {
            Ok(_) => return Ok(()),
            // It is at its end, or never began.
            Err(status) if matches!(status.code(), Code::NotFound) => return Ok(()),
            Err(status) if status.code() == Code::FailedPrecondition => {
                let container = get(rpc, id).await;
                if container.as_ref().is_ok_and(|it| it.state() >= State::Wiping) || container.is_err() {
                    return Ok(());
                }
                // Not running yet: it was found while it was being made.
                if tokio::time::Instant::now() > deadline {
                    return Err(status);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(status) => return Err(status),
        }
    }
}

/// The captured file.
pub(crate) async fn captured(rpc: &mut Rpc, id: &str) -> Result<Vec<u8>, Status> {
    let request = GetOutputsRequest { id: id.to_owned(), path: String::new() };
    let mut stream = bounded(rpc.get_outputs(request)).await?.into_inner();
    let mut content = Vec::new();
    while let Some(message) = bounded(stream.message()).await? {
        if let Some(Part::Data(data)) = message.part {
            content.extend(data);
        }
    }
    Ok(content)
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
