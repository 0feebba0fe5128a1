//! The streams of a container's own process, here: what it writes and reads.
//!
//! The process waits while its output is not read here, as if it wrote into our own pipe. Bytes of output are counted, so that
//! after a restart of executord the next connection goes on at the byte where the last one broke. What a connection cannot
//! give any more is in the log ([`Left::Behind`]).

use executor_proto::v1::attach_request::Part as Request;
use executor_proto::v1::attach_response::Part as Response;
use executor_proto::v1::{AttachPosition, AttachRequest, AttachStart, EndOfInput, StreamLogsRequest};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::connect::Patience;
use crate::failure::Failure;
use crate::feed::{DEPTH, Said, feed};
use crate::logs::Printer;
use crate::output::Stream;
use crate::session::Session;
use crate::status::is_away;
use crate::terminal::{self, DetachKeys, Keyboard, Raw};

/// What is wanted of a process.
pub(crate) struct Wanted {
    pub(crate) input: bool,
    pub(crate) output: bool,
    /// It has a terminal.
    pub(crate) terminal: bool,
    pub(crate) take_over: bool,
    pub(crate) keys: DetachKeys,
    /// The process waits while its output is not read.
    pub(crate) lossless: bool,
    /// Byte of the output to begin at, kept output included. None begins with new output.
    pub(crate) from: Option<u64>,
}

/// How it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Its output has ended.
    Ended,
    /// To itself.
    Detached,
    /// From this byte on its output is to be had from the log alone.
    Behind(u64),
}

/// The output from a byte on.
pub(crate) fn rest_of_log(id: &str, offset: u64) -> StreamLogsRequest {
    StreamLogsRequest { id: id.to_owned(), follow: true, offset: Some(offset), ..StreamLogsRequest::default() }
}

/// Stays attached until the process's output has ended or the keys were pressed, also over a restart of executord.
pub(crate) async fn stream(
    session: &Session,
    id: &str,
    wanted: Wanted,
    printer: &mut Printer,
) -> Result<Left, Failure> {
    let doing = format!("attach to {id}");
    let keys = wanted.terminal.then_some(wanted.keys.clone());
    let _raw = (wanted.terminal && wanted.input).then(Raw::enter).transpose()?;
    let mut keyboard = wanted.input.then(|| Keyboard::start(keys)).transpose()?;
    let mut patience = Patience::default();
    let mut again = false;
    let mut place = wanted.from;
    loop {
        let begun = Instant::now();
        let status = match once(session, id, &wanted, &mut keyboard, again, &mut place, printer).await? {
            Ok(left) => return Ok(left),
            Err(status) => status,
        };
        if !is_away(&status) {
            // The container has ended, or its shim takes no client: what was written is in the log.
            let ended = again && matches!(status.code(), Code::FailedPrecondition | Code::NotFound);
            return match place {
                Some(place) if ended || (wanted.from.is_some() && status.code() != Code::Aborted) => {
                    Ok(Left::Behind(place))
                }
                _ if ended => Ok(Left::Ended),
                _ => Err(session.client.failure(&doing, &status)),
            };
        }
        again = true;
        patience.since(begun);
        if !patience.pause().await {
            return Err(session.client.gave_up(&doing));
        }
    }
}

/// One connection.
async fn once(
    session: &Session,
    id: &str,
    wanted: &Wanted,
    keyboard: &mut Option<Keyboard>,
    again: bool,
    place: &mut Option<u64>,
    printer: &mut Printer,
) -> Result<Result<Left, Status>, Failure> {
    let (requests, receiver) = mpsc::channel(DEPTH);
    let start = AttachStart {
        id: id.to_owned(),
        input: wanted.input,
        // What a connection that broke left behind is our own.
        take_over: wanted.take_over || again,
        no_output: !wanted.output,
        lossless: wanted.output && wanted.lossless,
        resumable: wanted.output && wanted.lossless,
        resume_at: place.filter(|_| wanted.output),
    };
    let size = wanted.terminal.then(terminal::window).flatten();
    for part in std::iter::once(Request::Start(start)).chain(size.map(Request::Window)) {
        let _ = requests.try_send(AttachRequest { part: Some(part) }); // there is room
    }
    let mut answers = match session.client.rpc().attach(ReceiverStream::new(receiver)).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return Ok(Err(status)),
    };
    let mut input = std::pin::pin!(feed(keyboard, wanted.terminal, &requests, |said| AttachRequest {
        part: Some(match said {
            Said::Bytes(bytes) => Request::Stdin(bytes),
            Said::End => Request::EndOfInput(EndOfInput {}),
            Said::Window(window) => Request::Window(window),
        }),
    }));
    let heard = async {
        loop {
            let (stream, bytes) = match answers.message().await {
                Err(status) => return Err(status),
                Ok(None) => return Ok(Left::Ended),
                Ok(Some(answer)) => match answer.part {
                    Some(Response::Stdout(bytes)) => (Stream::Out, bytes),
                    Some(Response::Stderr(bytes)) => (Stream::Err, bytes),
                    Some(Response::Position(AttachPosition { offset, missed })) => {
                        if let Some(behind) = place.filter(|_| missed > 0 && wanted.lossless && !wanted.input) {
                            return Ok(Left::Behind(behind));
                        }
                        *place = Some(offset);
                        if missed > 0 {
                            printer.dropped(missed, None);
                        }
                        continue;
                    }
                    Some(Response::Started(_)) | None => continue,
                },
            };
            *place = place.map(|place| place + bytes.len() as u64);
            printer.bytes(stream, bytes).await;
        }
    };
    // Both at once: keys are heard while nobody reads the output.
    tokio::select! {
        left = heard => Ok(left),
        fed = &mut input => fed.map(|()| Ok(Left::Detached)),
    }
}
