//! Writes the launcher's log lines to standard error.
//!
//! `tracing` is not used: libcontainer emits traces in a created container, whose standard error is already the
//! container's log. These lines must not be in that log.

use std::fmt::Display;
use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use executor_sys::ready::writable_by;

/// Syslog severity; systemd reads it from the prefix.
#[derive(Clone, Copy)]
pub(crate) enum Level {
    /// A failure that an operator should check.
    Error = 3,
    /// An unexpected condition.
    Warning = 4,
    /// An ordinary event.
    Info = 6,
}

/// Writes a line. `about` is a container id, or empty.
pub(crate) fn line(level: Level, about: &str, message: impl Display) {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let prefix = match (journal, level) {
        (true, level) => format!("<{}>", level as u8),
        (false, Level::Error) => "ERROR ".to_owned(),
        (false, Level::Warning) => " WARN ".to_owned(),
        (false, Level::Info) => " INFO ".to_owned(),
    };
    let separator = if about.is_empty() { "" } else { ": " };
    if is_read() {
        // Use a single write, because executord, the launcher and all shims share one file or stream.
        let line = format!("{prefix}executor-launcher: {about}{separator}{message}\n");
        let _ = stderr().write_all(line.as_bytes()); // best effort
    }
}

/// Returns true if standard error accepts a line. If the reader of a pipe or socket has stopped, lines are dropped
/// after the first line has waited for one second.
fn is_read() -> bool {
    static STUCK: AtomicBool = AtomicBool::new(false);
    let timeout = if STUCK.load(Ordering::Relaxed) { Duration::ZERO } else { Duration::from_secs(1) };
    let is_read = writable_by(stderr(), Instant::now() + timeout).unwrap_or(true);
    STUCK.store(!is_read, Ordering::Relaxed);
    is_read
}

/// Returns an error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}
