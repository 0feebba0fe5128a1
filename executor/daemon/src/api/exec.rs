//! Exec as a stream: what the client types goes in, what the process writes comes out, and how it ended.

use std::sync::Arc;

use executor_core::limits::SIGNAL_MAX;
use executor_core::validate::ViolationReason::OutOfRange;
use executor_core::validate::{FieldFault, ViolationReason, WINDOW_MAX};
use executor_proto::v1::exec_request::Part as In;
use executor_proto::v1::exec_response::Part as Out;
use executor_proto::v1::{self, ExecRequest, ExecResponse, ExitStatus, exit_status};
use executor_sys::pty::{self, Window};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::{Status, Streaming};
use zeroize::{Zeroize as _, Zeroizing};

use super::FIRST_MESSAGE;
use crate::exec::{self, Begun, End, Ends, Exit, Session, Start};
use crate::node::Node;
use crate::problem::{Kind, Problem};
use crate::wire::conversation::{Answers, Conversation, Outlet, Requests};

/// Bytes of output in a message.
const CHUNK: usize = 16 << 10;
/// What a pipe or a terminal may still hold of what a process wrote before it ended. Whoever holds it open beyond that is
/// not waited for.
const REST: usize = 1 << 20;
/// Messages of input that wait for the process to read.
const INPUT_DEPTH: usize = 16;

type Sender = Outlet<ExecResponse>;

/// Executes what the first message asks for.
pub(super) async fn exec(
    node: &Arc<Node>,
    requests: Streaming<ExecRequest>,
    conversation: &Conversation,
) -> Result<Answers<ExecResponse>, Status> {
    let mut requests = conversation.requests(requests);
    let first = tokio::time::timeout(FIRST_MESSAGE, requests.next()).await;
    let first = first.map_err(|_| Problem::new(Kind::Invalid, "no message came within 10 s"))??;
    let Some(In::Start(start)) = first.and_then(|first| first.part) else {
        return Err(Problem::invalid_field(
            "start",
            ViolationReason::Required.because("is not set: the first message says what to execute"),
        )
        .into());
    };
    let detached = start.detached;
    let begun = exec::begin(node, Start(start)).await?;
    let (sender, answers) = conversation.answers();
    match begun {
        Begun::Running(session, ends) => {
            let _ = sender.send(Ok(response(Out::Started(v1::ExecStarted { pid: session.pid })))).await;
            if detached {
                tokio::spawn(leave(Arc::clone(node), session, ends.stdout, ends.stderr));
            } else {
                tokio::spawn(attend(Arc::clone(node), session, ends, requests, sender));
            }
        }
        Begun::Failed(failure) => {
            let _ = sender.send(Ok(response(Out::Failure(failure)))).await;
        }
    }
    Ok(answers)
}

fn response(part: Out) -> ExecResponse {
    ExecResponse { part: Some(part) }
}

/// Stays until the process has ended, or its client is gone: then it is ended.
async fn attend(node: Arc<Node>, session: Session, ends: Ends, requests: Requests<ExecRequest>, sender: Sender) {
    let Ends { terminal, input, stdout, stderr } = ends;
    let own = (Arc::clone(&stdout), stderr.clone());
    let screen = terminal.then(|| Arc::clone(&stdout));
    let (over, ended) = watch::channel(false);
    // Dropped, they end, and give back what they have of the process's descriptors.
    let mut pumps = JoinSet::new();
    pumps.spawn(pump(stdout, Out::Stdout, ended.clone(), sender.clone()));
    if let Some(stderr) = stderr {
        pumps.spawn(pump(stderr, Out::Stderr, ended, sender.clone()));
    }
    let work = async {
        let exit = tokio::select! {
            exit = session.ended() => exit,
            taken = take_input(&session, requests, input, screen) => return taken.map(|Detached| None),
        };
        let lost = || Problem::new(Kind::Unavailable, "the process's supervisor was lost, and the process ended");
        let exit = exit.ok_or_else(lost)?;
        over.send_replace(true);
        while pumps.join_next().await.is_some() {}
        Ok(Some(response(Out::Exit(exit_status(exit)))))
    };
    let last = tokio::select! {
        last = work => last,
        () = sender.closed() => return, // nobody is there to be told
        () = node.until_stopping() => Err(Problem::stopping().into()),
    };
    let last = match last {
        Ok(Some(last)) => Ok(last),
        Ok(None) => {
            drop((pumps, sender));
            let (stdout, stderr) = own;
            return leave(node, session, stdout, stderr).await;
        }
        Err(status) => Err(status),
    };
    tokio::select! {
        _ = sender.send(last) => {}
        () = node.until_stopping() => {}
    }
}

/// Its client has left the process to itself.
struct Detached;

/// Stays until a process that nobody listens to has ended: what it writes is read, so that it is not held up.
async fn leave(node: Arc<Node>, session: Session, stdout: Arc<End>, stderr: Option<Arc<End>>) {
    let mut pumps = JoinSet::new();
    for end in std::iter::once(stdout).chain(stderr) {
        pumps.spawn(async move {
            let mut buffer = Zeroizing::new(vec![0; CHUNK]);
            while end.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
            // A terminal that is given back would end its processes.
            std::future::pending::<()>().await;
        });
    }
    tokio::select! {
        _ = session.ended() => {}
        () = node.until_stopping() => {}
    }
}

fn exit_status(exit: Exit) -> ExitStatus {
    let status = match exit {
        Ok(code) => exit_status::Status::Code(code),
        Err(signal) => exit_status::Status::Signal(signal),
    };
    ExitStatus { status: Some(status) }
}

/// Passes on what a process writes: to the end, or to what is there when it has ended.
async fn pump(end: Arc<End>, part: fn(Vec<u8>) -> Out, mut ended: watch::Receiver<bool>, sender: Sender) {
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
        buffer[..length].zeroize(); // it may be long until the next
        if rest == 0 || sender.send(Ok(output)).await.is_err() {
            return;
        }
    }
}

/// Carries out what the client sends. Comes back when it leaves, or with what it does wrong: input that the process does not read
/// holds up neither signals nor the window.
async fn take_input(
    session: &Session,
    mut requests: Requests<ExecRequest>,
    input: Option<Arc<End>>,
    screen: Option<Arc<End>>,
) -> Result<Detached, Status> {
    let (typed, written) = mpsc::channel::<Zeroizing<Vec<u8>>>(INPUT_DEPTH);
    let mut writer = JoinSet::new();
    let mut typed = input.map(|input| {
        writer.spawn(write(input, written));
        typed
    });
    let invalid = |field: &str, fault: FieldFault| Err(Problem::invalid_field(field, fault).into());
    loop {
        let Some(request) = requests.next().await? else {
            // A client that has nothing more to say still listens.
            if screen.is_none() {
                drop(typed.take());
            }
            return std::future::pending().await;
        };
        match request.part {
            Some(In::Stdin(bytes)) => {
                let bytes = Zeroizing::new(bytes);
                // A process that has closed its input, or was told its end, takes no more.
                if let Some(typed) = &typed {
                    let _ = typed.send(bytes).await;
                }
            }
            Some(In::EndOfInput(_)) => {
                if screen.is_none() {
                    typed = None;
                }
            }
            Some(In::Window(window)) => match (&screen, parsed(window)) {
                (_, None) => {
                    return invalid("window", OutOfRange.because(format!("has a side of more than {WINDOW_MAX}")));
                }
                (Some(screen), Some(window)) => drop(pty::resize(screen.fd(), window)),
                (None, Some(_)) => {}
            },
            Some(In::Signal(signal)) => match i32::try_from(signal) {
                Ok(number) if (1..=SIGNAL_MAX).contains(&signal) => drop(session.signal(number).await),
                _ => {
                    let why = format!("is {signal}; 1 to {SIGNAL_MAX} is allowed");
                    return invalid("signal", OutOfRange.because(why));
                }
            },
            Some(In::Detach(_)) => return Ok(Detached),
            Some(In::Start(_)) => return invalid("start", ViolationReason::Duplicate.because("is there twice")),
            None => return invalid("part", ViolationReason::Required.because("is not set")),
        }
    }
}

/// A size of a window that can be one.
pub(super) fn parsed(window: v1::WindowSize) -> Option<Window> {
    Some(Window { rows: u16::try_from(window.rows).ok()?, columns: u16::try_from(window.columns).ok()? })
}

/// Writes input as the process reads it. With the last of it the process's input ends.
async fn write(input: Arc<End>, mut typed: mpsc::Receiver<Zeroizing<Vec<u8>>>) {
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
        let side = |rows, columns| parsed(v1::WindowSize { rows, columns });
        assert_eq!(side(24, 65_535), Some(Window { rows: 24, columns: 65_535 }));
        assert_eq!(side(65_536, 1), None);
    }
}
