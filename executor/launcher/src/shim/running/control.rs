//! Manages the connections of a shim: to the daemon that launched it, to later daemons, and to the launcher.
//!
//! A peer receives the state when it connects and after every change, except for short-lived states. A peer that does
//! not read is disconnected, and may connect again. Only root and the daemon's user may connect.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use executor_core::lifecycle::State;
use executor_core::protocol::{
    Attach, Done, EndTransfer, EndUnhealthy, LimitWorker, MakeSocket, NoteHealth, PACKET_MAX, Reached, ReadSecrets,
    ReadTransfer, ReadUsage, Reason, Refused, ShimCall, ShimNews, ShimReport, ShimRequest, Signal, Stop, UpdateLimits,
    state_number,
};
use executor_core::usage::Usage;
use executor_secrets::volume::Volume;
use executor_sys::events::Events;
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::{Seqpacket, SeqpacketListener};
use nix::sys::socket::{getsockopt, sockopt};
use prost::Message;

use super::heartbeat::HeartbeatWriter;
use crate::log::{self, Level};
use crate::shim::files::update::Update;

/// Maximum number of connections: enough for a daemon, a daemon that replaces it, a launcher, and some spares.
const CONNECTIONS_MAX: usize = 6;

/// Maximum number of commands that are read from a connection at a time. The limit bounds the number of open
/// descriptors and lets other peers take turns.
const ROUND_MAX: usize = 8;

pub(crate) struct Control {
    listener: Option<SeqpacketListener>,
    connections: Vec<Connection>,
    /// Connection to the launcher that forked this shim. `None` after the launcher has exited.
    lifeline: Option<Seqpacket>,
    /// Handle on the secret file system, which a later launcher requests.
    volume: Option<OwnedFd>,
    state: State,
    daemon_uid: u32,
    heartbeat: HeartbeatWriter,
}

/// Connection to a daemon or launcher.
struct Connection {
    socket: Seqpacket,
    /// True if the peer has disconnected or does not read. The peer's earlier commands are still executed, without
    /// replies.
    gone: bool,
    /// True if the peer connected as root. False for a socket that was passed as a descriptor, because the socket's
    /// credentials may belong to another process than the peer.
    root: bool,
}

/// A command of a peer.
pub(crate) enum Command {
    Stop(Stop),
    /// Start the process of a held container.
    Start,
    /// Signal one of the container's processes.
    Signal(Signal),
    /// Reply with the secret inputs.
    ReadSecrets(ReadSecrets),
    /// Attach a client to the container's process.
    Attach(Attach, Vec<OwnedFd>),
    /// Replace the secret files.
    UpdateFiles(Update),
    /// Replace the egress rules. The descriptors are listed in `EGRESS_FDS`.
    UpdateEgress(Vec<OwnedFd>),
    UpdateLimits(UpdateLimits),
    /// Open the log file of the request again.
    ReopenLog,
    /// Suspend the container's processes until they are resumed.
    Pause,
    /// Continue the container's processes.
    Resume,
    /// Stop the container because of its checks.
    EndUnhealthy(EndUnhealthy),
    /// Log the progress of the container's checks.
    NoteHealth(NoteHealth),
    /// Reply with a socket in the container's network namespace.
    MakeSocket(MakeSocket),
    /// Reply with the container's counters.
    ReadUsage(ReadUsage),
    /// Reply with the URL of a transfer.
    ReadTransfer(ReadTransfer),
    /// Continue the tree of actions after the completion of a transfer.
    EndTransfer(EndTransfer),
    /// Move a worker of a transfer into the cgroup of the container's workers.
    LimitWorker(Worker),
}

/// A worker process that a peer identifies.
pub(crate) struct Worker {
    pub(crate) asked: LimitWorker,
    /// pidfd of the worker.
    pub(crate) fds: Vec<OwnedFd>,
    /// Pid of the peer. The peer must not be the worker.
    pub(crate) peer: Option<i32>,
}

/// Content of a successful reply.
#[allow(clippy::large_enum_variant)] // short-lived, one at a time
pub(crate) enum AnswerPayload {
    /// Memory file with secrets. The file is wiped if the reply cannot be sent.
    Secrets(MemFile),
    Socket(OwnedFd),
    Usage(Usage),
}

impl AnswerPayload {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Secrets(file) => Some(file.as_fd()),
            Self::Socket(socket) => Some(socket.as_fd()),
            Self::Usage(_) => None,
        }
    }
}

/// A command that has been read and not yet replied to.
pub(crate) struct PendingCommand {
    command: Command,
    answer: AnswerDestination,
}

pub(crate) struct AnswerDestination {
    sequence: u64,
    connection: usize,
}

impl PendingCommand {
    pub(crate) fn split(self) -> (Command, AnswerDestination) {
        (self.command, self.answer)
    }
}

impl Control {
    pub(crate) fn new(connection: Seqpacket, lifeline: Seqpacket, daemon_uid: u32, heartbeat: HeartbeatWriter) -> Self {
        for socket in [&connection, &lifeline] {
            socket.set_nonblocking(true);
        }
        Self {
            listener: None,
            connections: vec![Connection { socket: connection, gone: false, root: false }],
            lifeline: Some(lifeline),
            volume: None,
            state: State::Initializing,
            daemon_uid,
            heartbeat,
        }
    }

    pub(crate) fn heartbeat(&self) -> &HeartbeatWriter {
        &self.heartbeat
    }

    /// Starts to listen for later daemons and launchers, and notifies the launcher. The launcher accepts a new daemon
    /// only when every shim listens.
    pub(crate) fn listen(&mut self, listener: SeqpacketListener) {
        self.listener = Some(listener);
        // Do not report to the daemon: the launcher's reply implies this state, so a report would only wake the daemon.
        self.report_launcher(&reached_report(self.state));
    }

    /// Sets a short-lived state without a report, because the next state is reported soon and peers read the record.
    pub(crate) fn set_state(&mut self, state: State) {
        self.state = state;
    }

    /// Reports a state to every peer, including new connections whose commands have not been read yet.
    pub(crate) fn report_state(&mut self, state: State) {
        self.accept();
        self.state = state;
        let bytes = reached_report(state);
        if state != State::Wiping {
            self.report_launcher(&bytes); // the launcher ignores `Wiping`
        }
        for connection in &mut self.connections {
            connection.gone |= connection.socket.send(&bytes, &[]).is_err();
        }
    }

    /// Sends the launcher a handle on the secret files.
    pub(crate) fn share_volume(&mut self, volume: &Volume) {
        self.volume = volume.handle().try_clone_to_owned().ok();
        let report = ShimReport { sequence: 0, news: Some(ShimNews::Done(Done {})) }.encode_to_vec();
        if let Some(lifeline) = &self.lifeline {
            let _ = lifeline.send(&report, &[volume.handle()]); // best effort: a later launcher requests the handle
        }
    }

    /// Reports to the peers that the launch is refused and that there is no container.
    pub(crate) fn refuse(&mut self, refused: Refused) {
        self.accept();
        let report = ShimReport { sequence: 0, news: Some(ShimNews::Refused(refused)) }.encode_to_vec();
        self.report_launcher(&report);
        for connection in &self.connections {
            let _ = connection.socket.send(&report, &[]);
        }
    }

    /// Sends a report to the launcher. Call this before reporting to the daemon, because the daemon's next request may
    /// rely on this report.
    fn report_launcher(&mut self, report: &[u8]) {
        if self.lifeline.as_ref().is_some_and(|lifeline| lifeline.send(report, &[]).is_err()) {
            self.lifeline = None;
        }
    }

    /// Registers the connections for one iteration of a loop.
    pub(crate) fn register<'fd, T: Copy>(&'fd self, events: &mut Events<'fd, T>, token: T) {
        let listener = self.listener.iter().map(AsFd::as_fd);
        let connections = self.connections.iter().filter(|connection| !connection.gone);
        let lifeline = self.lifeline.iter().map(AsFd::as_fd);
        let all = listener.chain(connections.map(|connection| connection.socket.as_fd())).chain(lifeline);
        all.for_each(|fd| events.read(fd, token));
    }

    /// Accepts connections and reads pending requests, without waiting.
    pub(crate) fn read(&mut self) -> Vec<PendingCommand> {
        self.accept();
        self.drain_lifeline();
        let mut asked = Vec::new();
        for index in (0..self.connections.len()).filter(|index| !self.connections[*index].gone).collect::<Vec<_>>() {
            for _ in 0..ROUND_MAX {
                match receive(&self.connections[index].socket) {
                    Ok(Some((request, fds))) => asked.extend(self.take(index, request, fds)),
                    Ok(None) => break,
                    Err(PeerGone) => {
                        // Keep the entry, so that the indices in `asked` stay valid until the replies are sent.
                        self.connections[index].gone = true;
                        break;
                    }
                }
            }
        }
        asked
    }

    /// Replies to a command. If the reply carries a memory file with secrets, the peer must wipe the file.
    pub(crate) fn answer(&mut self, to: &AnswerDestination, result: Result<Option<AnswerPayload>, Refused>) {
        let (news, carried) = match result {
            Ok(Some(AnswerPayload::Usage(usage))) => (ShimNews::Usage(usage), None),
            Ok(carried) => (ShimNews::Done(Done {}), carried),
            Err(refused) => (ShimNews::Refused(refused), None),
        };
        let report = ShimReport { sequence: to.sequence, news: Some(news) }.encode_to_vec();
        let fds: Vec<BorrowedFd<'_>> = carried.iter().filter_map(AnswerPayload::fd).collect();
        let connection = self.connections.get(to.connection);
        // A peer that has disconnected repeats its request.
        let sent = connection.is_some_and(|peer| !peer.gone && peer.socket.send(&report, &fds).is_ok());
        if let Some(AnswerPayload::Secrets(file)) = carried.filter(|_| !sent)
            && let Err(error) = file.wipe()
        {
            log::line(Level::Error, "", format_args!("an undelivered response was not wiped: {error}"));
        }
    }

    /// Removes closed connections. Must be called only if no reply is pending.
    pub(crate) fn remove_closed(&mut self) {
        self.connections.retain(|connection| !connection.gone);
    }

    fn accept(&mut self) {
        while let Some(Ok(socket)) = self.listener.as_ref().map(SeqpacketListener::accept) {
            let uid = getsockopt(&socket, sockopt::PeerCredentials).map(|peer| peer.uid());
            let served = uid.is_ok_and(|uid| uid == 0 || uid == self.daemon_uid);
            if !served || self.connections.len() >= CONNECTIONS_MAX {
                log::line(
                    Level::Warning,
                    "",
                    format_args!(
                        "refused a connection to a shim: the client is neither root nor executord, or the maximum of \
                         {CONNECTIONS_MAX} connections is reached"
                    ),
                );
                continue;
            }
            socket.set_nonblocking(true);
            if socket.send(&reached_report(self.state), &[]).is_ok() {
                self.connections.push(Connection { socket, gone: false, root: uid == Ok(0) });
            }
        }
    }

    /// Drains the lifeline. The launcher sends messages only to wake the loop.
    fn drain_lifeline(&mut self) {
        let Some(lifeline) = &self.lifeline else { return };
        let mut buffer = [0; 64];
        loop {
            match lifeline.recv(&mut buffer) {
                Ok(Some(_)) => {}
                Ok(None) => return self.lifeline = None,
                Err(_) => return, // no more messages
            }
        }
    }

    fn take(&self, connection: usize, request: ShimRequest, fds: Vec<OwnedFd>) -> Option<PendingCommand> {
        let command = match request.call {
            Some(ShimCall::Stop(stop)) => Command::Stop(stop),
            Some(ShimCall::EndUnhealthy(asked)) => Command::EndUnhealthy(asked),
            Some(ShimCall::NoteHealth(asked)) => Command::NoteHealth(asked),
            Some(ShimCall::MakeSocket(asked)) => Command::MakeSocket(asked),
            Some(ShimCall::ReadTransfer(asked)) => Command::ReadTransfer(asked),
            Some(ShimCall::EndTransfer(asked)) => Command::EndTransfer(asked),
            Some(ShimCall::LimitWorker(asked)) => {
                let peer = getsockopt(&self.connections[connection].socket, sockopt::PeerCredentials);
                Command::LimitWorker(Worker { asked, fds, peer: peer.ok().map(|peer| peer.pid()) })
            }
            Some(ShimCall::Signal(signal)) => Command::Signal(signal),
            Some(ShimCall::ReadUsage(asked)) => Command::ReadUsage(asked),
            Some(ShimCall::Share(_)) => {
                self.share_with(connection, request.sequence);
                return None;
            }
            Some(ShimCall::Ping(_)) => return None,
            Some(ShimCall::UpdateFiles(update)) => Command::UpdateFiles(Update { signal: update.signal, fds }),
            Some(ShimCall::UpdateEgress(_)) => Command::UpdateEgress(fds),
            Some(ShimCall::UpdateLimits(update)) => Command::UpdateLimits(update),
            Some(ShimCall::ReopenLog(_)) => Command::ReopenLog,
            Some(ShimCall::Pause(_)) => Command::Pause,
            Some(ShimCall::Start(_)) => Command::Start,
            Some(ShimCall::Resume(_)) => Command::Resume,
            Some(ShimCall::ReadSecrets(asked)) => Command::ReadSecrets(asked),
            Some(ShimCall::Attach(asked)) => Command::Attach(asked, fds),
            None => {
                let refused = Refused::new(Reason::Invalid, "unknown request: this shim is older than its peer");
                let report = ShimReport { sequence: request.sequence, news: Some(ShimNews::Refused(refused)) };
                let _ = self.connections[connection].socket.send(&report.encode_to_vec(), &[]);
                return None;
            }
        };
        Some(PendingCommand { command, answer: AnswerDestination { sequence: request.sequence, connection } })
    }

    /// Sends handles on the secret files and on the heartbeat, only to root, because the daemon must not be able to
    /// read the secret files.
    fn share_with(&self, connection: usize, sequence: u64) {
        let Connection { socket, root, .. } = &self.connections[connection];
        let (news, fds) = match &self.volume {
            Some(volume) if *root => (ShimNews::Done(Done {}), vec![volume.as_fd(), self.heartbeat.as_fd()]),
            Some(_) => {
                let refused = Refused::new(Reason::Precondition, "only the launcher may send this request");
                (ShimNews::Refused(refused), Vec::new())
            }
            None => {
                let refused = Refused::new(Reason::NotFound, "the container has no secret files");
                (ShimNews::Refused(refused), root.then(|| self.heartbeat.as_fd()).into_iter().collect())
            }
        };
        let _ = socket.send(&ShimReport { sequence, news: Some(news) }.encode_to_vec(), &fds);
    }
}

fn reached_report(state: State) -> Vec<u8> {
    ShimReport { sequence: 0, news: Some(ShimNews::Reached(Reached { state: state_number(state) })) }.encode_to_vec()
}

/// The peer has disconnected or sent an invalid message.
struct PeerGone;

/// Returns the next request with its descriptors, if there is one.
fn receive(connection: &Seqpacket) -> Result<Option<(ShimRequest, Vec<OwnedFd>)>, PeerGone> {
    let mut buffer = [0; 4096];
    const { assert!(PACKET_MAX >= 4096) };
    match connection.recv_or_report(&mut buffer) {
        Ok(None) => Err(PeerGone),
        Ok(Some((length, fds))) => {
            let request = ShimRequest::decode(&buffer[..length]).map_err(|_| PeerGone)?;
            match fds {
                Ok(fds) => Ok(Some((request, fds))),
                Err(error) => {
                    let refused = crate::errors::failed("cannot receive the descriptors of a request", &error);
                    let report = ShimReport { sequence: request.sequence, news: Some(ShimNews::Refused(refused)) };
                    connection.send(&report.encode_to_vec(), &[]).map(|()| None).map_err(|_| PeerGone)
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(_) => Err(PeerGone),
    }
}
