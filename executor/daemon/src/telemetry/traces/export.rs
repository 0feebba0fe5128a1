//! Queues spans, and exports them to the collector in a task.

use std::time::Duration;

use executor_core::backoff::Backoff;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::config::{TraceProtocol, TraceSettings};
use crate::telemetry::metrics::{SpanLoss, Spans};

/// Maximum number of spans per request to the collector.
const BATCH: usize = 256;
/// Time for which spans are collected into a batch.
const BATCH_DELAY: Duration = Duration::from_millis(500);
/// Time limit for a request to the collector.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of attempts to export a batch.
const ATTEMPTS: u32 = 3;
/// Pauses between attempts to export a batch.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(2));
/// Minimum interval between two log entries about dropped spans.
const DROP_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The span queue. Adding a span never blocks.
#[derive(Debug)]
pub(super) struct Queue {
    sender: mpsc::Sender<Queued>,
    spans: Spans,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // nearly all are spans
enum Queued {
    Span(SpanData),
    /// Notified when all earlier spans were exported or dropped.
    Flush(oneshot::Sender<()>),
}

impl Queue {
    /// Starts the export task.
    pub(super) fn start(settings: &TraceSettings, spans: Spans) -> Result<Self, String> {
        let exporter = exporter(settings).map_err(|error| format!("{}: {error}", settings.endpoint))?;
        let (sender, queue) = mpsc::channel(settings.queue_max);
        let task = Export { exporter, spans: spans.clone(), dropped: 0, reported: None };
        tokio::spawn(task.run(queue));
        tracing::info!(endpoint = settings.endpoint, "exporting traces");
        Ok(Self { sender, spans })
    }

    pub(super) fn put(&self, span: SpanData) {
        if self.sender.try_send(Queued::Span(span)).is_err() {
            self.spans.lost(SpanLoss::QueueFull, 1);
        }
    }

    pub(super) async fn flush(&self, limit: Duration) {
        let flushed = async {
            let (done, wait) = oneshot::channel();
            if self.sender.send(Queued::Flush(done)).await.is_ok() {
                let _ = wait.await;
            }
        };
        let _ = timeout(limit, flushed).await; // unsent spans are lost when this process exits
    }
}

fn exporter(settings: &TraceSettings) -> Result<SpanExporter, opentelemetry_otlp::ExporterBuildError> {
    let mut exporter = match settings.protocol {
        TraceProtocol::Grpc => SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&*settings.endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()?,
        TraceProtocol::Http => SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&*settings.endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()?,
    };
    let attributes = [
        KeyValue::new("service.name", "executord"),
        KeyValue::new("service.version", executor_secrets::VERSION),
        KeyValue::new("host.name", rustix::system::uname().nodename().to_string_lossy().into_owned()),
    ];
    exporter.set_resource(&Resource::builder_empty().with_attributes(attributes).build());
    Ok(exporter)
}

/// State of the export task.
struct Export {
    exporter: SpanExporter,
    spans: Spans,
    /// Number of dropped spans since the last log entry.
    dropped: usize,
    reported: Option<Instant>,
}

impl Export {
    async fn run(mut self, mut queue: mpsc::Receiver<Queued>) {
        while let Some(first) = queue.recv().await {
            let (mut batch, mut flushed) = (Vec::new(), None);
            let mut take = |queued| match queued {
                Queued::Span(span) => {
                    batch.push(span);
                    batch.len() == BATCH
                }
                Queued::Flush(done) => {
                    flushed = Some(done);
                    true
                }
            };
            let mut full = take(first);
            let gather = Instant::now() + BATCH_DELAY;
            while !full {
                match tokio::time::timeout_at(gather, queue.recv()).await {
                    Ok(Some(queued)) => full = take(queued),
                    Ok(None) | Err(_) => break,
                }
            }
            let is_last = flushed.is_some();
            if !batch.is_empty() {
                self.export(batch, if is_last { 1 } else { ATTEMPTS }).await;
            }
            if let Some(done) = flushed {
                let _ = done.send(()); // the receiver may be dropped
            }
        }
    }

    async fn export(&mut self, batch: Vec<SpanData>, attempts: u32) {
        let (count, mut pauses) = (batch.len(), PAUSES);
        for attempt in 1..=attempts {
            let why = match timeout(EXPORT_TIMEOUT, self.exporter.export(batch.clone())).await {
                Ok(Ok(())) => {
                    self.spans.exported.inc_by(count as u64);
                    return;
                }
                Ok(Err(error)) => executor_core::errors::chain(&error),
                Err(_) => format!("no response within {} s", EXPORT_TIMEOUT.as_secs()),
            };
            tracing::debug!(attempt, "the trace collector did not accept {count} spans: {why}");
            if attempt < attempts {
                sleep(pauses.pause()).await;
            } else {
                self.lost(count, &why);
            }
        }
    }

    fn lost(&mut self, count: usize, why: &str) {
        self.spans.lost(SpanLoss::ExportFailed, count);
        self.dropped += count;
        if self.reported.is_none_or(|reported| reported.elapsed() >= DROP_LOG_INTERVAL) {
            let dropped = std::mem::take(&mut self.dropped);
            tracing::warn!(dropped, "dropped spans: the trace collector did not accept them: {why}");
            self.reported = Some(Instant::now());
        }
    }
}
