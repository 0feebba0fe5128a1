//! Waiting for a condition, with a bound that only a fault reaches.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long a condition may take on a slow machine under load.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two questions.
const PAUSE: Duration = Duration::from_millis(3);

/// Asks until there is an answer.
///
/// # Panics
/// There is none within [`PATIENCE`]; `what` tells what was waited for.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    until_ok(what, || ask().ok_or("it never came"))
}

/// Asks until the answer is good.
///
/// # Panics
/// It is not within [`PATIENCE`]; the last bad answer is told.
pub fn until_ok<T, E: Display>(what: &str, ask: impl FnMut() -> Result<T, E>) -> T {
    within(PATIENCE, ask).unwrap_or_else(|error| panic!("waited {} s for: {what}: {error}", PATIENCE.as_secs()))
}

/// Asks until the answer is good.
///
/// # Errors
/// The last bad answer, after `patience`.
pub fn within<T, E>(patience: Duration, mut ask: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + patience;
    loop {
        match ask() {
            Err(_) if Instant::now() < deadline => {}
            answer => return answer,
        }
        // The condition is another process' doing and nothing announces it.
        std::thread::sleep(PAUSE);
    }
}
