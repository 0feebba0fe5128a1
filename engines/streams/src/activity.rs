//! Detects idle connections and connections that the client has closed.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::{Instant, sleep, sleep_until};

/// Interval at which a connection is checked for closing by the client.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct Activity {
    last: Arc<Mutex<Instant>>,
    idle: Duration,
    socket: Option<Arc<OwnedFd>>,
}

impl Activity {
    pub(crate) fn new(idle: Duration, socket: Option<Arc<OwnedFd>>) -> Self {
        Self { last: Arc::new(Mutex::new(Instant::now())), idle, socket }
    }

    /// Records that a frame was sent or received.
    pub(crate) fn touch(&self) {
        *self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns when the connection is idle or the client has closed it. Closing is detected even while unread input
    /// blocks the reader.
    pub(crate) async fn ended(&self) {
        tokio::select! {
            () = self.idle() => {}
            () = self.closed() => {}
        }
    }

    async fn idle(&self) {
        loop {
            let end = self.last() + self.idle;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }

    async fn closed(&self) {
        let Some(socket) = &self.socket else { return std::future::pending().await };
        loop {
            sleep(PROBE_INTERVAL).await;
            let mut descriptors = [PollFd::new(socket, PollFlags::RDHUP)];
            if poll(&mut descriptors, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                return;
            }
        }
    }
}
