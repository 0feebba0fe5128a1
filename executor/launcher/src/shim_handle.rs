//! Implements the launcher's handle on a shim: its state, its heartbeat, and the handles that the launcher needs if
//! the shim exits unexpectedly.
//!
//! A shim counts the iterations of its event loop in shared memory, and while it works, it also writes a deadline
//! there. Reading the shared memory costs the shim nothing. An idle shim is pinged from time to time, because it may be
//! stopped or blocked in the kernel.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::protocol::{Launch, Ping, ShimCall, ShimNews, ShimReport, ShimRequest, state_of};
use executor_core::record::VolumeKind;
use executor_core::time::Timestamp;
use executor_secrets::volume::Volume;
use executor_sys::heartbeat::Heartbeat;
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;
use prost::Message;

use crate::shim::WARM_STARTED;
use crate::warm::WarmPaths;

pub(crate) struct ShimHandle {
    pub id: ContainerId,
    /// Admission time of the container.
    pub created_at: Timestamp,
    pub pid: i32,
    /// True if the shim is a child of this launcher, which must reap it.
    pub child: bool,
    /// pidfd of the shim. The pidfd becomes readable when the shim exits.
    pub pidfd: OwnedFd,
    /// Connection over which the shim reports its states and sends its volume. `None` after the shim has closed it.
    pub lifeline: Option<Seqpacket>,
    /// Handle on the container's secret files, if the shim has sent it.
    pub volume: Option<Volume>,
    /// Payloads of the container's start, until the shim has wiped them.
    pub inputs: Vec<MemFile>,
    /// First host id of the container's id range.
    pub id_range: Option<u32>,
    /// First host id of the id range of the container's pod.
    pub pod_range: Option<u32>,
    /// True if the shim listens for daemons.
    pub(crate) listening: bool,
    /// True after the shim has reported the container's exit. The shim then cleans up and exits.
    pub(crate) done: bool,
    /// Heartbeat of the shim. `None` if the shim has not sent it.
    pub(crate) watch: Option<HeartbeatMonitor>,
    /// `Some` after the watchdog has killed the shim.
    pub(crate) killed: Option<Killed>,
    /// Paths of the warm container that was used, if any.
    pub(crate) warm: Option<WarmPaths>,
    /// Launch that was sent to a warm container and is not acknowledged yet.
    pub(crate) offer: Option<Offer>,
}

/// A launch without its payloads, which are in [`ShimHandle::inputs`]. The launch is sufficient for launching the
/// container again.
pub(crate) struct Offer {
    pub(crate) launch: Launch,
    /// The shim's end of the connection to the daemon.
    pub(crate) connection: Seqpacket,
    pub(crate) plan: MemFile,
    /// Deadline for the warm container to acknowledge the launch.
    pub(crate) until: Instant,
}

impl ShimHandle {
    /// Creates the handle for a child of this launcher.
    pub(crate) fn from_child(
        id: ContainerId,
        created_at: Timestamp,
        (pid, pidfd, lifeline): (i32, OwnedFd, Seqpacket),
        heartbeat: Heartbeat,
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
            watch: Some(HeartbeatMonitor::from_heartbeat(heartbeat)),
            killed: None,
            warm: None,
            offer: None,
        }
    }

    /// Reads the messages of the shim. `kind` is the type of its volume.
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
                // A closed socket would stay readable forever. The pidfd reports the shim's exit.
                Ok(None) => self.lifeline = None,
                Err(_) => return, // no more messages
            }
        }
    }

    /// Handles a message of the shim and its descriptors: the volume, of the type `kind`, and the heartbeat.
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
        if let Some(heartbeat) = fds.next().and_then(|fd| Heartbeat::from_fd(fd).ok()) {
            self.watch = Some(HeartbeatMonitor::from_heartbeat(heartbeat));
        }
    }
}

/// Time at which the launcher killed a shim, and the reason.
pub(crate) struct Killed {
    pub(crate) at: Instant,
    pub(crate) why: String,
}

/// Divisor of the time limit for a response: a shim is pinged after a third of the limit without activity.
const PING_DIVISOR: u32 = 3;

/// Heartbeat of a shim, and its last observed state.
pub(crate) struct HeartbeatMonitor {
    heartbeat: Heartbeat,
    turns: u64,
    /// Time at which the last change was observed.
    seen: Instant,
    /// Time of the ping that the shim has not answered yet.
    asked: Option<Instant>,
}

impl HeartbeatMonitor {
    pub(crate) fn from_heartbeat(heartbeat: Heartbeat) -> Self {
        Self { turns: heartbeat.turns(), heartbeat, seen: Instant::now(), asked: None }
    }

    /// Checks the shim's heartbeat. `timeout` is the time limit for a response to a ping. Returns an error message if
    /// the shim does not respond.
    pub(crate) fn check(&mut self, timeout: Duration, line: Option<&Seqpacket>) -> Option<String> {
        if let Some(late) = self.heartbeat.overdue() {
            return Some(format!("has not responded, {} s after its deadline", late.as_secs()));
        }
        let turns = self.heartbeat.turns();
        if turns != self.turns || self.heartbeat.is_at_work() {
            (self.turns, self.seen, self.asked) = (turns, Instant::now(), None);
            return None;
        }
        match (self.asked, line) {
            (Some(at), _) if at.elapsed() >= timeout => {
                Some(format!("has not responded to a ping for {} s", at.elapsed().as_secs()))
            }
            (None, Some(line)) if self.seen.elapsed() >= timeout / PING_DIVISOR => {
                let ping = ShimRequest { sequence: 0, call: Some(ShimCall::Ping(Ping {})) };
                let _ = line.send(&ping.encode_to_vec(), &[]); // if the shim does not read, an earlier ping is pending
                self.asked = Some(Instant::now());
                None
            }
            _ => None,
        }
    }
}
