//! The log on stderr. What is said of requests names containers and fields, never a value.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::{LogFormat, LogLevel};

/// Begins to log.
pub fn start(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // The libraries below see requests in the raw: they get no word beyond warnings, at any level.
    let ours = Targets::new().with_target("executord", level).with_default(LevelFilter::WARN.min(level));
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let layer = match format {
        LogFormat::Text => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
            layer.with_target(false).with_ansi(colour).boxed()
        }
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    // A second start in one process (a test) keeps the first log.
    let _ = tracing_subscriber::registry().with(layer.with_filter(ours)).try_init();
}
