//! Selects the format of a scrape response, and converts OpenMetrics 1.0 to the text format of Prometheus (0.0.4),
//! which every scraper supports.
//!
//! The prometheus-client crate writes OpenMetrics. In the format of Prometheus, the HELP and TYPE lines of a counter
//! also have the suffix `_total`, and there is no end marker.

use std::sync::Arc;

/// Format of a scrape response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScrapeFormat {
    OpenMetrics,
    Prometheus,
}

impl ScrapeFormat {
    /// Selects the format from a request's Accept header. Selects OpenMetrics only if the header names it with at least
    /// the weight of plain text.
    pub(crate) fn accepted(field: &str) -> Self {
        let weight = |wanted: &[&str]| {
            field
                .split(',')
                .filter_map(|range| {
                    let mut parts = range.split(';').map(str::trim);
                    let kind = parts.next().filter(|kind| wanted.contains(kind))?;
                    let mut version = None;
                    let mut weight = 1000;
                    for part in parts {
                        match part.split_once('=') {
                            Some(("q", q)) => {
                                weight = q.parse::<f32>().map_or(0, |q| (q.clamp(0.0, 1.0) * 1000.0) as u32);
                            }
                            Some(("version", of)) => version = Some(of.trim_matches('"')),
                            _ => {}
                        }
                    }
                    let known =
                        kind != "application/openmetrics-text" || matches!(version, None | Some("1.0.0" | "0.0.1"));
                    known.then_some(weight)
                })
                .max()
        };
        let open = weight(&["application/openmetrics-text"]).filter(|weight| *weight > 0);
        let plain = weight(&["text/plain"]);
        if open.is_some() && open >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts OpenMetrics text to this format.
    pub(super) fn render(self, open: Arc<str>) -> Arc<str> {
        match self {
            Self::OpenMetrics => open,
            Self::Prometheus => classic(&open).into(),
        }
    }
}

fn classic(open: &str) -> String {
    let mut text = String::with_capacity(open.len() + 1024);
    let mut help = None;
    for line in open.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|typed| typed.split_once(' ')) {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take() {
                text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrape_format_follows_accept_header() {
        let open = "application/openmetrics-text";
        for (field, form) in [
            ("", ScrapeFormat::Prometheus),
            ("*/*", ScrapeFormat::Prometheus),
            ("text/plain", ScrapeFormat::Prometheus),
            (open, ScrapeFormat::OpenMetrics),
            // Prometheus 2.42, and a version that prefers protocol buffers.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ScrapeFormat::OpenMetrics,
            ),
            (
                "application/vnd.google.protobuf;q=0.7, text/plain;version=0.0.4;q=0.3, */*;q=0.2",
                ScrapeFormat::Prometheus,
            ),
            ("application/openmetrics-text;q=0.1, text/plain;q=0.9", ScrapeFormat::Prometheus),
            ("application/openmetrics-text;q=0", ScrapeFormat::Prometheus),
            ("application/openmetrics-text;version=9.0.0", ScrapeFormat::Prometheus),
        ] {
            assert_eq!(ScrapeFormat::accepted(field), form, "{field}");
        }
    }

    #[test]
    fn classic_format_keeps_counter_suffix() {
        let open = "# HELP a Bytes.\n# TYPE a counter\na_total{x=\"#\"} 1\n# HELP b Now.\n# TYPE b gauge\nb 2\n# EOF\n";
        let classic =
            "# HELP a_total Bytes.\n# TYPE a_total counter\na_total{x=\"#\"} 1\n# HELP b Now.\n# TYPE b gauge\nb 2\n";
        assert_eq!(&*ScrapeFormat::Prometheus.render(open.into()), classic);
        assert_eq!(&*ScrapeFormat::OpenMetrics.render(open.into()), open);
    }
}
