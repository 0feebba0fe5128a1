//! A shim's connections: to the daemon that launched it, to later daemons, to the launcher.
//!
//! Whoever connects is told the state at once and at every change; a peer that does not read is let go and may
//! connect again. Root and the daemon's user are served, others are not.

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

/// Most connections at a time: the daemon, one that is being replaced, the launcher, one more.
const CONNECTIONS_MAX: usize = 6;

/// Most commands of a connection that are read in one go: they may bring descriptors, and others wait, too.
const ROUND_MAX: usize = 8;

/// The connections of a shim.
pub(crate) struct Control {
    listener: Option<SeqpacketListener>,
    connections: Vec<Connection>,
    /// To the launcher that forked this shim; gone when that is gone.
    lifeline: Option<Seqpacket>,
    /// Second handle on the secret file system, to be given to a later launcher.
    volume: Option<OwnedFd>,
    state: State,
    daemon_uid: u32,
    pace: HeartbeatWriter,
}

/// A peer.
struct Connection {
    socket: Seqpacket,
    /// The peer is gone, or does not read. Commands that it sent before still count, unanswered.
    gone: bool,
    /// Set where the peer connected as root. Never set for a socket that was passed: its credentials may be those of
    /// whoever bound the other end.
    root: bool,
}

/// A command of a peer.
pub(crate) enum Command {
    /// End it.
    Stop(Stop),
    /// Signal one of its processes.
    Signal(Signal),
    /// Answer with its secret inputs.
    ReadSecrets(ReadSecrets),
    /// Connect a client to its process.
    Attach(Attach, Vec<OwnedFd>),
    /// Replace its files.
    UpdateFiles(Update),
    /// Replace its egress, as `EGRESS_FDS` say.
    UpdateEgress(Vec<OwnedFd>),
    /// Replace limits.
    UpdateLimits(UpdateLimits),
    /// Stop its processes until they go on.
    Pause,
    /// Let them go on.
    Resume,
    /// End it because of its checks.
    EndUnhealthy(EndUnhealthy),
    /// Note in its log how far its checks are.
    NoteHealth(NoteHealth),
    /// Answer with a socket in its network namespace.
    MakeSocket(MakeSocket),
    /// Answer with its counters.
    ReadUsage(ReadUsage),
    /// Answer with the URL of a transfer.
    ReadTransfer(ReadTransfer),
    /// Go on after the end of a transfer.
    EndTransfer(EndTransfer),
    /// Move a worker of a transfer into the cgroup of the container's workers.
    LimitWorker(Worker),
}

/// A worker as a peer names it.
pub(crate) struct Worker {
    pub(crate) asked: LimitWorker,
    /// Descriptor of its process.
    pub(crate) fds: Vec<OwnedFd>,
    /// Pid of the peer, which is no worker.
    pub(crate) peer: Option<i32>,
}

/// What an answer carries.
#[allow(clippy::large_enum_variant)] // one at a time, on its way
pub(crate) enum AnswerPayload {
    /// Secrets, which are wiped if the answer does not arrive.
    Secrets(MemFile),
    /// A socket.
    Socket(OwnedFd),
    /// Counters.
    Usage(Usage),
}

impl AnswerPayload {
    /// Returns the descriptor.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Secrets(file) => Some(file.as_fd()),
            Self::Socket(socket) => Some(socket.as_fd()),
            Self::Usage(_) => None,
        }
    }
}

/// A command, to be answered.
pub(crate) struct PendingCommand {
    command: Command,
    answer: Answer,
}

/// Destination of an answer.
pub(crate) struct Answer {
    sequence: u64,
    connection: usize,
}

impl PendingCommand {
    /// The command, and where its answer goes.
    pub(crate) fn split(self) -> (Command, Answer) {
        (self.command, self.answer)
    }
}

impl Control {
    pub(crate) fn new(connection: Seqpacket, lifeline: Seqpacket, daemon_uid: u32, pace: HeartbeatWriter) -> Self {
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
            pace,
        }
    }

    /// Returns the shim's pace.
    pub(crate) fn pace(&self) -> &HeartbeatWriter {
        &self.pace
    }

    /// Listens for later daemons and launchers. The launcher is told: a daemon that it welcomes finds every shim.
    pub(crate) fn listen(&mut self, listener: SeqpacketListener) {
        self.listener = Some(listener);
        // Not the daemon, which has known the state since the launcher's answer, and would wake for nothing.
        self.tell_launcher(&reached_report(self.state));
    }

    /// Takes on a state that is told with the next one: it lasts for a moment, and who is told reads the record.
    pub(crate) fn pass(&mut self, state: State) {
        self.state = state;
    }

    /// Tells everyone of a state, also whoever has connected but was not heard yet.
    pub(crate) fn reached(&mut self, state: State) {
        self.accept();
        self.state = state;
        let bytes = reached_report(state);
        if state != State::Wiping {
            self.tell_launcher(&bytes); // which does nothing then
        }
        for connection in &mut self.connections {
            connection.gone |= connection.socket.send(&bytes, &[]).is_err();
        }
    }

    /// Gives the launcher its handle on the secret files.
    pub(crate) fn share_volume(&mut self, volume: &Volume) {
        self.volume = volume.handle().try_clone_to_owned().ok();
        let report = ShimReport { sequence: 0, news: Some(ShimNews::Done(Done {})) }.encode_to_vec();
        if let Some(lifeline) = &self.lifeline {
            let _ = lifeline.send(&report, &[volume.handle()]); // without a launcher the next one asks
        }
    }

    /// Tells the daemon that there is no container.
    pub(crate) fn refuse(&mut self, refused: Refused) {
        self.accept();
        let report = ShimReport { sequence: 0, news: Some(ShimNews::Refused(refused)) }.encode_to_vec();
        self.tell_launcher(&report);
        for connection in &self.connections {
            let _ = connection.socket.send(&report, &[]);
        }
    }

    /// The launcher is told first: what the daemon asks of it next may presume that it knows.
    fn tell_launcher(&mut self, report: &[u8]) {
        if self.lifeline.as_ref().is_some_and(|lifeline| lifeline.send(report, &[]).is_err()) {
            self.lifeline = None;
        }
    }

    /// Registers the connections for a turn of a loop.
    pub(crate) fn register<'fd, T: Copy>(&'fd self, events: &mut Events<'fd, T>, token: T) {
        let listener = self.listener.iter().map(AsFd::as_fd);
        let connections = self.connections.iter().filter(|connection| !connection.gone);
        let lifeline = self.lifeline.iter().map(AsFd::as_fd);
        let all = listener.chain(connections.map(|connection| connection.socket.as_fd())).chain(lifeline);
        all.for_each(|fd| events.read(fd, token));
    }

    /// Takes connections and reads what came. Never waits.
    pub(crate) fn read(&mut self) -> Vec<PendingCommand> {
        self.accept();
        self.look_at_lifeline();
        let mut asked = Vec::new();
        for index in (0..self.connections.len()).filter(|index| !self.connections[*index].gone).collect::<Vec<_>>() {
            for _ in 0..ROUND_MAX {
                match receive(&self.connections[index].socket) {
                    Ok(Some((request, fds))) => asked.extend(self.take(index, request, fds)),
                    Ok(None) => break,
                    Err(Gone) => {
                        // It keeps its place, so that the indices in `asked` stay right until they are answered.
                        self.connections[index].gone = true;
                        break;
                    }
                }
            }
        }
        asked
    }

    /// Answers a command. A memory file of secrets is the peer's to wipe, if it comes to the peer.
    pub(crate) fn answer(&mut self, to: &Answer, result: Result<Option<AnswerPayload>, Refused>) {
        let (news, carried) = match result {
            Ok(Some(AnswerPayload::Usage(usage))) => (ShimNews::Usage(usage), None),
            Ok(carried) => (ShimNews::Done(Done {}), carried),
            Err(refused) => (ShimNews::Refused(refused), None),
        };
        let report = ShimReport { sequence: to.sequence, news: Some(news) }.encode_to_vec();
        let fds: Vec<BorrowedFd<'_>> = carried.iter().filter_map(AnswerPayload::fd).collect();
        let connection = self.connections.get(to.connection);
        // One that is gone asks again.
        let sent = connection.is_some_and(|peer| !peer.gone && peer.socket.send(&report, &fds).is_ok());
        if let Some(AnswerPayload::Secrets(file)) = carried.filter(|_| !sent)
            && let Err(error) = file.wipe()
        {
            log::line(Level::Error, "", format_args!("an undelivered answer was not wiped: {error}"));
        }
    }

    /// Forgets connections that are gone. To be called when nothing is left to answer.
    pub(crate) fn tidy(&mut self) {
        self.connections.retain(|connection| !connection.gone);
    }

    fn accept(&mut self) {
        while let Some(Ok(socket)) = self.listener.as_ref().map(SeqpacketListener::accept) {
            let uid = getsockopt(&socket, sockopt::PeerCredentials).map(|peer| peer.uid());
            let served = uid.is_ok_and(|uid| uid == 0 || uid == self.daemon_uid);
            if !served || self.connections.len() >= CONNECTIONS_MAX {
                log::line(Level::Warning, "", "a connection to a shim was refused");
                continue;
            }
            socket.set_nonblocking(true);
            if socket.send(&reached_report(self.state), &[]).is_ok() {
                self.connections.push(Connection { socket, gone: false, root: uid == Ok(0) });
            }
        }
    }

    /// The launcher asks for nothing but a turn of the loop on its line, and that is one.
    fn look_at_lifeline(&mut self) {
        let Some(lifeline) = &self.lifeline else { return };
        let mut buffer = [0; 64];
        loop {
            match lifeline.recv(&mut buffer) {
                Ok(Some(_)) => {}
                Ok(None) => return self.lifeline = None,
                Err(_) => return, // nothing more has come
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
            Some(ShimCall::Pause(_)) => Command::Pause,
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
        Some(PendingCommand { command, answer: Answer { sequence: request.sequence, connection } })
    }

    /// The handle goes to root alone: the daemon must not be able to read the files.
    fn share_with(&self, connection: usize, sequence: u64) {
        let Connection { socket, root, .. } = &self.connections[connection];
        let (news, fds) = match &self.volume {
            Some(volume) if *root => (ShimNews::Done(Done {}), vec![volume.as_fd(), self.pace.as_fd()]),
            Some(_) => (ShimNews::Refused(Refused::new(Reason::Precondition, "for the launcher only")), Vec::new()),
            None => {
                let refused = Refused::new(Reason::NotFound, "there are no secret files");
                (ShimNews::Refused(refused), root.then(|| self.pace.as_fd()).into_iter().collect())
            }
        };
        let _ = socket.send(&ShimReport { sequence, news: Some(news) }.encode_to_vec(), &fds);
    }
}

fn reached_report(state: State) -> Vec<u8> {
    ShimReport { sequence: 0, news: Some(ShimNews::Reached(Reached { state: state_number(state) })) }.encode_to_vec()
}

/// The peer is gone, or speaks something else.
struct Gone;

/// The next request, if one is there, and what came with it.
fn receive(connection: &Seqpacket) -> Result<Option<(ShimRequest, Vec<OwnedFd>)>, Gone> {
    let mut buffer = [0; 4096];
    const { assert!(PACKET_MAX >= 4096) };
    match connection.recv_or_tell(&mut buffer) {
        Ok(None) => Err(Gone),
        Ok(Some((length, fds))) => {
            let request = ShimRequest::decode(&buffer[..length]).map_err(|_| Gone)?;
            match fds {
                Ok(fds) => Ok(Some((request, fds))),
                Err(error) => {
                    let refused = crate::errors::failed("descriptors of a request", &error);
                    let report = ShimReport { sequence: request.sequence, news: Some(ShimNews::Refused(refused)) };
                    connection.send(&report.encode_to_vec(), &[]).map(|()| None).map_err(|_| Gone)
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(_) => Err(Gone),
    }
}
