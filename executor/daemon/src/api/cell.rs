//! Implements the gRPC service `Cell`: reservations, drain, health.

use std::sync::Arc;
use std::time::Duration;

use executor_core::validate::Violation;
use executor_core::validate::ViolationReason::{InvalidFormat, OutOfRange, Required, TooLong};
use executor_proto::v1;
use executor_proto::v1::cell_server::{Cell, CellServer};
use executor_transport::wire::conversation::{Answers, Conversation, Outlet};
use tonic::{Request, Response, Status};

use super::{convert, info};
use crate::access::Client;
use crate::api_error::{ApiError, Kind};
use crate::background::drain::{self, DrainRequest};
use crate::node::Node;
use crate::operations::reserve;
use crate::requests::draft;
use crate::server::OTHER_MESSAGE_MAX;

/// Default time from the start of a drain to its deadline.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(600);
/// Maximum time from the start of a drain to its deadline.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Default number of containers that a drain stops in parallel.
const PARALLEL_DEFAULT: u32 = 16;
/// Maximum number of containers that a drain stops in parallel.
const PARALLEL_MAX: u32 = 1000;
/// Maximum length of a drain or health reason, in bytes.
const REASON_MAX: usize = 1024;
/// Minimum interval between two progress messages, so that many exits cause few messages.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Implements the gRPC service `Cell`.
#[derive(Clone, Debug)]
pub(super) struct CellService {
    node: Arc<Node>,
}

pub(super) fn service(node: &Arc<Node>) -> CellServer<CellService> {
    CellServer::new(CellService { node: Arc::clone(node) }).max_decoding_message_size(OTHER_MESSAGE_MAX)
}

#[tonic::async_trait]
impl Cell for CellService {
    async fn reserve(&self, request: Request<v1::ReserveRequest>) -> Result<Response<v1::ReserveResponse>, Status> {
        let client = request.extensions().get::<Client>().cloned();
        let client = client.ok_or_else(|| Status::internal("the client of the call is unknown"))?;
        let (reservation, created) = reserve::reserve(&self.node, request.into_inner(), &client).await?;
        let reservation = Some(convert::reservation(&reservation));
        Ok(Response::new(v1::ReserveResponse { reservation, created }))
    }

    async fn release_reservation(
        &self,
        request: Request<v1::ReleaseReservationRequest>,
    ) -> Result<Response<v1::ReleaseReservationResponse>, Status> {
        reserve::release(&self.node, &request.get_ref().id)?;
        Ok(Response::new(v1::ReleaseReservationResponse {}))
    }

    type DrainStream = Answers<v1::DrainResponse>;

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<Self::DrainStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        let asked = drain_request(request.into_inner())?;
        if *self.node.stopping.borrow() {
            return Err(ApiError::stopping().into());
        }
        drain::start(&self.node, asked).await;
        let (sender, answers) = conversation.answers();
        tokio::spawn(follow_drain(Arc::clone(&self.node), sender));
        Ok(Response::new(answers))
    }

    async fn undrain(&self, _: Request<v1::UndrainRequest>) -> Result<Response<v1::UndrainResponse>, Status> {
        drain::cancel(&self.node).await;
        Ok(Response::new(v1::UndrainResponse {}))
    }

    async fn set_healthy(
        &self,
        request: Request<v1::SetHealthyRequest>,
    ) -> Result<Response<v1::SetHealthyResponse>, Status> {
        let v1::SetHealthyRequest { healthy, reason } = request.into_inner();
        if !healthy && reason.trim().is_empty() {
            let why = Required.because("is required if the cell is not healthy");
            return Err(ApiError::invalid_field("reason", why).into());
        }
        checked_reason(&reason).map_err(|violation| ApiError::invalid(vec![violation]))?;
        let reported = (!healthy).then_some(reason);
        tracing::info!(healthy, reason = reported, "an operator has set the health");
        self.node.change_cell(|state| state.unhealthy = reported).await;
        Ok(Response::new(v1::SetHealthyResponse { health: Some(info::health(&self.node)) }))
    }
}

fn drain_request(request: v1::DrainRequest) -> Result<DrainRequest, ApiError> {
    let v1::DrainRequest { deadline, parallel, reason } = request;
    let mut violations = Vec::new();
    let deadline = draft::duration("deadline", deadline.as_ref());
    violations.extend(deadline.as_ref().err().cloned());
    let deadline = deadline.ok().flatten().unwrap_or(DEADLINE_DEFAULT);
    if deadline > DEADLINE_MAX {
        let why = OutOfRange.because(format!("is {deadline:?}; at most {DEADLINE_MAX:?} is allowed"));
        violations.push(Violation::new("deadline", why));
    }
    if parallel > PARALLEL_MAX {
        let why = OutOfRange.because(format!("is {parallel}; at most {PARALLEL_MAX} is allowed"));
        violations.push(Violation::new("parallel", why));
    }
    violations.extend(checked_reason(&reason).err());
    let parallel = if parallel == 0 { PARALLEL_DEFAULT } else { parallel } as usize;
    if violations.is_empty() {
        Ok(DrainRequest { deadline, parallel, reason })
    } else {
        Err(ApiError::invalid(violations))
    }
}

/// Checks the reason of a drain or of an unhealthy cell, which is used in one-line errors.
fn checked_reason(reason: &str) -> Result<(), Violation> {
    if reason.len() > REASON_MAX {
        let why = format!("is {} bytes; the maximum is {REASON_MAX}", reason.len());
        return Err(Violation::new("reason", TooLong.because(why)));
    }
    if reason.contains(executor_core::text::is_harmful) {
        return Err(Violation::new(
            "reason",
            InvalidFormat.because("must be one line without control characters and bidirectional marks"),
        ));
    }
    Ok(())
}

/// Streams the progress of a drain until the drain completes or is cancelled.
async fn follow_drain(node: Arc<Node>, sender: Outlet<v1::DrainResponse>) {
    let (mut progress, mut state) = (node.cell.watch_progress(), node.cell.watch());
    let mut last = None;
    loop {
        let now = progress.borrow_and_update().clone();
        let Some(drain) = state.borrow_and_update().drain.clone() else {
            let ended = ApiError::new(Kind::Aborted, "the drain was cancelled by Undrain");
            let _ = sender.send(Err(ended.into())).await;
            return;
        };
        // The progress may still belong to an earlier drain, so completion is taken from the state, which is read
        // later.
        let message = convert::drain(&now, &drain);
        if last.as_ref() != Some(&message) {
            if sender.send(Ok(message.clone())).await.is_err() {
                return;
            }
            last = Some(message);
        }
        if drain.done {
            return;
        }
        tokio::select! {
            _ = progress.changed() => tokio::time::sleep(PROGRESS_INTERVAL).await,
            _ = state.changed() => {}
            () = sender.closed() => return,
            () = node.until_stopping() => {
                let _ = sender.send(Err(ApiError::stopping().into())).await;
                return;
            }
        }
    }
}
