//! The services of `runtime.v1`.
//!
//! A call that changes something runs to its end even if its client leaves: the client's retry joins it, or finds what it
//! did (rule C8).

mod image;
mod runtime;

use std::sync::Arc;

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

/// Runs a call to its end.
async fn to_end<T: Send + 'static>(
    call: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    tokio::spawn(call).await.unwrap_or_else(|_| Err(Status::internal("the call ended without an answer")))
}

/// Wraps a message as an answer.
fn answer<T>(message: T) -> Result<Response<T>, Status> {
    Ok(Response::new(message))
}
