//! StreamLogs: a container's log file as a stream.

use std::path::Path;
use std::sync::Arc;

use executor_core::lifecycle::State;
use executor_core::logline::Entry;
use executor_core::time::Timestamp;
use executor_core::validate::ViolationReason;
use executor_proto::v1;

use super::convert;
use crate::container::{Handle, Known};
use crate::logs::reader::{Item, LogReader};
use crate::logs::tail::Tail;
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
    let since = request.since.as_ref().map(since).transpose()?;
    let wanted = Wanted { since, offset: request.offset, log_bytes_max: node.log_bytes_max };
    let (sender, answers) = conversation.answers();
    let (node, follow, tail) = (Arc::clone(node), request.follow, request.tail);
    tokio::spawn(async move {
        let directory = node.paths.kept_container(handle.id());
        let told = async {
            let passed = passed(&directory, wanted, tail).await?;
            let log = Log { reader: LogReader::new(directory), wanted, tail: passed, sender: sender.clone() };
            if follow { log.follow(&node, &handle).await } else { log.print(&handle).await }
        };
        let told = told.await;
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

/// What a client wants of a log.
#[derive(Clone, Copy)]
struct Wanted {
    since: Option<Timestamp>,
    offset: Option<u64>,
    log_bytes_max: u64,
}

impl Wanted {
    /// It is one of the lines of a tail.
    fn counts(&self, entry: &Entry<'_>) -> bool {
        self.since.is_none_or(|since| entry.time >= since)
    }

    /// The message for what was read, if it is wanted.
    fn message(&self, item: &Item<'_>) -> Option<v1::StreamLogsResponse> {
        let offset = self.offset.unwrap_or(0);
        match item {
            // A client that wants the newest only does not miss what lies before the oldest entry that is kept.
            Item::Gap(from, _) if from.entries == 0 && self.since.is_some() && self.offset.is_none() => None,
            Item::Gap(_, to) if to.bytes < offset => None,
            Item::Gap(from, to) => {
                let mut gap = convert::log_gap(*from, *to, self.log_bytes_max);
                if let Some(told) = gap.gap.as_mut().filter(|_| from.bytes < offset) {
                    // Entries of which a part is wanted are not counted.
                    (told.dropped_bytes, told.dropped_entries, gap.offset) = (to.bytes - offset, 0, offset);
                }
                gap.gap.is_some_and(|told| told.dropped_bytes > 0 || told.dropped_entries > 0).then_some(gap)
            }
            Item::Entry(entry, _) if self.since.is_some_and(|since| entry.time < since) => None,
            Item::Entry(entry, before) => {
                let end = before.bytes + entry.output_bytes();
                // The executor's own words have no bytes: those at the place itself are given.
                if end < offset || (end == offset && entry.output_bytes() > 0) {
                    return None;
                }
                let mut message = convert::log_entry(entry, *before);
                if before.bytes < offset {
                    let passed = usize::try_from(offset - before.bytes).unwrap_or(usize::MAX).min(message.data.len());
                    drop(message.data.drain(..passed));
                    message.offset = offset;
                }
                Some(message)
            }
        }
    }
}

/// A log on its way to a client.
struct Log {
    reader: LogReader,
    wanted: Wanted,
    tail: Tail,
    sender: Sender,
}

/// What a client that wants the last lines alone is not given.
async fn passed(directory: &Path, wanted: Wanted, tail: Option<u64>) -> Result<Tail, Ended> {
    let Some(lines) = tail else { return Ok(Tail::default()) };
    let (mut reader, now) = (LogReader::new(directory.to_owned()), crate::now());
    let counted = move || {
        let mut tail = Tail::counting();
        let mut enough = false;
        while !enough
            && reader.read(|item| match item {
                Item::Entry(entry, _) if entry.time > now => enough = true,
                Item::Entry(entry, _) if wanted.counts(&entry) => drop(tail.takes(&entry)),
                Item::Entry(..) | Item::Gap(..) => {}
            })?
        {}
        Ok(tail.last(lines))
    };
    let counted = tokio::task::spawn_blocking(counted).await;
    let counted = counted.map_err(|error| Ended::Problem(Problem::new(Kind::Internal, error.to_string())))?;
    counted.map_err(|error: std::io::Error| unreadable(directory, &error))
}

fn unreadable(directory: &Path, error: &std::io::Error) -> Ended {
    Ended::Problem(Problem::of_system(&directory.display().to_string(), error))
}

impl Log {
    /// Sends what there is.
    async fn drain(mut self) -> Result<Self, Ended> {
        loop {
            let Self { mut reader, wanted, mut tail, sender } = self;
            // Old logs come from a disk: not on a thread that serves others.
            let (reader, tail, read) = tokio::task::spawn_blocking(move || {
                let mut entries = Vec::new();
                let more = reader.read(|item| {
                    let taken = match &item {
                        Item::Entry(entry, _) => !wanted.counts(entry) || tail.takes(entry),
                        Item::Gap(..) => tail.has_begun(),
                    };
                    entries.extend(taken.then(|| wanted.message(&item)).flatten());
                });
                (reader, tail, more.map(|more| (entries, more)))
            })
            .await
            .map_err(|error| Ended::Problem(Problem::new(Kind::Internal, error.to_string())))?;
            self = Self { reader, wanted, tail, sender };
            let (entries, more) = read.map_err(|error| unreadable(self.reader.directory(), &error))?;
            for entry in entries {
                self.sender.send(Ok(entry)).await.map_err(|_| Ended::ClientGone)?;
            }
            if !more {
                return Ok(self);
            }
        }
    }

    /// Sends what there is.
    async fn print(self, handle: &Handle) -> Result<(), Ended> {
        let over = handle.state().is_none_or(|state| state == State::Completed);
        let log = self.drain().await?;
        if over { log.ended() } else { Ok(()) }
    }

    /// The log is read to its end, and no more will come.
    fn ended(&self) -> Result<(), Ended> {
        let (end, directory) = (self.reader.place().bytes, self.reader.directory());
        match self.wanted.offset {
            Some(offset) if offset > end => {
                let id = directory.file_name().unwrap_or_default().display();
                let message = format!("offset: is {offset}; the log of container {id} ends at {end}");
                Err(Ended::Problem(Problem::new(Kind::OutOfRange, message)))
            }
            _ => Ok(()),
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
                return self.ended();
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
                Err(Ended::Problem(Problem::of_system(&format!("cannot watch {}", directory.display()), &error)))
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
    let nanos = nanos.ok_or_else(|| {
        Problem::invalid_field("since", ViolationReason::OutOfRange.because(format!("has {} ns", time.nanos)))
    })?;
    // Before 1970 is all of it; beyond what can be told is none of it.
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    Ok(Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(nanos)))
}
