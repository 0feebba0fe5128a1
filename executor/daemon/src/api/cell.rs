//! The cell service: reservations.

use std::sync::Arc;

use executor_proto::v1;
use executor_proto::v1::cell_server::{Cell, CellServer};
use tonic::{Request, Response, Status};

use super::convert;
use crate::node::Node;
use crate::reserve;
use crate::server::OTHER_MESSAGE_MAX;

/// The cell service on a node.
#[derive(Clone, Debug)]
pub(super) struct CellService {
    node: Arc<Node>,
}

/// Makes the cell service on a node.
pub(super) fn service(node: &Arc<Node>) -> CellServer<CellService> {
    CellServer::new(CellService { node: Arc::clone(node) }).max_decoding_message_size(OTHER_MESSAGE_MAX)
}

#[tonic::async_trait]
impl Cell for CellService {
    async fn reserve(&self, request: Request<v1::ReserveRequest>) -> Result<Response<v1::ReserveResponse>, Status> {
        let (reservation, created) = reserve::reserve(&self.node, request.into_inner()).await?;
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
}
