//! Locks on files of launchers' own, which another launcher may hold for an instant.

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// Between two tries: flock(2) waits for ever or not at all.
const PAUSE: Duration = Duration::from_millis(1);

/// Takes a file for this process alone, and tries again for so long where somebody else has it.
///
/// # Errors
/// WOULDBLOCK where it is held for longer; the system's.
pub(crate) fn exclusive(file: &File, patience: Duration) -> rustix::io::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}
