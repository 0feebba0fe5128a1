//! Clients that are attached to the container's process: they get what it writes, masked, and one of them sends what it
//! reads.
//!
//! Output never waits for a client that only watches: what it has not read is kept for it up to a bound, and beyond that it
//! is let go; the log has all of it. Only the client that sends input, who sits at the terminal, slows the process down as
//! a terminal does, for as long as it goes on reading. Input goes to one place and is kept nowhere: while the process does
//! not read, nothing more is taken from the client.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use executor_core::logline::Stream;
use executor_core::protocol::{ATTACHED_PACKET_MAX, Attach, FromShim, Reason, Refused, ToShim};
use executor_sys::pty::{self, Window};
use executor_sys::seqpacket::Seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zeroize::Zeroizing;

/// Clients at a time.
const CLIENTS_MAX: usize = 16;
/// Bytes that are kept for a client beyond what its socket holds.
const QUEUE_MAX: usize = 256 << 10;
/// How long the client that sends input may leave everything unread.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of output that are kept for the first client.
const BACKLOG_MAX: usize = 64 << 10;
/// For the last of the output to be taken, when the process has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Packets of a client that are read in one go: others wait, too.
const ROUND_MAX: usize = 8;

/// The clients, and where input goes.
#[derive(Default)]
pub(super) struct Attached {
    clients: Vec<Client>,
    sink: Sink,
    /// Input that the process has not read yet.
    pending: Zeroizing<Vec<u8>>,
    /// The process's input ends behind it.
    end_of_input: bool,
    /// Until the first client comes, where one is expected.
    backlog: Option<Packets>,
}

/// Where input goes.
#[derive(Default)]
pub(super) enum Sink {
    /// Nowhere: the process takes none, or takes no more.
    #[default]
    None,
    /// Its terminal.
    Terminal(OwnedFd),
    /// A pipe.
    Pipe(OwnedFd),
}

/// Packets that wait, and their bytes.
#[derive(Default)]
struct Packets {
    packets: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Packets {
    fn push(&mut self, packet: Vec<u8>) {
        self.bytes += packet.len();
        self.packets.push_back(packet);
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let packet = self.packets.pop_front()?;
        self.bytes -= packet.len();
        Some(packet)
    }
}

struct Client {
    socket: Seqpacket,
    input: bool,
    output: bool,
    queue: Packets,
    /// When it last took something.
    progress: Instant,
}

impl Client {
    /// Sends a packet, or keeps it. Tells whether the client stays.
    fn send(&mut self, packet: &[u8]) -> bool {
        if self.queue.packets.is_empty() {
            match self.socket.send(packet, &[]) {
                Ok(()) => {
                    self.progress = Instant::now();
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
        self.queue.push(packet.to_vec());
        self.input || self.queue.bytes <= QUEUE_MAX
    }

    /// Sends what was kept, as far as it goes. Tells whether the client stays.
    fn flush(&mut self) -> bool {
        while let Some(packet) = self.queue.packets.front() {
            match self.socket.send(packet, &[]) {
                Ok(()) => {
                    self.progress = Instant::now();
                    drop(self.queue.pop());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        true
    }

    /// The process waits for it.
    fn is_full(&self) -> bool {
        self.queue.bytes >= QUEUE_MAX
    }
}

impl Attached {
    /// The process takes input there, and somebody may want to see what it wrote before.
    pub(super) fn expect(&mut self, sink: Sink) {
        self.sink = sink;
        self.backlog = Some(Packets::default());
    }

    /// Takes a client.
    ///
    /// # Errors
    /// There are too many; another one sends input.
    pub(super) fn take(&mut self, asked: &Attach, fds: Vec<OwnedFd>) -> Result<(), Refused> {
        let fd =
            fds.into_iter().next().ok_or_else(|| Refused::new(Reason::Invalid, "a client comes with a descriptor"))?;
        let socket = Seqpacket::from(fd);
        if self.clients.len() >= CLIENTS_MAX {
            let why = format!("{CLIENTS_MAX} clients are attached; no more may be");
            return Err(Refused::new(Reason::Exhausted, why));
        }
        if asked.input && self.clients.iter().any(|client| client.input) {
            if !asked.take_over {
                return Err(Refused::new(Reason::Precondition, "another client sends input; it can be taken over"));
            }
            self.clients.retain(|client| {
                if client.input {
                    let _ = client.socket.send(&[FromShim::TakenOver as u8], &[]); // its connection ends in any case
                }
                !client.input
            });
        }
        socket.set_nonblocking(true).map_err(|error| crate::rootfs::failed("client", &error))?;
        let output = !asked.no_output;
        let mut client =
            Client { socket, input: asked.input, output, queue: Packets::default(), progress: Instant::now() };
        if output && let Some(mut backlog) = self.backlog.take() {
            while let Some(packet) = backlog.pop() {
                client.send(&packet);
            }
        }
        self.clients.push(client);
        Ok(())
    }

    /// Output that was masked.
    pub(super) fn output(&mut self, stream: Stream, bytes: &[u8]) {
        let mark = match stream {
            Stream::Stdout => FromShim::Stdout,
            Stream::Stderr => FromShim::Stderr,
            Stream::Executor => return,
        };
        if self.backlog.is_none() && !self.clients.iter().any(|client| client.output) {
            return;
        }
        for chunk in bytes.chunks(ATTACHED_PACKET_MAX - 1) {
            let packet = [&[mark as u8], chunk].concat();
            self.clients.retain_mut(|client| !client.output || client.send(&packet));
            if let Some(backlog) = &mut self.backlog {
                backlog.push(packet);
                while backlog.bytes > BACKLOG_MAX && backlog.pop().is_some() {}
            }
        }
    }

    /// The client at the terminal has not read what there is: the process waits for it.
    pub(super) fn holds_up(&self) -> bool {
        self.clients.iter().any(Client::is_full)
    }

    /// When a client's patience ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.clients.iter().filter(|client| client.is_full()).map(|client| client.progress + PATIENCE).min()
    }

    /// What to wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let clients = self.clients.iter().map(|client| {
            let heard = if self.pending.is_empty() { PollFlags::IN } else { PollFlags::RDHUP };
            let sent = if client.queue.packets.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::new(&client.socket, heard | sent)
        });
        let sink = self.sink.fd().filter(|_| !self.pending.is_empty());
        clients.chain(sink.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)))
    }

    /// Sends what was kept, takes what came. Never waits.
    pub(super) fn attend(&mut self) {
        self.write();
        let now = Instant::now();
        self.clients.retain_mut(|client| client.flush() && !(client.is_full() && now >= client.progress + PATIENCE));
        let mut index = 0;
        while index < self.clients.len() {
            if self.hear(index) {
                index += 1;
            } else {
                drop(self.clients.remove(index));
            }
        }
    }

    /// Takes what one client sent. Tells whether it stays.
    fn hear(&mut self, index: usize) -> bool {
        let mut buffer = Zeroizing::new([0; ATTACHED_PACKET_MAX]);
        for _ in 0..ROUND_MAX {
            if !self.pending.is_empty() {
                return !hung_up(&self.clients[index].socket);
            }
            let client = &self.clients[index];
            match client.socket.recv(&mut *buffer) {
                Ok(Some((length @ 1.., _))) => {
                    let bytes = &buffer[1..length];
                    match ToShim::of(buffer[0]) {
                        Some(ToShim::Input) if client.input => {
                            self.pending = Zeroizing::new(bytes.to_vec());
                            self.write();
                        }
                        Some(ToShim::EndOfInput) if client.input => self.end_input(),
                        Some(ToShim::Window) => self.resize(bytes),
                        _ => {} // not its business, or of a newer daemon
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                _ => return false,
            }
        }
        true
    }

    /// Gives the process what it has not read yet.
    fn write(&mut self) {
        while !self.pending.is_empty() {
            let written = match self.sink.fd() {
                None => Ok(self.pending.len()), // it reads no more
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

    /// A pipe ends. On a terminal a character ends input.
    fn end_input(&mut self) {
        self.end_of_input = matches!(self.sink, Sink::Pipe(_));
        self.write();
    }

    fn resize(&self, sides: &[u8]) {
        if let (Sink::Terminal(terminal), &[a, b, c, d]) = (&self.sink, sides) {
            let window = Window { rows: u16::from_le_bytes([a, b]), columns: u16::from_le_bytes([c, d]) };
            let _ = pty::resize(terminal.as_fd(), window); // its process may have ended
        }
    }

    /// The process has ended and its output was sent: every client is told, and given a moment for what it has not taken.
    pub(super) fn end(&mut self) {
        self.sink = Sink::None;
        self.pending = Zeroizing::default();
        self.clients.retain_mut(|client| client.send(&[FromShim::Ended as u8]));
        let deadline = Instant::now() + LAST_WORDS;
        loop {
            self.clients.retain_mut(|client| client.flush() && !client.queue.packets.is_empty());
            let left = deadline.saturating_duration_since(Instant::now());
            if self.clients.is_empty() || left.is_zero() {
                self.clients.clear();
                return;
            }
            let mut fds: Vec<PollFd<'_>> =
                self.clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::OUT)).collect();
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut fds, Some(&timeout)); // interrupted: looked at again
        }
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

fn hung_up(socket: &Seqpacket) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests;
