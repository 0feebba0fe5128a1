//! Waits for a condition. Timeouts are so long that only a failing test reaches them.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Timeout of a condition on a slow machine under load.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// Waits until `ask` returns a value.
///
/// # Panics
/// Panics if `ask` returns no value within [`DEFAULT_TIMEOUT`]; the message names `what`.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    until_ok(what, || ask().ok_or("the condition was not met"))
}

/// Waits until `ask` succeeds.
///
/// # Panics
/// Panics if `ask` does not succeed within [`DEFAULT_TIMEOUT`]; the message contains the last error.
pub fn until_ok<T, E: Display>(what: &str, ask: impl FnMut() -> Result<T, E>) -> T {
    within(DEFAULT_TIMEOUT, ask)
        .unwrap_or_else(|error| panic!("waited {} s for: {what}: {error}", DEFAULT_TIMEOUT.as_secs()))
}

/// Waits until `ask` succeeds.
///
/// # Errors
/// Returns the last error if `ask` does not succeed within `timeout`.
pub fn within<T, E>(timeout: Duration, mut ask: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + timeout;
    loop {
        match ask() {
            Err(_) if Instant::now() < deadline => {}
            answer => return answer,
        }
        // There is no notification, so this polls.
        std::thread::sleep(POLL_INTERVAL);
    }
}
