//! A client's socket, registered with the runtime for reading. After the first response that finds no buffer space, the
//! socket is also registered for writing.
//!
//! While a socket is registered for writing, the kernel reports writability each time the client has read a response.
//! For most clients these wake-ups would be useless.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use rustix::net::Shutdown;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use crate::registration::watched_for;

/// A client's socket: a unix or TCP socket.
#[derive(Debug)]
pub struct ClientSocket<T: AsRawFd> {
    /// `None` while the socket is re-registered, and permanently if the registration failed.
    socket: Option<AsyncFd<T>>,
    /// True if the socket is also registered for writing.
    writing: bool,
    /// Waker of a pending read, which must be woken because re-registration drops the old registration.
    reader: Option<Waker>,
}

impl<T: AsRawFd> ClientSocket<T> {
    /// Registers a connected non-blocking socket.
    ///
    /// # Errors
    /// Returns an error if the runtime cannot register the socket.
    pub fn new(stream: T) -> io::Result<Self> {
        let socket = watched_for(stream, Interest::READABLE)?;
        Ok(Self { socket: Some(socket), writing: false, reader: None })
    }

    fn socket(&self) -> io::Result<&AsyncFd<T>> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Also registers the socket for writing.
    fn watch_writing(&mut self) -> io::Result<()> {
        let socket = self.socket.take().ok_or(io::ErrorKind::NotConnected)?;
        self.socket = Some(watched_for(socket.into_inner(), Interest::READABLE | Interest::WRITABLE)?);
        self.writing = true;
        self.reader.take().into_iter().for_each(Waker::wake); // the read waits on the old registration
        Ok(())
    }

    /// Calls `write` as soon as the socket has buffer space.
    fn poll_by(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&T) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while !self.writing {
            match write(self.socket()?.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.watch_writing()?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return Poll::Ready(written),
            }
        }
        loop {
            let mut room = ready!(self.socket()?.poll_write_ready(context))?;
            match room.try_io(|socket| write(socket.get_ref())) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(written) => return Poll::Ready(written),
                Err(_no_room) => {}
            }
        }
    }
}

impl<T: AsRawFd + Unpin> AsyncRead for ClientSocket<T>
where
    for<'a> &'a T: io::Read,
{
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let socket = this.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
            let Poll::Ready(bytes) = socket.poll_read_ready(context) else {
                this.reader = (!this.writing).then(|| context.waker().clone());
                return Poll::Pending;
            };
            let mut bytes = bytes?;
            match bytes.try_io(|socket| socket.get_ref().read(room.initialize_unfilled())) {
                Ok(Ok(read)) => {
                    // A short read means that the socket is empty; epoll announces further data.
                    if 0 < read && read < room.remaining() {
                        bytes.clear_ready();
                    }
                    room.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_none) => {}
            }
        }
    }
}

impl<T: AsRawFd + AsFd + Unpin> AsyncWrite for ClientSocket<T>
where
    for<'a> &'a T: io::Write,
{
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_by(context, |mut socket| socket.write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_by(context, |mut socket| socket.write_vectored(pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(self.socket()?.get_ref(), Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    /// Size of a response that exceeds the socket buffers, in bytes.
    const LARGE: usize = 4 << 20;

    fn pair() -> (tokio::net::UnixStream, ClientSocket<UnixStream>) {
        let (client, server) = tokio::net::UnixStream::pair().unwrap();
        (client, ClientSocket::new(server.into_std().unwrap()).unwrap())
    }

    /// If a response finds no buffer space, it waits for the client, and a pending read is still woken.
    #[tokio::test]
    async fn responses_wait_for_space_while_reads_continue() {
        let (mut client, server) = pair();
        let (mut reader, mut writer) = tokio::io::split(server);
        let reading = tokio::spawn(async move {
            let mut said = [0; 5];
            reader.read_exact(&mut said).await.unwrap();
            (said, reader.read(&mut [0; 1]).await.unwrap())
        });
        let writing = tokio::spawn(async move {
            writer.write_all(&vec![7; LARGE]).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        yield_now().await; // one thread: both tasks run until they have to wait
        assert!(!writing.is_finished(), "control failed: the response fits into the buffer");
        client.write_all(b"hello").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(timeout(Duration::from_secs(10), reading).await.unwrap().unwrap(), (*b"hello", 0));
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() == LARGE && answer.iter().all(|byte| *byte == 7));
        writing.await.unwrap();
    }

    /// Returns the epoll events for which a socket is registered, as in epoll_ctl(2).
    fn watched_of(socket: &ClientSocket<UnixStream>) -> u32 {
        let line = format!("tfd: {:>8} events: ", socket.socket().unwrap().as_raw_fd());
        let watches = std::fs::read_dir("/proc/self/fdinfo").unwrap();
        let texts = watches.filter_map(|watch| std::fs::read_to_string(watch.unwrap().path()).ok());
        let found = texts
            .flat_map(|text| text.lines().filter_map(|l| l.strip_prefix(&line).map(str::to_owned)).collect::<Vec<_>>());
        let events = found.last().expect("is watched");
        u32::from_str_radix(events.split_ascii_whitespace().next().unwrap(), 16).unwrap()
    }

    /// While every response finds buffer space, the socket is not registered for writing. As a control, the socket is
    /// registered after a response has found no space.
    #[tokio::test]
    async fn socket_polls_writability_only_after_blocked_write() {
        const EPOLLIN: u32 = 1;
        const EPOLLOUT: u32 = 4;
        let (mut client, mut server) = pair();
        server.write_all(b"answer").await.unwrap();
        assert_eq!(watched_of(&server) & (EPOLLIN | EPOLLOUT), EPOLLIN);
        let reading = tokio::spawn(async move { client.read_exact(&mut vec![0; LARGE]).await.map(drop) });
        server.write_all(&vec![7; LARGE]).await.unwrap();
        assert_eq!(watched_of(&server) & (EPOLLIN | EPOLLOUT), EPOLLIN | EPOLLOUT);
        reading.await.unwrap().unwrap();
    }
}
