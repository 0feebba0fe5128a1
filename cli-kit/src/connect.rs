//! Connects to executord, with advice if that fails.

use executor_client::ConnectError;
pub use executor_client::{Client, DEFAULT_SOCKET};

use crate::contexts::Server;
use crate::exit;
use crate::failure::Failure;

#[derive(Debug, thiserror::Error)]
enum NoConnection {
    #[error("{0}: start executord, name its socket with --socket or EXECUTOR_SOCKET, or use --local")]
    NotListening(ConnectError),
    #[error(transparent)]
    Other(ConnectError),
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let error = match error {
            error @ ConnectError::NotListening(executor_client::ServerAddress::Socket(_)) => {
                NoConnection::NotListening(error)
            }
            error => NoConnection::Other(error),
        };
        Self::wrap(error, exit::OURS)
    }
}

/// Connects to an executord.
///
/// # Errors
/// Returns an error if no process listens at the address, or if the caller may not connect.
pub async fn connect(server: &Server) -> Result<Client, Failure> {
    Ok(match server {
        Server::Socket(path) => Client::connect(path).await?,
        Server::Tcp(address, tls) => Client::connect_tls(address, tls).await?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_socket_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("executor.sock");
        let text = connect(&Server::Socket(socket.clone())).await.err().unwrap().describe();
        assert!(text.contains(&*socket.to_string_lossy()) && text.contains("--local"), "{text}");
    }
}
