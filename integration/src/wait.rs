//! Waiting for a condition, with a time limit that only a fault reaches.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Longest time for a condition on a slow machine under load.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(3);

/// Waits until `ask` returns a value.
///
/// # Panics
/// No value within [`PATIENCE`]; the message names `what`.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    until_ok(what, || ask().ok_or("it never came"))
}

/// Waits until `ask` succeeds.
///
/// # Panics
/// No success within [`PATIENCE`]; the message has the last error.
pub fn until_ok<T, E: Display>(what: &str, ask: impl FnMut() -> Result<T, E>) -> T {
    within(PATIENCE, ask).unwrap_or_else(|error| panic!("waited {} s for: {what}: {error}", PATIENCE.as_secs()))
}

/// Waits until `ask` succeeds.
///
/// # Errors
/// The last error, after `patience`.
pub fn within<T, E>(patience: Duration, mut ask: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + patience;
    loop {
        match ask() {
            Err(_) if Instant::now() < deadline => {}
            answer => return answer,
        }
        // Another process brings the condition about, and nothing announces it.
        std::thread::sleep(PAUSE);
    }
}
