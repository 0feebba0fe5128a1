//! Stores the calls on one connection, with the content that h2 must not hold.
//!
//! The socket's reader ([`super::inbound`]) adds requests, which the calls ([`super::body`]) consume. The calls add
//! responses, which the writer ([`super::outbound`]) consumes. h2 gets zeros of the same length, so that h2 alone
//! handles streams, flow control and ordering. A stream's content is freed when either side closes the stream.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use executor_sys::mutex::locked;
use hyper::body::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::codegen::http::{HeaderMap, Method};

use super::budget::{AnswerPermit, PROGRESS};
use super::hpack;

/// Maximum number of PINGs from a client without acknowledgement.
const PINGS_MAX: usize = 1024;
/// Maximum number of PINGs from h2 without acknowledgement.
const OWN_PINGS_MAX: usize = 4;
/// Number of streams beyond the limit that may exist until h2 refuses them.
const STREAMS_SPARE: usize = 32;
/// Maximum size of a connection's unconsumed requests, in bytes. h2's window is 1 MiB, and h2 closes a connection whose
/// client sends more.
const UNREAD_MAX: usize = (1 << 20) + (64 << 10);

#[derive(Debug, Default)]
pub struct Request {
    pub method: Method,
    /// Path of the request (`:path`); empty if malformed.
    pub path: String,
    pub fields: HeaderMap,
    /// Size of the header list as defined in RFC 9113, 6.5.2, in bytes.
    pub size: usize,
}

/// Calls on a connection, shared by its reader, its writer and the calls themselves.
#[derive(Clone, Debug)]
pub struct Calls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Maximum number of concurrent streams.
    most: usize,
    /// Notified when a response with secrets starts.
    secrets: Notify,
}

#[derive(Debug)]
struct State {
    streams: HashMap<u32, Stream>,
    /// Id of the newest stream that the client has opened.
    newest: u32,
    /// Id of the newest stream that h2 will serve.
    last: u32,
    /// Bytes of requests that no call has consumed.
    unread: usize,
    /// Bytes of responses that are not written to the socket.
    unwritten: usize,
    /// Time of the client's last progress: the client had nothing to read, or had read [`PROGRESS`] bytes of responses.
    progress: Instant,
    /// Number of bytes of responses that the client has read since `progress`.
    read: usize,
    /// Time since which responses with secrets have been unwritten.
    secrets: Option<Instant>,
    pings: VecDeque<[u8; 8]>,
    own_pings: VecDeque<[u8; 8]>,
    /// Error code of the client's protocol violation, if any.
    fault: Option<u32>,
    /// True if the client has sent its preface and acknowledged the settings.
    settled: bool,
    /// True after the update that disables the dynamic table for responses was sent to the client.
    no_table_reported: bool,
}

#[derive(Debug, Default)]
struct Stream {
    request: Option<Request>,
    /// Unconsumed parts of the body.
    body: VecDeque<Bytes>,
    /// True if the rest of the body is discarded.
    body_dropped: bool,
    client_done: bool,
    server_done: bool,
    /// Header block of the response.
    head: Option<Vec<u8>>,
    /// Trailer block of the response.
    trailers: Option<Vec<u8>>,
    head_written: bool,
    answer: VecDeque<Bytes>,
    /// True if the response holds secrets.
    secrets: bool,
    /// Reserved space, which is released when the response is written.
    _permit: Option<AnswerPermit>,
}

impl Calls {
    /// Creates the call table of a connection with at most this many concurrent streams.
    pub fn new(streams: u32) -> Self {
        let state = State {
            streams: HashMap::new(),
            newest: 0,
            last: u32::MAX,
            unread: 0,
            unwritten: 0,
            progress: Instant::now(),
            read: 0,
            secrets: None,
            pings: VecDeque::new(),
            own_pings: VecDeque::new(),
            fault: None,
            settled: false,
            no_table_reported: false,
        };
        let most = (streams as usize).saturating_add(STREAMS_SPARE);
        Self(Arc::new(Shared { state: Mutex::new(state), most, secrets: Notify::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0.state)
    }

    /// Returns true if no call is in progress.
    pub fn is_idle(&self) -> bool {
        self.state().streams.is_empty()
    }

    /// Returns true if the client has sent its preface and acknowledged the settings.
    pub fn is_settled(&self) -> bool {
        self.state().settled
    }

    /// Returns true if the client has ever made a call.
    pub fn has_called(&self) -> bool {
        self.state().newest > 0
    }

    /// Returns the bytes of responses that are not written to the socket, and the time of the client's last progress.
    pub fn unwritten(&self) -> (usize, Instant) {
        let state = self.state();
        (state.unwritten, state.progress)
    }

    /// Resolves when a response with secrets has not been read by the client for the time `within`.
    pub async fn secrets_not_taken(&self, within: std::time::Duration) {
        loop {
            let begun = self.0.secrets.notified();
            let oldest = self.state().secrets;
            match oldest {
                None => begun.await,
                Some(oldest) if oldest.elapsed() >= within => return,
                Some(oldest) => tokio::time::sleep_until(oldest + within).await,
            }
        }
    }
}

/// Methods for the reader of the socket.
impl Calls {
    /// Records a header block, and returns `true` if it opens a new stream.
    pub(super) fn is_new(&self, id: u32) -> bool {
        let mut state = self.state();
        let new = id % 2 == 1 && id > state.newest;
        state.newest = state.newest.max(if new { id } else { 0 });
        new
    }

    pub(super) fn opened(&self, id: u32, request: Request, done: bool) {
        let mut state = self.state();
        if state.streams.len() < self.0.most && id <= state.last {
            let stream = Stream { request: Some(request), client_done: done, ..Stream::default() };
            state.streams.insert(id, stream);
        }
    }

    /// Adds a part of a body, or discards it if no call can consume it.
    pub(super) fn received(&self, id: u32, data: Vec<u8>, done: bool) {
        let mut state = self.state();
        let length = data.len();
        let room = state.unread + length <= UNREAD_MAX;
        let stream = state.streams.get_mut(&id).filter(|stream| !stream.client_done && !stream.body_dropped);
        if let Some(stream) = stream.filter(|_| length > 0 && room) {
            stream.body.push_back(data.into());
            state.unread += length;
        }
        if done {
            state.end_client_side(id);
        }
    }

    /// Closes the client's side of a stream.
    pub(super) fn end_client_side(&self, id: u32) {
        self.state().end_client_side(id);
    }

    /// Removes a stream that the client or h2 has reset.
    pub(super) fn reset(&self, id: u32) {
        self.state().remove(id);
    }

    /// Records a PING of the client. Returns `false` if too many are not acknowledged.
    pub(super) fn record_client_ping(&self, payload: [u8; 8]) -> bool {
        let mut state = self.state();
        state.pings.push_back(payload);
        state.pings.len() <= PINGS_MAX
    }

    /// Records the client's acknowledgement of a PING. Returns `false` if there was no such PING.
    pub(super) fn answers_ping(&self, payload: &[u8]) -> bool {
        let mut state = self.state();
        let place = state.own_pings.iter().position(|own| own == payload);
        place.is_some_and(|place| state.own_pings.remove(place).is_some())
    }

    pub(super) fn settle(&self) {
        self.state().settled = true;
    }

    pub(super) fn failed(&self, code: u32) {
        self.state().fault = Some(code);
    }
}

impl Calls {
    /// Removes and returns the head of a stream's request. Returns `None` if the stream is closed.
    pub fn start(&self, id: u32) -> Option<Request> {
        self.state().streams.get_mut(&id)?.request.take()
    }

    /// Removes and returns the next part of a body, with at most `most` bytes.
    pub(super) fn take(&self, id: u32, most: usize) -> Option<Bytes> {
        let mut state = self.state();
        let stream = state.streams.get_mut(&id)?;
        let mut part = stream.body.pop_front()?;
        if part.len() > most {
            stream.body.push_front(part.split_off(most));
        }
        state.unread -= part.len();
        Some(part)
    }

    /// Discards the rest of a body.
    pub(super) fn drop_body(&self, id: u32) {
        let mut state = self.state();
        let Some(stream) = state.streams.get_mut(&id) else { return };
        stream.body_dropped = true;
        let dropped: usize = stream.body.drain(..).map(|part| part.len()).sum();
        state.unread -= dropped;
    }

    /// Starts the response on a stream with its header block.
    pub(super) fn answer(&self, id: u32, block: Vec<u8>, permit: Option<AnswerPermit>, secrets: bool) {
        let mut state = self.state();
        let Some(stream) = state.streams.get_mut(&id) else { return };
        stream.head = Some(block);
        stream._permit = permit;
        stream.secrets = secrets;
        if secrets {
            state.secrets.get_or_insert_with(Instant::now);
            self.0.secrets.notify_one();
        }
    }

    /// Appends data to the response on a stream. Returns `false` if the stream is closed.
    pub(super) fn send(&self, id: u32, data: Bytes) -> bool {
        let mut state = self.state();
        let length = data.len();
        let Some(stream) = state.streams.get_mut(&id) else { return false };
        stream.answer.push_back(data);
        if state.unwritten == 0 {
            state.record_progress();
        }
        state.unwritten += length;
        true
    }

    /// Ends the response on a stream with its trailer block.
    pub(super) fn finish(&self, id: u32, block: Vec<u8>) {
        if let Some(stream) = self.state().streams.get_mut(&id) {
            stream.trailers = Some(block);
        }
    }
}

/// Methods for the writer of the socket.
impl Calls {
    /// Returns the header block that replaces h2's header block on a stream.
    pub(super) fn block(&self, id: u32) -> Vec<u8> {
        let mut state = self.state();
        let mut block = Vec::new();
        if !std::mem::replace(&mut state.no_table_reported, true) {
            hpack::put_no_table(&mut block);
        }
        let stream = state.streams.get_mut(&id);
        let theirs = stream.and_then(|stream| match std::mem::replace(&mut stream.head_written, true) {
            false => stream.head.take(),
            true => Some(stream.trailers.take().unwrap_or_default()),
        });
        match theirs {
            Some(theirs) => block.extend_from_slice(&theirs),
            // The client has closed the stream, or there was no call on the stream.
            None => hpack::put_status(&mut block, 500),
        }
        block
    }

    /// Passes `length` bytes of the response on a stream to `give`; passes zeros if the stream is closed.
    pub(super) fn data(&self, id: u32, length: usize, mut give: impl FnMut(Bytes)) {
        let mut state = self.state();
        let mut left = length;
        if let Some(stream) = state.streams.get_mut(&id) {
            while left > 0
                && let Some(mut part) = stream.answer.pop_front()
            {
                if part.len() > left {
                    stream.answer.push_front(part.split_off(left));
                }
                left -= part.len();
                give(part);
            }
        }
        if left > 0 {
            // The writer later subtracts these bytes from `unwritten`, so they must be added, although they belong to
            // no response.
            state.unwritten += left;
            give(vec![0; left].into());
        }
    }

    /// Closes h2's side of a stream.
    pub(super) fn end_library_side(&self, id: u32) {
        let mut state = self.state();
        if let Some(stream) = state.streams.get_mut(&id) {
            stream.server_done = true;
            if stream.client_done {
                state.remove(id);
            }
        }
    }

    /// Records that bytes of responses were written to the socket. The number may be 0.
    pub(super) fn written(&self, bytes: usize) {
        let mut state = self.state();
        state.unwritten = state.unwritten.saturating_sub(bytes);
        state.read = state.read.saturating_add(bytes);
        if state.unwritten == 0 || state.read >= PROGRESS {
            state.record_progress();
        }
        state.clear_secrets_time();
    }

    /// Removes and returns the payload of the client's oldest PING.
    pub(super) fn pong(&self) -> [u8; 8] {
        let mut state = self.state();
        let payload = state.pings.pop_front().unwrap_or_default();
        if state.pings.is_empty() {
            state.pings = VecDeque::new(); // free the memory, which still holds the payloads
        }
        payload
    }

    /// Records a PING of h2.
    pub(super) fn record_library_ping(&self, payload: [u8; 8]) {
        let mut state = self.state();
        state.own_pings.truncate(OWN_PINGS_MAX - 1);
        state.own_pings.push_front(payload);
    }

    /// Records that h2 serves no streams with an id above `last`. If the client violated the protocol, returns the
    /// error code.
    pub(super) fn record_goaway(&self, last: u32) -> Option<u32> {
        let mut state = self.state();
        state.last = last;
        state.fault
    }
}

impl State {
    fn record_progress(&mut self) {
        (self.progress, self.read) = (Instant::now(), 0);
    }

    fn end_client_side(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.client_done = true;
            if stream.server_done {
                self.remove(id);
            }
        }
    }

    fn remove(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            self.unread -= stream.body.iter().map(Bytes::len).sum::<usize>();
            self.unwritten -= stream.answer.iter().map(Bytes::len).sum::<usize>();
            self.clear_secrets_time();
        }
    }

    /// Clears `secrets` if all response bytes are written and no stream has a response with secrets.
    fn clear_secrets_time(&mut self) {
        let left = || self.unwritten > 0 || self.streams.values().any(|stream| stream.secrets);
        if self.secrets.is_some() && !left() {
            self.secrets = None;
        }
    }
}

#[cfg(test)]
impl Calls {
    /// Opens a stream, so that a call is in progress.
    pub(crate) fn make_busy(&self) {
        self.opened(1, Request::default(), true);
    }

    /// Records that the client has sent its preface and acknowledged the settings.
    pub(crate) fn settle_for_test(&self) {
        self.settle();
    }
}
