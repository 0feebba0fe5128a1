//! Converts Ctrl-C and SIGTERM into an error, so that a run unwinds and leaves no daemon, container or mount behind.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use tokio::signal::unix::{SignalKind, signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Exit code of a program that was terminated by Ctrl-C. As in shells, this is 128 plus the number of SIGINT.
const EXIT_CODE: i32 = 130;

/// Catches Ctrl-C and SIGTERM. After the first signal, the next [`check`] returns an error. A second signal terminates
/// the process immediately.
///
/// Starts a thread. A process with several threads cannot enter a mount namespace, so enter one before this call.
///
/// # Errors
/// Returns an error if the thread or the signal handlers cannot be set up.
pub fn watch() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("cannot start tokio")?;
    let entered = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    let mut terminations = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
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
                eprintln!("\ninterrupted: cleaning up; interrupt again to exit without cleanup");
            }
        });
    };
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait).context("cannot start a thread")?;
    Ok(())
}

/// Checks for an interrupt. Call this before each step.
///
/// # Errors
/// Returns an error if an interrupt has occurred.
pub fn check() -> anyhow::Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}
