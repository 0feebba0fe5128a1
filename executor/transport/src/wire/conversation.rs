//! Keeps the messages of streaming calls out of tonic, the gRPC library.
//!
//! tonic decodes a stream's requests from one buffer and encodes its responses into another. Both buffers keep their
//! last content as long as the stream exists, such as terminal input and output. Therefore tonic gets an empty message
//! in place of each message. The messages themselves are kept here, each in its own memory.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use executor_sys::mutex::locked;
use hyper::body::Bytes;
use prost::Message;
use tokio::sync::{Notify, mpsc};
use tonic::{Extensions, Status, Streaming};

/// Maximum size of a stream's queued responses, in bytes. A larger message is queued if the queue is empty.
const WAITING_MAX: usize = 32 << 10;
/// Maximum number of a stream's queued responses.
const DEPTH: usize = 32;

/// Messages of a call, shared by the handler of the call and its bodies.
#[derive(Clone, Debug)]
pub struct Conversation(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// True if tonic gets requests as empty messages.
    streams_requests: bool,
    /// True if tonic sends responses as empty messages.
    streams_answers: AtomicBool,
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
    /// Queues a message if there is space; otherwise returns the message.
    fn push(&mut self, message: Bytes) -> Result<(), Bytes> {
        if self.bytes > 0 && self.bytes + message.len() > WAITING_MAX {
            return Err(message);
        }
        self.bytes += message.len();
        self.messages.push_back(message);
        Ok(())
    }
}

/// Encodes a message with gRPC's prefix.
fn encoded(message: &impl Message) -> Bytes {
    let mut bytes = Vec::with_capacity(5 + message.encoded_len());
    bytes.push(0);
    bytes.extend_from_slice(&(message.encoded_len() as u32).to_be_bytes());
    message.encode_raw(&mut bytes);
    bytes.into()
}

impl Conversation {
    /// Creates the conversation of a call. `streams_requests` is true if tonic gets requests as empty messages.
    pub(super) fn new(streams_requests: bool) -> Self {
        Self(Arc::new(Shared {
            streams_requests,
            streams_answers: AtomicBool::new(false),
            incoming: Mutex::default(),
            outgoing: Mutex::default(),
            room: Notify::new(),
        }))
    }

    /// Returns the conversation of a request.
    ///
    /// # Errors
    /// Returns an internal error if the request was not received over a connection.
    pub fn from_extensions(extensions: &Extensions) -> Result<Self, Status> {
        extensions.get::<Self>().cloned().ok_or_else(|| Status::internal("the call has no connection"))
    }

    /// Returns true if tonic gets requests as empty messages.
    pub(super) fn streams_requests(&self) -> bool {
        self.0.streams_requests
    }

    pub(super) fn push_request(&self, message: Bytes) {
        locked(&self.0.incoming).push_back(message);
    }

    /// Returns true if tonic sends responses as empty messages.
    pub(super) fn streams_answers(&self) -> bool {
        self.0.streams_answers.load(Ordering::Acquire)
    }

    /// Removes and returns the next response, with gRPC's prefix.
    pub(super) fn next_answer(&self) -> Option<Bytes> {
        let mut outgoing = locked(&self.0.outgoing);
        let message = outgoing.messages.pop_front()?;
        outgoing.bytes -= message.len();
        drop(outgoing);
        self.0.room.notify_waiters();
        Some(message)
    }

    /// Returns the sender for a handler's responses, and the stream that the handler returns to tonic.
    pub fn answers<T: Message + Default>(&self) -> (Outlet<T>, Answers<T>) {
        self.0.streams_answers.store(true, Ordering::Release);
        let (sender, marks) = mpsc::channel(DEPTH);
        (Outlet { sender, conversation: self.clone(), of: PhantomData }, Answers { marks, of: PhantomData })
    }

    pub fn requests<T: Message + Default>(&self, stream: Streaming<T>) -> Requests<T> {
        Requests { stream, conversation: self.clone() }
    }
}

/// Stream of empty messages that a handler returns.
#[derive(Debug)]
pub struct Answers<T> {
    /// Receives `None` for each response whose message is in the conversation, or an error, which closes the stream.
    marks: mpsc::Receiver<Option<Box<Status>>>,
    of: PhantomData<fn() -> T>,
}

impl<T: Default> tokio_stream::Stream for Answers<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let answer = |mark: Option<Box<Status>>| mark.map_or_else(|| Ok(T::default()), |status| Err(*status));
        self.get_mut().marks.poll_recv(context).map(|mark| mark.map(answer))
    }
}

/// Error if the client no longer reads the responses.
#[derive(Clone, Copy, Debug)]
pub struct ClientGone;

/// Sender of a handler's responses.
#[derive(Debug)]
pub struct Outlet<T> {
    sender: mpsc::Sender<Option<Box<Status>>>,
    conversation: Conversation,
    of: PhantomData<fn(T)>,
}

impl<T> Clone for Outlet<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), conversation: self.conversation.clone(), of: PhantomData }
    }
}

impl<T: Message + Default> Outlet<T> {
    /// Waits for space in the queue, and sends a response.
    ///
    /// # Errors
    /// Returns an error if the client no longer reads.
    pub async fn send(&self, answer: Result<T, Status>) -> Result<(), ClientGone> {
        let mark = match answer {
            Ok(message) => {
                let bytes = encoded(&message);
                drop(message);
                self.push(bytes).await?;
                None
            }
            Err(status) => Some(Box::new(status)),
        };
        self.sender.send(mark).await.map_err(|_| ClientGone)
    }

    /// Sends a response if the queue has space; otherwise returns `false`.
    pub fn try_send(&self, message: &T) -> bool {
        let Ok(permit) = self.sender.try_reserve() else { return false };
        let fits = locked(&self.conversation.0.outgoing).push(encoded(message)).is_ok();
        if fits {
            permit.send(None);
        }
        fits
    }

    async fn push(&self, mut message: Bytes) -> Result<(), ClientGone> {
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
                () = self.sender.closed() => return Err(ClientGone),
            }
        }
    }

    /// Resolves when the connection has consumed all responses, or the client no longer reads.
    pub async fn drained(&self) {
        loop {
            let drained = self.conversation.0.room.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            if locked(&self.conversation.0.outgoing).messages.is_empty() {
                return;
            }
            tokio::select! {
                () = drained => {}
                () = self.sender.closed() => return,
            }
        }
    }

    /// Resolves when the client no longer reads.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// Requests of a call.
#[derive(Debug)]
pub struct Requests<T> {
    stream: Streaming<T>,
    conversation: Conversation,
}

impl<T: Message + Default> Requests<T> {
    /// Waits for the next request. Returns `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns an error if the request is malformed, or the stream was aborted.
    pub async fn next(&mut self) -> Result<Option<T>, Status> {
        if self.stream.message().await?.is_none() {
            return Ok(None);
        }
        let message = locked(&self.conversation.0.incoming).pop_front().unwrap_or_default();
        let decoded = T::decode(&*message);
        decoded.map(Some).map_err(|error| Status::invalid_argument(format!("cannot decode the request: {error}")))
    }
}

impl<T> Drop for Requests<T> {
    fn drop(&mut self) {
        locked(&self.conversation.0.incoming).clear();
    }
}
