//! Starts a daemon that may fail to start.

use std::process::{Child, ExitStatus};

use integration::api::Api;
use integration::daemon::Daemon;
use integration::wait;

/// Starts another executord on a daemon's directories while none runs there, and waits until it serves or exits.
pub(crate) fn start_or_end(daemon: &Daemon) -> std::io::Result<Result<(Child, Api), ExitStatus>> {
    let mut child = daemon.setup().command().spawn()?;
    let socket = daemon.socket();
    let outcome = wait::until("executord serves or exits", || match child.try_wait() {
        Ok(Some(status)) => Some(Err(status)),
        _ => Api::connect(&socket).ok().filter(|api| api.try_info().is_ok_and(|info| info.launcher_connected)).map(Ok),
    });
    Ok(outcome.map(|api| (child, api)))
}
