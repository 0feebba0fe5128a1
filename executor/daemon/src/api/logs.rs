//! StreamLogs: streams a container's log file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use executor_core::logline::Entry;
use executor_core::time::Timestamp;
use executor_core::validate::{Violation, ViolationReason};
use executor_proto::v1;
use executor_transport::wire::conversation::{Answers, Conversation, Outlet};

use super::{StreamError, convert};
use crate::api_error::{ApiError, Kind};
use crate::logs::reader::{LogItem, LogReader};
use crate::logs::tail::Tail;
use crate::logs::watch::Subscription;
use crate::model::container::{Handle, Presence};
use crate::node::Node;

/// Maximum interval between two reads of the clock.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

type LogSender = Outlet<v1::StreamLogsResponse>;

pub(super) fn stream(
    node: &Arc<Node>,
    request: &v1::StreamLogsRequest,
    conversation: &Conversation,
) -> Result<Answers<v1::StreamLogsResponse>, ApiError> {
    let handle = node.find(&request.id)?;
    let mut violations = from_sequence(request);
    let mut read = |field, time: &Option<prost_types::Timestamp>| match time.as_ref().map(|time| instant(field, time)) {
        Some(Err(violation)) => {
            violations.push(violation);
            None
        }
        read => read.and_then(Result::ok),
    };
    let (since, until) = (read("since", &request.since), read("until", &request.until));
    if !violations.is_empty() {
        return Err(ApiError::invalid(violations));
    }
    let selection = LogSelection {
        since,
        until,
        offset: request.offset,
        from_sequence: request.from_sequence.unwrap_or(1),
        log_bytes_max: node.config.log_bytes_max,
    };
    let (sender, answers) = conversation.answers();
    let (node, follow, tail) = (Arc::clone(node), request.follow, request.tail);
    tokio::spawn(async move {
        let directory = node.config.paths.kept_container(handle.id());
        let reported = async {
            let passed = passed(&directory, selection, tail).await?;
            let tags = handle.facts().map(|facts| facts.plan.logging.tags.clone()).unwrap_or_default();
            let tags = tags.into_iter().collect();
            let log = Log { reader: LogReader::new(directory), selection, tail: passed, tags, sender: sender.clone() };
            if follow { log.follow(&node, &handle).await } else { log.print(&handle).await }
        };
        let reported = reported.await;
        match reported {
            Ok(()) | Err(StreamError::ClientGone) => {}
            Err(StreamError::ApiError(problem)) => drop(sender.send(Err(problem.into())).await),
        }
    });
    Ok(answers)
}

/// Part of a log that a client selects.
#[derive(Clone, Copy)]
struct LogSelection {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    offset: Option<u64>,
    /// Sequence number of the first selected entry.
    from_sequence: u64,
    log_bytes_max: u64,
}

impl LogSelection {
    /// Returns true if the time of the entry is in the selected range.
    fn counts(&self, entry: &Entry<'_>) -> bool {
        self.since.is_none_or(|since| entry.time >= since) && self.until.is_none_or(|until| entry.time <= until)
    }

    /// Waits until `until` has passed; pends forever if `until` is unset.
    async fn over(&self) {
        let Some(until) = self.until else { return std::future::pending().await };
        // Sleep in short steps, because the clock may be set during the wait.
        while let Some(left) = until.0.checked_sub(crate::now().0).filter(|left| *left > 0) {
            tokio::time::sleep(Duration::from_nanos(left).min(CLOCK_INTERVAL)).await;
        }
    }

    /// Returns the API message of an item of the log, if the item is selected.
    fn message(&self, item: &LogItem<'_>) -> Option<v1::StreamLogsResponse> {
        let offset = self.offset.unwrap_or(0);
        match item {
            // If the client selects entries by start time, output before the oldest retained entry is not a gap.
            LogItem::Gap(from, ..) if from.entries == 0 && self.since.is_some() && self.offset.is_none() => None,
            LogItem::Gap(_, to, _) if to.bytes < offset || to.entries < self.from_sequence => None,
            LogItem::Gap(from, to, missing) => {
                let mut gap = convert::log_gap(*from, *to, *missing, self.log_bytes_max);
                if let Some(reported) = gap.gap.as_mut().filter(|_| from.entries + 1 < self.from_sequence) {
                    // The number of bytes that belong to earlier entries is unknown.
                    (reported.dropped_bytes, reported.dropped_entries) = (0, to.entries - (self.from_sequence - 1));
                }
                if let Some(reported) = gap.gap.as_mut().filter(|_| from.bytes < offset) {
                    // Partially selected entries are not counted.
                    (reported.dropped_bytes, reported.dropped_entries, gap.offset) = (to.bytes - offset, 0, offset);
                }
                gap.gap
                    .is_some_and(|reported| reported.dropped_bytes > 0 || reported.dropped_entries > 0)
                    .then_some(gap)
            }
            LogItem::Entry(entry, _) if !self.counts(entry) => None,
            LogItem::Entry(_, before) if before.entries + 1 < self.from_sequence => None,
            LogItem::Entry(entry, before) => {
                let end = before.bytes + entry.output_bytes();
                // The executor's own entries have no output bytes. Such an entry is selected if it is exactly at the
                // offset.
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

/// A log that is being streamed to a client.
struct Log {
    reader: LogReader,
    selection: LogSelection,
    tail: Tail,
    /// Tags of the log, sent with the first message.
    tags: HashMap<String, String>,
    sender: LogSender,
}

/// Counts the lines to skip if the client selects the last lines.
async fn passed(directory: &Path, selection: LogSelection, tail: Option<u64>) -> Result<Tail, StreamError> {
    let Some(lines) = tail else { return Ok(Tail::default()) };
    let (mut reader, now) = (LogReader::new(directory.to_owned()), crate::now());
    let counted = move || {
        let mut tail = Tail::counting();
        let mut enough = false;
        while !enough
            && reader.read(|item| match item {
                LogItem::Entry(entry, _) if entry.time > now => enough = true,
                LogItem::Entry(entry, _) if selection.counts(&entry) => drop(tail.takes(&entry)),
                LogItem::Entry(..) | LogItem::Gap(..) => {}
            })?
        {}
        Ok(tail.last(lines))
    };
    let counted = tokio::task::spawn_blocking(counted).await;
    let counted = counted.map_err(|error| StreamError::ApiError(ApiError::from(error)))?;
    counted.map_err(|error: std::io::Error| unreadable(directory, &error))
}

fn unreadable(directory: &Path, error: &std::io::Error) -> StreamError {
    StreamError::ApiError(ApiError::from_system(&directory.display().to_string(), error))
}

impl Log {
    /// Sends the entries that were written so far.
    async fn drain(mut self) -> Result<Self, StreamError> {
        loop {
            let Self { mut reader, selection, mut tail, mut tags, sender } = self;
            // Reads may block on the disk, and must not block a thread of the runtime.
            let (reader, tail, read) = tokio::task::spawn_blocking(move || {
                let mut entries = Vec::new();
                let more = reader.read(|item| {
                    let taken = match &item {
                        LogItem::Entry(entry, _) => !selection.counts(entry) || tail.takes(entry),
                        LogItem::Gap(..) => tail.has_begun(),
                    };
                    entries.extend(taken.then(|| selection.message(&item)).flatten());
                });
                (reader, tail, more.map(|more| (entries, more)))
            })
            .await
            .map_err(|error| StreamError::ApiError(ApiError::from(error)))?;
            let (mut entries, more) = read.map_err(|error| unreadable(reader.directory(), &error))?;
            if let Some(first) = entries.first_mut() {
                first.log_tags = std::mem::take(&mut tags);
            }
            self = Self { reader, selection, tail, tags, sender };
            for entry in entries {
                self.sender.send(Ok(entry)).await.map_err(|_| StreamError::ClientGone)?;
            }
            if !more {
                return Ok(self);
            }
        }
    }

    /// Sends the entries that exist now, and then ends the stream.
    async fn print(self, handle: &Handle) -> Result<(), StreamError> {
        let over = handle.state().is_none_or(|state| state == State::Completed);
        let log = self.drain().await?;
        if over { log.ended() } else { Ok(()) }
    }

    /// Returns an error if the selection starts beyond the end of a log that no longer grows.
    fn ended(&self) -> Result<(), StreamError> {
        let (end, directory) = (self.reader.place(), self.reader.directory());
        let id = directory.file_name().unwrap_or_default().display();
        let message = match self.selection {
            LogSelection { offset: Some(offset), .. } if offset > end.bytes => {
                format!("offset is {offset}, but the log of container {id} ends at {}", end.bytes)
            }
            // A client that has read every entry requests the next number.
            LogSelection { from_sequence, .. } if from_sequence > end.entries.saturating_add(1) => {
                format!("from_sequence is {from_sequence}, but the log of container {id} has {} entries", end.entries)
            }
            _ => return Ok(()),
        };
        Err(StreamError::ApiError(ApiError::new(Kind::OutOfRange, message)))
    }

    /// Sends entries until the container is completed or the selected time range is over.
    async fn follow(mut self, node: &Arc<Node>, handle: &Arc<Handle>) -> Result<(), StreamError> {
        let selection = self.selection;
        let mut presence = handle.watch();
        let mut changes: Option<Subscription> = None;
        loop {
            // Read the state before the file: a completed container has written all of its output.
            let over = match &*presence.borrow_and_update() {
                Presence::Present(facts) => facts.state == State::Completed,
                Presence::Deleted(_) => true,
                Presence::Refused(problem) => return Err(StreamError::ApiError(problem.clone())),
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
                () = selection.over() => return self.drain().await.map(drop),
                () = changed(&mut changes) => {}
                _ = presence.changed() => {}
                () = self.sender.closed() => return Err(StreamError::ClientGone),
                () = node.until_stopping() => return Err(StreamError::ApiError(ApiError::stopping())),
            }
        }
    }

    /// Watches the container's directory; `None` if the directory does not exist yet. After the directory is created
    /// the container's state changes, and the caller tries again.
    fn subscribe(&self, node: &Node) -> Result<Option<Subscription>, StreamError> {
        let directory = self.reader.directory();
        match node.log_watch.subscribe(directory) {
            Ok(subscription) => Ok(Some(subscription)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            // inotify(7): ENOSPC means that the user has no watch left.
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                let directory = directory.display();
                let why = format!("cannot watch {directory}: the limit fs.inotify.max_user_watches is reached");
                Err(StreamError::ApiError(ApiError::new(Kind::Exhausted, why)))
            }
            Err(error) => Err(StreamError::ApiError(ApiError::from_system(
                &format!("cannot watch {}", directory.display()),
                &error,
            ))),
        }
    }
}

async fn changed(changes: &mut Option<Subscription>) {
    match changes {
        Some(changes) => changes.changed().await,
        None => std::future::pending().await,
    }
}

/// Checks that `from_sequence` is at least 1 and is not combined with `offset` or `tail`.
fn from_sequence(request: &v1::StreamLogsRequest) -> Vec<Violation> {
    let Some(number) = request.from_sequence else { return Vec::new() };
    let field = "from_sequence";
    let mut violations = Vec::new();
    if number == 0 {
        violations
            .push(Violation::new(field, ViolationReason::OutOfRange.because("is 0; entries are numbered from 1")));
    }
    for (other, is_set) in [("offset", request.offset.is_some()), ("tail", request.tail.is_some())] {
        if is_set {
            let why = format!("cannot be set together with {other}");
            violations.push(Violation::new(field, ViolationReason::Conflict.because(why)));
        }
    }
    violations
}

fn instant(field: &str, time: &prost_types::Timestamp) -> Result<Timestamp, Violation> {
    let nanos = u64::try_from(time.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
    let nanos = nanos.ok_or_else(|| {
        let why = format!("has {} ns; 0 to 999999999 are allowed", time.nanos);
        Violation::new(field, ViolationReason::OutOfRange.because(why))
    })?;
    // A time before 1970 precedes all entries. A time beyond the range of `Timestamp` follows all entries.
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    Ok(Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(nanos)))
}
