//! Exec: streams input to a process, and its output and exit to the client.

use std::sync::Arc;
use std::time::Duration;

use executor_core::checks::words_of;
use executor_core::limits::SIGNAL_MAX;
use executor_core::record::Exit;
use executor_core::validate::ViolationReason::OutOfRange;
use executor_core::validate::{FieldFault, ViolationReason, WINDOW_MAX};
use executor_proto::Wiped;
use executor_proto::v1::exec_request::Part as In;
use executor_proto::v1::exec_response::Part as Out;
use executor_proto::v1::{self, ExecRequest, ExecResponse, ExitStatus, exit_status};
use executor_sys::pty::{self, Window};
use executor_transport::wire::conversation::{Answers, Conversation, Outlet, Requests};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::{Status, Streaming};
use zeroize::{Zeroize as _, Zeroizing};

use super::first_message;
use crate::api_error::{ApiError, Kind};
use crate::node::Node;
use crate::operations::exec::{self, ExecEnd, ExecOutcome, ExecSession, Stdio, StdioFd};

/// Maximum size of the output in one message, in bytes.
const CHUNK: usize = 16 << 10;
/// Maximum number of bytes that are read from a pipe or a terminal after the process has exited, because other
/// processes may keep writing.
const REST: usize = 1 << 20;
/// Maximum number of queued input messages.
const INPUT_DEPTH: usize = 16;

type ExecSender = Outlet<ExecResponse>;

/// Executes the process that the first message describes.
pub(super) async fn exec(
    node: &Arc<Node>,
    requests: Streaming<ExecRequest>,
    conversation: &Conversation,
) -> Result<Answers<ExecResponse>, Status> {
    let mut requests = conversation.requests(requests);
    let first = first_message(&mut requests).await?;
    let Some(In::Start(start)) = first.and_then(|first| first.part) else {
        return Err(ApiError::invalid_field(
            "start",
            ViolationReason::Required.because("is not set: it must be in the first message"),
        )
        .into());
    };
    let detached = start.detached;
    let limit = exec::time_limit(&start).unwrap_or_default(); // `exec::start` reports the violation
    let outcome = exec::start(node, Wiped::new(start)).await.map_err(|problem| node.launcher.explain(problem))?;
    let (sender, answers) = conversation.answers();
    match outcome {
        ExecOutcome::Running(session, stdio) => {
            let _ = sender.send(Ok(response(Out::Started(v1::ExecStarted { pid: session.pid })))).await;
            if detached {
                tokio::spawn(discard_output(Arc::clone(node), session, stdio.stdout, stdio.stderr));
            } else {
                tokio::spawn(run_session(Arc::clone(node), session, stdio, requests, sender, limit));
            }
        }
        ExecOutcome::Failed(failure) => {
            let _ = sender.send(Ok(response(Out::Failure(failure)))).await;
        }
    }
    Ok(answers)
}

fn response(part: Out) -> ExecResponse {
    ExecResponse { part: Some(part) }
}

/// Serves the client until the process exits or the client detaches. The process is killed if the client disconnects,
/// and after the time limit.
async fn run_session(
    node: Arc<Node>,
    session: ExecSession,
    stdio: Stdio,
    requests: Requests<ExecRequest>,
    sender: ExecSender,
    limit: Option<Duration>,
) {
    let Stdio { terminal, input, stdout, stderr } = stdio;
    let own = (Arc::clone(&stdout), stderr.clone());
    let screen = terminal.then(|| Arc::clone(&stdout));
    let (over, ended) = watch::channel(false);
    // Dropping this stops the pumps.
    let mut pumps = JoinSet::new();
    pumps.spawn(pump(stdout, Out::Stdout, ended.clone(), sender.clone()));
    if let Some(stderr) = stderr {
        pumps.spawn(pump(stderr, Out::Stderr, ended, sender.clone()));
    }
    let work = async {
        let end = tokio::select! {
            end = session.ended_in_time() => end,
            detached = forward_input(&session, requests, input, screen) => return detached.map(|Detached| None),
        };
        let lost = || ApiError::new(Kind::Unavailable, "the process's supervisor was lost, and the process was killed");
        let end = end.ok_or_else(lost)?;
        over.send_replace(true);
        while pumps.join_next().await.is_some() {}
        match end {
            ExecEnd::Exit(exit) => Ok(Some(response(Out::Exit(exit_status(exit))))),
            ExecEnd::TimedOut => {
                let why = format!(
                    "the program took longer than {}: it was killed with the processes that it started",
                    words_of(limit.unwrap_or_default())
                );
                Err(ApiError::new(Kind::TimedOut, why).into())
            }
        }
    };
    let last = tokio::select! {
        last = work => last,
        () = sender.closed() => return, // there is no client for the result
        () = node.until_stopping() => Err(ApiError::stopping().into()),
    };
    let last = match last {
        Ok(Some(last)) => Ok(last),
        Ok(None) => {
            drop((pumps, sender));
            let (stdout, stderr) = own;
            return discard_output(node, session, stdout, stderr).await;
        }
        Err(status) => Err(status),
    };
    tokio::select! {
        _ = sender.send(last) => {}
        () = node.until_stopping() => {}
    }
}

/// The client has detached from the process.
struct Detached;

/// Waits until a detached process exits. Its output is discarded, so that the process does not block.
async fn discard_output(node: Arc<Node>, session: ExecSession, stdout: Arc<StdioFd>, stderr: Option<Arc<StdioFd>>) {
    let mut pumps = JoinSet::new();
    for end in std::iter::once(stdout).chain(stderr) {
        pumps.spawn(async move {
            let mut buffer = Zeroizing::new(vec![0; CHUNK]);
            while end.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
            // Closing a terminal would kill its processes.
            std::future::pending::<()>().await;
        });
    }
    tokio::select! {
        _ = session.ended_in_time() => {}
        () = node.until_stopping() => {}
    }
}

fn exit_status(exit: Exit) -> ExitStatus {
    let status = match exit {
        Exit::Code(code) => exit_status::Status::Code(code),
        Exit::Signal(signal) => exit_status::Status::Signal(signal),
    };
    ExitStatus { status: Some(status) }
}

/// Forwards a process's output until the output is closed, or until the process has exited and the remaining data is
/// sent.
async fn pump(end: Arc<StdioFd>, part: fn(Vec<u8>) -> Out, mut ended: watch::Receiver<bool>, sender: ExecSender) {
    let mut buffer = Zeroizing::new(vec![0; CHUNK]);
    let mut rest = REST;
    loop {
        let over = *ended.borrow();
        let read = match over {
            true => end.read_now(&mut buffer),
            false => tokio::select! {
                read = end.read(&mut buffer) => read,
                _ = ended.wait_for(|ended| *ended) => continue,
            },
        };
        let Ok(length @ 1..) = read else { return };
        if over {
            rest = rest.saturating_sub(length);
        }
        let output = response(part(buffer[..length].to_vec()));
        buffer[..length].zeroize(); // the next read may take long
        if sender.send(Ok(output)).await.is_err() || rest == 0 {
            return;
        }
    }
}

/// Handles the client's requests. Returns if the client detaches or sends an invalid request, or if the request stream
/// fails. If the process does not read its input, signals and window changes are delivered only while at most
/// [`INPUT_DEPTH`] input messages are queued.
async fn forward_input(
    session: &ExecSession,
    mut requests: Requests<ExecRequest>,
    input: Option<Arc<StdioFd>>,
    screen: Option<Arc<StdioFd>>,
) -> Result<Detached, Status> {
    let (typed, written) = mpsc::channel::<Zeroizing<Vec<u8>>>(INPUT_DEPTH);
    let mut writer = JoinSet::new();
    let mut typed = input.map(|input| {
        writer.spawn(write(input, written));
        typed
    });
    let invalid = |field: &str, fault: FieldFault| Err(ApiError::invalid_field(field, fault).into());
    loop {
        let Some(request) = requests.next().await? else {
            // A client that has half-closed its request stream may still read.
            if screen.is_none() {
                drop(typed.take());
            }
            return std::future::pending().await;
        };
        match request.part {
            Some(In::Stdin(bytes)) => {
                let bytes = Zeroizing::new(bytes);
                // Input after the end of input is ignored.
                if let Some(typed) = &typed {
                    let _ = typed.send(bytes).await;
                }
            }
            Some(In::EndOfInput(_)) => {
                if screen.is_none() {
                    typed = None;
                }
            }
            Some(In::Window(window)) => match (&screen, window_size(window)) {
                (_, None) => {
                    return invalid(
                        "window",
                        OutOfRange.because(format!("has more than {WINDOW_MAX} rows or columns")),
                    );
                }
                (Some(screen), Some(window)) => drop(pty::resize(screen.fd(), window)),
                (None, Some(_)) => {}
            },
            Some(In::Signal(signal)) => match i32::try_from(signal) {
                Ok(number) if (1..=SIGNAL_MAX).contains(&signal) => drop(session.signal(number).await),
                _ => {
                    let why = format!("is {signal}; 1 to {SIGNAL_MAX} are allowed");
                    return invalid("signal", OutOfRange.because(why));
                }
            },
            Some(In::Detach(_)) => return Ok(Detached),
            Some(In::Start(_)) => {
                return invalid(
                    "start",
                    ViolationReason::Duplicate.because("is set a second time; only the first message may have it"),
                );
            }
            None => return invalid("part", ViolationReason::Required.because("is not set")),
        }
    }
}

/// Converts a window size; `None` if a dimension is too large.
pub(super) fn window_size(window: v1::WindowSize) -> Option<Window> {
    Some(Window { rows: u16::try_from(window.rows).ok()?, columns: u16::try_from(window.columns).ok()? })
}

/// Writes input at the pace of the process, then closes the process's input.
async fn write(input: Arc<StdioFd>, mut typed: mpsc::Receiver<Zeroizing<Vec<u8>>>) {
    while let Some(bytes) = typed.recv().await {
        if input.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_bounded() {
        let side = |rows, columns| window_size(v1::WindowSize { rows, columns });
        assert_eq!(side(24, 65_535), Some(Window { rows: 24, columns: 65_535 }));
        assert_eq!(side(65_536, 1), None);
    }
}
