//! The end of a connection over which secrets were answered.
//!
//! The HTTP/2 library keeps more of such a call than of Run: the token stands in the table of header fields that the
//! client filled (HPACK), the answer's last frames in the buffer for writing. Neither can be overwritten from here, as
//! the read buffer is (see the module `scrub`), and both go with the connection. Its client is a container that asks
//! once, not a control plane with streams. So it is told to go (GOAWAY) as soon as it asks, keeps what it needs to take
//! the answer, and is left a moment after that, whether it listens or not.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Bytes, Frame, SizeHint};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;

/// For the last bytes of an answer to be taken from the socket.
const FLUSH: Duration = Duration::from_millis(500);
/// For a whole answer to be taken by a client that reads.
const ANSWER: Duration = Duration::from_secs(10);

/// How far a connection is on its way to its end.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    /// Secrets were asked for.
    begun: bool,
    /// Answers that are under way.
    answers: usize,
}

/// Shared by a connection and its calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Parting(watch::Sender<Stage>);

impl Parting {
    /// A call begins that ends the connection.
    pub(super) fn begin(&self) -> Answer {
        self.0.send_modify(|stage| *stage = Stage { begun: true, answers: stage.answers + 1 });
        Answer(self.0.clone())
    }

    /// Resolves when such a call has begun.
    pub(super) async fn begun(&self) {
        // The sender is `self`.
        let _ = self.0.subscribe().wait_for(|stage| stage.begun).await;
    }

    /// Resolves when the connection has had its time.
    pub(super) async fn over(&self) {
        let answered = async {
            let _ = self.0.subscribe().wait_for(|stage| stage.answers == 0).await;
            tokio::time::sleep(FLUSH).await;
        };
        let _ = tokio::time::timeout(ANSWER, answered).await;
    }
}

/// An answer under way; dropped with its last byte handed over, or when nobody wants it any more.
#[derive(Debug)]
pub(super) struct Answer(watch::Sender<Stage>);

impl Answer {
    /// Goes along with a body.
    pub(super) fn with(self, body: Body) -> Body {
        Body::new(Accompanied { body, _answer: self })
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.send_modify(|stage| stage.answers = stage.answers.saturating_sub(1));
    }
}

/// A body with an [`Answer`].
struct Accompanied {
    body: Body,
    _answer: Answer,
}

impl hyper::body::Body for Accompanied {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_a_moment_after_its_last_answer_and_never_much_later() {
        let parting = Parting::default();
        assert!(tokio::time::timeout(ANSWER, parting.begun()).await.is_err());
        let (one, two) = (parting.begin(), parting.begin());
        parting.begun().await;
        let start = Instant::now();
        parting.over().await;
        assert_eq!(start.elapsed(), ANSWER, "an answer that nobody takes");
        drop(one);
        let later = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(two.with(Body::empty()));
        };
        let start = Instant::now();
        tokio::join!(parting.over(), later);
        assert_eq!(start.elapsed(), Duration::from_secs(1) + FLUSH);
    }
}
