//! Manages the clients that are attached to the container's process. The clients receive the process's masked output,
//! and one client may send its input.
//!
//! A lossless client acts like the reader of a pipe: while it does not read, no more output is read from the process
//! ([`Attached::blocks_output`]). The process blocks when its pipes are full. If the run awaits a reader, the process
//! is blocked in the same way, but at most for [`RETURN_TIME`]. Commands, signals and other clients are still served.
//! If a client disconnects, the process continues. If a client's daemon has exited, the shim waits up to
//! [`RETURN_TIME`] for the client, and the client resumes at its position.
//!
//! Other clients never block the process. The unread output of a client is kept up to a limit, and beyond the limit the
//! client is informed of the number of missed bytes. Input has one destination, and at most one packet of input is
//! buffered: while the process does not read its input, no more input is read from the client.

mod window;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use executor_core::logline::Stream;
use executor_core::protocol::{ATTACHED_PACKET_MAX, Attach, FromShim, Reason, Refused, ToShim, position_packet};
use executor_sys::events::Events;
use executor_sys::pty::{self, Window as TerminalSize};
use executor_sys::ready::hung_up;
use executor_sys::seqpacket::Seqpacket;
use window::Window;
use zeroize::Zeroizing;

/// Maximum number of attached clients.
const CLIENTS_MAX: usize = 16;
/// Maximum number of bytes that are kept for a client in addition to its socket buffer. At this limit a lossless client
/// blocks the process.
const QUEUE_MAX: u64 = 256 << 10;
/// Number of bytes that are kept after they were sent to a client that may return: enough for all data in flight.
/// Sockets and the queues of the daemon and its HTTP/2 library hold about 1.2 MiB.
const REPLAY_MAX: u64 = 2 << 20;
/// Maximum time to wait for the first reader, or for a reader whose daemon has exited. Clients wait at most 30 s for a
/// new daemon.
const RETURN_TIME: Duration = Duration::from_secs(30);
/// Number of bytes of output that are kept for the first client.
const BACKLOG_MAX: u64 = 64 << 10;
/// Maximum number of packets that are read from a client at a time, so that other clients are also served.
const ROUND_MAX: usize = 8;

/// The attached clients and the destination of their input.
#[derive(Default)]
pub(crate) struct Attached {
    clients: Vec<AttachedClient>,
    sink: Sink,
    /// Input that the process has not read yet.
    pending: Zeroizing<Vec<u8>>,
    /// True if the process's input ends after `pending`.
    end_of_input: bool,
    window: Window,
    /// True if some output is kept for the first client.
    expected: bool,
    /// Time until which all output is kept for the reader that the run awaits. `None` if no reader is awaited.
    awaited: Option<Instant>,
    /// Clients that have disconnected because their daemon exited.
    absent: Vec<Absent>,
    /// True after the process has exited and the window contains all its output.
    over: bool,
}

/// Destination of the clients' input.
#[derive(Default)]
pub(crate) enum Sink {
    /// The process has no input, or its input is closed.
    #[default]
    None,
    Terminal(OwnedFd),
    Pipe(OwnedFd),
}

struct AttachedClient {
    socket: Seqpacket,
    input: bool,
    output: bool,
    lossless: bool,
    resumable: bool,
    /// Position in the output of the next byte to send.
    next: u64,
    /// Number of missed bytes, if the client must be informed of this number and of its position.
    unreported: Option<u64>,
    /// True after the client was informed of the end of the output.
    ended: bool,
    /// True after the client reported that it does not return.
    left: bool,
    /// True if sending to the client failed. The client's earlier messages are still read.
    broken: bool,
}

/// A disconnected client that may return.
struct Absent {
    next: u64,
    until: Instant,
}

impl AttachedClient {
    /// Sends available output until the socket is full.
    fn deliver(&mut self, window: &Window, over: bool) {
        if self.output && self.next < window.start() {
            *self.unreported.get_or_insert(0) += window.start() - self.next;
            self.next = window.start();
        }
        while !self.broken {
            let sent = if let Some(missed) = self.unreported.filter(|_| self.output) {
                self.socket.send(&position_packet(self.next, missed), &[]).map(|()| self.unreported = None)
            } else if let Some((packet, length)) = window.packet(self.next).filter(|_| self.output) {
                self.socket.send(&packet, &[]).map(|()| self.next += length)
            } else if over && !self.ended {
                self.socket.send(&[FromShim::Ended as u8], &[]).map(|()| self.ended = true)
            } else {
                return;
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => self.broken = result.is_err(),
            }
        }
    }

    fn wants_to_send(&self, window: &Window, over: bool) -> bool {
        let has_output = self.output && (self.unreported.is_some() || self.next < window.end());
        !self.broken && (has_output || (over && !self.ended))
    }
}

impl Attached {
    /// Sets the destination of input, and keeps early output for the first client.
    pub(crate) fn expect(&mut self, sink: Sink) {
        self.sink = sink;
        self.expected = true;
    }

    /// Starts to keep all output for a reader that the run awaits.
    pub(crate) fn await_reader(&mut self) {
        self.awaited = Some(Instant::now() + RETURN_TIME);
    }

    /// Attaches a client.
    ///
    /// # Errors
    /// Returns a refusal if there are too many clients, another client sends input, or the requested position is beyond
    /// the output.
    pub(crate) fn take(&mut self, request: &Attach, fds: Vec<OwnedFd>) -> Result<(), Refused> {
        let fd = fds.into_iter().next().ok_or_else(|| Refused::new(Reason::Invalid, "an attach needs a descriptor"))?;
        let socket = Seqpacket::from_peer(fd).map_err(|error| Refused::new(Reason::Invalid, error.to_string()))?;
        if let Some(place) = request.resume_at.filter(|place| *place > self.window.end()) {
            let why =
                format!("resume_at: {place} is beyond the {} bytes that the process has written", self.window.end());
            return Err(Refused::new(Reason::Invalid, why));
        }
        if self.clients.len() >= CLIENTS_MAX {
            let why = format!("the maximum number of clients ({CLIENTS_MAX}) is attached");
            return Err(Refused::new(Reason::Exhausted, why));
        }
        if request.input && self.clients.iter().any(|client| client.input) {
            if !request.take_over {
                return Err(Refused::new(
                    Reason::Precondition,
                    "another client sends input: detach that client, or take over its input",
                ));
            }
            self.clients.retain(|client| {
                if client.input {
                    let _ = client.socket.send(&[FromShim::TakenOver as u8], &[]); // best effort
                }
                !client.input
            });
        }
        let output = !request.no_output;
        let lossless = output && (request.lossless || request.input);
        let next = match request.resume_at {
            Some(place) => place,
            None if self.expected || self.awaited.is_some() => self.window.start(),
            None => self.window.end(),
        };
        if output {
            self.expected = false;
        }
        if lossless {
            self.awaited = None;
        }
        if let Some(place) = request.resume_at.filter(|_| lossless) {
            // The client that returns is the absent client with the smallest position that is not before `place`.
            let sent = self.absent.iter().enumerate().filter(|(_, absent)| absent.next >= place);
            if let Some((index, _)) = sent.min_by_key(|(_, absent)| absent.next) {
                self.absent.remove(index);
            }
        }
        self.clients.push(AttachedClient {
            socket,
            input: request.input,
            output,
            lossless,
            resumable: lossless && request.resumable,
            next,
            unreported: Some(0),
            ended: false,
            left: false,
            broken: false,
        });
        self.deliver();
        self.trim();
        Ok(())
    }

    /// Queues masked output for the clients.
    pub(crate) fn output(&mut self, stream: Stream, bytes: &[u8]) {
        let mark = match stream {
            Stream::Stdout => FromShim::Stdout,
            Stream::Stderr => FromShim::Stderr,
            Stream::Executor => return,
        };
        let wanted = self.expected || self.awaited.is_some() || !self.absent.is_empty();
        if !wanted && !self.clients.iter().any(|client| client.output) {
            self.window.drop_before(self.window.end());
            return self.window.pass(bytes);
        }
        self.window.push(mark, bytes);
        self.deliver();
        self.trim();
    }

    fn deliver(&mut self) {
        self.clients.iter_mut().for_each(|client| client.deliver(&self.window, self.over));
    }

    /// Drops output that no client needs.
    fn trim(&mut self) {
        let end = self.window.end();
        if self.awaited.is_some() {
            return; // back-pressure applies if the window is full
        }
        let held = self.clients.iter().filter(|client| client.lossless).map(|client| client.next);
        let needed = held.chain(self.absent.iter().map(|absent| absent.next)).min().unwrap_or(end);
        let back = self.clients.iter().filter(|client| client.resumable).map(|client| client.next);
        let replayed = back.chain(self.absent.iter().map(|absent| absent.next)).min();
        let watched = self.clients.iter().filter(|client| client.output && !client.lossless).map(|client| client.next);
        let backlog = self.expected.then(|| end.saturating_sub(BACKLOG_MAX));
        let replayed = replayed.map(|next| next.saturating_sub(REPLAY_MAX));
        let firm = backlog.into_iter().chain(replayed).min().unwrap_or(end).min(needed);
        self.window.drop_before(watched.min().unwrap_or(end).min(firm));
        // Keep only the newest output for lossy clients.
        self.window.shrink(QUEUE_MAX, firm);
        self.window.shrink(REPLAY_MAX + QUEUE_MAX, needed);
    }

    /// Returns true if no output may be read from the process, because a lossless client has too much unread output or
    /// a reader is awaited and the window is full.
    pub(crate) fn blocks_output(&self) -> bool {
        let full = |place| self.window.cost_from(place) >= QUEUE_MAX;
        self.awaited.is_some() && full(self.window.start())
            || self.clients.iter().any(|client| client.lossless && full(client.next))
            || self.absent.iter().any(|absent| full(absent.next))
    }

    /// Returns the earliest time at which a client is no longer awaited.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.awaited.into_iter().chain(self.absent.iter().map(|absent| absent.until)).min()
    }

    /// Registers the clients and the destination of their input for one iteration of a loop.
    pub(crate) fn register<'fd, T: Copy>(&'fd self, events: &mut Events<'fd, T>, token: T) {
        for client in &self.clients {
            let socket = client.socket.as_fd();
            match self.pending.is_empty() {
                true => events.read(socket, token),
                false => events.hangup(socket, token),
            }
            if client.wants_to_send(&self.window, self.over) {
                events.write(socket, token);
            }
        }
        if let Some(sink) = self.sink.fd().filter(|_| !self.pending.is_empty()) {
            events.write(sink, token);
        }
    }

    /// Sends queued output, reads input, and stops waiting for clients that did not return. Never waits.
    pub(crate) fn poll_clients(&mut self) {
        self.write();
        let mut index = 0;
        while index < self.clients.len() {
            if self.recv(index) {
                index += 1;
            } else {
                let client = self.clients.remove(index);
                self.absent.extend(absent_client(&client));
            }
        }
        let now = Instant::now();
        self.awaited = self.awaited.filter(|until| now < *until);
        self.absent.retain(|absent| now < absent.until);
        let surplus = self.absent.len().saturating_sub(CLIENTS_MAX);
        drop(self.absent.drain(..surplus));
        self.deliver();
        self.trim();
    }

    /// Reads the messages of a client. Returns true if the client is still connected.
    fn recv(&mut self, index: usize) -> bool {
        let mut buffer = Zeroizing::new([0; ATTACHED_PACKET_MAX]);
        for _ in 0..ROUND_MAX {
            let client = &mut self.clients[index];
            if !self.pending.is_empty() {
                if !hung_up(&client.socket) {
                    return true;
                }
                drain_disconnected(client);
                return false;
            }
            match client.socket.recv(&mut *buffer) {
                Ok(Some((length @ 1.., _))) => {
                    let bytes = &buffer[1..length];
                    match ToShim::from_mark(buffer[0]) {
                        Some(ToShim::Input) if client.input => {
                            self.pending = Zeroizing::new(bytes.to_vec());
                            self.write();
                        }
                        Some(ToShim::EndOfInput) if client.input => self.close_input(),
                        Some(ToShim::Window) => self.resize(bytes),
                        Some(ToShim::Leave) => client.left = true,
                        _ => {} // not permitted for this client, or from a newer daemon
                    }
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    return true;
                }
                _ => return false,
            }
        }
        true
    }

    /// Writes pending input to the process.
    fn write(&mut self) {
        while !self.pending.is_empty() {
            let written = match self.sink.fd() {
                None => Ok(self.pending.len()), // the process has closed its input
                Some(fd) => rustix::io::write(fd, &self.pending),
            };
            match written {
                Ok(count) => self.pending = Zeroizing::new(self.pending[count..].to_vec()),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                Err(_) => self.sink = Sink::None,
            }
        }
        if self.end_of_input && matches!(self.sink, Sink::Pipe(_)) {
            self.sink = Sink::None;
        }
    }

    /// Closes the process's input if the input is a pipe.
    ///
    /// The shim does not write an end-of-file character to a terminal. A client that closes the input of a terminal
    /// only detaches, as in Docker (`attachStreams` closes the input unless there is a terminal) and in containerd's
    /// CRI (`StdinOnce && !Tty`). The character would be wrong for a program in raw mode, and for a program that has
    /// set another VEOF. To close the input of a terminal, a client sends the end-of-file character.
    fn close_input(&mut self) {
        self.end_of_input = matches!(self.sink, Sink::Pipe(_));
        self.write();
    }

    fn resize(&self, sides: &[u8]) {
        if let (Sink::Terminal(terminal), &[a, b, c, d]) = (&self.sink, sides) {
            let size = TerminalSize { rows: u16::from_le_bytes([a, b]), columns: u16::from_le_bytes([c, d]) };
            let _ = pty::resize(terminal.as_fd(), size); // the process may have exited
        }
    }

    /// Sends end-of-output to every client, after the client's last output. Called after the process has exited.
    pub(crate) fn finish(&mut self) {
        self.sink = Sink::None;
        self.pending = Zeroizing::default();
        self.over = true;
        self.deliver();
        self.trim();
    }

    /// Returns true if no client must still receive output: all lossless clients have disconnected, and no client is
    /// awaited.
    pub(crate) fn is_settled(&self) -> bool {
        self.awaited.is_none() && self.absent.is_empty() && !self.clients.iter().any(|client| client.lossless)
    }

    /// Returns true if no client can still receive output.
    pub(crate) fn is_delivered(&self) -> bool {
        self.is_settled() && self.clients.iter().all(|client| client.ended || client.broken)
    }
}

impl Sink {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::None => None,
            Self::Terminal(fd) | Self::Pipe(fd) => Some(fd.as_fd()),
        }
    }
}

/// Returns an absent client for a disconnected client that may return: a resumable client that has not left.
fn absent_client(client: &AttachedClient) -> Option<Absent> {
    let returns = client.resumable && !client.left;
    returns.then(|| Absent { next: client.next, until: Instant::now() + RETURN_TIME })
}

/// Searches the unread messages of a disconnected client for the report that it does not return. Unread input is
/// dropped, because the process does not read it.
fn drain_disconnected(client: &mut AttachedClient) {
    let mut buffer = Zeroizing::new([0; ATTACHED_PACKET_MAX]);
    while let Ok(Some((1.., _))) = client.socket.recv(&mut *buffer) {
        client.left |= ToShim::from_mark(buffer[0]) == Some(ToShim::Leave);
    }
}

#[cfg(test)]
mod tests;
