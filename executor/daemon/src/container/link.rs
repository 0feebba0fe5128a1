//! The connection to a container's shim: calls go out from whoever asks, reports come in to the container's task.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use executor_core::protocol::{Refused, ShimCall, ShimNews, ShimReport, ShimRequest};
use executor_sys::seqpacket::Seqpacket;
use prost::Message as _;

use crate::packets::{Calls, Packets};
use crate::problem::{Kind, Problem};

/// A connection to a shim.
#[derive(Debug)]
pub struct ShimLink {
    packets: Packets,
    calls: Calls<Result<Option<OwnedFd>, Refused>>,
}

impl ShimLink {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// It cannot be watched (out of descriptors).
    pub fn new(socket: Seqpacket) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { packets: Packets::new(socket)?, calls: Calls::default() }))
    }

    /// Has the shim carry something out, and waits until it has.
    ///
    /// # Errors
    /// What the shim says; `None` where it is gone, so that the container's end is near.
    pub async fn call(&self, call: ShimCall) -> Result<(), Option<Problem>> {
        self.ask(call, &[]).await.map(drop).map_err(|refused| refused.map(Problem::from))
    }

    /// The same with descriptors that go along and the one that comes back, if any does, and with the shim's own words
    /// where it refuses.
    ///
    /// # Errors
    /// As [`ShimLink::call`].
    pub async fn ask(&self, call: ShimCall, fds: &[BorrowedFd<'_>]) -> Result<Option<OwnedFd>, Option<Refused>> {
        let (sequence, answer) = self.calls.register().ok_or(None)?;
        let request = ShimRequest { sequence, call: Some(call) };
        self.packets.send(&request.encode_to_vec(), fds).await.map_err(|_| None)?;
        match answer.await {
            Ok(Ok(fd)) => Ok(fd),
            Ok(Err(refused)) => Err(Some(refused)),
            Err(_) => Err(None),
        }
    }

    /// The next unasked report; answers to calls are given to their callers. `None` when the shim is gone.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn next(&self) -> std::io::Result<Option<ShimNews>> {
        loop {
            let Some((report, fds)) = self.packets.recv_with_fds::<ShimReport>().await? else { return Ok(None) };
            match (report.sequence, report.news) {
                (0, Some(news)) => return Ok(Some(news)),
                (sequence, Some(ShimNews::Done(_))) => {
                    let fd = fds.map(|fds| fds.into_iter().next());
                    // There was no room for it here.
                    let missing = |error: std::io::Error| {
                        let why = Problem::of_system("the answer of a container's shim", &error).message;
                        Refused::new(executor_core::protocol::Reason::Exhausted, why)
                    };
                    self.calls.answer(sequence, fd.map_err(missing));
                }
                (sequence, Some(ShimNews::Refused(refused))) => self.calls.answer(sequence, Err(refused)),
                // Of a newer shim.
                (sequence, _) => {
                    let unknown = Refused::new(executor_core::protocol::Reason::Internal, "an answer of another kind");
                    self.calls.answer(sequence, Err(unknown));
                }
            }
        }
    }

    /// Nothing more will come: whoever waits for an answer is told.
    pub fn close(&self) {
        self.calls.close();
    }
}

/// A call that found no shim any more.
pub(crate) fn shim_is_gone(id: &executor_core::ident::ContainerId) -> Problem {
    Problem::new(Kind::Precondition, format!("container {id} has no shim any more: it is coming to its end"))
}
