//! Waits for a condition. The timeout expires only if there is an error.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Timeout of a condition on a slow machine under load.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Polling interval.
const PAUSE: Duration = Duration::from_millis(3);

/// Waits until `ask` returns a value.
///
/// # Panics
/// Panics if there is no value within [`PATIENCE`]; the message names `what`.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    until_ok(what, || ask().ok_or("the condition was not met"))
}

/// Waits until `ask` succeeds.
///
/// # Panics
/// Panics if there is no success within [`PATIENCE`]; the message has the last error.
pub fn until_ok<T, E: Display>(what: &str, ask: impl FnMut() -> Result<T, E>) -> T {
    within(PATIENCE, ask).unwrap_or_else(|error| panic!("waited {} s for: {what}: {error}", PATIENCE.as_secs()))
}

/// Waits until `ask` succeeds.
///
/// # Errors
/// Returns the last error if `ask` does not succeed within `patience`.
pub fn within<T, E>(patience: Duration, mut ask: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + patience;
    loop {
        match ask() {
            Err(_) if Instant::now() < deadline => {}
            answer => return answer,
        }
        // There is no notification, so this polls.
        std::thread::sleep(PAUSE);
    }
}
