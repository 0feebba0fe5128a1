//! Restores the fields and bodies of requests from h2, and passes responses to h2 without content.
//!
//! h2 delivers a call as a path with the stream's id, and a body of zeros. The data is in [`Calls`]. For each zero from
//! h2 one byte of data is consumed, so that h2's flow control works. A body is passed to the service message by
//! message. Each message is complete, and is checked before it is decoded.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body as _, Bytes, Frame, Incoming};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap};

use super::budget::AnswerPermit;
use super::calls::{Calls, Request};
use super::conversation::Conversation;
use super::hpack;

/// Zeros that h2 gets in place of a response.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Size of gRPC's message prefix, in bytes: flag (1) and length (4).
const PREFIX: usize = 5;
/// Maximum capacity of an incomplete message, as a multiple of the received bytes. A client can claim any length, and
/// each growth copies the message. A prefix alone reserves nothing.
const RESERVE_FACTOR: usize = 8;
/// An empty message: a prefix with length 0.
const EMPTY: Bytes = Bytes::from_static(&[0; PREFIX]);

/// Checks the complete messages of a request before they are decoded.
pub trait MessageCheck: Send + Unpin + 'static {
    /// Checks one message, which is passed without gRPC's prefix.
    ///
    /// # Errors
    /// Returns the status of the call if the message must not be decoded.
    fn check(&self, message: &[u8]) -> Result<(), Status>;
}

/// Observes a call. The observer is dropped when the response is written or abandoned.
pub trait CallObserver: Send + Unpin + 'static {
    /// Receives the fields of the response head, and later the fields of the trailers. Only one of the two has
    /// `grpc-status`.
    fn response_fields(&mut self, fields: &HeaderMap);
}

/// A call with the fields and body that the client sent.
#[derive(Debug)]
pub struct Call {
    calls: Calls,
    id: u32,
    /// Head of the request.
    pub request: Request,
    body: Incoming,
}

impl Call {
    /// Returns the call for a request of h2. Returns `None` if the stream is closed or was opened beyond the limit on
    /// streams.
    pub fn new(calls: &Calls, shadow: http::Request<Incoming>) -> Option<Self> {
        let id = shadow.uri().path().strip_prefix('/')?.parse().ok()?;
        let request = calls.start(id)?;
        Some(Self { calls: calls.clone(), id, request, body: shadow.into_body() })
    }

    /// Returns the request and the responder. The request's messages have at most `most` bytes and pass `check`. If
    /// `streams_requests` is true, the messages are in the [`Conversation`] in the request's extensions.
    pub fn open<C: MessageCheck>(
        self,
        most: usize,
        streams_requests: bool,
        check: C,
    ) -> (http::Request<RequestBody<C>>, Responder) {
        let Self { calls, id, request: Request { method, path, fields, .. }, body } = self;
        let conversation = Conversation::new(streams_requests);
        let body = RequestBody {
            body,
            calls: calls.clone(),
            id,
            owed: 0,
            parser: Parser::Prefix([0; PREFIX], 0),
            ready: VecDeque::new(),
            most,
            check,
            conversation: conversation.clone(),
        };
        let mut request = http::Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = http::Uri::try_from(path).unwrap_or_default();
        *request.headers_mut() = fields;
        *request.version_mut() = http::Version::HTTP_2;
        request.extensions_mut().insert(conversation.clone());
        (request, Responder { calls, id, conversation })
    }

    /// Discards the body of a call that is not executed, and returns the responder.
    pub fn refuse(self) -> Responder {
        self.calls.drop_body(self.id);
        let conversation = Conversation::new(false);
        Responder { calls: self.calls, id: self.id, conversation }
    }
}

/// Sends the response of a call.
#[derive(Debug)]
pub struct Responder {
    calls: Calls,
    id: u32,
    conversation: Conversation,
}

impl Responder {
    /// Responds with one message. The message is encoded immediately, so that it occupies only its own size while the
    /// client reads slowly. If the budget has no space for the message, the call is refused.
    pub async fn answer_whole<O: CallObserver>(
        self,
        answer: http::Response<Body>,
        mut permit: AnswerPermit,
        secrets: bool,
        observer: O,
    ) -> http::Response<ResponseBody<O>> {
        let (head, mut body) = answer.into_parts();
        let (mut parts, mut trailers) = (Vec::new(), None);
        let mut failure = None;
        while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            match frame.map(Frame::into_data) {
                Ok(Ok(part)) => parts.push(part),
                Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
                Err(status) => failure = Some(status),
            }
        }
        drop(body);
        let size = parts.iter().map(Bytes::len).sum();
        let room = match failure {
            Some(status) => Err(status),
            None => permit.resize(size).await.map_err(Status::resource_exhausted),
        };
        if let Err(status) = room {
            drop(parts);
            return self.answer(status.into_http(), Some(permit), false, observer);
        }
        let (calls, id) = (self.calls.clone(), self.id);
        let mut shadow = self.answer(http::Response::from_parts(head, Body::empty()), Some(permit), secrets, observer);
        let body = shadow.body_mut();
        for part in parts {
            body.owed += part.len();
            calls.send(id, part);
        }
        body.trailers = trailers.is_some();
        if let Some(trailers) = trailers {
            body.finish(&trailers);
        }
        shadow
    }

    /// Starts the response. Returns the response for h2: the same status, but without fields and with zeros as its
    /// body. `secrets` is true if the response contains secrets. The permit is released when the response is written.
    pub fn answer<O: CallObserver>(
        self,
        answer: http::Response<Body>,
        permit: Option<AnswerPermit>,
        secrets: bool,
        mut observer: O,
    ) -> http::Response<ResponseBody<O>> {
        let Self { calls, id, conversation } = self;
        let (head, body) = answer.into_parts();
        let mut block = Vec::new();
        hpack::put_status(&mut block, head.status.as_u16());
        put_fields(&mut block, &head.headers);
        observer.response_fields(&head.headers);
        calls.answer(id, block, permit, secrets);
        let mut shadow =
            http::Response::new(ResponseBody { body, calls, id, owed: 0, trailers: false, conversation, observer });
        *shadow.status_mut() = head.status;
        shadow
    }
}

fn put_fields(block: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        hpack::put_field(block, name.as_str(), value.as_bytes());
    }
}

#[derive(Debug)]
pub struct RequestBody<C> {
    body: Incoming,
    calls: Calls,
    id: u32,
    /// Number of zeros that h2 delivered and that are not yet matched by consumed request data.
    owed: usize,
    parser: Parser,
    ready: VecDeque<Bytes>,
    most: usize,
    check: C,
    conversation: Conversation,
}

#[derive(Debug)]
enum Parser {
    /// Reading a message's prefix; holds the received bytes and their number.
    Prefix([u8; PREFIX], usize),
    /// Reading a message; holds the received bytes after its prefix, and the number of missing bytes.
    Message(Vec<u8>, usize),
    /// No more bytes of the body are consumed.
    Over,
}

impl<C: MessageCheck> RequestBody<C> {
    /// Parses bytes of the request body, and queues the complete messages.
    fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        while !bytes.is_empty() {
            match &mut self.parser {
                Parser::Prefix(prefix, have) => {
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
                    if flag == 0 && length > self.most {
                        // Other gRPC libraries use the same code and message.
                        let why = format!("grpc: received message larger than max ({length} vs. {})", self.most);
                        return Err(Status::resource_exhausted(why));
                    }
                    if flag != 0 {
                        // tonic rejects the prefix with the reason.
                        self.ready.push_back(prefix.to_vec().into());
                        self.parser = Parser::Over;
                    } else {
                        self.parser = Parser::Message(Vec::new(), length);
                        self.message()?;
                    }
                }
                Parser::Message(message, left) => {
                    let taken = bytes.len().min(*left);
                    if message.capacity() - message.len() < taken {
                        let capacity = (message.len() + taken).saturating_mul(RESERVE_FACTOR);
                        message.reserve_exact((capacity - message.len()).min(*left));
                    }
                    message.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    *left -= taken;
                    self.message()?;
                }
                Parser::Over => return Ok(()),
            }
        }
        Ok(())
    }

    /// Checks the message and queues it for tonic, if the message is complete.
    fn message(&mut self) -> Result<(), Status> {
        let Parser::Message(message, 0) = &mut self.parser else { return Ok(()) };
        let message = std::mem::take(message);
        self.parser = Parser::Prefix([0; PREFIX], 0);
        self.check.check(&message)?;
        if self.conversation.streams_requests() {
            self.conversation.push_request(message.into());
            self.ready.push_back(EMPTY);
        } else {
            // tonic reserves space for the message after reading the prefix. If both came together, tonic would copy
            // the message into twice the space.
            let length = (message.len() as u32).to_be_bytes();
            self.ready.push_back([&[0][..], &length].concat().into());
            self.ready.push_back(message.into());
        }
        Ok(())
    }

    /// Returns a part of a message if the body ends within a message, so that tonic reports the error.
    fn incomplete(&mut self) -> Option<Bytes> {
        let incomplete = match std::mem::replace(&mut self.parser, Parser::Over) {
            Parser::Prefix(_, 0) | Parser::Over => false,
            Parser::Prefix(..) | Parser::Message(..) => true,
        };
        incomplete.then(|| EMPTY.slice(..1))
    }
}

impl<C: MessageCheck> hyper::body::Body for RequestBody<C> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            if let Some(ready) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(ready))));
            }
            while this.owed > 0 {
                // If bytes are missing, they were dropped with the stream, and h2 reports the end of the stream.
                let Some(part) = this.calls.take(this.id, this.owed) else {
                    this.owed = 0;
                    break;
                };
                this.owed -= part.len();
                if let Err(status) = this.feed(&part) {
                    this.parser = Parser::Over;
                    this.calls.drop_body(this.id);
                    return Poll::Ready(Some(Err(status)));
                }
            }
            if !this.ready.is_empty() {
                continue;
            }
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => this.owed += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(error)) => return Poll::Ready(Some(Err(Status::from_error(Box::new(error))))),
                None => return Poll::Ready(this.incomplete().map(|part| Ok(Frame::data(part)))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty()
            && self.owed == 0
            && matches!(self.parser, Parser::Prefix(_, 0))
            && self.body.is_end_stream()
    }
}

impl<C> Drop for RequestBody<C> {
    fn drop(&mut self) {
        self.calls.drop_body(self.id);
    }
}

/// Response body that is passed to h2.
#[derive(Debug)]
pub struct ResponseBody<O> {
    body: Body,
    calls: Calls,
    id: u32,
    /// Number of zeros that are not passed to h2 yet.
    owed: usize,
    /// True if the trailers are ready, but h2 has not received its empty trailers yet.
    trailers: bool,
    conversation: Conversation,
    observer: O,
}

impl<O: CallObserver> ResponseBody<O> {
    fn finish(&mut self, trailers: &HeaderMap) {
        let mut block = Vec::new();
        put_fields(&mut block, trailers);
        self.observer.response_fields(trailers);
        self.calls.finish(self.id, block);
    }
}

impl<O: CallObserver> hyper::body::Body for ResponseBody<O> {
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
            if std::mem::take(&mut this.trailers) {
                return Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new()))));
            }
            let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)?) else { return Poll::Ready(None) };
            let frame = match frame.into_data() {
                Ok(data) if this.conversation.streams_answers() => {
                    for _ in 0..data.len() / PREFIX {
                        let message = this.conversation.next_answer().unwrap_or(EMPTY);
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
                this.finish(&trailers);
                return Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new()))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.owed == 0 && !self.trailers && self.body.is_end_stream()
    }
}
