//! gRPC services of the node, and conversion between API messages and the model.

mod archive;
mod attach;
mod cell;
mod connect;
mod containers;
mod convert;
mod events;
mod exec;
mod health;
mod images;
mod info;
mod logs;
mod networks;
mod outputs;
mod pods;
mod secrets;
mod stats;

use std::sync::Arc;
use std::time::Duration;

use executor_proto::v1;
use executor_proto::v1::executor_server::{Executor, ExecutorServer};
use executor_transport::wire::conversation::{Answers, Conversation, Requests};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::access::Client;
use crate::api_error::{ApiError, Kind};
use crate::node::Node;
use crate::operations::delete;
use crate::operations::egress;
use crate::operations::limits;
use crate::operations::pause;
use crate::operations::reopen;
use crate::operations::rotate;
use crate::operations::start;
use crate::run::{admit, dry_run};
use crate::server::RUNTIME_MESSAGE_MAX;
use crate::telemetry::traces::TraceParent;

/// Time limit for the first message of a client-streaming call, which names the container.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a response stream is closed early.
enum StreamError {
    /// The client stopped reading.
    ClientGone,
    /// The client receives this error.
    ApiError(ApiError),
}

impl From<ApiError> for StreamError {
    fn from(problem: ApiError) -> Self {
        Self::ApiError(problem)
    }
}

/// Waits for the first message of a client stream; `None` if the stream closes without a message.
async fn first_message<T: prost::Message + Default>(requests: &mut Requests<T>) -> Result<Option<T>, Status> {
    let late = |_| {
        let why = format!(
            "no message arrived within {} s: the first message must name the container",
            FIRST_MESSAGE_TIMEOUT.as_secs()
        );
        ApiError::new(Kind::Invalid, why)
    };
    tokio::time::timeout(FIRST_MESSAGE_TIMEOUT, requests.next()).await.map_err(late)?
}

/// Implements the gRPC service `Executor`.
#[derive(Clone, Debug)]
struct Service {
    node: Arc<Node>,
}

/// Returns the services of the control plane's socket: executor, images, pods, cell, health, reflection. Must be called
/// on the Tokio runtime.
///
/// # Errors
/// Returns an error if the built-in descriptor set is invalid.
pub async fn routes(node: &Arc<Node>, message_bytes_max: usize) -> Result<Routes, tonic_reflection::server::Error> {
    let executor = ExecutorServer::new(Service { node: Arc::clone(node) })
        .max_decoding_message_size(message_bytes_max)
        .max_encoding_message_size(usize::MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(executor_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(executor)
        .add_service(images::service(node))
        .add_service(pods::service(node))
        .add_service(cell::service(node))
        .add_service(health::follow(node).await)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?))
}

/// Returns the services of the containers' socket.
pub(crate) fn runtime_routes(node: &Arc<Node>) -> Routes {
    Routes::new(
        ExecutorServer::new(Service { node: Arc::clone(node) })
            .max_decoding_message_size(RUNTIME_MESSAGE_MAX)
            .max_encoding_message_size(usize::MAX),
    )
}

#[tonic::async_trait]
impl Executor for Service {
    async fn run(&self, request: Request<v1::RunRequest>) -> Result<Response<v1::RunResponse>, Status> {
        let client = request.extensions().get::<Client>().cloned();
        let parent = TraceParent::from_metadata(request.metadata());
        let (facts, created) = admit::run(&self.node, request.into_inner(), client.as_ref(), &parent).await?;
        Ok(Response::new(v1::RunResponse { container: Some(convert::container(&facts)), created }))
    }

    async fn validate(&self, request: Request<v1::ValidateRequest>) -> Result<Response<v1::ValidateResponse>, Status> {
        let client = request.extensions().get::<Client>().cloned();
        dry_run::validate(&self.node, request.into_inner(), client.as_ref())?;
        Ok(Response::new(v1::ValidateResponse {}))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        let container = containers::get(&self.node, &request.into_inner().id)?;
        Ok(Response::new(v1::GetResponse { container: Some(container) }))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        Ok(Response::new(containers::list(&self.node, request.get_ref())?))
    }

    async fn wait(&self, request: Request<v1::WaitRequest>) -> Result<Response<v1::WaitResponse>, Status> {
        let container = containers::wait(&self.node, &request.into_inner().id).await?;
        Ok(Response::new(v1::WaitResponse { container: Some(container) }))
    }

    type StreamLogsStream = Answers<v1::StreamLogsResponse>;

    async fn stream_logs(
        &self,
        request: Request<v1::StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        Ok(Response::new(logs::stream(&self.node, request.get_ref(), &conversation)?))
    }

    async fn stop(&self, request: Request<v1::StopRequest>) -> Result<Response<v1::StopResponse>, Status> {
        let container = containers::stop(&self.node, request.into_inner()).await?;
        Ok(Response::new(v1::StopResponse { container: Some(container) }))
    }

    async fn signal(&self, request: Request<v1::SignalRequest>) -> Result<Response<v1::SignalResponse>, Status> {
        containers::signal(&self.node, request.into_inner()).await?;
        Ok(Response::new(v1::SignalResponse {}))
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Result<Response<v1::DeleteResponse>, Status> {
        let v1::DeleteRequest { id, force } = request.into_inner();
        delete::delete(&self.node, self.node.find(&id)?, force).await?;
        Ok(Response::new(v1::DeleteResponse {}))
    }

    type WatchEventsStream = Answers<v1::WatchEventsResponse>;

    async fn watch_events(
        &self,
        request: Request<v1::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        Ok(Response::new(events::watch(&self.node, request.get_ref(), &conversation)?))
    }

    async fn info(&self, _request: Request<v1::InfoRequest>) -> Result<Response<v1::InfoResponse>, Status> {
        Ok(Response::new(info::info(&self.node).await))
    }

    async fn list_networks(
        &self,
        request: Request<v1::ListNetworksRequest>,
    ) -> Result<Response<v1::ListNetworksResponse>, Status> {
        Ok(Response::new(networks::list(&self.node, request.into_inner().names).await?))
    }

    async fn check_network(
        &self,
        request: Request<v1::CheckNetworkRequest>,
    ) -> Result<Response<v1::CheckNetworkResponse>, Status> {
        let client = request.extensions().get::<Client>().cloned();
        let client = client.ok_or_else(|| Status::internal("the client of the call is unknown"))?;
        Ok(Response::new(networks::check(&self.node, request.into_inner().name, &client).await?))
    }

    async fn update_files(
        &self,
        request: Request<v1::UpdateFilesRequest>,
    ) -> Result<Response<v1::UpdateFilesResponse>, Status> {
        let client = request.extensions().get::<Client>().cloned();
        let request = request.into_inner();
        let facts = rotate::update(&self.node, request, client.as_ref()).await?;
        Ok(Response::new(v1::UpdateFilesResponse { container: Some(convert::container(&facts)) }))
    }

    async fn update_egress(
        &self,
        request: Request<v1::UpdateEgressRequest>,
    ) -> Result<Response<v1::UpdateEgressResponse>, Status> {
        let facts = egress::update(&self.node, request.into_inner()).await?;
        Ok(Response::new(v1::UpdateEgressResponse { container: Some(convert::container(&facts)) }))
    }

    async fn start(&self, request: Request<v1::StartRequest>) -> Result<Response<v1::StartResponse>, Status> {
        let facts = start::start(&self.node, &request.into_inner().id).await?;
        Ok(Response::new(v1::StartResponse { container: Some(convert::container(&facts)) }))
    }

    async fn pause(&self, request: Request<v1::PauseRequest>) -> Result<Response<v1::PauseResponse>, Status> {
        let facts = pause::pause(&self.node, &request.into_inner().id).await?;
        Ok(Response::new(v1::PauseResponse { container: Some(convert::container(&facts)) }))
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Result<Response<v1::ResumeResponse>, Status> {
        let facts = pause::resume(&self.node, &request.into_inner().id).await?;
        Ok(Response::new(v1::ResumeResponse { container: Some(convert::container(&facts)) }))
    }

    async fn reopen_log(
        &self,
        request: Request<v1::ReopenLogRequest>,
    ) -> Result<Response<v1::ReopenLogResponse>, Status> {
        let facts = reopen::reopen(&self.node, &request.into_inner().id).await?;
        Ok(Response::new(v1::ReopenLogResponse { container: Some(convert::container(&facts)) }))
    }

    async fn update_limits(
        &self,
        request: Request<v1::UpdateLimitsRequest>,
    ) -> Result<Response<v1::UpdateLimitsResponse>, Status> {
        let facts = limits::update(&self.node, request.into_inner()).await?;
        Ok(Response::new(v1::UpdateLimitsResponse { container: Some(convert::container(&facts)) }))
    }

    async fn stats(&self, request: Request<v1::StatsRequest>) -> Result<Response<v1::StatsResponse>, Status> {
        Ok(Response::new(stats::get(&self.node, request.into_inner()).await?))
    }

    type WatchStatsStream = Answers<v1::WatchStatsResponse>;

    async fn watch_stats(
        &self,
        request: Request<v1::WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        Ok(Response::new(stats::watch(&self.node, request.into_inner(), &conversation)?))
    }

    async fn get_secrets(
        &self,
        request: Request<v1::GetSecretsRequest>,
    ) -> Result<Response<v1::GetSecretsResponse>, Status> {
        // The headers hold the token, so they are dropped before the first await.
        let (metadata, _, v1::GetSecretsRequest { id }) = request.into_parts();
        let presented = secrets::presented(&metadata.into_headers())?;
        Ok(Response::new(secrets::get(&self.node, presented, &id).await?))
    }

    type GetOutputsStream = Answers<v1::GetOutputsResponse>;

    async fn get_outputs(
        &self,
        request: Request<v1::GetOutputsRequest>,
    ) -> Result<Response<Self::GetOutputsStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        Ok(Response::new(outputs::stream(&self.node, request.into_inner(), &conversation).await?))
    }

    type ExecStream = Answers<v1::ExecResponse>;

    async fn exec(&self, request: Request<Streaming<v1::ExecRequest>>) -> Result<Response<Self::ExecStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        Ok(Response::new(exec::exec(&self.node, request.into_inner(), &conversation).await?))
    }

    type GetArchiveStream = Answers<v1::GetArchiveResponse>;

    async fn get_archive(
        &self,
        request: Request<v1::GetArchiveRequest>,
    ) -> Result<Response<Self::GetArchiveStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        Ok(Response::new(archive::get(&self.node, request.into_inner(), &conversation).await?))
    }

    async fn put_archive(
        &self,
        request: Request<Streaming<v1::PutArchiveRequest>>,
    ) -> Result<Response<v1::PutArchiveResponse>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        Ok(Response::new(archive::put(&self.node, request.into_inner(), &conversation).await?))
    }

    type AttachStream = Answers<v1::AttachResponse>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        Ok(Response::new(attach::attach(&self.node, request.into_inner(), &conversation).await?))
    }
}
