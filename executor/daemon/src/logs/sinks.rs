//! Output of containers on its way to the journal or to a receiver of syslog.
//!
//! ```text
//!  shim ──> log, log.1 ──> reader ──> lines ──> messages ──> connection ──> receiver
//!  (masked, limited)       one of each container and target  one of each target
//! ```
//! The files of the logs are the queue. They are there anyway, are bounded each by itself, and a shim waits for nothing but the disk:
//! no receiver can stop a container, and one that floods its log pushes out its own lines alone. A log that was rotated away before it was
//! sent is a gap with exact numbers, which the reader finds; it is told in the stream, in the daemon's log and in metrics. The
//! containers take turns at the connection, and who has the turn reads one chunk: that is all that is in memory.
//!
//! The files of a deleted container are held open until they are sent, up to a number of bytes for each target.

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
use executor_core::logline::{Place, Stream};
use executor_core::plan::{Plan, Rootfs};
use executor_core::time::Timestamp;
use tokio::sync::MutexGuard;
use tokio::time::Instant;

use crate::config::{LogSettings, SyslogSettings};
use crate::locked;
use crate::logs::reader::{LogFiles, LogReader};
use crate::telemetry::metrics::{Metrics, SinkMetrics};
pub(crate) use message::Dropped;
use message::{Assembler, Message};
use places::Places;
use receiver::{Address, Receiver};

/// Bytes that a deleted container's log counts at least: for its descriptors.
const WAITING_MIN: u64 = 64 << 10;

/// Everything that output is sent to.
#[derive(Debug, Default)]
pub struct LogSinks {
    targets: Vec<Arc<Target>>,
}

/// One thing that output is sent to.
#[derive(Debug)]
pub(crate) struct Target {
    name: &'static str,
    form: Form,
    settings: LogSettings,
    host: String,
    receiver: tokio::sync::Mutex<Receiver>,
    places: Places,
    followed: Mutex<HashMap<ContainerId, Arc<Followed>>>,
    /// Bytes of deleted containers' logs that wait.
    waiting: AtomicU64,
    metrics: SinkMetrics,
    /// Output that was dropped and not told in the daemon's log yet.
    untold: Mutex<Dropped>,
}

/// Form of a target's messages.
#[derive(Debug)]
enum Form {
    Journald,
    Syslog(SyslogSettings),
}

/// A container as its messages name it.
#[derive(Debug)]
pub(crate) struct Origin {
    id: ContainerId,
    image: Option<String>,
    labels: Vec<(String, String)>,
    tags: Vec<(String, String)>,
}

/// What the deletion of a container leaves to the task that sends its log. Locked while the log is read, so that nothing of a later
/// container of the id is.
#[derive(Debug, Default)]
struct Followed(Mutex<Held>);

#[derive(Debug, Default)]
enum Held {
    /// The container is there.
    #[default]
    No,
    /// It is being deleted; these are its files, until they are taken.
    Yes(Option<LogFiles>),
}

/// Messages that are sent at one turn.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    messages: Vec<Encoded>,
    /// Place at which the log is read again after all of them.
    end: Place,
    /// True when there may be more at once.
    pub(crate) more: bool,
}

/// A message in a batch.
#[derive(Clone, Copy, Debug)]
struct Encoded {
    /// End of its bytes.
    end: usize,
    resume: Place,
    /// Bytes of output in it; none of a message of the executor's own.
    output: Option<u64>,
}

impl Batch {
    fn message(&self, index: usize) -> &[u8] {
        let from = index.checked_sub(1).map_or(0, |before| self.messages[before].end);
        &self.bytes[from..self.messages[index].end]
    }
}

/// Bytes of a deleted container's log, counted for as long as they wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    target: Arc<Target>,
    bytes: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.target.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
        self.target.metrics.deleted_bytes.dec_by(self.bytes.cast_signed());
    }
}

/// A log on its way to one target.
#[derive(Debug)]
pub(crate) struct OutwardLog {
    target: Arc<Target>,
    id: ContainerId,
    created_at: Timestamp,
    reader: LogReader,
    assembler: Assembler,
    encoder: Encoder,
    followed: Arc<Followed>,
}

#[derive(Debug)]
enum Encoder {
    Journald(journald::Fields),
    Syslog(syslog::Header),
}

impl LogSinks {
    /// Makes the targets of the configuration. Their places are kept in this directory.
    pub(crate) fn open(settings: &LogSettings, directory: &Path, metrics: &Metrics) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let target = |name: &'static str, form: Form, address: Address| {
            let metrics = metrics.outward(name);
            Arc::new(Target {
                name,
                form,
                settings: settings.clone(),
                host: host.clone(),
                receiver: tokio::sync::Mutex::new(Receiver::new(address, metrics.connected.clone())),
                places: Places::open(directory.join(format!("logs-{name}.json"))),
                followed: Mutex::default(),
                waiting: AtomicU64::new(0),
                metrics,
                untold: Mutex::default(),
            })
        };
        let journald = settings.journald.as_ref();
        let journald = journald.map(|path| target("journald", Form::Journald, Address::Journald(path.clone())));
        let syslog = settings.syslog.as_ref();
        let syslog = syslog
            .map(|syslog| target("syslog", Form::Syslog(syslog.clone()), Address::Syslog(syslog.address.clone())));
        Self { targets: journald.into_iter().chain(syslog).collect() }
    }

    /// Returns the targets.
    pub(crate) fn targets(&self) -> &[Arc<Target>] {
        &self.targets
    }

    /// Opens the files of a container that is about to be deleted, for those who have not sent all of it. Blocks on the disk.
    pub(crate) fn hold(&self, id: &ContainerId, directory: &Path) {
        for target in &self.targets {
            let Some(followed) = locked(&target.followed).get(id).cloned() else { continue };
            let mut held = locked(&followed.0);
            let files = LogReader::files(directory);
            if let Err(error) = &files {
                tracing::warn!(container = %id, %error, "the rest of the deleted container's log is not sent");
            }
            *held = Held::Yes(files.ok());
        }
    }

    /// Writes down how far logs were sent. Blocks on the disk.
    pub(crate) fn save(&self) {
        for target in &self.targets {
            if let Err(error) = target.places.save() {
                tracing::warn!(to = target.name, %error, "cannot write how far logs were sent");
            }
        }
    }

    /// Forgets the containers that are not there any more.
    pub(crate) fn retain(&self, is_there: impl Fn(&ContainerId) -> bool) {
        self.targets.iter().for_each(|target| target.places.retain(&is_there));
    }

    /// Tells in the daemon's log what was dropped since the last call.
    pub(crate) fn tell_drops(&self) {
        for target in &self.targets {
            let Dropped { lines, bytes } = std::mem::take(&mut *locked(&target.untold));
            if lines > 0 || bytes > 0 {
                tracing::warn!(to = target.name, lines, bytes, "output of containers was not sent: it was dropped");
            }
        }
    }
}

impl Target {
    /// Begins with a container; none where its log was sent. `is_over` is true of one that was completed before this daemon.
    pub(crate) fn log(
        self: &Arc<Self>,
        plan: &Plan,
        created_at: Timestamp,
        directory: PathBuf,
        is_over: bool,
    ) -> Option<OutwardLog> {
        let place = self.places.start(&plan.id, created_at, is_over)?;
        let followed = Arc::<Followed>::default();
        locked(&self.followed).insert(plan.id.clone(), Arc::clone(&followed));
        let named = |name: &String| Some((name.clone(), plan.labels.get(name)?.clone()));
        let origin = Origin {
            id: plan.id.clone(),
            image: if let Rootfs::Image(image) = &plan.rootfs { Some(image.reference.clone()) } else { None },
            labels: self.settings.labels.iter().filter_map(named).collect(),
            tags: plan.logging.tags.clone().into_iter().collect(),
        };
        let max = self.settings.message_bytes_max;
        let (encoder, length): (Encoder, usize) = match &self.form {
            Form::Journald => {
                let fields = journald::Fields::new(&origin, max / 4);
                let length = fields.length();
                (Encoder::Journald(fields), length)
            }
            Form::Syslog(settings) => {
                let header = syslog::Header::new(settings, &self.host, &origin, max / 4);
                let length = header.length();
                (Encoder::Syslog(header), length)
            }
        };
        let rewrite = match &encoder {
            Encoder::Journald(_) => |_: &[u8]| None,
            Encoder::Syslog(_) => syslog::text,
        };
        Some(OutwardLog {
            target: Arc::clone(self),
            id: plan.id.clone(),
            created_at,
            reader: LogReader::new(directory),
            assembler: Assembler::new(place, max.saturating_sub(length).max(1), rewrite),
            encoder,
            followed,
        })
    }

    /// Waits for a turn at the connection.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        Turn(self.receiver.lock().await)
    }

    /// Counts the rest of a deleted container's log; none where no more may wait.
    pub(crate) fn wait(self: &Arc<Self>, bytes: u64) -> Option<Waiting> {
        let bytes = bytes.max(WAITING_MIN);
        let fits = |before: u64| before.checked_add(bytes).filter(|sum| *sum <= self.settings.waiting_bytes_max);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        self.metrics.deleted_bytes.inc_by(bytes.cast_signed());
        Some(Waiting { target: Arc::clone(self), bytes })
    }

    /// Counts a container whose output waits, for as long as the result lives.
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
        locked(&self.untold).add(dropped);
    }
}

/// A turn at a target's connection.
#[derive(Debug)]
pub(crate) struct Turn<'a>(MutexGuard<'a, Receiver>);

impl Turn<'_> {
    /// Connects, for as long as it takes.
    pub(crate) async fn connect(&mut self) {
        self.0.connect().await;
    }

    /// Sends a batch, for as long as it takes. `sent` counts the messages that are out.
    pub(crate) async fn send(&mut self, batch: &Batch, sent: &mut usize) {
        self.0.send(batch, sent).await;
    }
}

impl OutwardLog {
    /// Returns the container's directory.
    pub(crate) fn directory(&self) -> &Path {
        self.reader.directory()
    }

    /// Reads some of the log, and counts what is missing. With `over` nothing is added to it, and what it ends with is the end of a line. Blocks on the disk.
    ///
    /// # Errors
    /// The files cannot be read.
    pub(crate) fn read(&mut self, over: bool) -> io::Result<Batch> {
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
        let mut batch = Batch { end: self.assembler.resume(), more, ..Batch::default() };
        for message in &messages {
            self.encode(message, &mut batch);
        }
        Ok(batch)
    }

    /// Returns when the beginning of a line has waited for long enough.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.assembler.due()
    }

    fn take_held(&mut self, held: &mut Held) {
        if let Held::Yes(files) = held {
            self.reader.detach(files.take().unwrap_or_default());
        }
    }

    fn encode(&self, message: &Message, batch: &mut Batch) {
        match &self.encoder {
            Encoder::Journald(fields) => fields.write(message, &mut batch.bytes),
            Encoder::Syslog(header) => header.write(message, &mut batch.bytes),
        }
        let is_output = message.stream != Stream::Executor;
        let output = is_output.then_some(message.content.len() as u64);
        batch.messages.push(Encoded { end: batch.bytes.len(), resume: message.resume, output });
    }

    /// Counts what was sent of a batch, and notes the place.
    pub(crate) fn sent(&self, batch: &Batch, sent: usize) {
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

    /// Returns the bytes of the files that were not read. Of a deleted container.
    pub(crate) fn remaining(&mut self) -> u64 {
        let followed = Arc::clone(&self.followed);
        self.take_held(&mut locked(&followed.0));
        self.reader.remaining()
    }

    /// Gives up the rest of the log, and counts it. `unsent` is what was read and not sent. Blocks on the disk.
    pub(crate) fn give_up(&mut self, unsent: Option<(&Batch, usize)>) {
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

    /// Ends: nothing more is sent of the container.
    pub(crate) fn finish(self) {
        let place = self.assembler.resume();
        self.target.places.reached(&self.id, self.created_at, place, true);
        let mut followed = locked(&self.target.followed);
        if followed.get(&self.id).is_some_and(|other| Arc::ptr_eq(other, &self.followed)) {
            followed.remove(&self.id);
        }
    }
}

/// Severity of a message (RFC 5424, table 2): informational, error for the second stream, and of the executor's own words notice, or
/// warning where output is missing.
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
