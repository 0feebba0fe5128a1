//! The warm pool: containers are created before they are requested.

mod leftovers;
mod likeness;

use integration::daemon::{Daemon, Setup};

/// Starts a daemon with this number of warm containers, and waits until they are ready.
fn daemon(ready: u32) -> Daemon {
    let daemon = Setup::default().config(&format!("[warm_pool]\nsize = {ready}\n")).start();
    daemon.api.wait_until_warm_pool_is_ready();
    daemon
}
