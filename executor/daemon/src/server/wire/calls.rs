//! The calls of one connection, with the content that the HTTP/2 library must not hold.
//!
//! Requests come in from the reader of the socket ([`super::inbound`]) and are taken by the calls ([`super::body`]);
//! answers come from the calls and are taken by the writer ([`super::outbound`]). The library carries zeros of the same
//! length between them, so that it alone handles streams, flow control and their order. A stream's content is freed
//! with its end, on either side.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use hyper::body::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::codegen::http::{HeaderMap, Method};

use super::budget::{AnswerPermit, PROGRESS};
use super::hpack;
use crate::locked;

/// Most PINGs of a client that are not answered yet.
const PINGS_MAX: usize = 1024;
/// Most PINGs of the library that are not answered yet.
const OWN_PINGS_MAX: usize = 4;
/// Streams beyond the limit that the library has not refused yet.
const STREAMS_SPARE: usize = 32;
/// Most bytes of a connection's requests that no call has taken. The library's window is 1 MiB, and it closes a
/// connection whose client sends more.
const UNREAD_MAX: usize = (1 << 20) + (64 << 10);

/// Head of a request.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Path; empty where it is malformed.
    pub(crate) path: String,
    pub(crate) fields: HeaderMap,
    /// Size of the fields, as RFC 9113 counts them.
    pub(crate) size: usize,
}

/// Calls of a connection, shared by its reader, its writer and the calls themselves.
#[derive(Clone, Debug)]
pub(crate) struct Calls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Most streams at once.
    most: usize,
    /// Notified when an answer with secrets begins.
    secrets: Notify,
}

#[derive(Debug)]
struct State {
    streams: HashMap<u32, Stream>,
    /// Id of the newest stream that the client has opened.
    newest: u32,
    /// Id of the newest stream that the library will serve.
    last: u32,
    /// Bytes of requests that no call has taken.
    unread: usize,
    /// Bytes of answers that the socket has not taken.
    unwritten: usize,
    /// Time at which the client last made progress: it had nothing to read, or had read [`PROGRESS`] bytes of answers.
    progress: Instant,
    /// Bytes of answers that it has read since.
    read: usize,
    /// Time since which there are answers with secrets that are not written.
    secrets: Option<Instant>,
    pings: VecDeque<[u8; 8]>,
    own_pings: VecDeque<[u8; 8]>,
    /// Error code of a rule that the client broke.
    fault: Option<u32>,
    /// True when the client has sent its preface and acknowledged the settings.
    settled: bool,
    /// True when the client was told that the answers use no dynamic table.
    no_table_told: bool,
}

#[derive(Debug, Default)]
struct Stream {
    request: Option<Request>,
    /// Parts of the body that are not taken yet.
    body: VecDeque<Bytes>,
    /// True when no more of the body is taken.
    body_dropped: bool,
    client_done: bool,
    server_done: bool,
    /// Block of fields at the answer's beginning.
    head: Option<Vec<u8>>,
    /// Block of fields at the answer's end.
    trailers: Option<Vec<u8>>,
    head_written: bool,
    answer: VecDeque<Bytes>,
    /// True when the answer holds secrets.
    secrets: bool,
    /// Given back when the answer is written.
    _permit: Option<AnswerPermit>,
}

impl Calls {
    /// Makes the calls of a connection with at most this many at once.
    pub(crate) fn new(streams: u32) -> Self {
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
            no_table_told: false,
        };
        let most = (streams as usize).saturating_add(STREAMS_SPARE);
        Self(Arc::new(Shared { state: Mutex::new(state), most, secrets: Notify::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0.state)
    }

    /// True when no call is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.state().streams.is_empty()
    }

    /// True when the client has sent its preface and acknowledged the settings.
    pub(crate) fn is_settled(&self) -> bool {
        self.state().settled
    }

    /// True when the client has made a call, be it over or not.
    pub(crate) fn has_called(&self) -> bool {
        self.state().newest > 0
    }

    /// Returns the bytes of answers that the socket has not taken, and the time of the client's last progress.
    pub(crate) fn unwritten(&self) -> (usize, Instant) {
        let state = self.state();
        (state.unwritten, state.progress)
    }

    /// Resolves when an answer with secrets was not read in this time.
    pub(crate) async fn secrets_not_taken(&self, within: std::time::Duration) {
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

/// Methods of the reader.
impl Calls {
    /// Notes a header block; `true` where it opens a stream.
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

    /// Takes in a part of a body, which is dropped where no call waits for it.
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
            state.client_is_done(id);
        }
    }

    /// Ends the client's side of a stream.
    pub(super) fn client_is_done(&self, id: u32) {
        self.state().client_is_done(id);
    }

    /// Ends a stream, on either side's request.
    pub(super) fn reset(&self, id: u32) {
        self.state().remove(id);
    }

    /// Notes a PING of the client; `false` where too many wait for their answers.
    pub(super) fn pinged(&self, payload: [u8; 8]) -> bool {
        let mut state = self.state();
        state.pings.push_back(payload);
        state.pings.len() <= PINGS_MAX
    }

    /// Notes the client's answer to a PING; `false` where there was no such PING.
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

/// Methods of the calls.
impl Calls {
    /// Takes the head of a stream's request; `None` where the stream is gone.
    pub(crate) fn start(&self, id: u32) -> Option<Request> {
        self.state().streams.get_mut(&id)?.request.take()
    }

    /// Takes the next part of a body, at most this long.
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

    /// Drops the rest of a body.
    pub(super) fn drop_body(&self, id: u32) {
        let mut state = self.state();
        let Some(stream) = state.streams.get_mut(&id) else { return };
        stream.body_dropped = true;
        let dropped: usize = stream.body.drain(..).map(|part| part.len()).sum();
        state.unread -= dropped;
    }

    /// Begins an answer.
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

    /// Adds to an answer; `false` where the stream is gone.
    pub(super) fn send(&self, id: u32, data: Bytes) -> bool {
        let mut state = self.state();
        let length = data.len();
        let Some(stream) = state.streams.get_mut(&id) else { return false };
        stream.answer.push_back(data);
        if state.unwritten == 0 {
            state.note_progress();
        }
        state.unwritten += length;
        true
    }

    /// Ends an answer.
    pub(super) fn finish(&self, id: u32, block: Vec<u8>) {
        if let Some(stream) = self.state().streams.get_mut(&id) {
            stream.trailers = Some(block);
        }
    }
}

/// Methods of the writer.
impl Calls {
    /// Returns the block of fields that replaces the library's on a stream.
    pub(super) fn block(&self, id: u32) -> Vec<u8> {
        let mut state = self.state();
        let mut block = Vec::new();
        if !std::mem::replace(&mut state.no_table_told, true) {
            hpack::put_no_table(&mut block);
        }
        let stream = state.streams.get_mut(&id);
        let theirs = stream.and_then(|stream| match std::mem::replace(&mut stream.head_written, true) {
            false => stream.head.take(),
            true => Some(stream.trailers.take().unwrap_or_default()),
        });
        match theirs {
            Some(theirs) => block.extend_from_slice(&theirs),
            // The client has ended the stream, or it was never a call.
            None => hpack::put_status(&mut block, 500),
        }
        block
    }

    /// Gives this many bytes of an answer; zeros where the stream is gone.
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
            // The writer will subtract these bytes, too, although no answer had them.
            state.unwritten += left;
            give(vec![0; left].into());
        }
    }

    /// Ends the library's side of a stream.
    pub(super) fn server_is_done(&self, id: u32) {
        let mut state = self.state();
        if let Some(stream) = state.streams.get_mut(&id) {
            stream.server_done = true;
            if stream.client_done {
                state.remove(id);
            }
        }
    }

    /// Notes that the socket has taken this many bytes of answers, which may be none.
    pub(super) fn written(&self, bytes: usize) {
        let mut state = self.state();
        state.unwritten = state.unwritten.saturating_sub(bytes);
        state.read = state.read.saturating_add(bytes);
        if state.unwritten == 0 || state.read >= PROGRESS {
            state.note_progress();
        }
        state.look_for_secrets();
    }

    /// Takes the payload of the client's oldest PING.
    pub(super) fn pong(&self) -> [u8; 8] {
        let mut state = self.state();
        let payload = state.pings.pop_front().unwrap_or_default();
        if state.pings.is_empty() {
            state.pings = VecDeque::new(); // frees the memory, which still has the payloads
        }
        payload
    }

    /// Notes a PING of the library.
    pub(super) fn pings(&self, payload: [u8; 8]) {
        let mut state = self.state();
        state.own_pings.truncate(OWN_PINGS_MAX - 1);
        state.own_pings.push_front(payload);
    }

    /// Notes that the library serves no newer streams than this one. Returns the error code, where the client broke a
    /// rule.
    pub(super) fn goes_away(&self, last: u32) -> Option<u32> {
        let mut state = self.state();
        state.last = last;
        state.fault
    }
}

impl State {
    fn note_progress(&mut self) {
        (self.progress, self.read) = (Instant::now(), 0);
    }

    fn client_is_done(&mut self, id: u32) {
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
            self.look_for_secrets();
        }
    }

    /// Ends the time of unread secrets, where no answer with secrets is left.
    fn look_for_secrets(&mut self) {
        let left = || self.unwritten > 0 || self.streams.values().any(|stream| stream.secrets);
        if self.secrets.is_some() && !left() {
            self.secrets = None;
        }
    }
}

#[cfg(test)]
impl Calls {
    /// Begins a call.
    pub(crate) fn make_busy(&self) {
        self.opened(1, Request::default(), true);
    }

    /// Settles the connection.
    pub(crate) fn settle_for_test(&self) {
        self.settle();
    }
}
