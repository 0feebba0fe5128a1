//! Runs one container as a client: Run, StreamLogs, UpdateFiles, Wait, GetOutputs, Delete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use executor_proto::v1::get_outputs_response::Part;
use executor_proto::v1::{
    Action, Container, DeleteRequest, GetOutputsRequest, GetRequest, LogStream, Network, Outputs, ParallelAction,
    PortMapping, RunRequest, RunResponse, SerialAction, State, StreamLogsRequest, StreamLogsResponse, TimeoutAction,
    TryAction, UpdateFilesRequest, WaitRequest,
};
use integration::api::{Api, Rpc};
use integration::request::{self, RequestBuilder, program};
use tonic::{Code, Status, Streaming};

use crate::shelf::{LARGE, Shelf};

/// Timeout of a call. The timeout includes a supervisor's restart and expires only after an error.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The container's exit code.
pub(crate) const CODE: i32 = 7;

/// The RPC that a client currently makes.
#[derive(Clone, Default)]
pub(crate) struct Step(Arc<AtomicU8>);

const STEPS: [&str; 8] =
    ["before Run", "Run", "StreamLogs", "UpdateFiles", "StreamLogs", "Wait", "GetOutputs", "Delete"];

impl Step {
    fn enter(&self, step: u8) {
        self.0.store(step, Ordering::SeqCst);
    }

    /// Returns the name of the RPC.
    pub(crate) fn name(&self) -> &'static str {
        STEPS[usize::from(self.0.load(Ordering::SeqCst)).min(STEPS.len() - 1)]
    }
}

/// Responses that a client received; `None` for a call that was not made.
#[derive(Debug, Default)]
pub(crate) struct ClientAnswers {
    pub(crate) run: Option<Result<RunResponse, Status>>,
    /// The whole output of the container.
    pub(crate) output: Option<Result<Vec<u8>, Status>>,
    pub(crate) update: Option<Result<(), Status>>,
    pub(crate) wait: Option<Result<Container, Status>>,
    /// Content of the captured file.
    pub(crate) captured: Option<Result<Vec<u8>, Status>>,
    pub(crate) delete: Option<Result<(), Status>>,
}

/// Secrets of a container: initial secrets, and secrets of the update.
#[derive(Clone, Debug)]
pub(crate) struct Secrets {
    pub(crate) first: String,
    pub(crate) second: String,
    /// Provider directory if requests refer to the secrets. `None` if the requests contain the secrets.
    pub(crate) shelf: Option<Arc<Shelf>>,
}

impl Secrets {
    /// Writes the initial secrets into the provider directory, if there is one.
    pub(crate) fn offer_first(&self) {
        self.shelf.iter().for_each(|shelf| shelf.put(&self.first));
    }

    /// Writes the secrets of the update into the provider directory. Returns false if there is no such directory; a
    /// request must then contain the secrets.
    fn offer_second(&self) -> bool {
        self.shelf.iter().for_each(|shelf| shelf.put(&self.second));
        self.shelf.is_some()
    }
}

/// Builds the request of a cycle. The request has every kind of secret input, a captured file, and an exit code. The
/// process reports that it has read its secrets, waits for the second generation of its files, and exits. If `is_tree`,
/// the process is the last of six steps of a tree of actions. Each step has two or more secrets. If `has_token`, the
/// container has a runtime token, and a helper writes the files even in a warm container.
pub(crate) fn request(id: &str, secrets: &Secrets, rootfs: &str, (is_tree, has_token): (bool, bool)) -> RunRequest {
    let secret = &secrets.first;
    let large: Vec<u8> = secret.bytes().cycle().take(LARGE).collect();
    let request = program("/bin/sh", &["-c", SCRIPT, "sh", ""])
        .id(id)
        .rootfs(rootfs)
        .file("db/password", secret.as_bytes())
        .file("/etc/crash-canary", &large)
        .secret_env("TOKEN", secret)
        .secret_arg(3, secret);
    let mut request = if has_token { request.runtime_token("/etc/crash-token") } else { request };
    request.outputs = Some(Outputs { files: vec![CAPTURED.into()], ..Outputs::default() });
    let request = if is_tree { in_a_tree(request, secret) } else { request };
    if secrets.shelf.is_some() { by_reference(request) } else { request }
}

/// Puts the container of a request on the built-in network, with a published port.
pub(crate) fn on_network(request: RunRequest) -> RunRequest {
    let port = PortMapping { host_port: 8080, container_port: 80, ..PortMapping::default() };
    RunRequest { network: Network::Cni.into(), network_name: "bridge".into(), ports: vec![port], ..request }
}

/// Replaces every secret of a request with a reference. Files that an update would add exist from the start.
fn by_reference(request: RunRequest) -> RunRequest {
    request.file("db/next", b"").action(|run| {
        for file in &mut run.volume_mounted_files {
            let is_large = file.content.len() == LARGE;
            file.from = Some(Shelf::reference(if is_large { Shelf::LARGE } else { Shelf::SMALL }));
            file.content.clear();
        }
        for variable in &mut run.secret_environment {
            variable.from = Some(Shelf::reference(Shelf::SMALL));
            variable.value.clear();
        }
        for argument in &mut run.secret_arguments {
            argument.from = Some(Shelf::reference(Shelf::SMALL));
            argument.value.clear();
        }
    })
}

/// Makes the program of a request the last step of a tree. The program's files become the container's files, because
/// only the container's files can be updated.
fn in_a_tree(mut request: RunRequest, secret: &str) -> RunRequest {
    let step = |number: u32, status: i32| {
        let path = format!("/etc/crash-steps/{number}");
        let script = format!("read -r a < {path}; [ \"$a\" = \"$S\" ] && exit {status}; echo wrong; exit 99");
        let step = program("/bin/sh", &["-c", &script]).file(&path, secret.as_bytes()).secret_env("S", secret);
        step.action.unwrap_or_default()
    };
    let mut last = request.action.take().unwrap_or_default();
    if let Some(run) = &mut last.run {
        request.volume_mounted_files.append(&mut run.volume_mounted_files);
    }
    let parallel = ParallelAction { actions: vec![step(1, 0), step(2, 0)], ..ParallelAction::default() };
    let attempt = TryAction { action: Some(Box::new(step(3, 1))), ..TryAction::default() };
    let timeout = TimeoutAction { action: Some(Box::new(step(4, 0))), timeout_ms: 60_000, ..TimeoutAction::default() };
    let actions = vec![
        Action { parallel: Some(parallel), ..Action::default() },
        Action { r#try: Some(Box::new(attempt)), ..Action::default() },
        Action { timeout: Some(Box::new(timeout)), ..Action::default() },
        step(5, 0),
        last,
    ];
    let serial = SerialAction { actions, ..SerialAction::default() };
    request.action = Some(Action { serial: Some(serial), ..Action::default() });
    request
}

const SCRIPT: &str = "read -r a < /etc/cf-service-bindings/db/password; read -r b < /etc/crash-canary; \
    echo \"${#a} ${#b} ${#TOKEN} ${#1}\"; echo kept > /tmp/kept; \
    d=$a; while [ ! -e /etc/cf-service-bindings/db/next ] || \
    { read -r d < /etc/cf-service-bindings/db/next; [ \"$d\" = \"$a\" ]; }; do sleep 0.005; done; \
    read -r c < /etc/cf-service-bindings/db/password; \
    [ \"$c\" = \"$d\" ] && [ \"$c\" != \"$a\" ] && echo changed; echo done >&2; exit 7";
const CAPTURED: &str = "/tmp/kept";
/// Content of the captured file.
pub(crate) const CONTENT: &[u8] = b"kept\n";

/// Builds the update of a cycle: it replaces one file and adds one.
fn update(id: &str, secrets: &Secrets) -> UpdateFilesRequest {
    let content = secrets.second.as_bytes();
    request::update(id, &[("db/password", content), ("db/next", content)])
}

/// Returns the expected output, standard output first.
pub(crate) fn output(secrets: &Secrets) -> Vec<u8> {
    let length = secrets.first.len();
    format!("{length} {LARGE} {length} {length}\nchanged\ndone\n").into_bytes()
}

/// Makes the RPCs of a cycle in order, up to the first error.
pub(crate) async fn run(mut rpc: Rpc, request: RunRequest, secrets: Secrets, step: Step) -> ClientAnswers {
    let mut answers = ClientAnswers::default();
    let _ = make_calls(&mut rpc, request, &secrets, &step, &mut answers).await;
    answers
}

/// A call has failed; the error is in `ClientAnswers`.
struct CallFailed;

async fn make_calls(
    rpc: &mut Rpc,
    request: RunRequest,
    secrets: &Secrets,
    step: &Step,
    answers: &mut ClientAnswers,
) -> Result<(), CallFailed> {
    let id = request.id.clone();
    step.enter(1);
    record(&mut answers.run, bounded(rpc.run(request)).await.map(tonic::Response::into_inner))?;
    step.enter(2);
    let mut output = Output::default();
    if let Err(status) = output.start(rpc, &id).await {
        return record(&mut answers.output, Err(status));
    }
    step.enter(3);
    if !secrets.offer_second() {
        record(&mut answers.update, bounded(rpc.update_files(update(&id, secrets))).await.map(drop))?;
    }
    step.enter(4);
    record(&mut answers.output, output.rest().await)?;
    step.enter(5);
    record(&mut answers.wait, wait(rpc, &id).await)?;
    step.enter(6);
    record(&mut answers.captured, captured(rpc, &id).await)?;
    step.enter(7);
    record(&mut answers.delete, bounded(rpc.delete(DeleteRequest { id, force: false })).await.map(drop))
}

fn record<T>(place: &mut Option<Result<T, Status>>, answer: Result<T, Status>) -> Result<(), CallFailed> {
    place.insert(answer).as_ref().map(drop).map_err(|_| CallFailed)
}

/// Output of a container while it is read.
#[derive(Default)]
struct Output {
    stream: Option<Streaming<StreamLogsResponse>>,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Output {
    /// Reads until the first line of standard output, or to the end if standard output is empty.
    async fn start(&mut self, rpc: &mut Rpc, id: &str) -> Result<(), Status> {
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

    /// Reads the rest of the output, and returns the whole output, with standard output first.
    async fn rest(mut self) -> Result<Vec<u8>, Status> {
        while self.next().await? {}
        self.out.extend(self.err);
        Ok(self.out)
    }
}

/// Reads a container's output to the end.
pub(crate) async fn read_output(rpc: &mut Rpc, id: &str) -> Result<Vec<u8>, Status> {
    let mut output = Output::default();
    output.start(rpc, id).await?;
    output.rest().await
}

/// Waits until the container has printed its first line, and thus has read its secrets, or has exited.
pub(crate) async fn wait_until_up(rpc: &mut Rpc, id: &str) -> Result<(), Status> {
    Output::default().start(rpc, id).await
}

/// Lets a running container continue to its exit, by an update of its files or by new values of its references. Can be
/// called several times. First waits until the container has read the initial values, because the last of several steps
/// may not have started.
pub(crate) async fn let_proceed(rpc: &mut Rpc, id: &str, secrets: &Secrets) -> Result<(), Status> {
    let up = wait_until_up(rpc, id).await;
    if secrets.offer_second() {
        return match up {
            Err(status) if hung(&status) => Err(status),
            _ => Ok(()), // Wait reports other errors
        };
    }
    // If the container is not up, the update reports the reason.
    let deadline = tokio::time::Instant::now() + CALL_TIMEOUT;
    loop {
        match bounded(rpc.update_files(update(id, secrets))).await {
            Ok(_) => return Ok(()),
            // The container has exited or never started.
            Err(status) if matches!(status.code(), Code::NotFound) => return Ok(()),
            Err(status) if status.code() == Code::FailedPrecondition => {
                let container = get(rpc, id).await;
                if container.as_ref().is_ok_and(|it| it.state() >= State::Wiping) || container.is_err() {
                    return Ok(());
                }
                // Not running yet: the container exists while it is being created.
                if tokio::time::Instant::now() > deadline {
                    return Err(status);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(status) => return Err(status),
        }
    }
}

/// Fetches the captured file.
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

/// Waits for a container's exit.
pub(crate) async fn wait(rpc: &mut Rpc, id: &str) -> Result<Container, Status> {
    let response = bounded(rpc.wait(WaitRequest { id: id.to_owned() })).await?;
    response.into_inner().container.ok_or_else(|| Status::internal("Wait returned no container"))
}

/// Calls Get.
pub(crate) async fn get(rpc: &mut Rpc, id: &str) -> Result<Container, Status> {
    let response = bounded(rpc.get(GetRequest { id: id.to_owned() })).await?;
    response.into_inner().container.ok_or_else(|| Status::internal("Get returned no container"))
}

/// Bounds a call by [`CALL_TIMEOUT`].
pub(crate) async fn bounded<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| {
        Err(Status::deadline_exceeded(format!("{HANGS}: no response within {} s", CALL_TIMEOUT.as_secs())))
    })
}

/// Prefix of the error message for a call that hung, to distinguish it from the daemon's errors.
const HANGS: &str = "hangs";

/// Returns true if an error comes from a timeout in [`bounded`].
pub(crate) fn hung(status: &Status) -> bool {
    status.message().starts_with(HANGS)
}

/// Runs a call to completion.
pub(crate) fn drive<T>(api: &Api, call: impl AsyncFnOnce(Rpc) -> T) -> T {
    api.block_on(call(api.rpc()))
}
