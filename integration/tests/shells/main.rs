//! Shells: containers that are made before they are asked for.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod leftovers;
mod likeness;

use integration::daemon::{Daemon, Setup};

/// Starts a daemon with this number of shells, and waits until they are ready.
fn daemon(ready: u32) -> Daemon {
    let daemon = Setup::default().config(&format!("[shells]\nready = {ready}\n")).start();
    daemon.api.wait_until_shells_are_ready();
    daemon
}
