//! The messages of a call that goes on: they are kept out of the gRPC library, too.
//!
//! The gRPC library decodes what comes in out of one buffer for each stream, and encodes what goes out into another. Both
//! stay for as long as the stream does, with what they had last: what somebody typed, what a program printed. So the
//! library gets an empty message for each message, and the messages themselves are here, each in memory of its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hyper::body::Bytes;
use prost::Message;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Extensions, Status, Streaming};

use crate::locked;

/// Bytes of answers that wait in a stream for its client; one message may always.
const WAITING_MAX: usize = 32 << 10;
/// Answers that wait likewise.
const DEPTH: usize = 32;
/// Methods whose requests go on.
const LISTENING: [&str; 4] = [
    "/executor.v1.Executor/Exec",
    "/executor.v1.Executor/Attach",
    "/executor.v1.Executor/PutArchive",
    "/executor.v1.Images/Import",
];

/// Shared by a call's handler and its bodies.
#[derive(Clone, Debug)]
pub(crate) struct Conversation(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Requests come as empty messages.
    listens: bool,
    /// Answers do.
    speaks: AtomicBool,
    incoming: Mutex<VecDeque<Bytes>>,
    outgoing: Mutex<Outgoing>,
    room: Notify,
}

#[derive(Debug, Default)]
struct Outgoing {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl Outgoing {
    /// Takes a message where there is room, or gives it back.
    fn push(&mut self, message: Bytes) -> Result<(), Bytes> {
        if self.bytes > 0 && self.bytes + message.len() > WAITING_MAX {
            return Err(message);
        }
        self.bytes += message.len();
        self.messages.push_back(message);
        Ok(())
    }
}

/// A message as gRPC carries it.
fn encoded(message: &impl Message) -> Bytes {
    let mut bytes = Vec::with_capacity(5 + message.encoded_len());
    bytes.push(0);
    bytes.extend_from_slice(&(message.encoded_len() as u32).to_be_bytes());
    message.encode_raw(&mut bytes);
    bytes.into()
}

impl Conversation {
    /// Of a call of this method.
    pub(super) fn new(method: &str) -> Self {
        Self(Arc::new(Shared {
            listens: LISTENING.contains(&method),
            speaks: AtomicBool::new(false),
            incoming: Mutex::default(),
            outgoing: Mutex::default(),
            room: Notify::new(),
        }))
    }

    /// The one of a request.
    ///
    /// # Errors
    /// It did not come through a connection: a fault of the server's.
    pub(crate) fn of(extensions: &Extensions) -> Result<Self, Status> {
        extensions.get::<Self>().cloned().ok_or_else(|| Status::internal("the call has no connection"))
    }

    /// Requests come as empty messages.
    pub(super) fn listens(&self) -> bool {
        self.0.listens
    }

    /// A message has come.
    pub(super) fn heard(&self, message: Bytes) {
        locked(&self.0.incoming).push_back(message);
    }

    /// Answers come as empty messages.
    pub(super) fn speaks(&self) -> bool {
        self.0.speaks.load(Ordering::Acquire)
    }

    /// The next answer, with what gRPC puts before it.
    pub(super) fn next(&self) -> Option<Bytes> {
        let mut outgoing = locked(&self.0.outgoing);
        let message = outgoing.messages.pop_front()?;
        outgoing.bytes -= message.len();
        drop(outgoing);
        self.0.room.notify_waiters();
        Some(message)
    }

    /// Where a handler puts its answers, and the stream that it hands back.
    pub(crate) fn answers<T: Message + Default>(&self) -> (Outlet<T>, Answers<T>) {
        self.0.speaks.store(true, Ordering::Release);
        let (sender, receiver) = mpsc::channel(DEPTH);
        (Outlet { sender, conversation: self.clone() }, ReceiverStream::new(receiver))
    }

    /// The requests, one by one.
    pub(crate) fn requests<T: Message + Default>(&self, stream: Streaming<T>) -> Requests<T> {
        Requests { stream, conversation: self.clone() }
    }
}

/// The stream of empty messages that a handler hands back.
pub(crate) type Answers<T> = ReceiverStream<Result<T, Status>>;

/// Nobody reads any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone;

/// Where answers go.
#[derive(Debug)]
pub(crate) struct Outlet<T> {
    sender: mpsc::Sender<Result<T, Status>>,
    conversation: Conversation,
}

impl<T> Clone for Outlet<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), conversation: self.conversation.clone() }
    }
}

impl<T: Message + Default> Outlet<T> {
    /// Waits for room, and sends.
    ///
    /// # Errors
    /// Nobody reads any more.
    pub(crate) async fn send(&self, answer: Result<T, Status>) -> Result<(), Gone> {
        let answer = match answer {
            Ok(message) => {
                let bytes = encoded(&message);
                drop(message);
                self.push(bytes).await?;
                Ok(T::default())
            }
            Err(status) => Err(status),
        };
        self.sender.send(answer).await.map_err(|_| Gone)
    }

    /// Sends where there is room now; `false` where there is none.
    pub(crate) fn try_send(&self, message: &T) -> bool {
        let Ok(permit) = self.sender.try_reserve() else { return false };
        let fits = locked(&self.conversation.0.outgoing).push(encoded(message)).is_ok();
        if fits {
            permit.send(Ok(T::default()));
        }
        fits
    }

    async fn push(&self, mut message: Bytes) -> Result<(), Gone> {
        loop {
            let room = self.conversation.0.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            match locked(&self.conversation.0.outgoing).push(message) {
                Ok(()) => return Ok(()),
                Err(back) => message = back,
            }
            tokio::select! {
                () = room => {}
                () = self.sender.closed() => return Err(Gone),
            }
        }
    }

    /// Resolves when the client's stream has taken all that was sent, or nobody reads any more.
    pub(crate) async fn taken(&self) {
        loop {
            let taken = self.conversation.0.room.notified();
            tokio::pin!(taken);
            taken.as_mut().enable();
            if locked(&self.conversation.0.outgoing).messages.is_empty() {
                return;
            }
            tokio::select! {
                () = taken => {}
                () = self.sender.closed() => return,
            }
        }
    }

    /// Resolves when nobody reads any more.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// Requests of a call.
#[derive(Debug)]
pub(crate) struct Requests<T> {
    stream: Streaming<T>,
    conversation: Conversation,
}

impl<T: Message + Default> Requests<T> {
    /// The next one; `None` when no more comes.
    ///
    /// # Errors
    /// It is not a message of the kind, or the stream was broken off.
    pub(crate) async fn next(&mut self) -> Result<Option<T>, Status> {
        if self.stream.message().await?.is_none() {
            return Ok(None);
        }
        let message = locked(&self.conversation.0.incoming).pop_front().unwrap_or_default();
        let decoded = T::decode(&*message);
        decoded.map(Some).map_err(|error| Status::invalid_argument(format!("the request cannot be decoded: {error}")))
    }
}

impl<T> Drop for Requests<T> {
    fn drop(&mut self) {
        locked(&self.conversation.0.incoming).clear();
    }
}
