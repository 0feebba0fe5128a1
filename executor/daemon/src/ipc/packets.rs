//! Sends and receives messages asynchronously over SOCK_SEQPACKET, and keeps track of pending calls.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use executor_core::protocol::PACKET_MAX;
use executor_sys::mutex::locked;
use executor_sys::seqpacket::Seqpacket;
use executor_transport::registration::watched_for;
use prost::Message;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

thread_local! {
    /// Buffer for received packets. Each runtime thread has one buffer. A buffer for each connection would need more
    /// memory, because there are as many connections as containers.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; PACKET_MAX]);
}

/// A connection, which is registered for writing only while a message waits for buffer space: otherwise the kernel
/// would notify the writer each time the peer reads a message.
#[derive(Debug)]
pub(crate) struct Packets(AsyncFd<Seqpacket>);

impl Packets {
    pub(crate) fn new(socket: Seqpacket) -> io::Result<Self> {
        socket.set_nonblocking(true);
        watched_for(socket, Interest::READABLE).map(Self)
    }

    /// Sends a message with descriptors, and waits for buffer space if necessary.
    pub(crate) async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let socket = self.0.get_ref();
        match socket.send(bytes, fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent,
        }
        // epoll accepts a descriptor only once.
        let room = watched_for(socket.as_fd().try_clone_to_owned()?, Interest::WRITABLE)?;
        room.async_io(Interest::WRITABLE, |_| socket.send(bytes, fds)).await
    }

    /// Receives a message; `None` if the peer has disconnected. Attached descriptors are closed.
    pub(crate) async fn recv<M: Message + Default>(&self) -> io::Result<Option<M>> {
        Ok(self.recv_with_fds().await?.map(|(message, _)| message))
    }

    /// Receives a raw packet; `None` if the peer has disconnected. Attached descriptors are closed.
    pub(crate) async fn recv_bytes(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let received = self.0.async_io(Interest::READABLE, |socket| socket.recv(buffer)).await?;
        Ok(received.map(|(length, _)| length))
    }

    /// Receives a message with its descriptors, or with the error that prevented receiving the descriptors. Returns
    /// `None` if the peer has disconnected.
    pub(crate) async fn recv_with_fds<M: Message + Default>(
        &self,
    ) -> io::Result<Option<(M, io::Result<Vec<OwnedFd>>)>> {
        self.0.async_io(Interest::READABLE, |socket| BUFFER.with_borrow_mut(|b| receive(socket, b))).await
    }
}

fn receive<M: Message + Default>(
    socket: &Seqpacket,
    buffer: &mut [u8],
) -> io::Result<Option<(M, io::Result<Vec<OwnedFd>>)>> {
    let Some((length, fds)) = socket.recv_or_report(buffer)? else { return Ok(None) };
    let message = M::decode(&buffer[..length]);
    message.map(|message| Some((message, fds))).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Calls that wait for their responses.
#[derive(Debug)]
pub(crate) struct PendingCalls<A>(Mutex<WaitingCalls<A>>);

#[derive(Debug)]
struct WaitingCalls<A> {
    last: u64,
    /// Callers by sequence number; `None` after the connection is closed.
    callers: Option<HashMap<u64, oneshot::Sender<A>>>,
}

impl<A> Default for PendingCalls<A> {
    fn default() -> Self {
        Self(Mutex::new(WaitingCalls { last: 0, callers: Some(HashMap::new()) }))
    }
}

impl<A> PendingCalls<A> {
    /// Returns the sequence number of a new call and the receiver of its response; `None` after the connection is
    /// closed.
    pub(crate) fn register(&self) -> Option<(u64, oneshot::Receiver<A>)> {
        let mut waiting = locked(&self.0);
        waiting.last += 1;
        let sequence = waiting.last;
        let callers = waiting.callers.as_mut()?;
        // Remove callers that no longer wait.
        callers.retain(|_, caller| !caller.is_closed());
        let (sender, receiver) = oneshot::channel();
        callers.insert(sequence, sender);
        Some((sequence, receiver))
    }

    /// Passes a response to its caller, if the caller still waits.
    pub(crate) fn answer(&self, sequence: u64, answer: A) {
        let caller = locked(&self.0).callers.as_mut().and_then(|callers| callers.remove(&sequence));
        if let Some(caller) = caller {
            let _ = caller.send(answer);
        }
    }

    /// Fails all pending calls. Called when the connection is closed.
    pub(crate) fn close(&self) {
        locked(&self.0).callers = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    /// If there is no buffer space for a message, it is sent after the peer has read other messages. No message is lost
    /// or sent twice.
    #[tokio::test]
    async fn a_message_waits_for_room() {
        let (ours, theirs) = Seqpacket::pair().unwrap();
        let packets = Packets::new(ours).unwrap();
        let sending = tokio::spawn(async move {
            for number in 0..1000_u32 {
                let mut message = vec![0; 4096];
                message[..4].copy_from_slice(&number.to_le_bytes());
                packets.send(&message, &[]).await.unwrap();
            }
        });
        yield_now().await; // one thread: the other task runs until it has to wait
        assert!(!sending.is_finished(), "control failed: there is room for all messages");
        let theirs = Packets::new(theirs).unwrap();
        let mut buffer = vec![0; 8192];
        for number in 0..1000_u32 {
            let received = timeout(Duration::from_secs(10), theirs.recv_bytes(&mut buffer)).await.unwrap().unwrap();
            assert_eq!((received, &buffer[..4]), (Some(4096), &number.to_le_bytes()[..]));
        }
        sending.await.unwrap();
        assert_eq!(theirs.recv_bytes(&mut buffer).await.unwrap(), None);
    }
}
