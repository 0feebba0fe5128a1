//! `run`: a container from its creation to its deletion, as if its process were ours.
//!
//! ```text
//! create -> follow: log -> our streams      -> fetch outputs -> delete -> exit as the process did
//!                   wait for the end
//!                   Ctrl-C: stop, kill, leave
//!                   our reader gone: stop
//! ```
//! All of the middle goes on at once, and over restarts of executord. Whatever goes wrong after the creation,
//! the container is deleted, unless it is to stay.

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{Container, DeleteRequest, Result as Ending, RunResponse, SignalRequest, StreamLogsRequest};
use tokio::task::JoinSet;
use tonic::Code;

use super::attach::{self, Left};
use super::cp::{self, To, Wanted};
use super::logs::{Form, Printer, follow};
use super::{Session, bindings, expected, image, stop, wait};
use crate::bindings::Delivery;
use crate::cli::StreamArgs;
use crate::connect::{Client, is_lost};
use crate::exit::{OURS, Outcome};
use crate::failure::Failure;
use crate::interrupt::Interrupts;
use crate::request::Request;
use crate::signals::KILL;
use crate::view::{human, json};

/// What a process gets at most between SIGTERM and SIGKILL when nobody reads its output any more. On its own it
/// would have died of SIGPIPE at once.
const GRACE_WITHOUT_READER: Duration = Duration::from_secs(1);
/// How often Ctrl-C is pressed until we leave at once.
const LEAVE: u32 = 3;

/// What becomes of the container.
#[derive(Clone, Debug)]
pub(super) struct AtTheEnd {
    pub(super) detach: bool,
    pub(super) keep: bool,
    /// Where its outputs go before it is deleted.
    pub(super) fetch_to: Option<PathBuf>,
    /// It can be kept: its executord stays.
    pub(super) can_stay: bool,
    pub(super) streams: StreamArgs,
}

pub(super) async fn run(
    session: &Session,
    mut request: Request,
    delivery: Option<Delivery>,
    ending: AtTheEnd,
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    bindings::deliver(session, &mut request, delivery, interrupts).await?;
    if let Some((image, always)) = request.to_pull() {
        tokio::select! {
            fetched = image::fetch_first(session, image, always) => fetched?,
            signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
        }
    }
    let id = request.id().to_owned();
    let mut pressed = Pressed { id: id.clone(), times: 0, talk: std::io::stderr().is_terminal() };
    let response = create(session, request, interrupts, &mut pressed).await?;
    let created = response.created;
    let container = expected(response.container, &format!("run {id}"))?;
    if ending.detach && pressed.times == 0 {
        return detached(session, &container).await;
    }
    let own_grace = container.spec.as_ref().and_then(|spec| Duration::try_from(spec.grace_period?).ok());
    let grace_without_reader = own_grace.map_or(GRACE_WITHOUT_READER, |own| own.min(GRACE_WITHOUT_READER));
    let streams = ending.streams.clone();
    let attached = Attached { session, id: &id, pressed, grace_without_reader, streams };
    attached.end(interrupts, AtTheEnd { keep: ending.keep || !created, ..ending }).await
}

/// Creates a container and stays with it to its end, as `run` does, and leaves it there. `started` is called once it is
/// there.
pub(super) async fn attend(
    session: &Session,
    request: Request,
    interrupts: &mut Interrupts,
    printer: &mut Printer,
    started: impl FnOnce() -> Result<(), Failure>,
) -> Result<Container, Failure> {
    let id = request.id().to_owned();
    let mut pressed = Pressed { id: id.clone(), times: 0, talk: std::io::stderr().is_terminal() };
    create(session, request, interrupts, &mut pressed).await?;
    started()?;
    let mut attached = Attached {
        session,
        id: &id,
        pressed,
        grace_without_reader: GRACE_WITHOUT_READER,
        streams: StreamArgs::default(),
    };
    attached.follow(interrupts, printer).await
}

/// The same with a container that somebody else created.
pub(super) async fn stay_with(
    session: &Session,
    id: &str,
    interrupts: &mut Interrupts,
    printer: &mut Printer,
) -> Result<Container, Failure> {
    let pressed = Pressed { id: id.to_owned(), times: 0, talk: std::io::stderr().is_terminal() };
    let streams = StreamArgs::default();
    Attached { session, id, pressed, grace_without_reader: GRACE_WITHOUT_READER, streams }
        .follow(interrupts, printer)
        .await
}

/// Sends the request. It is the same one when it has to be sent again: executord answers with the container
/// that it made the first time.
async fn create(
    session: &Session,
    request: Request,
    interrupts: &mut Interrupts,
    pressed: &mut Pressed,
) -> Result<RunResponse, Failure> {
    let doing = format!("run {}", request.id());
    let begun = SystemTime::now();
    let attempts = Cell::new(0u32);
    let mut call = std::pin::pin!(session.client.patiently(&doing, is_lost, |mut rpc: ExecutorClient<_>| {
        attempts.set(attempts.get() + 1);
        let message = request.message();
        async move { rpc.run(message).await }
    }));
    let response = loop {
        tokio::select! {
            response = &mut call => break response,
            signal = interrupts.next() => pressed.again(session, signal)?,
        }
    };
    let mut response = match response {
        Err(failure @ Failure::GaveUp { .. }) => {
            session.output.note(left_behind(request.id()));
            return Err(failure);
        }
        other => other?,
    };
    // Sent again, it answers "already there" to what was made for us. What is older is somebody else's.
    let made_at = response.container.as_ref().and_then(|made| human::system_time(made.created_at.as_ref()?));
    response.created |= attempts.get() > 1 && made_at.is_some_and(|made_at| made_at >= begun);
    Ok(response)
}

/// Prints the id, or the document; a program that could not be executed is told as `run` would.
async fn detached(session: &Session, container: &Container) -> Result<u8, Failure> {
    session.print(&json::Container::from(container), || format!("{}\n", container.id)).await;
    session.explain_end(container, &[]);
    match Outcome::of(container.result.as_ref()) {
        outcome @ (Outcome::NotExecuted(_) | Outcome::Failed(_)) => Ok(outcome.status()),
        _ => Ok(0),
    }
}

/// Counts Ctrl-C.
struct Pressed {
    id: String,
    times: u32,
    /// Only a person is told what the next one does.
    talk: bool,
}

impl Pressed {
    fn again(&mut self, session: &Session, signal: i32) -> Result<(), Failure> {
        self.times += 1;
        if self.talk && self.times < LEAVE {
            let next =
                if self.times == 1 { "stopping; once more kills it" } else { "killing; once more leaves at once" };
            session.output.note(format!("{}: {next}", self.id));
        }
        if self.times >= LEAVE { Err(Failure::Abandoned { id: self.id.clone(), signal }) } else { Ok(()) }
    }
}

/// A container whose process stands for us.
struct Attached<'a> {
    session: &'a Session,
    id: &'a str,
    pressed: Pressed,
    grace_without_reader: Duration,
    streams: StreamArgs,
}

impl Attached<'_> {
    async fn end(mut self, interrupts: &mut Interrupts, ending: AtTheEnd) -> Result<u8, Failure> {
        let form = if self.session.json { Form::OnStderr } else { Form::AsItWas };
        let mut printer = Printer::new(self.session.output.clone(), form);
        let result = self.follow(interrupts, &mut printer).await;
        let fetched = match &ending.fetch_to {
            Some(to) => self.fetch(&result, to, interrupts).await,
            None => Ok(()),
        };
        match &result {
            Err(Failure::Abandoned { .. } | Failure::Detached { .. }) => {}
            Err(Failure::GaveUp { .. }) => self.session.output.note(left_behind(self.id)),
            _ if ending.keep => {}
            _ if fetched.is_err() && ending.can_stay => self.session.output.note(format!(
                "the container is kept with its outputs: `agent-cli cp {0}: DEST` fetches them, `agent-cli rm {0}` \
                 removes it",
                self.id
            )),
            _ => self.delete(interrupts).await?,
        }
        if let Err(left @ Failure::Detached { .. }) = &result {
            self.session.output.note(left.to_string());
            return Ok(0);
        }
        let container = result?;
        fetched?;
        if self.session.json {
            let document = json::document(&json::Container::from(&container));
            tokio::select! {
                () = self.session.output.text(document) => {}
                signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
            }
        }
        self.session.explain_end(&container, &printer.told);
        let captured = |result: &Ending| result.outputs.as_ref().is_none_or(|outputs| outputs.failure.is_empty());
        if ending.fetch_to.is_some() && !container.result.as_ref().is_none_or(captured) {
            return Ok(OURS);
        }
        Ok(Outcome::of(container.result.as_ref()).status())
    }

    /// Fetches what was captured, if anything was.
    async fn fetch(
        &self,
        result: &Result<Container, Failure>,
        to: &Path,
        interrupts: &mut Interrupts,
    ) -> Result<(), Failure> {
        let work = async {
            let container = match result {
                Ok(container) => container.clone(),
                Err(
                    Failure::Abandoned { .. }
                    | Failure::Detached { .. }
                    | Failure::GaveUp { .. }
                    | Failure::Interrupted(_),
                ) => return Ok(()),
                // The output is incomplete; the container has ended all the same.
                Err(_) => wait::completed(&self.session.client, self.id).await?,
            };
            let summary = container.result.as_ref().and_then(|result| result.outputs.as_ref());
            if summary.is_none_or(|outputs| !outputs.failure.is_empty()) {
                return Ok(());
            }
            let declared = container.spec.and_then(|spec| spec.outputs).unwrap_or_default();
            let fetched = cp::fetch(self.session, self.id, &Wanted::Declared(declared), To::Path(to)).await?;
            fetched.warn(self.session);
            Ok(())
        };
        tokio::select! {
            result = work => result,
            signal = interrupts.next() => Err(Failure::Interrupted(signal)),
        }
    }

    /// Until the container is completed and its log is written. An error of the log's is told at the end: the
    /// container goes on.
    async fn follow(&mut self, interrupts: &mut Interrupts, printer: &mut Printer) -> Result<Container, Failure> {
        let session = self.session;
        let request = StreamLogsRequest { id: self.id.to_owned(), follow: true, since: None };
        let streams = self.streams.clone();
        let mut log = std::pin::pin!(output(session, self.id, &streams, request, printer));
        let mut input = std::pin::pin!(input(session, self.id, &streams));
        let mut input_over = false;
        let mut end = std::pin::pin!(wait::completed(&session.client, self.id));
        let mut log_result = None;
        let mut completed = None;
        let mut reader_gone = false;
        let mut orders = JoinSet::new();
        if self.pressed.times > 0 {
            self.order(&mut orders);
        }
        while completed.is_none() || log_result.is_none() {
            tokio::select! {
                biased; // the end before Ctrl-C, which means something else after it; a chatty log last
                container = &mut end, if completed.is_none() => completed = Some(container?),
                signal = interrupts.next() => {
                    self.pressed.again(session, signal)?;
                    if completed.is_some() {
                        // It is over; only the reader of its output is slow.
                        return Err(Failure::Interrupted(signal));
                    }
                    self.order(&mut orders);
                }
                () = session.output.failed(), if !reader_gone => {
                    reader_gone = true;
                    log_result = Some(Ok(()));
                    if completed.is_none() {
                        self.stop(&mut orders, Some(self.grace_without_reader));
                    }
                }
                Some(order) = orders.join_next() => {
                    // It ended by itself in between: then nothing was left to order.
                    if let Ok(Err(failure)) = order
                        && !matches!(failure.code(), Some(Code::NotFound | Code::FailedPrecondition))
                    {
                        session.output.note(failure.describe());
                    }
                }
                result = &mut input, if !input_over => {
                    input_over = true;
                    // It ended by itself in between: then nobody was left to read.
                    if let Err(failure) = result
                        && !matches!(failure.code(), Some(Code::NotFound | Code::FailedPrecondition))
                    {
                        session.output.note(failure.describe());
                    }
                }
                result = &mut log, if log_result.is_none() => {
                    if let Err(left @ Failure::Detached { .. }) = result {
                        return Err(left);
                    }
                    // Told at once, because the container may go on for long. That executord is gone for good,
                    // the wait tells too.
                    if let Err(failure) = &result && !matches!(failure, Failure::GaveUp { .. }) {
                        session.output.note(failure.describe());
                    }
                    log_result = Some(result);
                }
            }
        }
        session.output.result()?;
        match (log_result, completed) {
            (Some(Ok(())), Some(container)) => Ok(container),
            _ => Err(Failure::LogLost { id: self.id.to_owned() }),
        }
    }

    /// What Ctrl-C means by now.
    fn order(&self, orders: &mut JoinSet<Result<(), Failure>>) {
        if self.pressed.times == 1 {
            return self.stop(orders, None);
        }
        let (client, id) = (self.session.client.clone(), self.id.to_owned());
        orders.spawn(async move { kill(&client, &id).await });
    }

    fn stop(&self, orders: &mut JoinSet<Result<(), Failure>>, grace: Option<Duration>) {
        let (client, id) = (self.session.client.clone(), self.id.to_owned());
        orders.spawn(async move { stop::ask(&client, &id, grace).await.map(drop) });
    }

    /// Deletes the container, whatever state it is in. That it could not be deleted is told, and changes
    /// nothing about how its process ended.
    async fn delete(&mut self, interrupts: &mut Interrupts) -> Result<(), Failure> {
        let session = self.session;
        let doing = format!("remove {}", self.id);
        let mut call = std::pin::pin!(session.client.patiently(&doing, is_lost, |mut rpc: ExecutorClient<_>| {
            let request = DeleteRequest { id: self.id.to_owned(), force: true };
            async move { rpc.delete(request).await }
        }));
        loop {
            tokio::select! {
                result = &mut call => {
                    if let Err(failure) = result && failure.code() != Some(Code::NotFound) {
                        session.output.note(failure.describe());
                        session.output.note(left_behind(self.id));
                    }
                    return Ok(());
                }
                signal = interrupts.next() => self.pressed.again(session, signal)?,
            }
        }
    }
}

/// What the process writes: from its terminal, where it has one, else from its log.
async fn output(
    session: &Session,
    id: &str,
    streams: &StreamArgs,
    request: StreamLogsRequest,
    printer: &mut Printer,
) -> Result<(), Failure> {
    if !streams.tty {
        return follow(&session.client, request, printer).await;
    }
    let keys = streams.detach_keys.clone();
    let wanted = attach::Wanted { input: streams.interactive, output: true, terminal: true, take_over: false, keys };
    match attach::stream(session, id, wanted).await {
        Ok(Left::Ended) => Ok(()),
        Ok(Left::Detached) => Err(Failure::Detached { id: id.to_owned() }),
        // It had ended before we came.
        Err(failure) if failure.code() == Some(Code::FailedPrecondition) => {
            follow(&session.client, request, printer).await
        }
        Err(failure) => Err(failure),
    }
}

/// Sends standard input, where no terminal does.
async fn input(session: &Session, id: &str, streams: &StreamArgs) -> Result<(), Failure> {
    if streams.tty || !streams.interactive {
        return Ok(());
    }
    let keys = streams.detach_keys.clone();
    let wanted = attach::Wanted { input: true, output: false, terminal: false, take_over: false, keys };
    attach::stream(session, id, wanted).await.map(drop)
}

fn left_behind(id: &str) -> String {
    format!("the container {id} may still be there; `agent-cli rm -f {id}` removes it")
}

async fn kill(client: &Client, id: &str) -> Result<(), Failure> {
    let call = |mut rpc: ExecutorClient<_>| {
        let request = SignalRequest { id: id.to_owned(), signal: KILL, process_id: String::new() };
        async move { rpc.signal(request).await }
    };
    client.patiently(&format!("kill {id}"), is_lost, call).await.map(drop)
}
