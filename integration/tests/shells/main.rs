//! Shells: containers that are made before they are asked for.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod leftovers;
mod likeness;

use integration::daemon::{Daemon, Setup};
use integration::wait;

/// Starts a daemon with this number of shells, and waits until they are ready.
fn daemon(ready: u32) -> Daemon {
    let daemon = Setup::default().config(&format!("[shells]\nready = {ready}\n")).start();
    full(&daemon);
    daemon
}

/// Waits until as many shells wait as are configured.
fn full(daemon: &Daemon) {
    wait::until("every shell is ready", || {
        daemon.api.info().shells.filter(|shells| shells.ready == shells.configured).map(drop)
    });
}
