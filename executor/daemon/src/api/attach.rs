//! Attach: connects a client to a container's main process. The connection goes through the shim, which owns the
//! process's terminal or pipes and masks the output. Output is read from the shim no faster than the client reads it,
//! so that a lossless client applies back-pressure to the process.

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
use executor_transport::wire::conversation::{Answers, Conversation, Outlet, Requests};
use tonic::{Status, Streaming};
use zeroize::{Zeroize as _, Zeroizing};

use super::exec::window_size;
use super::first_message;
use crate::api_error::{ApiError, Kind};
use crate::ipc::packets::Packets;
use crate::model::container::Handle;
use crate::model::container::link::shim_is_gone;
use crate::node::Node;

/// Time limit for sending `Leave` to the shim.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

type AttachSender = Outlet<AttachResponse>;

/// Attaches to the container that the first message names.
pub(super) async fn attach(
    node: &Arc<Node>,
    requests: Streaming<AttachRequest>,
    conversation: &Conversation,
) -> Result<Answers<AttachResponse>, Status> {
    let mut requests = conversation.requests(requests);
    let first = first_message(&mut requests).await?;
    let Some(In::Start(start)) = first.and_then(|first| first.part) else {
        return Err(ApiError::invalid_field(
            "start",
            ViolationReason::Required.because("is not set: it must be in the first message"),
        )
        .into());
    };
    let handle = node.find(&start.id)?;
    let (packets, terminal) = connect(&handle, &start).await?;
    let (sender, answers) = conversation.answers();
    let _ = sender.send(Ok(AttachResponse { part: Some(Out::Started(v1::AttachStarted { terminal })) })).await;
    tokio::spawn(run_session(Arc::clone(node), handle, packets, requests, sender));
    Ok(answers)
}

/// Connects the client to the container's shim. The returned flag is true if the process has a terminal.
async fn connect(handle: &Handle, start: &v1::AttachStart) -> Result<(Packets, bool), ApiError> {
    let id = handle.id();
    let facts = handle.facts().ok_or_else(|| ApiError::no_container(id.as_str()))?;
    let refused = |why: String| Err(ApiError::new(Kind::Precondition, format!("container {id} {why}")));
    // In `wiping` the last output may still be available.
    if !matches!(facts.state, State::Running | State::Stopping | State::Wiping) {
        return refused(format!("is {}: a client can attach to it only while it runs", facts.state.name()));
    }
    if start.input && !facts.plan.stdin {
        return refused("does not accept input: run it with `stdin` to send input".into());
    }
    let exhausted = |error: std::io::Error| {
        ApiError::new(Kind::Exhausted, format!("cannot connect a client to container {id}: {error}"))
    };
    let (ours, theirs) = Seqpacket::pair().map_err(exhausted)?;
    let packets = Packets::new(ours).map_err(exhausted)?;
    let link = handle.shim().ok_or_else(|| shim_is_gone(id))?;
    let v1::AttachStart { input, take_over, no_output, lossless, resumable, resume_at, .. } = *start;
    let call = ShimCall::Attach(Attach { input, take_over, no_output, lossless, resumable, resume_at });
    match link.call_with_fds(call, &[theirs.as_fd()]).await {
        Ok(_) => Ok((packets, facts.plan.terminal)),
        Err(Some(refused)) => Err(refused.into()),
        Err(None) => Err(shim_is_gone(id)),
    }
}

/// Serves the client until the process's output ends, or until the client or the shim disconnects.
async fn run_session(
    node: Arc<Node>,
    handle: Arc<Handle>,
    packets: Packets,
    requests: Requests<AttachRequest>,
    sender: AttachSender,
) {
    let (final_status, send_leave) = tokio::select! {
        error = forward_output(&handle, &packets, &sender) => (error, true),
        Err(status) = forward_input(&packets, requests) => (Some(status), true),
        () = sender.closed() => (None, true),
        () = node.until_stopping() => (Some(ApiError::stopping().into()), false),
    };
    // Without this message the shim assumes that the daemon exited, and waits for the client to reconnect.
    if send_leave {
        let _ = tokio::time::timeout(LEAVE_TIMEOUT, packets.send(&[ToShim::Leave as u8], &[])).await;
    }
    drop(packets);
    if let Some(status) = final_status {
        tokio::select! {
            _ = sender.send(Err(status)) => {}
            () = node.until_stopping() => {}
        }
    }
}

/// Forwards output. Returns the error if forwarding stopped before the end of the process's output.
async fn forward_output(handle: &Handle, packets: &Packets, sender: &AttachSender) -> Option<Status> {
    let mut buffer = Zeroizing::new(vec![0; ATTACHED_PACKET_MAX]);
    loop {
        let Ok(Some(length @ 1..)) = packets.recv_bytes(&mut buffer).await else {
            return dropped_by_shim(handle);
        };
        let part = match FromShim::from_mark(buffer[0]) {
            Some(FromShim::Stdout) => Out::Stdout(buffer[1..length].to_vec()),
            Some(FromShim::Stderr) => Out::Stderr(buffer[1..length].to_vec()),
            Some(FromShim::Ended) => {
                // The container completes only after the client has received all output.
                sender.drained().await;
                return None;
            }
            Some(FromShim::Position) => match position_of(&buffer[1..length]) {
                Some((offset, missed)) => Out::Position(v1::AttachPosition { offset, missed }),
                None => continue,
            },
            Some(FromShim::TakenOver) => {
                let why = format!("another client has taken over the input of container {}", handle.id());
                return Some(ApiError::new(Kind::Aborted, why).into());
            }
            None => continue, // sent by a newer shim
        };
        buffer[..length].zeroize(); // the next packet may take long
        if sender.send(Ok(AttachResponse { part: Some(part) })).await.is_err() {
            return None;
        }
    }
}

/// Returns the reason why the shim closed the connection.
fn dropped_by_shim(handle: &Handle) -> Option<Status> {
    let id = handle.id();
    Some(match handle.state() {
        Some(State::Running | State::Stopping) if handle.shim().is_some() => {
            ApiError::new(Kind::Internal, format!("the shim of container {id} closed this client's connection")).into()
        }
        _ => shim_is_gone(id).into(),
    })
}

/// Forwards the client's input. Returns only if the client sends an invalid request or its request stream fails.
async fn forward_input(
    packets: &Packets,
    mut requests: Requests<AttachRequest>,
) -> Result<std::convert::Infallible, Status> {
    let invalid = |field: &str, fault: FieldFault| Err(ApiError::invalid_field(field, fault).into());
    loop {
        let Some(request) = requests.next().await? else {
            // A client that has half-closed its request stream may still read.
            return std::future::pending().await;
        };
        // Send errors are ignored: `forward_output` detects a lost shim.
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
                let Some(window) = window_size(window) else {
                    let why = format!("has more than {WINDOW_MAX} rows or columns");
                    return invalid("window", ViolationReason::OutOfRange.because(why));
                };
                let sides = [window.rows.to_le_bytes(), window.columns.to_le_bytes()].concat();
                let _ = packets.send(&[&[ToShim::Window as u8], &*sides].concat(), &[]).await;
            }
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
