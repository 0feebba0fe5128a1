//! A socket that stays open when what was held of its connection is gone.
//!
//! A client that says something to a closed socket, if only that it is still there, is told so before it has read what lies
//! there for it, and loses that.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use executor_sys::unread::unread;
use tokio::net::UnixStream;
use tokio::time::Instant;

/// Between looks whether a client has read what was written: the kernel does not tell when it has.
const LOOK: Duration = Duration::from_millis(20);

/// Keeps a socket open.
#[derive(Debug)]
pub(super) struct Remainder(OwnedFd);

impl Remainder {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        Ok(Self(stream.as_fd().try_clone_to_owned()?))
    }

    /// Tells the client that nothing more will come. Resolves when it has read everything or is gone, and at the deadline
    /// at the latest.
    pub(super) async fn taken(self, deadline: Instant) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write); // it fails where the client is gone
        while Instant::now() < deadline && unread(&self.0).is_ok_and(|bytes| bytes > 0) {
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_socket_stays_until_its_client_has_read() {
        let (mut client, mut server) = UnixStream::pair().unwrap();
        server.write_all(&[1; 100]).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut taken = tokio::spawn(Remainder::of(&server).unwrap().taken(deadline));
        drop(server);
        client.read_exact(&mut [0; 99]).await.unwrap();
        assert!(tokio::time::timeout(3 * LOOK, &mut taken).await.is_err());
        client.write_all(b"still here").await.unwrap();
        assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 1);
        taken.await.unwrap();
        assert!(client.write_all(b"closed").await.is_err());
        let (client, mut server) = UnixStream::pair().unwrap();
        server.write_all(&[1; 100]).await.unwrap();
        Remainder::of(&server).unwrap().taken(Instant::now() + LOOK).await; // one that never reads
        drop(client);
        Remainder::of(&server).unwrap().taken(deadline).await; // one that is gone
    }
}
