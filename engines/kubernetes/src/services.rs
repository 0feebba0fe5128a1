//! The services of `runtime.v1`.
//!
//! A call that changes something runs to its end even if its client leaves: the client's retry joins it, or finds what it
//! did (rule C8).

mod image;
mod runtime;

use std::sync::Arc;
use std::time::Duration;

use executor_cri_api::v1::image_service_server::ImageServiceServer;
use executor_cri_api::v1::runtime_service_server::RuntimeServiceServer;
use tonic::service::Routes;
use tonic::{Response, Status};

use crate::node::Node;

/// Largest message, in bytes (rule C1).
const MESSAGE_MAX: usize = 16 << 20;
/// Largest response: that of ExecSync has two outputs.
const RESPONSE_MAX: usize = 33 << 20;

/// Returns both services.
pub(crate) fn routes(node: &Arc<Node>) -> Routes {
    let runtime = RuntimeServiceServer::new(runtime::Runtime(Arc::clone(node)));
    let image = ImageServiceServer::new(image::Images(Arc::clone(node)));
    Routes::new(runtime.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(RESPONSE_MAX))
        .add_service(image.max_decoding_message_size(MESSAGE_MAX))
}

/// Time limit of a call that continues without its client, if executord does not answer.
const CHANGE_MAX: Duration = Duration::from_secs(600);

/// Runs a call to its end, also if its client leaves.
async fn to_end<T: Send + 'static>(
    call: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    to_end_within(CHANGE_MAX, call).await
}

/// Runs a call to its end, as [`to_end`] does, with a time limit of its own.
async fn to_end_within<T: Send + 'static>(
    limit: Duration,
    call: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let late = move |_| Status::deadline_exceeded(format!("executord has not answered within {} s", limit.as_secs()));
    let limited = async move { tokio::time::timeout(limit, call).await.map_err(late)? };
    tokio::spawn(limited).await.unwrap_or_else(|_| Err(Status::internal("the call ended without an answer")))
}

/// Wraps a message as an answer.
fn answer<T>(message: T) -> Result<Response<T>, Status> {
    Ok(Response::new(message))
}
