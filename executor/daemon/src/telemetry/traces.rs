//! Exports traces over OTLP: one span per phase of a container, below a span of the container itself.
//!
//! ```text
//!  Run (traceparent) ──> TraceContext in the status ──> spans, when a phase is over ──> queue ──> task ──> collector
//! ```
//! Spans are built from existing data (the timestamps of the record and of the result), so a daemon continues the
//! traces of containers that it recovers. No call waits for the collector: spans that do not fit into the queue or are
//! not accepted are dropped, counted and logged. Attributes are ids, numbers and fixed words, never text from a
//! request.

mod export;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use executor_core::record::Exit;
use executor_core::time::Timestamp;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use tonic::metadata::MetadataMap;

use crate::config::TraceSettings;
use crate::model::status::{ContainerResult, ContainerStatus, Phase, TraceContext};
use crate::telemetry::metrics::{Metrics, failure_name};
use export::Queue;

/// The metadata key that identifies the caller's span (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";

/// Trace exporter of a daemon.
#[derive(Debug)]
pub struct Traces {
    /// `None` if no collector is configured.
    queue: Option<Queue>,
}

/// Trace context that a caller sent with its request.
#[derive(Clone, Debug)]
pub(crate) struct TraceParent(SpanContext);

impl TraceParent {
    /// Reads a call's metadata. Malformed fields are ignored.
    pub(crate) fn from_metadata(metadata: &MetadataMap) -> Self {
        struct Parent<'a>(&'a MetadataMap);
        impl Extractor for Parent<'_> {
            fn get(&self, key: &str) -> Option<&str> {
                // The other field of the standard (`tracestate`) holds text from the caller, and is not forwarded.
                (key == TRACEPARENT).then(|| self.0.get(TRACEPARENT)?.to_str().ok()).flatten()
            }

            fn keys(&self) -> Vec<&str> {
                vec![TRACEPARENT]
            }
        }
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Parent(metadata));
        Self(context.span().span_context().clone())
    }
}

impl Traces {
    /// Starts the export, if a collector is configured. Must be called on the runtime.
    ///
    /// # Errors
    /// Returns an error if the exporter cannot be created for the endpoint.
    pub(crate) fn start(settings: Option<&TraceSettings>, metrics: &Arc<Metrics>) -> Result<Self, String> {
        let queue = settings.map(|settings| Queue::start(settings, metrics.spans.clone())).transpose()?;
        Ok(Self { queue })
    }

    /// Starts the trace of a request that was received at this time, below the caller's span, if any. Returns `None` if
    /// no collector is configured, or the caller does not sample.
    pub(crate) fn start_trace(&self, parent: &TraceParent, received_at: Timestamp) -> Option<TraceContext> {
        self.queue.as_ref()?;
        let (ids, parent) = (RandomIdGenerator::default(), &parent.0);
        if parent.is_valid() && !parent.is_sampled() {
            return None;
        }
        let trace_id = if parent.is_valid() { parent.trace_id() } else { ids.new_trace_id() };
        let parent_id = if parent.is_valid() { parent.span_id() } else { SpanId::INVALID };
        Some(TraceContext {
            trace_id: trace_id.to_string(),
            span_id: ids.new_span_id().to_string(),
            parent_id: parent_id.to_string(),
            received_at,
        })
    }

    /// Exports the start phases of a running container.
    pub(crate) fn started(&self, facts: &ContainerStatus) {
        let Some((queue, trace)) = self.queue.as_ref().zip(Trace::from_facts(facts)) else { return };
        trace.starts(facts).for_each(|span| queue.put(span));
    }

    /// Exports the remaining spans of a completed container, and the span of the container itself.
    pub(crate) fn ended(&self, facts: &ContainerStatus, end: &ContainerResult) {
        let Some((queue, trace)) = self.queue.as_ref().zip(Trace::from_facts(facts)) else { return };
        match (facts.started_at, facts.process_finished_at()) {
            (Some(started), Some(finished)) => {
                queue.put(trace.child("run", started, finished));
                queue.put(trace.child(Phase::Finish.name(), finished, after(finished, end.timings.finish)));
            }
            (Some(_), None) => {}
            // No span of the container was exported yet.
            (None, _) => trace.starts(facts).for_each(|span| queue.put(span)),
        }
        queue.put(trace.root(facts, end));
    }

    /// Exports the queued spans, for at most this time.
    pub(crate) async fn flush(&self, limit: Duration) {
        if let Some(queue) = &self.queue {
            queue.flush(limit).await;
        }
    }
}

struct Trace<'a> {
    id: TraceId,
    root: SpanId,
    parent: SpanId,
    received_at: Timestamp,
    container: &'a str,
}

impl<'a> Trace<'a> {
    fn from_facts(facts: &'a ContainerStatus) -> Option<Self> {
        let context = facts.trace.as_ref()?;
        Some(Self {
            id: TraceId::from_hex(&context.trace_id).ok()?,
            root: SpanId::from_hex(&context.span_id).ok()?,
            parent: SpanId::from_hex(&context.parent_id).ok()?,
            received_at: context.received_at,
            container: facts.plan.id.as_str(),
        })
    }

    /// Returns the spans of the completed start phases.
    fn starts(&self, facts: &ContainerStatus) -> impl Iterator<Item = SpanData> {
        let admit = (Phase::Admit, self.received_at, facts.created_at);
        let phases = std::iter::once(admit).chain(facts.start_phases());
        phases.map(|(phase, from, to)| self.child(phase.name(), from, to)).collect::<Vec<_>>().into_iter()
    }

    fn child(&self, name: &'static str, from: Timestamp, to: Timestamp) -> SpanData {
        let id = RandomIdGenerator::default().new_span_id();
        self.span(id, self.root, name, (from, to), self.attributes())
    }

    fn root(&self, facts: &ContainerStatus, end: &ContainerResult) -> SpanData {
        let mut attributes = self.attributes();
        match end.exit {
            Some(Exit::Code(code)) => attributes.push(KeyValue::new("executor.exit_code", i64::from(code))),
            Some(Exit::Signal(signal)) => attributes.push(KeyValue::new("executor.signal", i64::from(signal))),
            None => {}
        }
        attributes.push(KeyValue::new("executor.oom_killed", end.oom_killed));
        attributes.push(KeyValue::new("executor.stopped", end.stopped));
        if let Some(wipe) = &end.wipe {
            attributes.push(KeyValue::new("executor.wipe_verified", wipe.verified));
        }
        let failure = end.failure.as_ref().map(|failure| failure_name(failure.kind));
        attributes.extend(failure.map(|kind| KeyValue::new("executor.failure", kind)));
        let times = (self.received_at, end.finished_at.max(facts.created_at));
        let mut span = self.span(self.root, self.parent, "container", times, attributes);
        span.span_kind = SpanKind::Server;
        span.parent_span_is_remote = self.parent != SpanId::INVALID;
        span.status = failure.map_or(Status::Unset, Status::error);
        span
    }

    fn attributes(&self) -> Vec<KeyValue> {
        vec![KeyValue::new("container.id", self.container.to_owned())]
    }

    fn span(
        &self,
        id: SpanId,
        parent: SpanId,
        name: &'static str,
        (from, to): (Timestamp, Timestamp),
        attributes: Vec<KeyValue>,
    ) -> SpanData {
        SpanData {
            span_context: SpanContext::new(self.id, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: Cow::Borrowed(name),
            start_time: time(from),
            // The clock may have been set back in the meantime.
            end_time: time(to.max(from)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("executord")
                .with_version(executor_secrets::VERSION)
                .build(),
        }
    }
}

fn after(time: Timestamp, duration: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
}

fn time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(at.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_traceparent_of_caller_is_read() {
        let of = |field: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("traceparent", field.parse().unwrap());
            metadata.insert("tracestate", "vendor=s3cret".parse().unwrap());
            TraceParent::from_metadata(&metadata).0
        };
        let good = of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert!(good.is_valid() && good.is_sampled() && good.trace_state().header().is_empty());
        assert_eq!(good.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let unsampled = of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
        assert!(unsampled.is_valid() && !unsampled.is_sampled());
        for bad in ["", "00", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "zz-a-b-c", &"0".repeat(9000)]
        {
            assert!(!of(bad).is_valid(), "{bad}");
        }
        assert!(!TraceParent::from_metadata(&MetadataMap::new()).0.is_valid());
    }
}
