//! Follows a container until it completes: handles its output and input, Ctrl-C, and its deletion.
//!
//! If this command created the container, the output comes directly from the process, like from a pipe: the output is
//! complete, and the process blocks while this command does not read. If the container already existed, its output is
//! read from its log.

mod pressed;

use std::pin::Pin;
use std::time::Duration;

use executor_client::v1::Container;
use executor_client::{Code, Error, Started, rest_of_log};
use tokio::task::JoinSet;

use crate::attach::{self, CloseReason};
use crate::connect::Client;
use crate::container::{ask_to_stop, completed};
use crate::failure::Failure;
use crate::interrupt::Interrupts;
use crate::logs::{Form, Printer, follow};
use crate::request::Request;
use crate::session::Session;
use crate::status::ErrorContext as _;
use crate::terminal::DetachKeys;

pub use pressed::SignalCounter;

/// Maximum grace period between SIGTERM and SIGKILL after the reader of the output has exited. Without a container,
/// SIGPIPE would have killed the process immediately.
pub const GRACE_WITHOUT_READER: Duration = Duration::from_secs(1);

/// Streams between this command and the process.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    /// True if standard input is sent to the process.
    pub input: bool,
    /// True if the process has a terminal.
    pub terminal: bool,
    /// Keys that detach from the process.
    pub keys: DetachKeys,
}

/// A container whose output, input and completion this command handles.
pub struct Attached<'a> {
    pub session: &'a Session,
    pub id: &'a str,
    pub signals: SignalCounter,
    pub grace_without_reader: Duration,
    pub streams: Streams,
    /// True if this command created the container: the process then blocks until this command has printed the process's
    /// output.
    pub created: bool,
    /// True if the container's output is not logged.
    pub suppressed: bool,
}

impl Attached<'_> {
    /// Follows the container until it has completed and its output is printed. If the output cannot be read, the error
    /// is returned after the container has completed, because the container keeps running until then.
    ///
    /// # Errors
    /// Returns an error if output is missing, the user detached, a signal ended this command, or executord is
    /// unavailable for too long.
    pub async fn follow(&mut self, interrupts: &mut Interrupts, printer: &mut Printer) -> Result<Container, Failure> {
        let session = self.session;
        let streams = self.streams.clone();
        let mut log = Some(Box::pin(output(session, self.id, &streams, (self.created, self.suppressed), printer)));
        let mut input = std::pin::pin!(input(session, self.id, &streams, self.created));
        let mut end = std::pin::pin!(completed(&session.client, self.id));
        let mut seen = Seen::default();
        let mut orders = JoinSet::new();
        if self.signals.times > 0 {
            self.order(&mut orders);
        }
        while seen.completed.is_none() || seen.log.is_none() {
            tokio::select! {
                biased; // completion first, because it changes the effect of Ctrl-C; a verbose log last
                container = &mut end, if seen.completed.is_none() => seen.completed = Some(container?),
                signal = interrupts.next() => self.interrupted(signal, &seen, &mut orders)?,
                () = session.output.failed(), if !seen.reader_gone => {
                    seen.reader_gone = true;
                    seen.log = Some(Ok(()));
                    log = None; // an attached, unread stream would block the process
                    if seen.completed.is_none() {
                        self.stop(&mut orders, Some(self.grace_without_reader));
                    }
                }
                Some(order) = orders.join_next() => report_unless_ended(session, order.unwrap_or(Ok(()))),
                result = &mut input, if !seen.input_over => {
                    seen.input_over = true;
                    report_unless_ended(session, result);
                }
                result = wait_if_some(&mut log), if seen.log.is_none() => seen.log = Some(log_ended(session, result)?),
            }
        }
        session.output.result()?;
        match (seen.log, seen.completed) {
            (Some(Ok(())), Some(container)) => Ok(container),
            _ => Err(Failure::LogLost { id: self.id.to_owned() }),
        }
    }

    /// Handles a signal: stops or kills the container, or exits.
    fn interrupted(
        &mut self,
        signal: i32,
        seen: &Seen,
        orders: &mut JoinSet<Result<(), Failure>>,
    ) -> Result<(), Failure> {
        if !self.signals.record(self.session, signal)? {
            return Ok(());
        }
        // The container is already completed; only the reader of its output is slow.
        if seen.completed.is_some() {
            return Err(Failure::Interrupted(signal));
        }
        self.order(orders);
        Ok(())
    }

    /// Stops the container at the first Ctrl-C, and kills it at the second.
    fn order(&self, orders: &mut JoinSet<Result<(), Failure>>) {
        if self.signals.times == 1 {
            return self.stop(orders, None);
        }
        let (client, id) = (self.session.client.clone(), self.id.to_owned());
        orders.spawn(async move { kill(&client, &id).await });
    }

    fn stop(&self, orders: &mut JoinSet<Result<(), Failure>>, grace: Option<Duration>) {
        let (client, id) = (self.session.client.clone(), self.id.to_owned());
        orders.spawn(async move { ask_to_stop(&client, &id, grace).await.map(drop) });
    }

    /// Deletes the container in any state. A failure is reported, but does not change the result of the process.
    pub async fn delete(&mut self, interrupts: &mut Interrupts) -> Result<(), Failure> {
        let session = self.session;
        let doing = format!("remove {}", self.id);
        let mut call = std::pin::pin!(session.client.delete(self.id, true));
        loop {
            tokio::select! {
                result = &mut call => {
                    if let Err(failure) = result.doing(&doing) && failure.code() != Some(Code::NotFound) {
                        session.output.note(failure.describe());
                        session.output.note(left_behind(self.id));
                    }
                    return Ok(());
                }
                signal = interrupts.next() => { self.signals.record(session, signal)?; }
            }
        }
    }
}

/// Results collected while following a container.
#[derive(Default)]
struct Seen {
    /// The container, once it is completed.
    completed: Option<Container>,
    /// Result of following the log, after the log is complete.
    log: Option<Result<(), Failure>>,
    input_over: bool,
    reader_gone: bool,
}

/// Reports that stopping the container, killing it or sending input failed. Reports nothing if the container has exited
/// in the meantime.
fn report_unless_ended(session: &Session, result: Result<(), Failure>) {
    if let Err(failure) = result
        && !matches!(failure.code(), Some(Code::NotFound | Code::FailedPrecondition))
    {
        session.output.note(failure.describe());
    }
}

/// Prints the error of a log stream immediately, because the container may continue to run for a long time.
///
/// # Errors
/// Returns an error if the user detached.
fn log_ended(session: &Session, result: Result<(), Failure>) -> Result<Result<(), Failure>, Failure> {
    match &result {
        Err(Failure::Detached { .. }) => return result.map(Ok),
        // If the connection cannot be restored, the wait for completion reports the error.
        Ok(()) | Err(Failure::GaveUp { .. }) => {}
        Err(failure) => session.output.note(failure.describe()),
    }
    Ok(result)
}

/// Creates a container and follows it until it completes, like `run`, without deleting it. `started` is called after
/// the container is created.
pub async fn run_foreground(
    session: &Session,
    mut request: Request,
    interrupts: &mut Interrupts,
    printer: &mut Printer,
    started: impl FnOnce() -> Result<(), Failure>,
) -> Result<Container, Failure> {
    let id = request.id().to_owned();
    let mut signals = SignalCounter::new(&id);
    request.await_reader(true);
    let created = create(session, request, interrupts, &mut signals).await?.created;
    started()?;
    let mut attached = Attached {
        session,
        id: &id,
        signals,
        grace_without_reader: GRACE_WITHOUT_READER,
        streams: Streams::default(),
        created,
        suppressed: false,
    };
    attached.follow(interrupts, printer).await
}

/// Follows an existing container until it completes, like [`run_foreground`].
pub async fn stay_with(
    session: &Session,
    id: &str,
    interrupts: &mut Interrupts,
    printer: &mut Printer,
) -> Result<Container, Failure> {
    let signals = SignalCounter::new(id);
    let mut attached = Attached {
        session,
        id,
        signals,
        grace_without_reader: GRACE_WITHOUT_READER,
        streams: Streams::default(),
        created: false,
        suppressed: false,
    };
    attached.follow(interrupts, printer).await
}

/// Sends the request. Retries during restarts of executord.
///
/// # Errors
/// Returns an error if executord rejects the request, or if a third signal arrived.
pub async fn create(
    session: &Session,
    request: Request,
    interrupts: &mut Interrupts,
    signals: &mut SignalCounter,
) -> Result<Started, Failure> {
    let mut call = std::pin::pin!(session.client.run(request.run()));
    let started = loop {
        tokio::select! {
            started = &mut call => break started,
            signal = interrupts.next() => { signals.record(session, signal)?; }
        }
    };
    if let Err(Error::GaveUp { .. }) = started {
        session.output.note(left_behind(request.id()));
    }
    started.doing_named(request.names())
}

pub fn left_behind(id: &str) -> String {
    format!("the container {id} may still exist; `agent-cli rm -f {id}` removes it")
}

/// Waits for an optional future. Waits forever if the option is `None`.
async fn wait_if_some<T>(future: &mut Option<Pin<Box<impl Future<Output = T>>>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Prints the process's output. Reads it directly if the process has a terminal or this command created the container.
/// Otherwise, and for output that cannot be read directly, reads the log.
async fn output(
    session: &Session,
    id: &str,
    streams: &Streams,
    (created, suppressed): (bool, bool),
    printer: &mut Printer,
) -> Result<(), Failure> {
    let mut offset = 0;
    if created || streams.terminal {
        let wanted = attach::Wanted {
            input: streams.input,
            output: true,
            terminal: streams.terminal,
            take_over: false,
            keys: streams.keys.clone(),
            lossless: true,
            from: created.then_some(0),
        };
        match attach::stream(session, id, wanted, printer).await {
            Ok(CloseReason::Ended) => return Ok(()),
            Ok(CloseReason::Detached) => return Err(Failure::Detached { id: id.to_owned() }),
            Ok(CloseReason::RestInLog(place)) => offset = place,
            // The process exited before this command connected.
            Err(failure) if failure.code() == Some(Code::FailedPrecondition) => {}
            Err(failure) => return Err(failure),
        }
        // Without a log, the output is lost if the process ran.
        if suppressed && completed(&session.client, id).await?.started_at.is_some() {
            return Err(Failure::LogLost { id: id.to_owned() });
        }
    }
    follow(&session.client, rest_of_log(id, offset), printer).await
}

/// Sends standard input to a container whose output is read from its log.
async fn input(session: &Session, id: &str, streams: &Streams, created: bool) -> Result<(), Failure> {
    if streams.terminal || !streams.input || created {
        return Ok(());
    }
    let (keys, from) = (streams.keys.clone(), None);
    let wanted =
        attach::Wanted { input: true, output: false, terminal: false, take_over: false, keys, lossless: false, from };
    let mut nothing = Printer::new(session.output.clone(), Form::Silent);
    attach::stream(session, id, wanted, &mut nothing).await.map(drop)
}

async fn kill(client: &Client, id: &str) -> Result<(), Failure> {
    client.kill(id).await.doing(&format!("kill {id}"))
}
