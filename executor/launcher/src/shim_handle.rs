//! A shim as the launcher sees it: what it watches, and what it holds for the case that the shim is lost.
//!
//! A shim writes into memory that both share how often it has turned its loop, and, while it is at work, by when it will
//! be back. A look at that costs the shim nothing. One that rests is asked now and then to turn its loop once: it may be
//! stopped, or held by the kernel.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::protocol::{Launch, Ping, ShimCall, ShimNews, ShimReport, ShimRequest, state_of};
use executor_core::record::VolumeKind;
use executor_core::time::Timestamp;
use executor_secrets::volume::Volume;
use executor_sys::memfile::MemFile;
use executor_sys::pulse::Heartbeat;
use executor_sys::seqpacket::Seqpacket;
use prost::Message;

use crate::shim::WARM_STARTED;
use crate::warm::Place;

/// A shim that is watched.
pub(crate) struct ShimHandle {
    /// Container.
    pub id: ContainerId,
    /// Time when the container was admitted.
    pub created_at: Timestamp,
    /// Pid.
    pub pid: i32,
    /// Set for a child of this launcher, which is to be waited for.
    pub child: bool,
    /// Readable when it has ended.
    pub pidfd: OwnedFd,
    /// Connection over which the shim tells its states and hands over its volume; `None` when the shim has closed its end.
    pub lifeline: Option<Seqpacket>,
    /// Second handle on its secret files.
    pub volume: Option<Volume>,
    /// Start payloads of the container, until the shim has wiped them.
    pub inputs: Vec<MemFile>,
    /// The range of ids that it was given.
    pub id_range: Option<u32>,
    /// The range of ids of the pod that its container is a member of.
    pub pod_range: Option<u32>,
    /// Set when it listens for daemons.
    pub(crate) listening: bool,
    /// Set when it has told the end of its container: it removes what is left, and ends.
    pub(crate) done: bool,
    /// Signs of life; none of a shim of an older version.
    pub(crate) watch: Option<HeartbeatMonitor>,
    /// Set when it was killed because it gave none.
    pub(crate) killed: Option<Killed>,
    /// Place of the shell that it was.
    pub(crate) warm: Option<Place>,
    /// The launch that was handed to a shell, until the shell has acknowledged it.
    pub(crate) offer: Option<Offer>,
}

/// A launch without its payloads, which are [`ShimHandle::inputs`]: enough to launch the container in another way.
pub(crate) struct Offer {
    pub(crate) launch: Launch,
    /// To the daemon.
    pub(crate) connection: Seqpacket,
    pub(crate) plan: MemFile,
    /// Time by which the shell is to acknowledge the launch.
    pub(crate) until: Instant,
}

impl ShimHandle {
    /// Begins to watch a child of this launcher: by its pid, its descriptor and the connection to it.
    pub(crate) fn begun(
        id: ContainerId,
        created_at: Timestamp,
        (pid, pidfd, lifeline): (i32, OwnedFd, Seqpacket),
        pulse: Heartbeat,
    ) -> Self {
        Self {
            id,
            created_at,
            pid,
            child: true,
            pidfd,
            lifeline: Some(lifeline),
            volume: None,
            inputs: Vec::new(),
            id_range: None,
            pod_range: None,
            listening: false,
            done: false,
            watch: Some(HeartbeatMonitor::from_pulse(pulse)),
            killed: None,
            warm: None,
            offer: None,
        }
    }

    /// Takes what it has told. Its volume is of this kind.
    pub(crate) fn recv(&mut self, kind: VolumeKind) {
        let mut buffer = [0; 4096];
        while let Some(lifeline) = &self.lifeline {
            match lifeline.recv(&mut buffer) {
                Ok(Some((length, _))) if &buffer[..length] == WARM_STARTED => self.offer = None,
                Ok(Some((length, fds))) => {
                    if let Ok(report) = ShimReport::decode(&buffer[..length]) {
                        self.take(report, fds, kind);
                    }
                }
                // A line at its end would be readable for ever; the descriptor of the process tells of the shim's own end.
                Ok(None) => self.lifeline = None,
                Err(_) => return, // nothing more has come
            }
        }
    }

    /// Takes what it tells, and the handles that come with that: on its volume, which is of this kind, and its signs of
    /// life.
    pub(crate) fn take(&mut self, report: ShimReport, fds: Vec<OwnedFd>, kind: VolumeKind) {
        let mut fds = fds.into_iter();
        match report.news {
            Some(ShimNews::Done(_)) => {
                self.volume = fds.next().map(|fd| Volume::from_handle(fd, kind)).or(self.volume.take());
            }
            Some(ShimNews::Refused(_)) if report.sequence == 0 => self.done = true,
            Some(ShimNews::Reached(reached)) => {
                self.listening = true;
                let state = state_of(reached.state);
                if state.is_some_and(|state| state >= State::Running) {
                    self.inputs.clear();
                }
                self.done = state == Some(State::Completed);
            }
            _ => {}
        }
        if let Some(pulse) = fds.next().and_then(|fd| Heartbeat::from_fd(fd).ok()) {
            self.watch = Some(HeartbeatMonitor::from_pulse(pulse));
        }
    }
}

/// Time and reason of the killing of a shim.
pub(crate) struct Killed {
    pub(crate) at: Instant,
    pub(crate) why: String,
}

/// Part of the time that a shim has for a turn of its loop, after which one that rests is asked for one.
const ASK_AFTER: u32 = 3;

/// A shim's signs of life, and what was seen of them.
pub(crate) struct HeartbeatMonitor {
    pulse: Heartbeat,
    turns: u64,
    /// Time when its last turn was seen.
    seen: Instant,
    /// Since when it is expected to turn.
    asked: Option<Instant>,
}

impl HeartbeatMonitor {
    pub(crate) fn from_pulse(pulse: Heartbeat) -> Self {
        Self { turns: pulse.turns(), pulse, seen: Instant::now(), asked: None }
    }

    /// Looks at a shim that has `patience` for a turn of its loop. Tells what is wrong with it.
    pub(crate) fn check(&mut self, patience: Duration, line: Option<&Seqpacket>) -> Option<String> {
        if let Some(late) = self.pulse.overdue() {
            return Some(format!("has not responded, {} s after its deadline", late.as_secs()));
        }
        let turns = self.pulse.turns();
        if turns != self.turns || self.pulse.is_at_work() {
            (self.turns, self.seen, self.asked) = (turns, Instant::now(), None);
            return None;
        }
        match (self.asked, line) {
            (Some(at), _) if at.elapsed() >= patience => {
                Some(format!("has not responded to a ping for {} s", at.elapsed().as_secs()))
            }
            (None, Some(line)) if self.seen.elapsed() >= patience / ASK_AFTER => {
                let ping = ShimRequest { sequence: 0, call: Some(ShimCall::Ping(Ping {})) };
                let _ = line.send(&ping.encode_to_vec(), &[]); // one that does not read has been asked before
                self.asked = Some(Instant::now());
                None
            }
            _ => None,
        }
    }
}
