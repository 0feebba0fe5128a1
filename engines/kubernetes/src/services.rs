//! The services of `runtime.v1`.
//!
//! A call that changes state runs to completion even if its client disconnects. A retry of the client waits for the
//! first call, or finds its result (rule C8).

mod image;
mod runtime;

use std::sync::Arc;
use std::time::Duration;

use executor_cri_api::v1::image_service_server::ImageServiceServer;
use executor_cri_api::v1::runtime_service_server::RuntimeServiceServer;
use tonic::service::Routes;
use tonic::{Response, Status};

use crate::node::Node;

/// Maximum size of a message, in bytes (rule C1).
const MESSAGE_MAX: usize = 16 << 20;
/// Maximum size of a response, in bytes. The response of ExecSync contains two outputs.
const RESPONSE_MAX: usize = 33 << 20;

/// Returns the routes of the runtime service and the image service.
pub(crate) fn routes(node: &Arc<Node>) -> Routes {
    let runtime = RuntimeServiceServer::new(runtime::Runtime(Arc::clone(node)));
    let image = ImageServiceServer::new(image::Images(Arc::clone(node)));
    Routes::new(runtime.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(RESPONSE_MAX))
        .add_service(image.max_decoding_message_size(MESSAGE_MAX))
}

/// Time limit of a call that changes state, in case executord does not respond.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(600);

/// Runs a call to completion, even if the client disconnects.
async fn to_end<T: Send + 'static>(
    call: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    to_end_within(CHANGE_TIMEOUT, call).await
}

/// Runs a call to completion, even if the client disconnects, with a time limit.
async fn to_end_within<T: Send + 'static>(
    limit: Duration,
    call: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let late = move |_| Status::deadline_exceeded(format!("executord has not responded within {} s", limit.as_secs()));
    let limited = async move { tokio::time::timeout(limit, call).await.map_err(late)? };
    tokio::spawn(limited)
        .await
        .unwrap_or_else(|_| Err(Status::internal("the task of the call panicked or was cancelled")))
}

fn answer<T>(message: T) -> Result<Response<T>, Status> {
    Ok(Response::new(message))
}
