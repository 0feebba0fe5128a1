//! Implements the gRPC service `Pods`.

use std::collections::HashMap;
use std::sync::Arc;

use executor_core::ident::ContainerId;
use executor_core::validate::ViolationReason;
use executor_proto::v1;
use executor_proto::v1::pods_server::{Pods, PodsServer};
use executor_transport::wire::conversation::{Answers, Conversation};
use prost::Message as _;
use tonic::{Request, Response, Status, Streaming};

use super::{connect, convert};
use crate::api_error::ApiError;
use crate::model::container::Handle;
use crate::node::Node;
use crate::requests::draft;
use crate::run::pods;
use crate::server::OTHER_MESSAGE_MAX;

/// Default page size, in pods.
const PAGE_DEFAULT: usize = 100;
/// Maximum page size, in pods.
const PAGE_MAX: usize = 1000;
/// Size at which a page ends early, in bytes. Clients reject messages of more than 4 MiB.
const PAGE_BYTES: usize = 2 << 20;

/// Implements the gRPC service `Pods`.
#[derive(Clone, Debug)]
pub(super) struct PodService {
    node: Arc<Node>,
}

pub(super) fn service(node: &Arc<Node>) -> PodsServer<PodService> {
    PodsServer::new(PodService { node: Arc::clone(node) })
        .max_decoding_message_size(OTHER_MESSAGE_MAX)
        .max_encoding_message_size(usize::MAX)
}

#[tonic::async_trait]
impl Pods for PodService {
    async fn create_pod(
        &self,
        request: Request<v1::CreatePodRequest>,
    ) -> Result<Response<v1::CreatePodResponse>, Status> {
        let (facts, created) = pods::create(&self.node, request.into_inner()).await?;
        let pod = message(&self.node, facts.plan.id.as_str())?;
        Ok(Response::new(v1::CreatePodResponse { pod: Some(pod), created }))
    }

    async fn get_pod(&self, request: Request<v1::GetPodRequest>) -> Result<Response<v1::GetPodResponse>, Status> {
        let pod = message(&self.node, &request.get_ref().id)?;
        Ok(Response::new(v1::GetPodResponse { pod: Some(pod) }))
    }

    async fn list_pods(&self, request: Request<v1::ListPodsRequest>) -> Result<Response<v1::ListPodsResponse>, Status> {
        Ok(Response::new(list(&self.node, request.get_ref())?))
    }

    async fn stop_pod(&self, request: Request<v1::StopPodRequest>) -> Result<Response<v1::StopPodResponse>, Status> {
        let v1::StopPodRequest { id, grace_period } = request.into_inner();
        let grace = draft::duration("grace_period", grace_period.as_ref());
        let grace = grace.map_err(|violation| ApiError::invalid(vec![violation]))?;
        pods::stop(&self.node, self.node.find_pod(&id)?, grace).await?;
        let pod = message(&self.node, &id)?;
        Ok(Response::new(v1::StopPodResponse { pod: Some(pod) }))
    }

    async fn delete_pod(
        &self,
        request: Request<v1::DeletePodRequest>,
    ) -> Result<Response<v1::DeletePodResponse>, Status> {
        let v1::DeletePodRequest { id, force } = request.into_inner();
        pods::delete(&self.node, self.node.find_pod(&id)?, force).await?;
        Ok(Response::new(v1::DeletePodResponse {}))
    }

    type ConnectPortStream = Answers<v1::ConnectPortResponse>;

    async fn connect_port(
        &self,
        request: Request<Streaming<v1::ConnectPortRequest>>,
    ) -> Result<Response<Self::ConnectPortStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        Ok(Response::new(connect::connect(&self.node, request.into_inner(), &conversation).await?))
    }
}

fn message(node: &Node, id: &str) -> Result<v1::Pod, ApiError> {
    let handle = node.find_pod(id)?;
    let facts = handle.facts().ok_or_else(|| ApiError::no_pod(id))?;
    Ok(convert::pod(&facts, handle.is_closed(), members(&node.registry.members(handle.id()))))
}

fn members(handles: &[Arc<Handle>]) -> Vec<v1::PodMember> {
    let member = |handle: &Arc<Handle>| {
        Some(v1::PodMember { id: handle.id().to_string(), state: convert::state(handle.state()?).into() })
    };
    handles.iter().filter_map(member).collect()
}

fn list(node: &Node, request: &v1::ListPodsRequest) -> Result<v1::ListPodsResponse, ApiError> {
    let after = match &*request.page_token {
        "" => None,
        token => Some(token.parse::<ContainerId>().map_err(|_| {
            let why = "unknown page token: use the next_page_token of an earlier page";
            ApiError::invalid_field("page_token", ViolationReason::InvalidFormat.because(why))
        })?),
    };
    let most = match request.page_size as usize {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MAX),
    };
    // Members by pod, collected in one pass.
    let mut members: HashMap<ContainerId, Vec<v1::PodMember>> = HashMap::new();
    node.registry.visit(None, |handle| {
        if let Some(facts) = handle.facts()
            && let Some(pod) = facts.plan.member_of()
        {
            let member = v1::PodMember { id: handle.id().to_string(), state: convert::state(facts.state).into() };
            members.entry(pod.clone()).or_default().push(member);
        }
        true
    });
    let mut page = v1::ListPodsResponse::default();
    let mut bytes = 0;
    node.registry.visit(after.as_ref(), |handle| {
        let Some(facts) = handle.facts().filter(|facts| facts.plan.is_pod()) else { return true };
        let has_labels = request.labels.iter().all(|(name, value)| facts.plan.labels.get(name) == Some(value));
        if !has_labels || !handle.id().as_str().starts_with(&request.id_prefix) {
            return true;
        }
        if page.pods.len() == most || bytes > PAGE_BYTES {
            page.next_page_token = page.pods.last().map(|last| last.id.clone()).unwrap_or_default();
            return false;
        }
        let pod = convert::pod(&facts, handle.is_closed(), members.remove(handle.id()).unwrap_or_default());
        bytes += pod.encoded_len();
        page.pods.push(pod);
        true
    });
    Ok(page)
}
