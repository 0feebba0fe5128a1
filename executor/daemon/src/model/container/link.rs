//! The connection to a container's shim. Any task can send calls; the container's own task receives the reports.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::protocol::{ReadUsage, Refused, ShimCall, ShimNews, ShimReport, ShimRequest};
use executor_core::usage::Usage;
use executor_sys::mutex::locked;
use executor_sys::seqpacket::Seqpacket;
use prost::Message as _;
use tokio::time::Instant;

use crate::api_error::{ApiError, Kind};
use crate::ipc::packets::{Packets, PendingCalls};

#[derive(Debug)]
pub struct ShimLink {
    packets: Packets,
    calls: PendingCalls<Result<ShimPayload, Refused>>,
    /// End of the grace period, if this daemon has stopped the container.
    kill_at: Mutex<Option<Instant>>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // short-lived, one at a time
enum ShimPayload {
    /// The shim has executed the call. Holds the descriptor of the response, if it has one.
    Done(Option<OwnedFd>),
    Usage(Usage),
}

impl ShimLink {
    /// Wraps a connected socket.
    ///
    /// # Errors
    /// Returns an error if the runtime cannot register the socket (out of descriptors).
    pub fn new(socket: Seqpacket) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { packets: Packets::new(socket)?, calls: PendingCalls::default(), kill_at: Mutex::default() }))
    }

    /// Sends a call to the shim, and waits until the shim has executed it.
    ///
    /// # Errors
    /// Returns the shim's refusal, or `None` if the shim has exited and the container is about to complete.
    pub async fn call(&self, call: ShimCall) -> Result<(), Option<ApiError>> {
        self.call_with_fds(call, &[]).await.map(drop).map_err(|refused| refused.map(ApiError::from))
    }

    /// Sends a call with descriptors. Returns the descriptor in the response, if any, or the shim's refusal.
    ///
    /// # Errors
    /// Returns the same errors as [`ShimLink::call`].
    pub async fn call_with_fds(
        &self,
        call: ShimCall,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<OwnedFd>, Option<Refused>> {
        match self.request(call, fds).await? {
            ShimPayload::Done(fd) => Ok(fd),
            ShimPayload::Usage(_) => Err(Some(unexpected())),
        }
    }

    /// Returns the container's counters, or only the counters of its log.
    ///
    /// # Errors
    /// Returns the same errors as [`ShimLink::call_with_fds`].
    pub(crate) async fn usage(&self, log_only: bool) -> Result<Usage, Option<Refused>> {
        match self.request(ShimCall::ReadUsage(ReadUsage { log_only }), &[]).await? {
            ShimPayload::Usage(usage) => Ok(usage),
            ShimPayload::Done(_) => Err(Some(unexpected())),
        }
    }

    /// Returns the end of the grace period; `None` if this daemon has not stopped the container.
    pub(crate) fn kill_at(&self) -> Option<Instant> {
        *locked(&self.kill_at)
    }

    async fn request(&self, call: ShimCall, fds: &[BorrowedFd<'_>]) -> Result<ShimPayload, Option<Refused>> {
        if let ShimCall::Stop(stop) = &call {
            let at = Instant::now() + Duration::from_millis(stop.grace_ms);
            let mut kill_at = locked(&self.kill_at);
            // A later stop can only shorten the grace period.
            *kill_at = Some(kill_at.map_or(at, |earlier| earlier.min(at)));
        }
        let (sequence, answer) = self.calls.register().ok_or(None)?;
        let request = ShimRequest { sequence, call: Some(call) };
        self.packets.send(&request.encode_to_vec(), fds).await.map_err(|_| None)?;
        match answer.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refused)) => Err(Some(refused)),
            Err(_) => Err(None),
        }
    }

    /// Waits for the next report, and passes responses to their callers in the meantime. Returns `None` if the shim has
    /// exited.
    ///
    /// # Errors
    /// Returns an error if the connection is broken.
    pub async fn next(&self) -> std::io::Result<Option<ShimNews>> {
        loop {
            let Some((report, fds)) = self.packets.recv_with_fds::<ShimReport>().await? else { return Ok(None) };
            match (report.sequence, report.news) {
                (0, Some(news)) => return Ok(Some(news)),
                (sequence, Some(ShimNews::Done(_))) => {
                    let fd = fds.map(|fds| fds.into_iter().next());
                    // The descriptor may be missing because this process has reached its limit on descriptors.
                    let missing = |error: std::io::Error| {
                        let why = ApiError::from_system("the response of the container's shim", &error).message;
                        Refused::new(executor_core::protocol::Reason::Exhausted, why)
                    };
                    self.calls.answer(sequence, fd.map(ShimPayload::Done).map_err(missing));
                }
                (sequence, Some(ShimNews::Usage(usage))) => self.calls.answer(sequence, Ok(ShimPayload::Usage(usage))),
                (sequence, Some(ShimNews::Refused(refused))) => self.calls.answer(sequence, Err(refused)),
                // A newer shim sent this response.
                (sequence, _) => self.calls.answer(sequence, Err(unexpected())),
            }
        }
    }

    /// Fails all pending calls.
    pub fn close(&self) {
        self.calls.close();
    }
}

/// Refusal for a response that does not match its call.
fn unexpected() -> Refused {
    Refused::new(executor_core::protocol::Reason::Internal, "the container's shim sent an unexpected response")
}

/// Returns the error for a call to a shim that is not connected.
pub(crate) fn shim_is_gone(id: &executor_core::ident::ContainerId) -> ApiError {
    let why = format!(
        "container {id} has no connected shim: it is exiting, or executord is reconnecting to it; if it is still running, \
         try again"
    );
    ApiError::new(Kind::Precondition, why)
}
