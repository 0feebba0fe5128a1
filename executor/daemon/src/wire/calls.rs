//! The calls of one connection: what the HTTP/2 library must not hold of them.
//!
//! Requests come in from the reader of the socket ([`super::inbound`]) and are taken by the calls ([`super::body`]); answers
//! come from the calls and are taken by the writer ([`super::outbound`]). The library carries zeros of the same length
//! between them, so that streams, windows and their order are its business alone. What a stream still holds goes with its
//! end, on whichever side that comes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use hyper::body::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::codegen::http::{HeaderMap, Method};

use super::budget::Share;
use super::hpack;
use crate::locked;

/// PINGs of a client that are not answered yet: a client that makes more does nothing else.
const PINGS_MAX: usize = 1024;
/// PINGs of the library's that are not answered yet.
const OWN_PINGS_MAX: usize = 4;
/// Streams that are there beyond those that may be: the library has not refused them yet.
const STREAMS_SPARE: usize = 32;
/// Bytes of a connection's requests that no call has taken. The library's window is 1 MiB: who sends more is ended by it.
const UNREAD_MAX: usize = (1 << 20) + (64 << 10);

/// A request's first words.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Empty where it is none.
    pub(crate) path: String,
    pub(crate) fields: HeaderMap,
    /// Size of its fields, as RFC 9113 counts them.
    pub(crate) size: usize,
}

/// Shared by a connection's reader, its writer and its calls.
#[derive(Clone, Debug)]
pub(crate) struct Calls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Streams that are remembered at once.
    most: usize,
    /// An answer with secrets has begun.
    secrets: Notify,
}

#[derive(Debug)]
struct State {
    streams: HashMap<u32, Stream>,
    /// The newest stream that the client has opened.
    newest: u32,
    /// The newest that the library will serve.
    last: u32,
    /// Bytes of requests that no call has taken.
    unread: usize,
    /// Bytes of answers that the socket has not taken.
    unwritten: usize,
    /// When the socket took something, or had nothing to take.
    progress: Instant,
    /// Since when there are answers with secrets that are not out.
    secrets: Option<Instant>,
    pings: VecDeque<[u8; 8]>,
    own_pings: VecDeque<[u8; 8]>,
    /// What the client did wrong.
    fault: Option<u32>,
    /// The client has said its first words, and knows the settings.
    settled: bool,
    /// The client was told that nothing is remembered in the answers' direction.
    no_table_told: bool,
}

#[derive(Debug, Default)]
struct Stream {
    request: Option<Request>,
    /// What came of the body and is not taken yet.
    body: VecDeque<Bytes>,
    /// Nobody takes any more of the body.
    deaf: bool,
    client_done: bool,
    server_done: bool,
    /// The block of the answer's beginning; of its end.
    head: Option<Vec<u8>>,
    trailers: Option<Vec<u8>>,
    head_written: bool,
    answer: VecDeque<Bytes>,
    /// The answer holds secrets.
    secrets: bool,
    /// Given back when the answer is out.
    _share: Option<Share>,
}

impl Calls {
    /// For a connection with this many calls at once.
    pub(crate) fn new(streams: u32) -> Self {
        let state = State {
            streams: HashMap::new(),
            newest: 0,
            last: u32::MAX,
            unread: 0,
            unwritten: 0,
            progress: Instant::now(),
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

    /// No call is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.state().streams.is_empty()
    }

    /// The client has said its first words, and knows the settings.
    pub(crate) fn is_settled(&self) -> bool {
        self.state().settled
    }

    /// The client has made a call, be it over or not.
    pub(crate) fn has_called(&self) -> bool {
        self.state().newest > 0
    }

    /// Bytes of answers that wait, and since when the socket has taken none.
    pub(crate) fn unwritten(&self) -> (usize, Instant) {
        let state = self.state();
        (state.unwritten, state.progress)
    }

    /// Resolves when an answer with secrets was not taken in this time.
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

/// The reader's side.
impl Calls {
    /// A header block has come; `true` where it opens a stream.
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

    /// A part of a body; dropped where nobody waits for it.
    pub(super) fn received(&self, id: u32, data: Vec<u8>, done: bool) {
        let mut state = self.state();
        let length = data.len();
        let room = state.unread + length <= UNREAD_MAX;
        let stream = state.streams.get_mut(&id).filter(|stream| !stream.client_done && !stream.deaf);
        if let Some(stream) = stream.filter(|_| length > 0 && room) {
            stream.body.push_back(data.into());
            state.unread += length;
        }
        if done {
            state.client_is_done(id);
        }
    }

    /// The client says nothing more on a stream.
    pub(super) fn client_is_done(&self, id: u32) {
        self.state().client_is_done(id);
    }

    /// A stream was ended, by whichever side.
    pub(super) fn reset(&self, id: u32) {
        self.state().remove(id);
    }

    /// The client asks for an answer to nothing; `false` where it has asked too often.
    pub(super) fn pinged(&self, payload: [u8; 8]) -> bool {
        let mut state = self.state();
        state.pings.push_back(payload);
        state.pings.len() <= PINGS_MAX
    }

    /// The client answers a PING; `false` where there was none of the kind.
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

/// The calls' side.
impl Calls {
    /// What a stream's request says; `None` where the stream is gone.
    pub(crate) fn begin(&self, id: u32) -> Option<Request> {
        self.state().streams.get_mut(&id)?.request.take()
    }

    /// The next part of a body, at most this long.
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

    /// No more of a body is taken.
    pub(super) fn deafen(&self, id: u32) {
        let mut state = self.state();
        let Some(stream) = state.streams.get_mut(&id) else { return };
        stream.deaf = true;
        let dropped: usize = stream.body.drain(..).map(|part| part.len()).sum();
        state.unread -= dropped;
    }

    /// The beginning of an answer.
    pub(super) fn answer(&self, id: u32, block: Vec<u8>, share: Option<Share>, secrets: bool) {
        let mut state = self.state();
        let Some(stream) = state.streams.get_mut(&id) else { return };
        stream.head = Some(block);
        stream._share = share;
        stream.secrets = secrets;
        if secrets {
            state.secrets.get_or_insert_with(Instant::now);
            self.0.secrets.notify_one();
        }
    }

    /// More of an answer; `false` where nobody will have it.
    pub(super) fn send(&self, id: u32, data: Bytes) -> bool {
        let mut state = self.state();
        let length = data.len();
        let Some(stream) = state.streams.get_mut(&id) else { return false };
        stream.answer.push_back(data);
        if state.unwritten == 0 {
            state.progress = Instant::now();
        }
        state.unwritten += length;
        true
    }

    /// The end of an answer.
    pub(super) fn finish(&self, id: u32, block: Vec<u8>) {
        if let Some(stream) = self.state().streams.get_mut(&id) {
            stream.trailers = Some(block);
        }
    }
}

/// The writer's side.
impl Calls {
    /// The block that stands on a stream where the library has one of its own.
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
            // Of a stream that the client has ended, or that no call has seen.
            None => hpack::put_status(&mut block, 500),
        }
        block
    }

    /// This many bytes of an answer; zeros where nobody has any.
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
            // The writer counts what it has taken: these bytes are nobody's.
            state.unwritten += left;
            give(vec![0; left].into());
        }
    }

    /// The library says nothing more on a stream.
    pub(super) fn server_is_done(&self, id: u32) {
        let mut state = self.state();
        if let Some(stream) = state.streams.get_mut(&id) {
            stream.server_done = true;
            if stream.client_done {
                state.remove(id);
            }
        }
    }

    /// The socket has taken this many bytes of answers; it may have had nothing to take.
    pub(super) fn written(&self, bytes: usize) {
        let mut state = self.state();
        state.unwritten = state.unwritten.saturating_sub(bytes);
        state.progress = Instant::now();
        state.look_for_secrets();
    }

    /// What the client's oldest PING said.
    pub(super) fn pong(&self) -> [u8; 8] {
        let mut state = self.state();
        let payload = state.pings.pop_front().unwrap_or_default();
        if state.pings.is_empty() {
            state.pings = VecDeque::new(); // what was taken out of it stands in it still
        }
        payload
    }

    /// The library asks for an answer to nothing.
    pub(super) fn pings(&self, payload: [u8; 8]) {
        let mut state = self.state();
        state.own_pings.truncate(OWN_PINGS_MAX - 1);
        state.own_pings.push_front(payload);
    }

    /// The library serves no newer streams than this one; gives what the client did wrong, where that is why.
    pub(super) fn goes_away(&self, last: u32) -> Option<u32> {
        let mut state = self.state();
        state.last = last;
        state.fault
    }
}

impl State {
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

    /// Forgets since when there are answers with secrets, where none is left.
    fn look_for_secrets(&mut self) {
        let left = || self.unwritten > 0 || self.streams.values().any(|stream| stream.secrets);
        if self.secrets.is_some() && !left() {
            self.secrets = None;
        }
    }
}

#[cfg(test)]
impl Calls {
    /// A call is under way.
    pub(crate) fn make_busy(&self) {
        self.opened_for_test(1);
    }

    /// The client has greeted.
    pub(crate) fn settle_for_test(&self) {
        self.settle();
    }

    /// A call with an answer of seven bytes that nobody takes.
    pub(super) fn opened_for_test(&self, id: u32) {
        self.opened(id, Request::default(), true);
        self.send(id, Bytes::from_static(&[1; 7]));
    }
}
