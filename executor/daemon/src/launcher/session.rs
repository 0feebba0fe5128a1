//! One connection to a launcher, from its greeting to its loss, and the task that makes the next one.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::protocol::{
    LauncherAnswer, LauncherCall, LauncherReply, LauncherRequest, Refused, ShimLost, VERSION, Welcome,
};
use executor_core::time::Timestamp;
use executor_secrets::TagKey;
use executor_sys::seqpacket::Seqpacket;
use prost::Message as _;
use tokio::time::timeout;

use super::{Connection, Launcher};
use crate::locked;
use crate::packets::{Calls, Packets};

/// For an answer. The launcher forks and removes; neither takes long, and a daemon must not hang on it.
const ANSWER: Duration = Duration::from_secs(60);
/// For the greeting: before it the launcher finishes what was left of dead shims.
const GREETING: Duration = Duration::from_secs(120);
/// Between attempts to connect: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A launcher that was greeted.
#[derive(Debug)]
pub struct Session {
    packets: Packets,
    calls: Calls<LauncherAnswer>,
    welcome: Welcome,
}

/// No answer came; whether the call was carried out is unknown, unless it was never sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// The call did not reach the launcher.
    #[error("the connection was lost before the request was sent")]
    NotSent,
    /// The connection ended before the answer.
    #[error("the connection was lost before the answer came")]
    NotAnswered,
    /// It does not answer.
    #[error("it did not answer within {} s", .0.as_secs())]
    Late(Duration),
}

impl Session {
    /// Secrets live on tmpfs with `noswap`.
    pub fn noswap(&self) -> bool {
        self.welcome.noswap
    }

    /// `v1`, `hybrid` or `v2`.
    pub fn cgroups(&self) -> &str {
        &self.welcome.cgroups
    }

    /// Has the launcher carry something out.
    ///
    /// # Errors
    /// No answer came.
    pub(crate) async fn call(&self, call: LauncherCall, fds: &[BorrowedFd<'_>]) -> Result<LauncherAnswer, Lost> {
        self.call_within(ANSWER, call, fds).await
    }

    /// The same for something that may take its time.
    ///
    /// # Errors
    /// No answer came.
    pub(crate) async fn call_within(
        &self,
        limit: Duration,
        call: LauncherCall,
        fds: &[BorrowedFd<'_>],
    ) -> Result<LauncherAnswer, Lost> {
        let (sequence, answer) = self.calls.register().ok_or(Lost::NotSent)?;
        let request = LauncherRequest { sequence, call: Some(call) };
        self.packets.send(&request.encode_to_vec(), fds).await.map_err(|_| Lost::NotSent)?;
        match timeout(limit, answer).await {
            Ok(answer) => answer.map_err(|_| Lost::NotAnswered),
            Err(_) => Err(Lost::Late(limit)),
        }
    }

    /// Says hello on a new connection.
    async fn greet(launcher: &Launcher, socket: Seqpacket) -> Result<Self, String> {
        let broken = |error: std::io::Error| error.to_string();
        let packets = Packets::new(socket).map_err(broken)?;
        // Before the first call, whose number is 1.
        let hello = LauncherRequest { sequence: 0, call: Some(LauncherCall::Hello(launcher.hello())) };
        packets.send(&hello.encode_to_vec(), &[]).await.map_err(broken)?;
        let answer = async {
            loop {
                match packets.recv::<LauncherReply>().await?.map(|reply| reply.answer) {
                    // Covered by the greeting: it comes when all those have their exit records.
                    Some(Some(LauncherAnswer::ShimLost(_))) => {}
                    other => return Ok(other.flatten()),
                }
            }
        };
        let answer = timeout(GREETING, answer).await;
        match answer.map_err(|_| format!("it did not greet within {} s", GREETING.as_secs()))?.map_err(broken)? {
            Some(LauncherAnswer::Welcome(welcome)) if welcome.version == VERSION => {
                Ok(Self { packets, calls: Calls::default(), welcome })
            }
            Some(LauncherAnswer::Welcome(welcome)) => {
                Err(format!("it speaks version {} of the protocol; this executord speaks {VERSION}", welcome.version))
            }
            Some(LauncherAnswer::Refused(Refused { message, .. })) => Err(message),
            Some(_) => Err("it greeted with something else".to_owned()),
            None => Err("it closed the connection".to_owned()),
        }
    }

    /// Hands out answers until the connection ends.
    async fn attend(&self, lost_shim: impl Fn(&ContainerId, Timestamp)) -> String {
        loop {
            let reply = match self.packets.recv::<LauncherReply>().await {
                Ok(Some(reply)) => reply,
                Ok(None) => return "it closed the connection".to_owned(),
                Err(error) => return error.to_string(),
            };
            match reply.answer {
                Some(LauncherAnswer::ShimLost(ShimLost { container_id, created_at })) => match container_id.parse() {
                    Ok(id) => lost_shim(&id, Timestamp(created_at)),
                    Err(error) => tracing::warn!(%error, "the launcher names a container that cannot be"),
                },
                Some(answer) => self.calls.answer(reply.sequence, answer),
                None => {} // of a newer launcher
            }
        }
    }
}

impl Launcher {
    /// Keeps the connection up, for as long as the daemon lives. `first` is a connection made at the start;
    /// `lost_shim` is told of containers that the launcher finished; `hint` says why a launcher that went may not
    /// come back.
    pub async fn keep(
        self: Arc<Self>,
        mut first: Option<Seqpacket>,
        lost_shim: impl Fn(&ContainerId, Timestamp),
        mut hint: impl FnMut() -> Option<String>,
    ) {
        let mut pause = RETRY.0;
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
                    pause = RETRY.0;
                    self.welcomed(&session);
                    let why = session.attend(&lost_shim).await;
                    session.calls.close();
                    why
                }
            };
            if let Some(hint) = hint() {
                why = format!("{why}; {hint}");
            }
            let was_up = self.down(&why);
            if was_up {
                tracing::warn!(socket = %self.socket.display(), "the launcher is lost: {why}");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    fn welcomed(&self, session: &Arc<Session>) {
        match TagKey::from_bytes(&session.welcome.tag_key) {
            Ok(key) => *locked(&self.key) = Some(key),
            Err(error) => tracing::error!(%error, "the launcher's key of request tags is unusable"),
        }
        let Welcome { noswap, cgroups, .. } = &session.welcome;
        tracing::info!(socket = %self.socket.display(), noswap, cgroups, "connected to the launcher");
        self.connection.send_replace(Connection::Up(Arc::clone(session)));
        self.greeted.send_modify(|count| *count += 1);
    }

    /// Tells whether it was up before.
    fn down(&self, why: &str) -> bool {
        matches!(self.connection.send_replace(Connection::Down(why.to_owned())), Connection::Up(_))
    }
}
