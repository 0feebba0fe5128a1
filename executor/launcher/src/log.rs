//! The launcher's own words, to standard error.
//!
//! Not `tracing`: libcontainer traces from inside a created container, whose standard error is the container's
//! log by then, and whatever it would say there does not belong there.

use std::fmt::Display;
use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use executor_sys::ready::writable_by;

/// Severity as syslog has it; systemd reads it from the prefix.
#[derive(Clone, Copy)]
pub(crate) enum Level {
    /// Something failed that an operator should look at.
    Error = 3,
    /// Something is not as it should be.
    Warning = 4,
    /// An ordinary event.
    Info = 6,
}

/// Writes a line. `about` is a container's id, or empty.
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
        // In one write: executord, the launcher and all shims share one file or stream.
        let line = format!("{prefix}executor-launcher: {about}{separator}{message}\n");
        let _ = stderr().write_all(line.as_bytes()); // nobody to tell
    }
}

/// Returns whether standard error takes a line. Where it is a pipe or a socket, its reader may have stopped: a line is
/// dropped then, and only the first one is waited for, a second.
fn is_read() -> bool {
    static STUCK: AtomicBool = AtomicBool::new(false);
    let patience = if STUCK.load(Ordering::Relaxed) { Duration::ZERO } else { Duration::from_secs(1) };
    let is_read = writable_by(stderr(), Instant::now() + patience).unwrap_or(true);
    STUCK.store(!is_read, Ordering::Relaxed);
    is_read
}

/// An error with all that caused it, in one line.
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
