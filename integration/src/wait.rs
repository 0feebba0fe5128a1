//! Waiting for a condition, with a bound that only a fault reaches.

use std::time::{Duration, Instant};

/// How long a condition may take on a slow machine under load.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until there is an answer.
///
/// # Panics
/// There is none within [`PATIENCE`]; `what` tells what was waited for.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {} s for: {what}", PATIENCE.as_secs());
        // The condition is another process' doing and nothing announces it.
        std::thread::sleep(Duration::from_millis(5));
    }
}
