//! Calls for a single container, with error messages for the user.

use std::time::Duration;

use executor_client::Client;
use executor_client::v1::Container;

use crate::failure::Failure;
use crate::status::ErrorContext as _;

/// Waits until a container has completed.
///
/// # Errors
/// Returns an error if the container does not exist.
pub async fn completed(client: &Client, id: &str) -> Result<Container, Failure> {
    client.wait(id).await.doing(&format!("wait for {id}"))
}

/// Asks executord to stop a container. Idempotent.
///
/// # Errors
/// Returns an error if the container does not exist.
pub async fn ask_to_stop(client: &Client, id: &str, grace: Option<Duration>) -> Result<Container, Failure> {
    client.stop(id, grace).await.doing(&format!("stop {id}"))
}
