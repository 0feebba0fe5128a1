//! What a client sends to a process, message by message; it may be a password.
//!
//! The HTTP/2 library keeps what it has read last (see [`super::scrub`]). A call that goes on for hours does not come to an
//! end after which that is overwritten, so it is overwritten when no input came for a moment, and at the end.

use std::time::Duration;

use tonic::{Status, Streaming};

use super::serve::Scrubs;

/// For the first message, which says what a call is about.
pub(super) const FIRST_MESSAGE: Duration = Duration::from_secs(10);
/// After this long without a message, what was read is overwritten.
const IDLE: Duration = Duration::from_millis(100);

/// The messages of a client.
#[derive(Debug)]
pub(super) struct Messages<T> {
    stream: Streaming<T>,
    scrubs: Scrubs,
    /// Something was read since the last time.
    read: bool,
}

impl<T> Messages<T> {
    pub(super) fn new(stream: Streaming<T>, scrubs: Scrubs) -> Self {
        Self { stream, scrubs, read: false }
    }

    /// The next one; `None` when no more comes.
    pub(super) async fn next(&mut self) -> Result<Option<T>, Status> {
        loop {
            tokio::select! {
                message = self.stream.message() => {
                    self.read = true;
                    return message;
                }
                () = tokio::time::sleep(IDLE), if self.read => self.scrub(),
            }
        }
    }

    fn scrub(&mut self) {
        self.read = false;
        self.scrubs.scrub();
    }
}

impl<T> Drop for Messages<T> {
    fn drop(&mut self) {
        if self.read {
            self.scrub();
        }
    }
}
