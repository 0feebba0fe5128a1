//! Carrying a command out: a connection, or a private executord that is taken down at the end; signals; the last of the output.

use crate::connect::{Client, connect};
use crate::failure::Failure;
use crate::global::Global;
use crate::interrupt::Interrupts;
use crate::local::PrivateDaemon;
use crate::output::Output;
use crate::session::Session;
use crate::view::style::Style;

/// Effect of SIGINT, SIGTERM and SIGHUP on a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The command hears of them, and decides.
    Heeded,
    /// The command is cut off, and clears away what it has begun.
    CutOff,
    /// The signals end the program as they end any other: nothing has to be cleared away.
    Ends,
}

/// A command that is ready to be carried out.
pub trait Work {
    /// The name of the program, which stands before what it says itself.
    fn program(&self) -> &'static str;

    /// The socket where no other is named.
    fn default_socket(&self) -> &'static str;

    /// Returns the effect of signals on the command.
    fn interruption(&self) -> Interruption;

    /// Carries the command out and returns the status to exit with. `interrupts` reports signals if the command heeds
    /// them, and nothing otherwise.
    fn perform(self, session: &Session, interrupts: &mut Interrupts) -> impl Future<Output = Result<u8, Failure>>;
}

/// Carries a command out; returns the status to exit with.
pub fn perform(global: &Global, work: impl Work) -> Result<u8, Failure> {
    // One thread: a private executord is told of the death of the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::System)?;
    let result = runtime.block_on(with_daemon(global, work));
    // Whatever still waits for a daemon that does not answer is not waited for.
    runtime.shutdown_background();
    result
}

/// Connects, or starts a private executord and takes it down at the end.
async fn with_daemon(global: &Global, work: impl Work) -> Result<u8, Failure> {
    let output = Output::start(work.program()).map_err(Failure::System)?;
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
    // With a private executord every command is interruptible, for it has to be taken down.
    let mut interrupts = Interrupts::install().map_err(Failure::System)?;
    let work = async |client, interrupts: &mut Interrupts| run_interruptible(&session(client), work, interrupts).await;
    with_private_daemon(&output, &mut interrupts, work).await
}

/// Starts a private executord, works with it, and takes it down.
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
        // executord got SIGTERM, and notices the end of this program.
        _ = interrupts.next() => output.note(format!("left at once; {home} may still be there")),
    }
    settle(output, result, interrupts).await
}

/// Carries a command out with its signals, and without a reader of its output only as long as the command wants that.
async fn run_interruptible(session: &Session, work: impl Work, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    if work.interruption() == Interruption::Heeded {
        return work.perform(session, interrupts).await;
    }
    let mut none = Interrupts::none();
    tokio::select! {
        result = work.perform(session, &mut none) => result,
        // A reader that went away ends what would go on for ever.
        () = session.output.failed() => session.output.result().map(|()| 0),
        signal = interrupts.next() => Err(Failure::Interrupted(signal)),
    }
}

/// Waits until the output is written, unless its reader takes longer than the user's patience.
async fn settle(output: &Output, result: Result<u8, Failure>, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    if result.as_ref().is_err_and(Failure::is_hasty) {
        return result;
    }
    tokio::select! {
        written = output.finish() => result.and_then(|status| written.map(|()| status)),
        signal = interrupts.next() => Err(Failure::Interrupted(signal)),
    }
}
