//! Attaches to a process's streams, across restarts of executord.
//!
//! Bytes of output are counted, so that after a restart the next connection continues at the byte at which the previous
//! connection broke. Output that is no longer available on a connection is in the log ([`Attached::RestInLog`]).

use executor_proto::v1::attach_request::Part as Request;
use executor_proto::v1::attach_response::Part as Response;
use executor_proto::v1::{
    AttachPosition, AttachRequest, AttachResponse, AttachStart, EndOfInput, StreamLogsRequest, WindowSize,
};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::connect::Client;
use crate::error::Error;
use crate::input::{Input, Item, Queue, queue};
use crate::retry::{Patience, is_away};

/// Directions and start offset of an attachment.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachOptions {
    /// True if this client sends input. Only one client can send input at a time.
    pub input: bool,
    /// True if this client replaces another client that sends input; executord disconnects the other client.
    pub take_over: bool,
    /// True if this client receives no output.
    pub no_output: bool,
    /// True if this client receives every byte: the process blocks while this client does not read.
    pub lossless: bool,
    /// Byte offset in the output at which to begin; may be in earlier output that executord has kept. `None` begins
    /// with new output.
    pub from: Option<u64>,
    /// Size of the terminal's window, if the process has a terminal.
    pub window: Option<WindowSize>,
}

/// Event that [`Attach::next`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attached {
    /// Standard output. For a terminal, all output.
    Stdout(Vec<u8>),
    /// Standard error.
    Stderr(Vec<u8>),
    /// Number of bytes of output that are missing at this point.
    Missed(u64),
    /// The last event: from this byte offset on, output is available only in the log ([`rest_of_log`]).
    RestInLog(u64),
}

/// Stream of events of an attached process.
pub struct Attach {
    client: Client,
    id: String,
    options: AttachOptions,
    input: Input,
    queue: Queue,
    patience: Patience,
    answers: Option<Streaming<AttachResponse>>,
    /// Byte offset in the output after the last event, if known.
    place: Option<u64>,
    /// True after a connection, or an attempt to connect, has failed.
    again: bool,
    over: bool,
}

/// Returns a request for the log of a container, from a byte offset of its output to the end.
pub fn rest_of_log(id: &str, offset: u64) -> StreamLogsRequest {
    StreamLogsRequest { id: id.to_owned(), follow: true, offset: Some(offset), ..StreamLogsRequest::default() }
}

impl Client {
    /// Attaches to a container's process. The first [`Attach::next`] starts the RPC.
    pub fn attach(&self, id: &str, options: AttachOptions) -> Attach {
        let (input, queue) = queue();
        Attach {
            client: self.clone(),
            id: id.to_owned(),
            options,
            input,
            queue,
            patience: self.patience(),
            answers: None,
            place: options.from,
            again: false,
            over: false,
        }
    }
}

impl Attach {
    /// Returns the byte offset in the output after the last event, if it is known.
    pub fn offset(&self) -> Option<u64> {
        self.place
    }

    /// Returns the input of the process.
    pub fn input(&self) -> Input {
        self.input.clone()
    }

    /// Returns the next event, or `None` after the end of the process's output. This method is cancel safe.
    ///
    /// # Errors
    /// Returns an error if another client sends input, or executord is unavailable for too long. Returns an error if
    /// the process exited before the first connection and the `from` of [`AttachOptions`] is `None`.
    pub async fn next(&mut self) -> Result<Option<Attached>, Error> {
        while !self.over {
            let begun = Instant::now();
            let status = match self.answer().await {
                Ok(None) => {
                    self.over = true;
                    return Ok(None);
                }
                Ok(Some(answer)) => {
                    self.patience.reset();
                    match self.take(answer) {
                        Some(event) => return Ok(Some(event)),
                        None => continue,
                    }
                }
                Err(status) => status,
            };
            self.answers = None;
            if !is_away(&status) {
                self.over = true;
                return self.ended(&status);
            }
            self.again = true;
            self.client.await_return(&mut self.patience, begun, &status, is_away).await?;
        }
        Ok(None)
    }

    /// Converts a final error from executord to the last event, to the end of the stream, or to an error.
    fn ended(&self, status: &Status) -> Result<Option<Attached>, Error> {
        // The container has exited, or its shim accepts no client: its output is in the log.
        let ended = self.again && matches!(status.code(), Code::FailedPrecondition | Code::NotFound);
        match self.place {
            Some(place) if ended || (self.options.from.is_some() && status.code() != Code::Aborted) => {
                Ok(Some(Attached::RestInLog(place)))
            }
            _ if ended => Ok(None),
            _ => Err(self.client.error(status)),
        }
    }

    async fn answer(&mut self) -> Result<Option<AttachResponse>, Status> {
        let answers = match &mut self.answers {
            Some(answers) => answers,
            none => {
                let AttachOptions { input, take_over, no_output, lossless, window, .. } = self.options;
                let lossless = !no_output && lossless;
                let start = AttachStart {
                    id: self.id.clone(),
                    input,
                    // After a failure, executord may still count this client's broken connection, which the new
                    // connection must replace.
                    take_over: take_over || self.again,
                    no_output,
                    lossless,
                    resumable: lossless,
                    resume_at: self.place.filter(|_| !no_output),
                };
                let first =
                    std::iter::once(Request::Start(start)).chain(self.queue.window().or(window).map(Request::Window));
                let first = first.map(|part| AttachRequest { part: Some(part) }).collect();
                let requests = self.queue.stream(first, |item| AttachRequest {
                    part: match item {
                        Item::Bytes(bytes) => Some(Request::Stdin(bytes)),
                        Item::End => Some(Request::EndOfInput(EndOfInput {})),
                        Item::Window(window) => Some(Request::Window(window)),
                        Item::Detach => None,
                    },
                });
                none.insert(self.client.rpc().attach(requests).await?.into_inner())
            }
        };
        answers.message().await
    }

    /// Advances the offset by the size of a response, and converts the response to an event.
    fn take(&mut self, answer: AttachResponse) -> Option<Attached> {
        let count = |place: &mut Option<u64>, bytes: &[u8]| *place = place.map(|place| place + bytes.len() as u64);
        match answer.part? {
            Response::Stdout(bytes) => {
                count(&mut self.place, &bytes);
                Some(Attached::Stdout(bytes))
            }
            Response::Stderr(bytes) => {
                count(&mut self.place, &bytes);
                Some(Attached::Stderr(bytes))
            }
            Response::Position(AttachPosition { offset, missed }) => {
                let AttachOptions { lossless, input, .. } = self.options;
                if let Some(behind) = self.place.filter(|_| missed > 0 && lossless && !input) {
                    self.over = true;
                    self.answers = None;
                    return Some(Attached::RestInLog(behind));
                }
                self.place = Some(offset);
                (missed > 0).then_some(Attached::Missed(missed))
            }
            Response::Started(_) => None,
        }
    }
}
