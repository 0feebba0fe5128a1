//! The daemon's log on stderr. Entries about requests contain container ids and field names, but no values.

use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::cli::{LogFormat, LogLevel};

/// Starts the daemon's log on stderr.
pub fn start(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Libraries see raw requests, so they may log only warnings and errors, regardless of the configured level.
    let filter = Targets::new().with_target("executord", level).with_default(LevelFilter::WARN.min(level));
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let layer = match format {
        LogFormat::Text if std::env::var_os("JOURNAL_STREAM").is_some() => layer.event_format(Journal::new()).boxed(),
        LogFormat::Text => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
            layer.with_target(false).with_ansi(colour).boxed()
        }
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    // A second start in one process (a test) keeps the first log.
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter)).try_init();
}

/// Format for the systemd journal, which adds timestamps and reads the severity from the prefix (sd-daemon(3)).
struct Journal(Format<Full, ()>);

impl Journal {
    fn new() -> Self {
        Self(Format::default().without_time().with_target(false).with_level(false).with_ansi(false))
    }
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let severity = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{severity}>")?;
        self.0.format_event(context, writer, event)
    }
}
