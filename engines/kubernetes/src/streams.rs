//! Exec, attach and port-forward: connects the streams of executor-streams to executord (rules C33 to C37).
//!
//! A call returns a URL that a client opens. Each client has its own connection to executord, whose buffers hold the
//! streamed bytes and are freed when the client disconnects.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use executor_client::v1::{ExecStart, LogStream, WindowSize};
use executor_client::{Attach, AttachOptions, Attached, Client, Executed, Input, Received, rest_of_log};
use executor_cri_api::v1::{AttachRequest, ContainerState, ExecRequest, PortForwardRequest};
use executor_streams::{
    BoxFuture, Connect, Connection, Outcome, Output, Process, RegisterError, Resizes, Size, Streams, Wanted,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::exec::{exit_code, start};
use crate::failure;
use crate::node::Node;
use crate::status::state;
use crate::store::Container;

/// Size of the buffer between a client and a port in each direction, in bytes.
const BUFFER: usize = 64 << 10;

/// Registers a command for a client, and returns its URL.
///
/// # Errors
/// Returns NOT_FOUND if the container does not exist, FAILED_PRECONDITION if the container is not running,
/// INVALID_ARGUMENT if there is no command, no stream, or a terminal with stderr, or RESOURCE_EXHAUSTED if too many
/// requests wait for their clients.
pub(crate) fn exec(node: &Arc<Node>, request: ExecRequest) -> Result<String, Status> {
    let container = running(node, &request.container_id)?;
    let ExecRequest { cmd, tty, stdin, stdout, stderr, .. } = request;
    let start = ExecStart { terminal: tty, stdin, ..start(container.record.id.clone(), cmd)? };
    let id = container.record.id.clone();
    let streams = node.streams.owned_by(&id);
    let handler = {
        let node = Arc::clone(node);
        move |process| async move { finish(execute(&node, start, process).await) }
    };
    let url = streams.exec(Wanted { stdin, stdout, stderr, tty }, handler).map_err(|error| refused(&error))?;
    valid(&streams, &id, url, || running(node, &id).map(drop))
}

/// Returns the URL. If the object no longer exists, revokes the URLs of the object and returns the error of `exists`:
/// the removal of an object does not revoke URLs that are registered later.
fn valid(
    streams: &Streams,
    owner: &str,
    url: String,
    exists: impl FnOnce() -> Result<(), Status>,
) -> Result<String, Status> {
    exists().inspect_err(|_| streams.revoke(owner))?;
    Ok(url)
}

/// Registers a client for the process of a container, and returns its URL.
///
/// # Errors
/// Returns an error under the conditions of [`exec`], except for the command.
pub(crate) fn attach(node: &Arc<Node>, request: &AttachRequest) -> Result<String, Status> {
    let container = running(node, &request.container_id)?;
    let AttachRequest { tty, stdin, stdout, stderr, .. } = *request;
    let id = container.record.id.clone();
    let streams = node.streams.owned_by(&id);
    let handler = {
        let node = Arc::clone(node);
        move |process| async move { finish(follow(&node, &container, process).await) }
    };
    let url = streams.attach(Wanted { stdin, stdout, stderr, tty }, handler).map_err(|error| refused(&error))?;
    valid(&streams, &id, url, || running(node, &id).map(drop))
}

/// Registers a client for ports of a sandbox, and returns its URL.
///
/// # Errors
/// Returns NOT_FOUND if the sandbox does not exist, FAILED_PRECONDITION if the sandbox is not ready, or
/// RESOURCE_EXHAUSTED if too many requests wait for their clients.
pub(crate) fn port_forward(node: &Arc<Node>, request: &PortForwardRequest) -> Result<String, Status> {
    let sandbox = node.sandbox(&request.pod_sandbox_id)?;
    if !sandbox.is_ready() {
        return Err(Status::failed_precondition("the sandbox is not ready"));
    }
    let id = sandbox.record.id.clone();
    let ports = Arc::new(Ports { node: Arc::clone(node), pod: id.clone() });
    let streams = node.streams.owned_by(&id);
    let url = streams.port_forward(ports).map_err(|error| refused(&error))?;
    valid(&streams, &id, url, || node.sandbox(&id).map(drop))
}

fn running(node: &Node, id: &str) -> Result<Container, Status> {
    let container = node.container(id)?;
    match state(&container) {
        ContainerState::ContainerRunning => Ok(container),
        other => Err(Status::failed_precondition(format!("the container is {}", other.as_str_name()))),
    }
}

fn refused(error: &RegisterError) -> Status {
    let code = match error {
        RegisterError::NoStream | RegisterError::TtyStderr => Code::InvalidArgument,
        RegisterError::TooMany(_) => Code::ResourceExhausted,
        RegisterError::Random(_) => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}

fn finish(outcome: Result<Outcome, Status>) -> Outcome {
    outcome.unwrap_or_else(|status| Outcome::Failed(status.message().to_owned()))
}

async fn execute(node: &Node, start: ExecStart, process: Process) -> Result<Outcome, Status> {
    let client = node.own_client().await?;
    let mut exec = client.exec(start).await.map_err(failure::status)?;
    let Process { stdin, mut stdout, mut stderr, resizes } = process;
    let input = exec.input();
    let output = async {
        loop {
            match exec.next().await.map_err(failure::status)? {
                Executed::Started { .. } => {}
                Executed::Stdout(bytes) => write(&mut stdout, &bytes).await?,
                Executed::Stderr(bytes) => write(&mut stderr, &bytes).await?,
                Executed::Exit(exit) => return Ok(Outcome::Exited(exit_code(exit))),
                Executed::Failed(failed) => return Ok(Outcome::Failed(failed.message)),
            }
        }
    };
    tokio::select! {
        outcome = output => outcome,
        never = feed(stdin, &input, true) => match never {},
        never = resize(resizes, &input) => match never {},
    }
}

/// Connects a client to the process of a container. With input, the process waits for a slow client. Without input,
/// output that a slow client misses is read from the log.
async fn follow(node: &Node, container: &Container, process: Process) -> Result<Outcome, Status> {
    let client = node.own_client().await?;
    let Process { stdin, mut stdout, mut stderr, resizes } = process;
    let record = &container.record;
    let has_input = stdin.is_some() && record.config.stdin;
    let options = AttachOptions {
        input: has_input,
        no_output: stdout.is_none() && stderr.is_none(),
        lossless: has_input,
        ..AttachOptions::default()
    };
    let mut attached = Attachment {
        attach: Some(client.attach(&record.id, options)),
        ends_input: has_input && record.config.stdin_once,
    };
    let Some(attach) = &mut attached.attach else { return Ok(Outcome::Exited(0)) };
    let input = attach.input();
    let output = outputs(&client, &record.id, (attach, has_input), &mut stdout, &mut stderr);
    tokio::select! {
        ended = output => ended.map(|()| Outcome::Exited(0)),
        never = feed(stdin.filter(|_| has_input), &input, record.config.stdin_once) => match never {},
        never = resize(resizes, &input) => match never {},
    }
}

/// Time for the end of input to reach executord after the client has disconnected.
const FLUSH_DELAY: Duration = Duration::from_secs(1);

/// An attached client. With `ends_input`, the process's input also ends if the client disconnects without ending its
/// input.
struct Attachment {
    attach: Option<Attach>,
    ends_input: bool,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let Some(attach) = self.attach.take().filter(|_| self.ends_input) else { return };
        tokio::spawn(async move {
            attach.input().end().await;
            tokio::time::sleep(FLUSH_DELAY).await;
            drop(attach);
        });
    }
}

async fn outputs(
    client: &Client,
    id: &str,
    (attach, is_lossless): (&mut Attach, bool),
    stdout: &mut Option<Output>,
    stderr: &mut Option<Output>,
) -> Result<(), Status> {
    while let Some(event) = attach.next().await.map_err(failure::status)? {
        match event {
            Attached::Stdout(bytes) => write(stdout, &bytes).await?,
            Attached::Stderr(bytes) => write(stderr, &bytes).await?,
            Attached::Missed(bytes) => {
                if let Some(offset) = attach.offset().filter(|_| !is_lossless) {
                    return from_log(client, id, offset.saturating_sub(bytes), stdout, stderr).await;
                }
            }
            Attached::RestInLog(offset) => return from_log(client, id, offset, stdout, stderr).await,
        }
    }
    Ok(())
}

/// Writes the log from a byte offset of the output until the container has exited.
async fn from_log(
    client: &Client,
    id: &str,
    offset: u64,
    stdout: &mut Option<Output>,
    stderr: &mut Option<Output>,
) -> Result<(), Status> {
    let mut log = client.logs(rest_of_log(id, offset));
    while let Some(entry) = log.next().await.map_err(failure::status)? {
        match entry.stream() {
            LogStream::Stdout => write(stdout, &entry.data).await?,
            LogStream::Stderr => write(stderr, &entry.data).await?,
            LogStream::Executor | LogStream::Unspecified => {}
        }
        if let Some(gap) = entry.gap {
            let why = format!("the client is too slow: the log has lost {} bytes of output", gap.dropped_bytes);
            return Err(Status::data_loss(why));
        }
    }
    Ok(())
}

/// Writes output to the client, if the client has requested the stream.
async fn write(output: &mut Option<Output>, bytes: &[u8]) -> Result<(), Status> {
    match output {
        Some(output) => output.write(bytes).await.map_err(|_| Status::cancelled("the client has disconnected")),
        None => Ok(()),
    }
}

/// Result of a task that never completes by itself.
enum Never {}

/// Sends the client's input. With `ends`, also sends the end of the input.
async fn feed(stdin: Option<executor_streams::Input>, input: &Input, ends: bool) -> Never {
    if let Some(mut stdin) = stdin {
        while let Some(bytes) = stdin.read().await {
            if !input.send(bytes.to_vec()).await {
                break;
            }
        }
        if ends {
            input.end().await;
        }
    }
    std::future::pending().await
}

async fn resize(resizes: Option<Resizes>, input: &Input) -> Never {
    if let Some(mut resizes) = resizes {
        while let Some(Size { width, height }) = resizes.next().await {
            input.resize(WindowSize { rows: height.into(), columns: width.into() }).await;
        }
    }
    std::future::pending().await
}

struct Ports {
    node: Arc<Node>,
    pod: String,
}

impl Connect for Ports {
    fn connect(&self, port: u16) -> BoxFuture<io::Result<Box<dyn Connection>>> {
        let (node, pod) = (Arc::clone(&self.node), self.pod.clone());
        Box::pin(async move {
            let client = node.own_client().await.map_err(|status| io::Error::other(status.message().to_owned()))?;
            let connected = client.pods().connect_port(&pod, port).await;
            let connection = connected.map_err(connect_error)?;
            let (near, far) = tokio::io::duplex(BUFFER);
            let is_broken = Arc::new(AtomicBool::new(false));
            let task = tokio::spawn(pass(far, connection, Arc::clone(&is_broken)));
            Ok(Box::new(Tunnel { near, task, is_broken }) as Box<dyn Connection>)
        })
    }
}

/// Converts an error of a connection to a port. A refused connection ends only its pair of streams; an error with a
/// violation, such as for a pod that is not ready, ends the session.
fn connect_error(error: executor_client::Error) -> io::Error {
    match error.code() {
        Some(Code::FailedPrecondition) if error.violations().is_empty() => io::ErrorKind::ConnectionRefused.into(),
        Some(Code::Aborted) => io::ErrorKind::ConnectionReset.into(),
        _ => io::Error::other(failure::status(error).message().to_owned()),
    }
}

/// The client's end of a connection to a port. Dropping it closes the connection.
struct Tunnel {
    near: DuplexStream,
    task: JoinHandle<()>,
    /// True if the connection to the port broke, so that the end of the bytes is reported as an error.
    is_broken: Arc<AtomicBool>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.near).poll_read(context, buf))?;
        match buf.filled().len() == before && self.is_broken.load(Ordering::Acquire) {
            true => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            false => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.near).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_shutdown(context)
    }
}

/// Passes bytes between a client and a port, until the port has closed its direction of the connection.
async fn pass(stream: DuplexStream, mut connection: executor_client::Connection, is_broken: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = tokio::io::split(stream);
    let input = connection.input();
    let up = async {
        let mut buffer = vec![0; BUFFER];
        loop {
            match from_client.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) if !input.send(buffer[..length].to_vec()).await => break,
                Ok(_) => {}
            }
        }
        input.end().await;
        // The port may still send after the end of the client's input.
        std::future::pending::<Never>().await
    };
    let down = async {
        loop {
            match connection.next().await {
                Ok(Some(Received::Data(bytes))) if to_client.write_all(&bytes).await.is_err() => return,
                Ok(Some(Received::Data(_))) => {}
                Ok(Some(Received::End)) => drop(to_client.shutdown().await),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!("a connection to a port broke: {error}");
                    return is_broken.store(true, Ordering::Release);
                }
            }
        }
    };
    tokio::select! {
        never = up => match never {},
        () = down => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::refused;

    /// Rule C37: only errors about the pod end the session.
    #[test]
    fn ended_pods_end_their_sessions() {
        let refusing = connect_error(refused(Code::FailedPrecondition, "", ""));
        assert_eq!(refusing.kind(), io::ErrorKind::ConnectionRefused);
        let ended = connect_error(refused(Code::FailedPrecondition, "pod", "UNSUITABLE"));
        assert_eq!((ended.kind(), ended.to_string()), (io::ErrorKind::Other, "pod: why".to_owned()));
        let deleted = connect_error(refused(Code::NotFound, "id", "NOT_FOUND"));
        assert_eq!(deleted.kind(), io::ErrorKind::Other);
        assert_eq!(connect_error(refused(Code::Aborted, "", "")).kind(), io::ErrorKind::ConnectionReset);
    }
}
