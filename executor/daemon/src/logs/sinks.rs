//! Sends container output to the journal or to a syslog receiver.
//!
//! ```text
//!  shim ──> log, log.1 ──> reader ──> lines ──> messages ──> connection ──> receiver
//!  (masked, limited)       one per container and target      one per target
//! ```
//! The log files are the queue. The files exist anyway, each has a size limit, and a shim waits only for the disk.
//! Therefore no receiver can block a container, and a container that floods its log loses only its own lines. If output
//! is rotated away before it is sent, the reader detects a gap with exact counts. The gap is reported in the stream, in
//! the daemon's log and in metrics. Containers take turns on the connection, and each turn reads one chunk, which
//! bounds the memory.
//!
//! The files of a deleted container are held open until they are sent, up to a number of bytes per target.

mod journald;
mod message;
mod places;
mod receiver;
mod syslog;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use executor_core::ident::ContainerId;
use executor_core::logline::{LogPosition, Stream};
use executor_core::plan::{Plan, Rootfs};
use executor_core::time::Timestamp;
use executor_sys::mutex::locked;
use tokio::sync::MutexGuard;
use tokio::time::Instant;

use crate::config::{LogSettings, SyslogSettings};
use crate::logs::reader::{LogFiles, LogReader};
use crate::telemetry::metrics::{Metrics, SinkMetrics};
pub(crate) use message::Dropped;
use message::{Assembler, Message};
use places::SinkPositions;
use receiver::{Address, Receiver};

/// Minimum size that is counted for a deleted container's log, in bytes, to account for its descriptors.
const WAITING_MIN: u64 = 64 << 10;

#[derive(Debug, Default)]
pub struct LogSinks {
    targets: Vec<Arc<LogSink>>,
}

#[derive(Debug)]
pub(crate) struct LogSink {
    name: &'static str,
    form: SinkFormat,
    settings: LogSettings,
    host: String,
    receiver: tokio::sync::Mutex<Receiver>,
    places: SinkPositions,
    followed: Mutex<HashMap<ContainerId, Arc<DeletionState>>>,
    /// Total size of deleted containers' logs that are not sent yet, in bytes.
    waiting: AtomicU64,
    metrics: SinkMetrics,
    /// Dropped output that is not reported in the daemon's log yet.
    unreported: Mutex<Dropped>,
}

/// Message format of a log sink.
#[derive(Debug)]
enum SinkFormat {
    Journald,
    Syslog(SyslogSettings),
}

/// Description of a container in its messages.
#[derive(Debug)]
pub(crate) struct MessageOrigin {
    id: ContainerId,
    image: Option<String>,
    labels: Vec<(String, String)>,
    tags: Vec<(String, String)>,
}

/// Deletion state of a container, for the task that sends its log. The state is locked while the log is read, so that
/// the task never reads the log of a later container with the same id.
#[derive(Debug, Default)]
struct DeletionState(Mutex<HeldFiles>);

#[derive(Debug, Default)]
enum HeldFiles {
    /// The container exists.
    #[default]
    No,
    /// The container is being deleted; holds its files until the task takes them.
    Yes(Option<LogFiles>),
}

/// Messages that are sent in one turn.
#[derive(Debug, Default)]
pub(crate) struct MessageBatch {
    bytes: Vec<u8>,
    messages: Vec<Encoded>,
    /// Position at which reading continues after all messages are sent.
    end: LogPosition,
    /// True if more may be available immediately.
    pub(crate) more: bool,
}

#[derive(Clone, Copy, Debug)]
struct Encoded {
    /// Offset in the batch's bytes at which the message ends.
    end: usize,
    resume: LogPosition,
    /// Bytes of output in the message; `None` for a message of the executor.
    output: Option<u64>,
}

impl MessageBatch {
    fn message(&self, index: usize) -> &[u8] {
        let from = index.checked_sub(1).map_or(0, |before| self.messages[before].end);
        &self.bytes[from..self.messages[index].end]
    }
}

/// Size of a deleted container's log, counted while this value exists.
#[derive(Debug)]
pub(crate) struct WaitingBytes {
    target: Arc<LogSink>,
    bytes: u64,
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        self.target.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
        self.target.metrics.deleted_bytes.dec_by(self.bytes.cast_signed());
    }
}

/// State of sending a container's log to one sink.
#[derive(Debug)]
pub(crate) struct ForwardedLog {
    target: Arc<LogSink>,
    id: ContainerId,
    created_at: Timestamp,
    reader: LogReader,
    assembler: Assembler,
    encoder: Encoder,
    followed: Arc<DeletionState>,
}

#[derive(Debug)]
enum Encoder {
    Journald(journald::Fields),
    Syslog(syslog::Header),
}

impl LogSinks {
    /// Creates the configured log sinks. `directory` holds the position files of the sinks.
    pub(crate) fn open(settings: &LogSettings, directory: &Path, metrics: &Metrics) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let target = |name: &'static str, form: SinkFormat, address: Address| {
            let metrics = metrics.outward(name);
            Arc::new(LogSink {
                name,
                form,
                settings: settings.clone(),
                host: host.clone(),
                receiver: tokio::sync::Mutex::new(Receiver::new(address, metrics.connected.clone())),
                places: SinkPositions::open(directory.join(format!("logs-{name}.json"))),
                followed: Mutex::default(),
                waiting: AtomicU64::new(0),
                metrics,
                unreported: Mutex::default(),
            })
        };
        let journald = settings.journald.as_ref();
        let journald = journald.map(|path| target("journald", SinkFormat::Journald, Address::Journald(path.clone())));
        let syslog = settings.syslog.as_ref();
        let syslog = syslog.map(|syslog| {
            target("syslog", SinkFormat::Syslog(syslog.clone()), Address::Syslog(syslog.address.clone()))
        });
        Self { targets: journald.into_iter().chain(syslog).collect() }
    }

    pub(crate) fn targets(&self) -> &[Arc<LogSink>] {
        &self.targets
    }

    /// Opens the files of a container that is about to be deleted, for the tasks that have not sent the whole log.
    /// Blocks on the disk.
    pub(crate) fn hold(&self, id: &ContainerId, directory: &Path) {
        for target in &self.targets {
            let Some(followed) = locked(&target.followed).get(id).cloned() else { continue };
            let mut held = locked(&followed.0);
            let files = LogReader::files(directory);
            if let Err(error) = &files {
                tracing::warn!(container = %id, %error, "the rest of the deleted container's log is not sent");
            }
            *held = HeldFiles::Yes(files.ok());
        }
    }

    /// Saves the sent positions. Blocks on the disk.
    pub(crate) fn save(&self) {
        for target in &self.targets {
            if let Err(error) = target.places.save() {
                tracing::warn!(to = target.name, %error, "cannot save the positions of sent logs");
            }
        }
    }

    /// Deletes the positions of containers that no longer exist.
    pub(crate) fn retain(&self, is_there: impl Fn(&ContainerId) -> bool) {
        self.targets.iter().for_each(|target| target.places.retain(&is_there));
    }

    /// Logs the output that was dropped since the last call.
    pub(crate) fn report_drops(&self) {
        for target in &self.targets {
            let Dropped { lines, bytes } = std::mem::take(&mut *locked(&target.unreported));
            if lines > 0 || bytes > 0 {
                tracing::warn!(to = target.name, lines, bytes, "dropped output of containers before it was sent");
            }
        }
    }
}

impl LogSink {
    /// Starts sending a container's log; `None` if nothing remains to be sent. `is_over` is true if the container
    /// completed under an earlier daemon.
    pub(crate) fn log(
        self: &Arc<Self>,
        plan: &Plan,
        created_at: Timestamp,
        directory: PathBuf,
        is_over: bool,
    ) -> Option<ForwardedLog> {
        let place = self.places.start(&plan.id, created_at, is_over)?;
        let followed = Arc::<DeletionState>::default();
        locked(&self.followed).insert(plan.id.clone(), Arc::clone(&followed));
        let named = |name: &String| Some((name.clone(), plan.labels.get(name)?.clone()));
        let origin = MessageOrigin {
            id: plan.id.clone(),
            image: if let Rootfs::Image(image) = &plan.rootfs { Some(image.reference.clone()) } else { None },
            labels: self.settings.labels.iter().filter_map(named).collect(),
            tags: plan.logging.tags.clone().into_iter().collect(),
        };
        let max = self.settings.message_bytes_max;
        let (encoder, length): (Encoder, usize) = match &self.form {
            SinkFormat::Journald => {
                let fields = journald::Fields::new(&origin, max / 4);
                let length = fields.length();
                (Encoder::Journald(fields), length)
            }
            SinkFormat::Syslog(settings) => {
                let header = syslog::Header::new(settings, &self.host, &origin, max / 4);
                let length = header.length();
                (Encoder::Syslog(header), length)
            }
        };
        let rewrite = match &encoder {
            Encoder::Journald(_) => |_: &[u8]| None,
            Encoder::Syslog(_) => syslog::text,
        };
        Some(ForwardedLog {
            target: Arc::clone(self),
            id: plan.id.clone(),
            created_at,
            reader: LogReader::new(directory),
            assembler: Assembler::new(place, max.saturating_sub(length).max(1), rewrite),
            encoder,
            followed,
        })
    }

    /// Waits for exclusive use of the connection.
    pub(crate) async fn turn(&self) -> SinkTurn<'_> {
        SinkTurn(self.receiver.lock().await)
    }

    /// Counts the unsent bytes of a deleted container's log; `None` if the limit would be exceeded.
    pub(crate) fn wait(self: &Arc<Self>, bytes: u64) -> Option<WaitingBytes> {
        let bytes = bytes.max(WAITING_MIN);
        let fits = |before: u64| before.checked_add(bytes).filter(|sum| *sum <= self.settings.waiting_bytes_max);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        self.metrics.deleted_bytes.inc_by(bytes.cast_signed());
        Some(WaitingBytes { target: Arc::clone(self), bytes })
    }

    /// Counts a container as having unsent output until the result is dropped.
    pub(crate) fn behind(&self) -> impl Drop + use<> {
        struct Behind(prometheus_client::metrics::gauge::Gauge);
        impl Drop for Behind {
            fn drop(&mut self) {
                self.0.dec();
            }
        }
        self.metrics.waiting.inc();
        Behind(self.metrics.waiting.clone())
    }

    fn count_dropped(&self, dropped: Dropped) {
        self.metrics.dropped_lines.inc_by(dropped.lines);
        self.metrics.dropped_bytes.inc_by(dropped.bytes);
        locked(&self.unreported).add(dropped);
    }
}

/// Exclusive use of a log sink's connection.
#[derive(Debug)]
pub(crate) struct SinkTurn<'a>(MutexGuard<'a, Receiver>);

impl SinkTurn<'_> {
    /// Connects, and retries until the connection is open.
    pub(crate) async fn connect(&mut self) {
        self.0.connect().await;
    }

    /// Sends a batch, and retries until all messages are sent. `sent` counts the sent messages.
    pub(crate) async fn send(&mut self, batch: &MessageBatch, sent: &mut usize) {
        self.0.send(batch, sent).await;
    }
}

impl ForwardedLog {
    /// Returns the container's directory.
    pub(crate) fn directory(&self) -> &Path {
        self.reader.directory()
    }

    /// Reads a chunk of the log, and counts missing output. If `over` is true, the log no longer grows, and its last
    /// bytes count as a whole line. Blocks on the disk.
    ///
    /// # Errors
    /// Returns an error if the files cannot be read.
    pub(crate) fn read(&mut self, over: bool) -> io::Result<MessageBatch> {
        let mut messages = Vec::new();
        let followed = Arc::clone(&self.followed);
        let mut held = locked(&followed.0);
        self.take_held(&mut held);
        let (assembler, now) = (&mut self.assembler, crate::now());
        let more = self.reader.read(|item| assembler.take(&item, now, &mut messages))?;
        drop(held);
        if !more {
            self.assembler.flush(over, &mut messages);
        }
        self.target.count_dropped(self.assembler.take_dropped());
        let mut batch = MessageBatch { end: self.assembler.resume(), more, ..MessageBatch::default() };
        for message in &messages {
            self.encode(message, &mut batch);
        }
        Ok(batch)
    }

    /// Returns the time at which the oldest partial line times out.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.assembler.due()
    }

    fn take_held(&mut self, held: &mut HeldFiles) {
        if let HeldFiles::Yes(files) = held {
            self.reader.detach(files.take().unwrap_or_default());
        }
    }

    fn encode(&self, message: &Message, batch: &mut MessageBatch) {
        match &self.encoder {
            Encoder::Journald(fields) => fields.write(message, &mut batch.bytes),
            Encoder::Syslog(header) => header.write(message, &mut batch.bytes),
        }
        let is_output = message.stream != Stream::Executor;
        let output = is_output.then_some(message.content.len() as u64);
        batch.messages.push(Encoded { end: batch.bytes.len(), resume: message.resume, output });
    }

    /// Counts the sent part of a batch, and records the position.
    pub(crate) fn sent(&self, batch: &MessageBatch, sent: usize) {
        let metrics = &self.target.metrics;
        for bytes in batch.messages[..sent].iter().filter_map(|message| message.output) {
            metrics.sent_lines.inc();
            metrics.sent_bytes.inc_by(bytes);
        }
        let place = match sent.checked_sub(1) {
            _ if sent == batch.messages.len() => batch.end,
            Some(last) => batch.messages[last].resume,
            None => return,
        };
        self.target.places.reached(&self.id, self.created_at, place, false);
    }

    /// Returns the unread bytes in the files of a deleted container.
    pub(crate) fn remaining(&mut self) -> u64 {
        let followed = Arc::clone(&self.followed);
        self.take_held(&mut locked(&followed.0));
        self.reader.remaining()
    }

    /// Drops the unsent output of the log, and counts the output as dropped. `unsent` holds the last batch, and the
    /// number of messages of the batch that were sent. Blocks on the disk.
    pub(crate) fn give_up(&mut self, unsent: Option<(&MessageBatch, usize)>) {
        let mut rest = Dropped::default();
        if let Some((batch, sent)) = unsent {
            for bytes in batch.messages[sent..].iter().filter_map(|message| message.output) {
                rest.add(Dropped { lines: 1, bytes });
            }
        }
        while let Ok(batch) = self.read(true) {
            for bytes in batch.messages.iter().filter_map(|message| message.output) {
                rest.add(Dropped { lines: 1, bytes });
            }
            if !batch.more {
                break;
            }
        }
        self.target.count_dropped(rest);
    }

    /// Stops sending the container's log, and records that nothing remains to be sent.
    pub(crate) fn finish(self) {
        let place = self.assembler.resume();
        self.target.places.reached(&self.id, self.created_at, place, true);
        let mut followed = locked(&self.target.followed);
        if followed.get(&self.id).is_some_and(|other| Arc::ptr_eq(other, &self.followed)) {
            followed.remove(&self.id);
        }
    }
}

/// Returns the severity of a message (RFC 5424, table 2): informational for stdout, error for stderr, notice for the
/// executor's own messages, and warning for missing output.
fn severity(message: &Message) -> u32 {
    match message.stream {
        _ if message.missing.is_some() => 4,
        Stream::Stdout => 6,
        Stream::Stderr => 3,
        Stream::Executor => 5,
    }
}

fn stream_name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Executor => "executor",
    }
}
