//! Keeps a socket open after its connection's memory is freed, until the client has read the remaining data.
//!
//! If a client writes to a closed socket, even a keepalive, the client gets an error before reading the pending
//! responses, which are then lost.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use executor_sys::unread::unread;
use tokio::time::{Instant, sleep, timeout_at};

/// Poll interval. Polling is needed because the kernel does not notify when the peer has read everything.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A second descriptor of a connection's socket. The socket stays open until this value is dropped.
#[derive(Debug)]
pub struct LingeringSocket(OwnedFd);

impl LingeringSocket {
    /// Duplicates the descriptor of a connection's socket.
    ///
    /// # Errors
    /// Returns an error if the process has too many open descriptors.
    pub fn from_stream(stream: &impl AsFd) -> io::Result<Self> {
        Ok(Self(stream.as_fd().try_clone_to_owned()?))
    }

    /// Shuts down the write side. Resolves when the client has read everything or has disconnected, or at the deadline.
    pub async fn until_read(self, deadline: Instant) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write); // fails if the client has disconnected
        let read = async {
            while unread(&self.0).is_ok_and(|bytes| bytes > 0) {
                sleep(POLL_INTERVAL).await;
            }
        };
        let _ = timeout_at(deadline, read).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn socket_lingers_until_client_has_read() {
        let (mut client, mut server) = UnixStream::pair().unwrap();
        server.write_all(&[1; 100]).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut read = tokio::spawn(LingeringSocket::from_stream(&server).unwrap().until_read(deadline));
        drop(server);
        client.read_exact(&mut [0; 99]).await.unwrap();
        assert!(tokio::time::timeout(3 * POLL_INTERVAL, &mut read).await.is_err());
        client.write_all(b"still here").await.unwrap();
        assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 1);
        read.await.unwrap();
        assert!(client.write_all(b"closed").await.is_err());
        let (client, mut server) = UnixStream::pair().unwrap();
        server.write_all(&[1; 100]).await.unwrap();
        // The client never reads, so the deadline ends the wait.
        LingeringSocket::from_stream(&server).unwrap().until_read(Instant::now() + POLL_INTERVAL).await;
        drop(client);
        LingeringSocket::from_stream(&server).unwrap().until_read(deadline).await; // the client has disconnected
    }
}
