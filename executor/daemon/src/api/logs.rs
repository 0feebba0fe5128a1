//! StreamLogs: a container's log file as a stream.

use std::sync::Arc;

use executor_core::lifecycle::State;
use executor_core::time::Timestamp;
use executor_proto::v1;

use super::convert;
use crate::container::{Handle, Known};
use crate::logs::reader::LogReader;
use crate::logs::watch::Subscription;
use crate::node::Node;
use crate::problem::{Kind, Problem};
use crate::wire::conversation::{Answers, Conversation, Outlet};

type Sender = Outlet<v1::StreamLogsResponse>;

pub(super) fn stream(
    node: &Arc<Node>,
    request: &v1::StreamLogsRequest,
    conversation: &Conversation,
) -> Result<Answers<v1::StreamLogsResponse>, Problem> {
    let handle = node.find(&request.id)?;
    let since = request.since.as_ref().map(since).transpose()?.unwrap_or(Timestamp(0));
    let (sender, answers) = conversation.answers();
    let (node, follow) = (Arc::clone(node), request.follow);
    tokio::spawn(async move {
        let log = Log { reader: LogReader::new(node.paths.kept_container(handle.id())), since, sender };
        let sender = log.sender.clone();
        let told = if follow { log.follow(&node, &handle).await } else { log.drain().await.map(drop) };
        match told {
            Ok(()) | Err(Ended::ClientGone) => {}
            Err(Ended::Problem(problem)) => drop(sender.send(Err(problem.into())).await),
        }
    });
    Ok(answers)
}

/// Why a stream ended early.
enum Ended {
    ClientGone,
    Problem(Problem),
}

/// A log on its way to a client.
struct Log {
    reader: LogReader,
    since: Timestamp,
    sender: Sender,
}

impl Log {
    /// Sends what there is.
    async fn drain(mut self) -> Result<Self, Ended> {
        loop {
            let since = self.since;
            let mut reader = self.reader;
            // Old logs come from a disk: not on a thread that serves others.
            let (reader, read) = tokio::task::spawn_blocking(move || {
                let mut entries = Vec::new();
                let more = reader.read(|entry| {
                    if entry.time >= since {
                        entries.push(convert::log_entry(&entry));
                    }
                });
                (reader, more.map(|more| (entries, more)))
            })
            .await
            .map_err(|error| Ended::Problem(Problem::new(Kind::Internal, error.to_string())))?;
            self.reader = reader;
            let (entries, more) = read.map_err(|error| {
                Ended::Problem(Problem::new(Kind::Internal, format!("{}: {error}", self.reader.directory().display())))
            })?;
            for entry in entries {
                self.sender.send(Ok(entry)).await.map_err(|_| Ended::ClientGone)?;
            }
            if !more {
                return Ok(self);
            }
        }
    }

    /// Sends what there is and what comes, until the container is completed.
    async fn follow(mut self, node: &Arc<Node>, handle: &Arc<Handle>) -> Result<(), Ended> {
        let mut known = handle.watch();
        let mut changes: Option<Subscription> = None;
        loop {
            // Looked at before the file: what a container wrote is there before it is completed.
            let over = match &*known.borrow_and_update() {
                Known::Here(facts) => facts.state == State::Completed,
                Known::Deleted(_) => true,
                Known::Refused(problem) => return Err(Ended::Problem(problem.clone())),
            };
            if changes.is_none() && !over {
                changes = self.subscribe(node)?;
            }
            if let Some(changes) = &mut changes {
                changes.mark_seen();
            }
            self = self.drain().await?;
            if over {
                return Ok(());
            }
            tokio::select! {
                () = changed(&mut changes) => {}
                _ = known.changed() => {}
                () = self.sender.closed() => return Err(Ended::ClientGone),
                () = node.until_stopping() => return Err(Ended::Problem(Problem::stopping())),
            }
        }
    }

    /// Watches the container's directory; `None` where it is not made yet, which a change of state will tell.
    fn subscribe(&self, node: &Node) -> Result<Option<Subscription>, Ended> {
        let directory = self.reader.directory();
        match node.log_watch.subscribe(directory) {
            Ok(subscription) => Ok(Some(subscription)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let message = format!("cannot watch {}: {error}", directory.display());
                Err(Ended::Problem(Problem::new(Kind::Internal, message)))
            }
        }
    }
}

async fn changed(changes: &mut Option<Subscription>) {
    match changes {
        Some(changes) => changes.changed().await,
        None => std::future::pending().await,
    }
}

fn since(time: &prost_types::Timestamp) -> Result<Timestamp, Problem> {
    let nanos = u64::try_from(time.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
    let nanos = nanos.ok_or_else(|| Problem::invalid_field("since", format!("has {} ns", time.nanos)))?;
    // Before 1970 is all of it; beyond what can be told is none of it.
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    Ok(Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(nanos)))
}
