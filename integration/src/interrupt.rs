//! Ctrl-C and SIGTERM as an error, so that a lane unwinds and leaves no daemon, container or mount.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use tokio::signal::unix::{SignalKind, signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Exit code of a program that Ctrl-C ends, as shells tell it: 128 and the number of SIGINT.
const EXIT_CODE: i32 = 130;

/// From now on Ctrl-C and SIGTERM make [`go_on`] fail instead of ending this process. A second one ends it at once.
///
/// Starts a thread. A process with several threads cannot enter a mount namespace: do that before.
///
/// # Errors
/// The thread or the signal handlers cannot be set up.
pub fn watch() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("starting tokio")?;
    let entered = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt()).context("watching for Ctrl-C")?;
    let mut terminations = signal(SignalKind::terminate()).context("watching for SIGTERM")?;
    drop(entered);
    let wait = move || {
        runtime.block_on(async move {
            loop {
                tokio::select! {
                    _ = interrupts.recv() => {}
                    _ = terminations.recv() => {}
                }
                if INTERRUPTED.swap(true, Ordering::Relaxed) {
                    std::process::exit(EXIT_CODE);
                }
                eprintln!("\ninterrupted: cleaning up; once more to leave everything as it is");
            }
        });
    };
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait).context("starting a thread")?;
    Ok(())
}

/// Goes on, unless there was an interrupt. It is called before each step.
///
/// # Errors
/// After an interrupt.
pub fn go_on() -> anyhow::Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}
