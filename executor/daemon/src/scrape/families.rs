//! Collects the metrics of a scrape as families of series.

use std::borrow::Cow;
use std::fmt::Write;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// A label and its value.
pub(super) type Label = (Cow<'static, str>, Cow<'static, str>);

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

impl Kind {
    fn encode(self, value: f64, series: MetricEncoder<'_>) -> std::fmt::Result {
        match self {
            Self::Counter => ConstCounter::new(value).encode(series),
            Self::Gauge => ConstGauge::new(value).encode(series),
        }
    }
}

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    series: Vec<(Vec<Label>, f64)>,
}

/// A metric value. Values beyond 2^53 are rounded, as everywhere in Prometheus.
pub(super) trait MetricValue {
    fn value(self) -> f64;
}

impl MetricValue for u64 {
    #[allow(clippy::cast_precision_loss)]
    fn value(self) -> f64 {
        self as f64
    }
}

impl MetricValue for f64 {
    fn value(self) -> f64 {
        self
    }
}

/// Metric families of a scrape. The names of counters do not include the suffix `_total`.
#[derive(Debug, Default)]
pub(crate) struct Families(Vec<Family>);

impl Families {
    /// Adds a metric without labels.
    pub(super) fn put(&mut self, kind: Kind, name: &'static str, help: &'static str, value: impl MetricValue) {
        self.series(kind, name, help, [(Vec::new(), value)]);
    }

    /// Adds a metric with one label.
    pub(super) fn labelled(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        let series = values.into_iter().map(|(of, value)| (vec![(label.into(), of.into())], value));
        self.series(kind, name, help, series);
    }

    /// Adds a metric with a series for each set of labels.
    pub(super) fn series<V: MetricValue>(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        series: impl IntoIterator<Item = (Vec<Label>, V)>,
    ) {
        let series = series.into_iter().map(|(labels, value)| (labels, value.value())).collect();
        self.0.push(Family { name, help, kind, series });
    }

    /// Appends all families to `text` in the OpenMetrics format.
    pub(super) fn encode(self, text: &mut impl Write) -> std::fmt::Result {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        encode_registry(text, &registry)
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for Family { name, help, kind, series } in &self.0 {
            let help = format!("{help}.");
            let metric = match kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, &help, None, metric)?;
            if let [(labels, value)] = &series[..]
                && labels.is_empty()
            {
                kind.encode(*value, family)?;
                continue;
            }
            for (labels, value) in series {
                kind.encode(*value, family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a client puts special characters into a container label, they do not end the label's value.
    #[test]
    fn label_values_are_escaped() {
        let mut families = Families::default();
        let label = |value: &str| vec![("label_a".into(), Cow::Owned(value.to_owned()))];
        let series = ["plain", "quote\"} 1\nforged 1", "back\\slash"].map(|value| (label(value), 1_u64));
        families.series(Kind::Counter, "a", "A", series);
        families.put(Kind::Gauge, "b", "B", 2.5);
        let mut text = String::new();
        families.encode(&mut text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let expected = [
            "# HELP a A.",
            "# TYPE a counter",
            r#"a_total{label_a="plain"} 1.0"#,
            r#"a_total{label_a="quote\"} 1\nforged 1"} 1.0"#,
            r#"a_total{label_a="back\\slash"} 1.0"#,
            "# HELP b B.",
            "# TYPE b gauge",
            "b 2.5",
        ];
        assert_eq!(lines, expected);
    }
}
