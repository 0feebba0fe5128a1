//! Main function of `executord`: parses the command line, runs the daemon, and returns an exit code.
//!
//! This module is part of the library crate, so that the server is compiled once, and not again for the binary.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_sys::mutex::locked;

use crate::boot::{self, Booted, StartedLauncher};
use crate::config::Config;
use crate::config::cli::Args;
use crate::daemon;
use crate::telemetry::log;
use anyhow::Context as _;
use clap::Parser as _;
use executor_core::errors::chain;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

/// Maximum number of threads for blocking work, such as reads of logs and outputs.
const READERS: usize = 16;
/// Time limit for the launcher of an ephemeral daemon to remove everything and exit.
const LAUNCHER_EXIT_TIMEOUT: Duration = Duration::from_secs(15);
/// Stack size of a thread, in bytes.
const STACK: usize = 512 << 10;

/// Runs the program with the command line of this process.
pub fn main() -> ExitCode {
    executor_sys::startup::abort_on_panic();
    if std::env::args_os().nth(1).is_some_and(|first| first == executor_transfers::job::WORKER_ARGUMENT) {
        return executor_transfers::work();
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == executor_providers::WORKER_ARGUMENT) {
        return executor_providers::work();
    }
    // Survive SIGHUP until the handler that reloads the configuration is installed.
    if let Err(error) = executor_sys::process::survive_hangup() {
        return fail(1, &format!("cannot install the handler of SIGHUP: {error}"));
    }
    let args = Args::parse();
    if let Some(file) = &args.check_config {
        return check_config(&args, file.clone());
    }
    match args.generate() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return fail(1, &format!("cannot write the manual page: {error}")),
    }
    let config = match Config::load(&args) {
        Ok(config) => config,
        Err(error) => return fail(2, &chain(&error)),
    };
    log::start(config.log_format, config.log_level);
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    if executor_secrets::CONTROL {
        tracing::error!("this build does not wipe secrets: it is for tests only");
    }
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &format!("{error:#}")),
    }
}

/// Checks the configuration without starting the daemon.
fn check_config(args: &Args, file: Option<PathBuf>) -> ExitCode {
    let args = Args { config: file.or_else(|| args.config.clone()), ..args.clone() };
    match Config::load(&args) {
        Ok(config) => {
            config.warnings().iter().for_each(|warning| eprintln!("executord: warning: {warning}"));
            let missing = boot::missing(&config);
            if missing.is_empty() {
                println!("{}", config.verdict());
                return ExitCode::SUCCESS;
            }
            missing.iter().for_each(|error| eprintln!("{}", chain(error)));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn fail(code: u8, why: &str) -> ExitCode {
    eprintln!("executord: {why}");
    ExitCode::from(code)
}

fn run(config: Config) -> anyhow::Result<()> {
    let booted = boot::boot(&config)?;
    // One thread serves calls, because calls mostly wait for shims and disks. With several threads, each busy thread
    // would wake another thread that finds no work. The ledger and reads of logs, outputs and images have their own
    // threads.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(READERS)
        .thread_stack_size(STACK)
        .thread_name("read")
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let served = runtime.block_on(serve(config, booted));
    // Abort tasks that still wait for shims. These tasks have no unsaved data.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn serve(config: Config, booted: Booted) -> anyhow::Result<()> {
    let Booted { listeners, launcher, started, access, lock } = booted;
    let (config, started) = (Arc::new(config), Arc::new(Mutex::new(started)));
    let handler = |kind| signal(kind).context("cannot install a signal handler");
    let (mut terminate, mut interrupt) = (handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?);
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        notify(NotifyState::Stopping);
    };
    let exit_reason = {
        let started = Arc::clone(&started);
        move || locked(&started).as_mut().and_then(StartedLauncher::exit_reason)
    };
    let ready = || {
        notify(NotifyState::Ready);
        tokio::spawn(feed_watchdog());
    };
    let served = daemon::serve(Arc::clone(&config), access, listeners, launcher, exit_reason, ready, stop).await;
    let launcher_ended =
        || locked(&started).as_mut().is_none_or(|launcher| launcher.ended_within(LAUNCHER_EXIT_TIMEOUT));
    if config.ephemeral && !launcher_ended() {
        tracing::error!("the launcher did not exit within {} s", LAUNCHER_EXIT_TIMEOUT.as_secs());
    }
    drop(lock);
    Ok(served?)
}

/// Notifies systemd, if systemd started this process.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}

/// Sends heartbeats to systemd's watchdog, which show that the runtime still runs its tasks.
async fn feed_watchdog() {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    let mut tick = tokio::time::interval(interval / 3);
    loop {
        tick.tick().await;
        notify(NotifyState::Watchdog);
    }
}
