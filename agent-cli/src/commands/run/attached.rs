//! Staying with a container to its end: its output, its input, Ctrl-C, and its deletion.
//!
//! The output of a container that this command made comes from its process as from a pipe: all of it, and the process waits
//! while nobody reads here. One that was there before is read from its log.

use std::io::IsTerminal as _;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{Container, DeleteRequest, Result as Ending, SignalRequest};
use tokio::task::JoinSet;
use tonic::Code;

use super::{AtTheEnd, left_behind};
use crate::cli::StreamArgs;
use crate::commands::attach::{self, Left};
use crate::commands::cp::{self, To, Wanted};
use crate::commands::logs::{Form, Printer, follow};
use crate::commands::{Session, stop, wait};
use crate::connect::Client;
use crate::exit::{OURS, Outcome};
use crate::failure::Failure;
use crate::interrupt::Interrupts;
use crate::signals::KILL;
use crate::status::is_lost;
use crate::view::json;

/// How often Ctrl-C is pressed until we leave at once.
const LEAVE: u32 = 3;

/// Counts Ctrl-C.
pub(super) struct Pressed {
    id: String,
    pub(super) times: u32,
    /// Only a person is told what the next one does.
    talk: bool,
}

impl Pressed {
    pub(super) fn never(id: &str) -> Self {
        Self { id: id.to_owned(), times: 0, talk: std::io::stderr().is_terminal() }
    }

    pub(super) fn again(&mut self, session: &Session, signal: i32) -> Result<(), Failure> {
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
pub(super) struct Attached<'a> {
    pub(super) session: &'a Session,
    pub(super) id: &'a str,
    pub(super) pressed: Pressed,
    pub(super) grace_without_reader: Duration,
    pub(super) streams: StreamArgs,
    /// This command made it: its process waits for us, and all that it writes is ours.
    pub(super) created: bool,
    /// Its output is not kept.
    pub(super) suppressed: bool,
}

impl Attached<'_> {
    pub(super) async fn end(mut self, interrupts: &mut Interrupts, ending: AtTheEnd) -> Result<u8, Failure> {
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
            let document = json::Container::from(&container).with_dropped_output(printer.dropped);
            let document = json::document(&document);
            tokio::select! {
                () = self.session.output.text(document) => {}
                signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
            }
        }
        self.session.explain_end(&container, &printer.told);
        if printer.dropped > 0 {
            return Err(Failure::LogLost { id: self.id.to_owned() });
        }
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
    pub(super) async fn follow(
        &mut self,
        interrupts: &mut Interrupts,
        printer: &mut Printer,
    ) -> Result<Container, Failure> {
        let session = self.session;
        let streams = self.streams.clone();
        let mut log = Some(Box::pin(output(session, self.id, &streams, (self.created, self.suppressed), printer)));
        let mut input = std::pin::pin!(input(session, self.id, &streams, self.created));
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
                    log = None; // whom the process would wait for
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
                result = whenever(&mut log), if log_result.is_none() => {
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

/// The result of what goes on; never, where nothing does.
async fn whenever<T>(going_on: &mut Option<Pin<Box<impl Future<Output = T>>>>) -> T {
    match going_on {
        Some(going_on) => going_on.await,
        None => std::future::pending().await,
    }
}

/// What the process writes: from itself, where it has a terminal or was made for us, else from its log. Whatever cannot be
/// had from itself is in the log, too.
async fn output(
    session: &Session,
    id: &str,
    streams: &StreamArgs,
    (created, suppressed): (bool, bool),
    printer: &mut Printer,
) -> Result<(), Failure> {
    let mut offset = 0;
    if created || streams.tty {
        let wanted = attach::Wanted {
            input: streams.interactive,
            output: true,
            terminal: streams.tty,
            take_over: false,
            keys: streams.detach_keys.clone(),
            lossless: true,
            from: created.then_some(0),
        };
        match attach::stream(session, id, wanted, printer).await {
            Ok(Left::Ended) => return Ok(()),
            Ok(Left::Detached) => return Err(Failure::Detached { id: id.to_owned() }),
            Ok(Left::Behind(place)) => offset = place,
            // It had ended before we came.
            Err(failure) if failure.code() == Some(Code::FailedPrecondition) => {}
            Err(failure) => return Err(failure),
        }
        // Of output that is not kept nothing is there any more, unless there was none.
        if suppressed && wait::completed(&session.client, id).await?.started_at.is_some() {
            return Err(Failure::LogLost { id: id.to_owned() });
        }
    }
    follow(&session.client, attach::rest_of_log(id, offset), printer).await
}

/// Sends standard input to a container whose output comes from its log.
async fn input(session: &Session, id: &str, streams: &StreamArgs, created: bool) -> Result<(), Failure> {
    if streams.tty || !streams.interactive || created {
        return Ok(());
    }
    let (keys, from) = (streams.detach_keys.clone(), None);
    let wanted =
        attach::Wanted { input: true, output: false, terminal: false, take_over: false, keys, lossless: false, from };
    let mut nothing = Printer::new(session.output.clone(), Form::Silent);
    attach::stream(session, id, wanted, &mut nothing).await.map(drop)
}

async fn kill(client: &Client, id: &str) -> Result<(), Failure> {
    let call = |mut rpc: ExecutorClient<_>| {
        let request = SignalRequest { id: id.to_owned(), signal: KILL, process_id: String::new() };
        async move { rpc.signal(request).await }
    };
    client.patiently(&format!("kill {id}"), is_lost, call).await.map(drop)
}
