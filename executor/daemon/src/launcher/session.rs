//! A session with a launcher, from the greeting until the connection is lost, and the task that reconnects.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use executor_core::backoff::Backoff;
use executor_core::ident::ContainerId;
use executor_core::protocol::{
    CountWarmPool, LauncherAnswer, LauncherCall, LauncherReply, LauncherRequest, Refused, ShimLost, VERSION, WarmPool,
    Welcome,
};
use executor_core::settings::{SectionDigests, differing_sections};
use executor_core::time::Timestamp;
use executor_secrets::TagKey;
use executor_sys::mutex::locked;
use executor_sys::seqpacket::Seqpacket;
use prost::Message as _;
use tokio::time::timeout;

use super::{Connection, Launcher};
use crate::ipc::packets::{Packets, PendingCalls};

/// Time limit for a response. Forks and removals in the launcher are fast, and the daemon must not hang if the launcher
/// hangs.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the greeting. Before the greeting the launcher cleans up the containers of dead shims.
const GREETING_TIMEOUT: Duration = Duration::from_secs(120);
/// Pauses between connection attempts.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// A response with its descriptors, or with the error that prevented receiving the descriptors.
pub(super) type AnswerWithFds = (LauncherAnswer, io::Result<Vec<OwnedFd>>);

/// A connected launcher after the greeting.
#[derive(Debug)]
pub struct Session {
    packets: Packets,
    calls: PendingCalls<AnswerWithFds>,
    welcome: Welcome,
    /// Description of the differences between the launcher's configuration and executord's, if any.
    difference: Option<String>,
}

/// Reason why a call has no response. The launcher may have executed the call, except for `NotSent`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The call did not reach the launcher.
    #[error("the connection was lost before the request was sent")]
    NotSent,
    /// The connection was closed before the response arrived.
    #[error("the connection was lost before the response arrived")]
    NotAnswered,
    /// The launcher did not respond in time.
    #[error("no response within {} s", .0.as_secs())]
    Timeout(Duration),
}

impl Session {
    /// Returns true if secret files are on tmpfs with `noswap`.
    pub fn noswap(&self) -> bool {
        self.welcome.noswap
    }

    /// Returns the cgroup version: `v1`, `hybrid` or `v2`.
    pub fn cgroups(&self) -> &str {
        &self.welcome.cgroups
    }

    /// Returns the process id of the launcher; 0 if the launcher is too old to report it.
    pub fn pid(&self) -> u32 {
        self.welcome.pid
    }

    /// Returns the differences between the launcher's configuration and executord's, with the remedy; `None` if the
    /// configurations are equal.
    pub fn difference(&self) -> Option<&str> {
        self.difference.as_deref()
    }

    /// Sends a call to the launcher, and waits for its response.
    ///
    /// # Errors
    /// Returns [`CallError`] if no response arrives.
    pub(crate) async fn call(&self, call: LauncherCall, fds: &[BorrowedFd<'_>]) -> Result<LauncherAnswer, CallError> {
        self.call_within(RESPONSE_TIMEOUT, call, fds).await
    }

    /// Sends a call to the launcher, and waits for its response until the time limit.
    ///
    /// # Errors
    /// Returns [`CallError`] if no response arrives.
    pub(crate) async fn call_within(
        &self,
        limit: Duration,
        call: LauncherCall,
        fds: &[BorrowedFd<'_>],
    ) -> Result<LauncherAnswer, CallError> {
        self.exchange(limit, call, fds).await.map(|(answer, _)| answer)
    }

    /// Sends a call to the launcher, and waits for its response with descriptors.
    ///
    /// # Errors
    /// Returns [`CallError`] if no response arrives.
    pub(super) async fn call_for_fds(&self, call: LauncherCall) -> Result<AnswerWithFds, CallError> {
        self.exchange(RESPONSE_TIMEOUT, call, &[]).await
    }

    /// Sends a call to the launcher, and waits for its response with descriptors. The launcher has the time `work` for
    /// the call, in addition to the usual time limit of a response.
    ///
    /// # Errors
    /// Returns [`CallError`] if no response arrives.
    pub(super) async fn call_for_work(&self, work: Duration, call: LauncherCall) -> Result<AnswerWithFds, CallError> {
        self.exchange(work + RESPONSE_TIMEOUT, call, &[]).await
    }

    async fn exchange(
        &self,
        limit: Duration,
        call: LauncherCall,
        fds: &[BorrowedFd<'_>],
    ) -> Result<AnswerWithFds, CallError> {
        let (sequence, answer) = self.calls.register().ok_or(CallError::NotSent)?;
        let request = LauncherRequest { sequence, call: Some(call) };
        self.packets.send(&request.encode_to_vec(), fds).await.map_err(|_| CallError::NotSent)?;
        match timeout(limit, answer).await {
            Ok(answer) => answer.map_err(|_| CallError::NotAnswered),
            Err(_) => Err(CallError::Timeout(limit)),
        }
    }

    /// Returns the launcher's counts of warm containers; `None` if the launcher does not respond in time, or is too old
    /// to support the call.
    pub(crate) async fn warm_pool(&self, limit: Duration) -> Option<WarmPool> {
        match self.call_within(limit, LauncherCall::CountWarmPool(CountWarmPool {}), &[]).await {
            Ok(LauncherAnswer::WarmPool(warm_pool)) => Some(warm_pool),
            _ => None,
        }
    }

    /// Performs the greeting on a new connection.
    async fn greet(launcher: &Launcher, socket: Seqpacket) -> Result<Self, String> {
        let broken = |error: io::Error| error.to_string();
        let packets = Packets::new(socket).map_err(broken)?;
        // The greeting has sequence number 0; the first call has number 1.
        let hello = LauncherRequest { sequence: 0, call: Some(LauncherCall::Hello(launcher.hello())) };
        packets.send(&hello.encode_to_vec(), &[]).await.map_err(broken)?;
        let answer = async {
            loop {
                match packets.recv::<LauncherReply>().await?.map(|reply| reply.answer) {
                    // Reports of lost shims need no action here: the launcher greets only when all lost shims have exit
                    // records.
                    Some(Some(LauncherAnswer::ShimLost(_))) => {}
                    other => return Ok(other.flatten()),
                }
            }
        };
        let answer = timeout(GREETING_TIMEOUT, answer).await;
        let late = |_| format!("the launcher sent no greeting within {} s", GREETING_TIMEOUT.as_secs());
        match answer.map_err(late)?.map_err(broken)? {
            Some(LauncherAnswer::Welcome(welcome)) if welcome.version == VERSION => {
                let difference = difference(&launcher.configuration, &welcome);
                Ok(Self { packets, calls: PendingCalls::default(), welcome, difference })
            }
            Some(LauncherAnswer::Welcome(welcome)) => Err(format!(
                "the launcher uses version {} of the protocol; this executord uses {VERSION}",
                welcome.version
            )),
            Some(LauncherAnswer::Refused(Refused { message, .. })) => Err(message),
            Some(_) => Err("the launcher sent an unexpected message instead of its greeting".to_owned()),
            None => Err("the launcher closed the connection".to_owned()),
        }
    }

    /// Passes responses to their callers until the connection is closed. Returns the reason for the close.
    async fn receive(&self, lost_shim: impl Fn(&ContainerId, Timestamp)) -> String {
        loop {
            let (reply, fds) = match self.packets.recv_with_fds::<LauncherReply>().await {
                Ok(Some(received)) => received,
                Ok(None) => return "the launcher closed the connection".to_owned(),
                Err(error) => return error.to_string(),
            };
            match reply.answer {
                Some(LauncherAnswer::ShimLost(ShimLost { container_id, created_at })) => match container_id.parse() {
                    Ok(id) => lost_shim(&id, Timestamp(created_at)),
                    Err(error) => tracing::warn!(%error, "the launcher reported a container with a malformed id"),
                },
                Some(answer) => self.calls.answer(reply.sequence, (answer, fds)),
                None => {} // a response of a newer launcher
            }
        }
    }
}

/// Describes the difference between executord's configuration and a launcher's.
fn difference(ours: &SectionDigests, welcome: &Welcome) -> Option<String> {
    let theirs = welcome.configuration.as_ref()?;
    let sections = differing_sections(ours, &theirs.sections);
    if sections.is_empty() {
        return None;
    }
    let why = match &*welcome.stale {
        "" => "they read different files, or the file changed after executord read it: restart executord",
        stale => stale,
    };
    Some(format!("executord and its launcher have different configurations ({}): {why}", sections.join(", ")))
}

impl Launcher {
    /// Keeps the launcher connected until the daemon stops. `first` is a connection that was opened at startup;
    /// `lost_shim` is called for containers that the launcher has cleaned up; `hint` returns the reason for a lost
    /// connection, if known.
    pub async fn run(
        self: Arc<Self>,
        mut first: Option<Seqpacket>,
        lost_shim: impl Fn(&ContainerId, Timestamp),
        mut hint: impl FnMut() -> Option<String>,
    ) {
        let mut reconnect = RECONNECT;
        loop {
            let connected = match first.take() {
                Some(socket) => Ok(socket),
                None => Seqpacket::connect(&self.socket).map_err(|error| error.to_string()),
            };
            let greeted = match connected {
                Ok(socket) => Session::greet(&self, socket).await.map(Arc::new),
                Err(why) => Err(why),
            };
            let mut why = match greeted {
                Err(why) => why,
                Ok(session) => {
                    reconnect.reset();
                    self.set_up(&session);
                    let why = session.receive(&lost_shim).await;
                    session.calls.close();
                    why
                }
            };
            if let Some(hint) = hint() {
                why = format!("{why}; {hint}");
            }
            match self.set_down(&why) {
                Connection::Up(_) => {
                    tracing::warn!(socket = %self.socket.display(), "the connection to the launcher is lost: {why}");
                }
                Connection::First => tracing::warn!(socket = %self.socket.display(), "no launcher is connected: {why}"),
                Connection::Down(_) => {}
            }
            tokio::time::sleep(reconnect.pause()).await;
        }
    }

    fn set_up(&self, session: &Arc<Session>) {
        match TagKey::from_bytes(&session.welcome.tag_key) {
            Ok(key) => *locked(&self.key) = Some(key),
            Err(error) => tracing::error!(%error, "the launcher sent an invalid key for request digests"),
        }
        let Welcome { noswap, cgroups, .. } = &session.welcome;
        tracing::info!(socket = %self.socket.display(), noswap, cgroups, "connected to the launcher");
        if let Some(difference) = session.difference() {
            tracing::error!("{difference}");
        }
        self.connection.send_replace(Connection::Up(Arc::clone(session)));
        self.greeted.send_modify(|count| *count += 1);
    }

    /// Marks the launcher as disconnected. Returns the previous state.
    fn set_down(&self, why: &str) -> Connection {
        self.connection.send_replace(Connection::Down(why.to_owned()))
    }
}
