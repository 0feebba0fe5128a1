//! Call metrics: counts, status codes and durations.

use std::sync::Arc;
use std::time::Instant;

use executor_transport::wire::body::CallObserver;
use hyper::HeaderMap;

use super::Metrics;
use crate::access;

/// Label of methods that this daemon does not serve: a client can send any bytes as the method.
const UNKNOWN: &str = "unknown";
/// gRPC status codes, by number.
const CODES: [&str; 17] = [
    "ok",
    "cancelled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
];

/// A call in progress, which is counted on drop; a call without a status was cancelled.
#[derive(Debug)]
pub(crate) struct CallTimer {
    metrics: Arc<Metrics>,
    method: Option<access::Method>,
    began: Instant,
    code: usize,
}

impl CallTimer {
    pub(super) fn new(metrics: Arc<Metrics>, path: &str) -> Self {
        metrics.in_progress.inc();
        Self { metrics, method: access::method(path), began: Instant::now(), code: 1 }
    }
}

impl CallObserver for CallTimer {
    fn response_fields(&mut self, fields: &HeaderMap) {
        if let Some(status) = fields.get("grpc-status") {
            let number = status.to_str().ok().and_then(|text| text.parse::<usize>().ok());
            self.code = number.filter(|number| *number < CODES.len()).unwrap_or(2);
        }
    }
}

impl Drop for CallTimer {
    fn drop(&mut self) {
        self.metrics.in_progress.dec();
        let name = self.method.map_or(UNKNOWN, |method| method.name);
        self.metrics.calls.get_or_create(&[("method", name), ("code", CODES[self.code])]).inc();
        if self.method.is_some_and(|method| !method.is_long_running) {
            let took = self.began.elapsed().as_secs_f64();
            self.metrics.call_times.get_or_create(&[("method", name)]).observe(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn calls_are_counted_by_method_and_code() {
        let metrics = Arc::new(Metrics::default());
        let ended = |path: &str, status: Option<&'static str>| {
            let mut timer = metrics.call(path);
            let mut fields = HeaderMap::new();
            status.into_iter().for_each(|status| drop(fields.insert("grpc-status", status.parse().unwrap())));
            timer.response_fields(&fields);
        };
        for (path, status) in [
            ("/executor.v1.Executor/Get", Some("0")),
            ("/executor.v1.Executor/Get", Some("5")),
            ("/executor.v1.Executor/Attach", None),
            ("/s3cret/value", Some("12")),
            ("/executor.v1.Executor/Get", Some("99")),
        ] {
            ended(path, status);
        }
        let mut text = String::new();
        encode(&mut text, metrics.registry()).unwrap();
        for line in [
            r#"executor_calls_total{method="executor.v1.Executor/Get",code="ok"} 1"#,
            r#"executor_calls_total{method="executor.v1.Executor/Get",code="not_found"} 1"#,
            r#"executor_calls_total{method="executor.v1.Executor/Get",code="unknown"} 1"#,
            r#"executor_calls_total{method="executor.v1.Executor/Attach",code="cancelled"} 1"#,
            r#"executor_calls_total{method="unknown",code="unimplemented"} 1"#,
            r#"executor_call_seconds_count{method="executor.v1.Executor/Get"} 3"#,
            "executor_calls_in_progress 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(
            !text.contains("s3cret") && !text.contains(r#"_count{method="executor.v1.Executor/Attach"}"#),
            "{text}"
        );
    }
}
