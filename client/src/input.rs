//! Input for a process: standard input, end of input, and the size of its terminal's window.
//!
//! Messages wait in a queue that outlives a connection. The next connection sends the messages that are still queued.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use executor_proto::v1::WindowSize;
use tokio::sync::mpsc;
use tokio_stream::Stream;

/// Capacity of the queue, in messages.
const DEPTH: usize = 4;

/// A message from an [`Input`] to a process or a port.
#[derive(Debug)]
pub(crate) enum Item {
    Bytes(Vec<u8>),
    End,
    Window(WindowSize),
    Detach,
}

/// Sends input to a process or to a TCP port. Clones send to the same process or port. The input is closed after its
/// [`crate::Attach`], [`crate::Exec`] or [`crate::Connection`] was dropped.
#[derive(Clone, Debug)]
pub struct Input(mpsc::Sender<Item>);

impl Input {
    /// Sends bytes to standard input; waits while the queue is full. Returns false if the input is closed.
    pub async fn send(&self, bytes: Vec<u8>) -> bool {
        self.0.send(Item::Bytes(bytes)).await.is_ok()
    }

    /// Closes the process's standard input. Returns false if this [`Input`] is closed.
    pub async fn end(&self) -> bool {
        self.0.send(Item::End).await.is_ok()
    }

    /// Sends the size of the terminal's window. Returns false if the input is closed.
    pub async fn resize(&self, window: WindowSize) -> bool {
        self.0.send(Item::Window(window)).await.is_ok()
    }

    pub(crate) async fn detach(&self) -> bool {
        self.0.send(Item::Detach).await.is_ok()
    }
}

/// Receiving side of an [`Input`].
pub(crate) struct Queue(Arc<Mutex<Shared>>);

struct Shared {
    receiver: mpsc::Receiver<Item>,
    /// Number of the current connection. Earlier connections get no items.
    connection: u64,
    /// Last window size that was sent.
    window: Option<WindowSize>,
    /// Waker of the current connection.
    waker: Option<Waker>,
}

/// Ends the request stream of the current connection. The gRPC library cancels an RPC only after both its request
/// stream and its response stream are dropped or have ended.
impl Drop for Queue {
    fn drop(&mut self) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.connection += 1;
        shared.waker.take().iter().for_each(Waker::wake_by_ref);
    }
}

pub(crate) fn queue() -> (Input, Queue) {
    let (sender, receiver) = mpsc::channel(DEPTH);
    (Input(sender), Queue(Arc::new(Mutex::new(Shared { receiver, connection: 0, window: None, waker: None }))))
}

impl Queue {
    /// Returns the last window size that was sent.
    pub(crate) fn window(&self) -> Option<WindowSize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).window
    }

    /// Returns the stream for a new connection: `first`, then the queued items. The stream of an earlier connection
    /// ends.
    pub(crate) fn stream<T>(&self, first: Vec<T>, message: fn(Item) -> T) -> Requests<T> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.connection += 1;
        Requests { shared: self.0.clone(), connection: shared.connection, first: first.into_iter(), message }
    }
}

/// Stream of the request messages of one connection.
pub(crate) struct Requests<T> {
    shared: Arc<Mutex<Shared>>,
    connection: u64,
    first: std::vec::IntoIter<T>,
    message: fn(Item) -> T,
}

impl<T> Unpin for Requests<T> {}

impl<T> Stream for Requests<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(first) = self.first.next() {
            return Poll::Ready(Some(first));
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.connection != self.connection {
            return Poll::Ready(None);
        }
        shared.waker = Some(context.waker().clone());
        match shared.receiver.poll_recv(context) {
            Poll::Ready(Some(item)) => {
                if let Item::Window(window) = &item {
                    shared.window = Some(*window);
                }
                Poll::Ready(Some((self.message)(item)))
            }
            // All senders are dropped: there is no more input, but the RPC continues. Dropping the senders does not
            // close standard input.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;

    /// Dropping the queue of an RPC ends the RPC's request stream, although an [`Input`] still exists.
    #[tokio::test]
    async fn requests_end_with_their_call() {
        let (input, queue) = queue();
        let mut requests = queue.stream(Vec::new(), |item| format!("{item:?}"));
        let end = tokio::spawn(async move { requests.next().await });
        tokio::task::yield_now().await; // the task waits for an item
        drop(queue);
        assert_eq!(end.await.unwrap(), None);
        drop(input);
    }

    /// After a reconnect, queued input is sent on the new connection only.
    #[tokio::test]
    async fn reconnect_continues_input_queue() {
        let (input, queue) = queue();
        let text = |item| match item {
            Item::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
            other => format!("{other:?}"),
        };
        let mut first = queue.stream(vec!["start".to_owned()], text);
        assert!(input.send(b"a".to_vec()).await && input.send(b"b".to_vec()).await && input.end().await);
        assert_eq!(first.next().await.unwrap(), "start");
        assert_eq!(first.next().await.unwrap(), "a");
        let mut second = queue.stream(vec!["again".to_owned()], text);
        assert_eq!(first.next().await, None);
        assert_eq!(second.next().await.unwrap(), "again");
        assert_eq!(second.next().await.unwrap(), "b");
        assert_eq!(second.next().await.unwrap(), "End");
        drop((first, second, queue));
        assert!(!input.send(b"c".to_vec()).await, "the call has completed");
    }
}
