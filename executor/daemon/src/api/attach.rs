//! Attach as a stream: a client of a container's own process, by way of its shim, which has the process's terminal or
//! pipes and masks what goes out. It is read from the shim no faster than the client takes it, which is what a lossless
//! client holds its process up with.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use executor_core::protocol::{ATTACHED_PACKET_MAX, Attach, FromShim, ShimCall, ToShim, position_of};
use executor_core::validate::{FieldFault, ViolationReason, WINDOW_MAX};
use executor_proto::v1::attach_request::Part as In;
use executor_proto::v1::attach_response::Part as Out;
use executor_proto::v1::{self, AttachRequest, AttachResponse};
use executor_sys::seqpacket::Seqpacket;
use tonic::{Status, Streaming};
use zeroize::{Zeroize as _, Zeroizing};

use super::FIRST_MESSAGE;
use super::exec::parsed;
use crate::container::Handle;
use crate::container::link::shim_is_gone;
use crate::node::Node;
use crate::packets::Packets;
use crate::problem::{Kind, Problem};
use crate::wire::conversation::{Answers, Conversation, Outlet, Requests};

/// How long a shim may take to take a goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

type Sender = Outlet<AttachResponse>;

/// Attaches to what the first message names.
pub(super) async fn attach(
    node: &Arc<Node>,
    requests: Streaming<AttachRequest>,
    conversation: &Conversation,
) -> Result<Answers<AttachResponse>, Status> {
    let mut requests = conversation.requests(requests);
    let first = tokio::time::timeout(FIRST_MESSAGE, requests.next()).await;
    let first = first.map_err(|_| Problem::new(Kind::Invalid, "no message came within 10 s"))??;
    let Some(In::Start(start)) = first.and_then(|first| first.part) else {
        return Err(Problem::invalid_field(
            "start",
            ViolationReason::Required.because("is not set: the first message says what to attach to"),
        )
        .into());
    };
    let handle = node.find(&start.id)?;
    let (packets, terminal) = connect(&handle, &start).await?;
    let (sender, answers) = conversation.answers();
    let _ = sender.send(Ok(AttachResponse { part: Some(Out::Started(v1::AttachStarted { terminal })) })).await;
    tokio::spawn(attend(Arc::clone(node), handle, packets, requests, sender));
    Ok(answers)
}

/// A connection of the client's own to the container's shim, and whether the process has a terminal.
async fn connect(handle: &Handle, start: &v1::AttachStart) -> Result<(Packets, bool), Problem> {
    let id = handle.id();
    let facts = handle.facts().ok_or_else(|| Problem::no_container(id.as_str()))?;
    let refused = |why: String| Err(Problem::new(Kind::Precondition, format!("container {id} {why}")));
    // In `wiping` the last of the output may still be there.
    if !matches!(facts.state, State::Running | State::Stopping | State::Wiping) {
        return refused(format!("is {}: a client attaches to one that runs", facts.state.name()));
    }
    if start.input && !facts.plan.stdin {
        return refused("takes no input: it was not run with `stdin`".into());
    }
    let exhausted = |error: std::io::Error| {
        Problem::new(Kind::Exhausted, format!("no descriptors for a client of container {id}: {error}"))
    };
    let (ours, theirs) = Seqpacket::pair().map_err(exhausted)?;
    let packets = Packets::new(ours).map_err(exhausted)?;
    let link = handle.shim().ok_or_else(|| shim_is_gone(id))?;
    let v1::AttachStart { input, take_over, no_output, lossless, resumable, resume_at, .. } = *start;
    let call = ShimCall::Attach(Attach { input, take_over, no_output, lossless, resumable, resume_at });
    match link.ask(call, &[theirs.as_fd()]).await {
        Ok(_) => Ok((packets, facts.plan.terminal)),
        Err(Some(refused)) => Err(refused.into()),
        Err(None) => Err(shim_is_gone(id)),
    }
}

/// Stays until the process's output has ended, or either side is gone.
async fn attend(
    node: Arc<Node>,
    handle: Arc<Handle>,
    packets: Packets,
    requests: Requests<AttachRequest>,
    sender: Sender,
) {
    let (last, stays) = tokio::select! {
        last = pass_on(&handle, &packets, &sender) => (last, true),
        Err(status) = take_input(&packets, requests) => (Some(status), true),
        () = sender.closed() => (None, true),
        () = node.until_stopping() => (Some(Problem::stopping().into()), false),
    };
    // A shim that hears no goodbye expects the client back: this daemon went away.
    if stays {
        let _ = tokio::time::timeout(GOODBYE, packets.send(&[ToShim::Leave as u8], &[])).await;
    }
    drop(packets);
    if let Some(status) = last {
        tokio::select! {
            _ = sender.send(Err(status)) => {}
            () = node.until_stopping() => {}
        }
    }
}

/// Passes output on. Gives why it ended before the process's output did.
async fn pass_on(handle: &Handle, packets: &Packets, sender: &Sender) -> Option<Status> {
    let mut buffer = Zeroizing::new(vec![0; ATTACHED_PACKET_MAX]);
    loop {
        let Ok(Some(length @ 1..)) = packets.recv_bytes(&mut buffer).await else {
            return let_go(handle);
        };
        let part = match FromShim::of(buffer[0]) {
            Some(FromShim::Stdout) => Out::Stdout(buffer[1..length].to_vec()),
            Some(FromShim::Stderr) => Out::Stderr(buffer[1..length].to_vec()),
            Some(FromShim::Ended) => {
                // Not before the client has taken everything: the container is not completed until then.
                sender.taken().await;
                return None;
            }
            Some(FromShim::Position) => match position_of(&buffer[1..length]) {
                Some((offset, missed)) => Out::Position(v1::AttachPosition { offset, missed }),
                None => continue,
            },
            Some(FromShim::TakenOver) => {
                let why = format!("another client sends input to container {} now", handle.id());
                return Some(Problem::new(Kind::Aborted, why).into());
            }
            None => continue, // of a newer shim
        };
        buffer[..length].zeroize(); // it may be long until the next
        if sender.send(Ok(AttachResponse { part: Some(part) })).await.is_err() {
            return None;
        }
    }
}

/// What it means that the shim has closed the connection.
fn let_go(handle: &Handle) -> Option<Status> {
    let id = handle.id();
    Some(match handle.state() {
        Some(State::Running | State::Stopping) if handle.shim().is_some() => {
            Problem::new(Kind::Internal, format!("the shim of container {id} let this client go")).into()
        }
        _ => shim_is_gone(id).into(),
    })
}

/// Passes on what the client sends. Comes back only with what it does wrong.
async fn take_input(
    packets: &Packets,
    mut requests: Requests<AttachRequest>,
) -> Result<std::convert::Infallible, Status> {
    let invalid = |field: &str, fault: FieldFault| Err(Problem::invalid_field(field, fault).into());
    loop {
        let Some(request) = requests.next().await? else {
            // A client that has nothing more to say still listens.
            return std::future::pending().await;
        };
        // A shim that is gone is seen by who reads from it.
        match request.part {
            Some(In::Stdin(bytes)) => {
                let bytes = Zeroizing::new(bytes);
                for chunk in bytes.chunks(ATTACHED_PACKET_MAX - 1) {
                    let packet = Zeroizing::new([&[ToShim::Input as u8], chunk].concat());
                    let _ = packets.send(&packet, &[]).await;
                }
            }
            Some(In::EndOfInput(_)) => drop(packets.send(&[ToShim::EndOfInput as u8], &[]).await),
            Some(In::Window(window)) => {
                let Some(window) = parsed(window) else {
                    let why = format!("has a side of more than {WINDOW_MAX}");
                    return invalid("window", ViolationReason::OutOfRange.because(why));
                };
                let sides = [window.rows.to_le_bytes(), window.columns.to_le_bytes()].concat();
                let _ = packets.send(&[&[ToShim::Window as u8], &*sides].concat(), &[]).await;
            }
            Some(In::Start(_)) => return invalid("start", ViolationReason::Duplicate.because("is there twice")),
            None => return invalid("part", ViolationReason::Required.because("is not set")),
        }
    }
}
