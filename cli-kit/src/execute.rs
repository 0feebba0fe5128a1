//! Executes a command: connects to executord or starts a private executord, handles signals, and flushes the output on
//! exit.

use crate::connect::{Client, DEFAULT_SOCKET, connect};
use crate::failure::Failure;
use crate::global::Global;
use crate::interrupt::Interrupts;
use crate::local::PrivateDaemon;
use crate::output::Output;
use crate::report::PROGRAM;
use crate::session::Session;
use crate::view::style::Style;

/// Effect of SIGINT, SIGTERM and SIGHUP on a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The command receives the signals and handles them.
    Heeded,
    /// The command is cancelled and cleans up.
    CutOff,
    /// The signals have their default action; there is nothing to clean up.
    Ends,
}

/// A command that is ready to be executed.
pub trait Work {
    fn default_socket(&self) -> &'static str {
        DEFAULT_SOCKET
    }

    fn interruption(&self) -> Interruption;

    /// Executes the command and returns the exit status. `interrupts` yields signals if the command handles them
    /// ([`Interruption::Heeded`]), otherwise nothing.
    fn perform(self, session: &Session, interrupts: &mut Interrupts) -> impl Future<Output = Result<u8, Failure>>;
}

/// Executes a command; returns the exit status.
pub fn perform(global: &Global, work: impl Work) -> Result<u8, Failure> {
    block_on(with_daemon(global, work))
}

/// Runs asynchronous work to completion.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    // Single-threaded: a private executord gets a signal when the thread that started it exits.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::System)?;
    let result = runtime.block_on(work);
    // Do not wait for tasks that are blocked because the daemon does not respond.
    runtime.shutdown_background();
    result
}

/// Executes a command with an executord: connects to executord, or starts a private executord and stops it afterwards.
async fn with_daemon(global: &Global, work: impl Work) -> Result<u8, Failure> {
    let output = Output::start(PROGRAM).map_err(Failure::System)?;
    let session = |client| Session { client, output: output.clone(), style: Style::detect(), json: global.json };
    if !global.local {
        let client = connect(&global.server(work.default_socket())?).await?;
        let mut interrupts = match work.interruption() {
            Interruption::Ends => Interrupts::none(),
            Interruption::Heeded | Interruption::CutOff => Interrupts::install().map_err(Failure::System)?,
        };
        let result = run_interruptible(&session(client), work, &mut interrupts).await;
        return settle(&output, result, &mut interrupts).await;
    }
    // With a private executord every command is interruptible, because the executord must be stopped.
    let mut interrupts = Interrupts::install().map_err(Failure::System)?;
    let work = async |client, interrupts: &mut Interrupts| run_interruptible(&session(client), work, interrupts).await;
    with_private_daemon(&output, &mut interrupts, work).await
}

/// Starts a private executord, runs the work with it, and stops it.
pub async fn with_private_daemon(
    output: &Output,
    interrupts: &mut Interrupts,
    work: impl AsyncFnOnce(Client, &mut Interrupts) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    let mut daemon = PrivateDaemon::start()?;
    let ready = tokio::select! {
        ready = daemon.ready() => ready.map_err(Failure::from),
        signal = interrupts.next() => Err(Failure::Interrupted(signal)),
    };
    let result = match ready {
        Err(failure) => Err(failure),
        Ok(client) => tokio::select! {
            result = work(client, interrupts) => result,
            lost = daemon.lost() => Err(lost.into()),
        },
    };
    let home = daemon.home().display().to_string();
    tokio::select! {
        stopped = daemon.stop() => if let Err(complaint) = stopped {
            output.note(complaint);
        },
        // executord has received SIGTERM, and detects the exit of this program.
        _ = interrupts.next() => output.note(format!("this command exited immediately; {home} may still exist")),
    }
    settle(output, result, interrupts).await
}

/// Executes a command. If the command does not handle signals itself, the command is cancelled by a signal or when the
/// reader of its output has exited.
async fn run_interruptible(session: &Session, work: impl Work, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    if work.interruption() == Interruption::Heeded {
        return work.perform(session, interrupts).await;
    }
    let mut none = Interrupts::none();
    tokio::select! {
        result = work.perform(session, &mut none) => result,
        // Stop an endless command when the reader of its output has exited.
        () = session.output.failed() => session.output.result().map(|()| 0),
        signal = interrupts.next() => Err(Failure::Interrupted(signal)),
    }
}

/// Waits until the output is written or a signal arrives. Does not wait if the result requests an immediate exit.
async fn settle(output: &Output, result: Result<u8, Failure>, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    if result.as_ref().is_err_and(Failure::is_hasty) {
        return result;
    }
    tokio::select! {
        written = output.finish() => result.and_then(|status| written.map(|()| status)),
        signal = interrupts.next() => Err(Failure::Interrupted(signal)),
    }
}
