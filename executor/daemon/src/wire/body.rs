//! Requests with their own fields and bodies again, and answers without theirs.
//!
//! A call comes from the HTTP/2 library as a path that has the stream's id, and a body of zeros. The bytes are with the
//! [`Calls`]; for every zero that the library hands on one of them is taken, so that its windows hold. A body
//! is handed on message by message, each whole and judged before anybody decodes it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Bytes, Frame, Incoming};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap};

use super::budget::Share;
use super::calls::{Calls, Request};
use super::conversation::Conversation;
use super::hpack;
use super::weight::Weigher;

/// What the library is given instead of an answer's bytes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// What gRPC puts before a message: a flag, and a length of four bytes.
const PREFIX: usize = 5;
/// A message without content.
const EMPTY: Bytes = Bytes::from_static(&[0; PREFIX]);

/// A call as it was made.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Calls,
    id: u32,
    pub(crate) request: Request,
    body: Incoming,
}

impl Call {
    /// The call that the library's request stands for; `None` where it is gone, or was one too many.
    pub(crate) fn of(calls: &Calls, shadow: http::Request<Incoming>) -> Option<Self> {
        let id = shadow.uri().path().strip_prefix('/')?.parse().ok()?;
        let request = calls.begin(id)?;
        Some(Self { calls: calls.clone(), id, request, body: shadow.into_body() })
    }

    /// Takes the call apart: the request, and where its answer goes. Messages have at most `most` bytes.
    pub(crate) fn open(self, most: usize) -> (http::Request<Asked>, Answering) {
        let Self { calls, id, request: Request { method, path, fields, .. }, body } = self;
        let conversation = Conversation::new(&path);
        let weigher = Weigher::of(&path);
        let asked = Asked {
            body,
            calls: calls.clone(),
            id,
            owed: 0,
            at: At::Prefix([0; PREFIX], 0),
            ready: VecDeque::new(),
            most,
            weigher,
            conversation: conversation.clone(),
        };
        let mut request = http::Request::new(asked);
        *request.method_mut() = method;
        *request.uri_mut() = http::Uri::try_from(path).unwrap_or_default();
        *request.headers_mut() = fields;
        *request.version_mut() = http::Version::HTTP_2;
        request.extensions_mut().insert(conversation.clone());
        (request, Answering { calls, id, conversation })
    }

    /// Where the answer goes, for a call that is not carried out.
    pub(crate) fn refuse(self) -> Answering {
        self.calls.deafen(self.id);
        let conversation = Conversation::new("");
        Answering { calls: self.calls, id: self.id, conversation }
    }
}

/// A call that is to be answered.
#[derive(Debug)]
pub(crate) struct Answering {
    calls: Calls,
    id: u32,
    conversation: Conversation,
}

impl Answering {
    /// The answer as the library sees it. `secrets` says that it holds some; the share of memory is given back when it is out.
    pub(crate) fn answer(
        self,
        answer: http::Response<Body>,
        share: Option<Share>,
        secrets: bool,
    ) -> http::Response<Answered> {
        let Self { calls, id, conversation } = self;
        let (head, body) = answer.into_parts();
        let mut block = Vec::new();
        hpack::put_status(&mut block, head.status.as_u16());
        put_fields(&mut block, &head.headers);
        calls.answer(id, block, share, secrets);
        let mut shadow = http::Response::new(Answered { body, calls, id, owed: 0, conversation });
        *shadow.status_mut() = head.status;
        shadow
    }
}

fn put_fields(block: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        hpack::put_field(block, name.as_str(), value.as_bytes());
    }
}

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Asked {
    body: Incoming,
    calls: Calls,
    id: u32,
    /// Bytes that the library has handed on and that are not taken yet.
    owed: usize,
    at: At,
    ready: VecDeque<Bytes>,
    most: usize,
    weigher: Weigher,
    conversation: Conversation,
}

#[derive(Debug)]
enum At {
    /// This many bytes of what comes before a message.
    Prefix([u8; PREFIX], usize),
    /// A message with its prefix; so many bytes of it are still to come.
    Message(Vec<u8>, usize),
    /// Nothing more is taken.
    Over,
}

impl Asked {
    /// Goes on over bytes of the client's.
    fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        while !bytes.is_empty() {
            match &mut self.at {
                At::Prefix(prefix, have) => {
                    let taken = bytes.len().min(PREFIX - *have);
                    prefix[*have..*have + taken].copy_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    *have += taken;
                    if *have < PREFIX {
                        return Ok(());
                    }
                    let prefix = *prefix;
                    let [flag, length @ ..] = prefix;
                    let length = u32::from_be_bytes(length) as usize;
                    if flag != 0 || length > self.most {
                        // The gRPC library says what is wrong with it.
                        self.ready.push_back(prefix.to_vec().into());
                        self.at = At::Over;
                    } else {
                        let mut message = Vec::with_capacity(PREFIX + length.min(bytes.len()));
                        message.extend_from_slice(&prefix);
                        self.at = At::Message(message, length);
                        self.message()?;
                    }
                }
                At::Message(message, left) => {
                    let taken = bytes.len().min(*left);
                    if message.capacity() - message.len() < taken {
                        // Doubled, and no more than it will have: what is moved leaves nothing behind.
                        message.reserve_exact(taken.max(message.len().min(*left)));
                    }
                    message.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    *left -= taken;
                    self.message()?;
                }
                At::Over => return Ok(()),
            }
        }
        Ok(())
    }

    /// Hands on the message if it is whole.
    fn message(&mut self) -> Result<(), Status> {
        let At::Message(message, 0) = &mut self.at else { return Ok(()) };
        let message = std::mem::take(message);
        self.at = At::Prefix([0; PREFIX], 0);
        self.weigher.judge(&message[PREFIX..])?;
        let message = Bytes::from(message);
        if self.conversation.listens() {
            self.conversation.heard(message.slice(PREFIX..));
            self.ready.push_back(EMPTY);
        } else {
            self.ready.push_back(message);
        }
        Ok(())
    }

    /// What is left of a message that does not come to its end, which the gRPC library is told by a part of one.
    fn torn(&mut self) -> Option<Bytes> {
        let torn = match std::mem::replace(&mut self.at, At::Over) {
            At::Prefix(_, 0) | At::Over => false,
            At::Prefix(..) | At::Message(..) => true,
        };
        torn.then(|| EMPTY.slice(..1))
    }
}

impl hyper::body::Body for Asked {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            if let Some(ready) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(ready))));
            }
            while this.owed > 0 {
                // What is not there was dropped with its stream, of which the library will tell.
                let Some(part) = this.calls.take(this.id, this.owed) else {
                    this.owed = 0;
                    break;
                };
                this.owed -= part.len();
                if let Err(status) = this.feed(&part) {
                    this.at = At::Over;
                    this.calls.deafen(this.id);
                    return Poll::Ready(Some(Err(status)));
                }
            }
            if !this.ready.is_empty() {
                continue;
            }
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => this.owed += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(error)) => return Poll::Ready(Some(Err(Status::from_error(Box::new(error))))),
                None => return Poll::Ready(this.torn().map(|torn| Ok(Frame::data(torn)))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.owed == 0 && matches!(self.at, At::Prefix(_, 0)) && self.body.is_end_stream()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.calls.deafen(self.id);
    }
}

/// The body of an answer, as the library sees it.
#[derive(Debug)]
pub(crate) struct Answered {
    body: Body,
    calls: Calls,
    id: u32,
    /// Zeros that the library is still to be given.
    owed: usize,
    conversation: Conversation,
}

impl hyper::body::Body for Answered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            if this.owed > 0 {
                let given = this.owed.min(ZEROS.len());
                this.owed -= given;
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&ZEROS[..given])))));
            }
            let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)?) else { return Poll::Ready(None) };
            let frame = match frame.into_data() {
                Ok(data) if this.conversation.speaks() => {
                    for _ in 0..data.len() / PREFIX {
                        let message = this.conversation.next().unwrap_or(EMPTY);
                        this.owed += message.len();
                        this.calls.send(this.id, message);
                    }
                    continue;
                }
                Ok(data) => {
                    this.owed += data.len();
                    this.calls.send(this.id, data);
                    continue;
                }
                Err(frame) => frame,
            };
            if let Ok(trailers) = frame.into_trailers() {
                let mut block = Vec::new();
                put_fields(&mut block, &trailers);
                this.calls.finish(this.id, block);
                return Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new()))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.owed == 0 && self.body.is_end_stream()
    }
}
