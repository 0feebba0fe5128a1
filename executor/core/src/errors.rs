//! Formats errors in one line with all causes, without the error numbers that Rust appends.

use std::error::Error;

/// Formats an error and its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut reported = plain(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        reported.push_str(": ");
        reported.push_str(&plain(error));
        cause = error.source();
    }
    reported
}

/// Formats an error without its causes, and without the number that Rust appends to system errors.
pub fn plain(error: &dyn Error) -> String {
    let mut reported = error.to_string();
    if let Some(at) = reported.rfind(" (os error ").filter(|_| reported.ends_with(')')) {
        reported.truncate(at);
    }
    reported
}
