//! A process's streams, attached to over restarts of executord.
//!
//! Bytes of output are counted, so that after a restart the next connection goes on at the byte where the last one broke.
//! Output that a connection cannot give any more is in the log ([`Attached::RestInLog`]).

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

/// Directions and place of an attachment.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachOptions {
    /// Sends input. Only one client may at a time.
    pub input: bool,
    /// Disconnects the client that sends input now.
    pub take_over: bool,
    /// Asks for no output.
    pub no_output: bool,
    /// Gives every byte: the process waits while this client does not read.
    pub lossless: bool,
    /// Byte of the output to begin at, kept output included. None begins with new output.
    pub from: Option<u64>,
    /// Size of the terminal's window, where the process has a terminal.
    pub window: Option<WindowSize>,
}

/// Event of a process that is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attached {
    /// Standard output; of a terminal all output.
    Stdout(Vec<u8>),
    /// Standard error.
    Stderr(Vec<u8>),
    /// Number of bytes of output that are missing here.
    Missed(u64),
    /// The last event: from this byte on, output is to be had from the log alone ([`rest_of_log`]).
    RestInLog(u64),
}

/// A process that is attached to.
pub struct Attach {
    client: Client,
    id: String,
    options: AttachOptions,
    input: Input,
    queue: Queue,
    patience: Patience,
    answers: Option<Streaming<AttachResponse>>,
    /// Place in the output, as far as it is known.
    place: Option<u64>,
    /// There was a connection before.
    again: bool,
    over: bool,
}

/// The log of a container from a byte of its output on, to its end.
pub fn rest_of_log(id: &str, offset: u64) -> StreamLogsRequest {
    StreamLogsRequest { id: id.to_owned(), follow: true, offset: Some(offset), ..StreamLogsRequest::default() }
}

impl Client {
    /// Attaches to a container's process. The call is made by the first [`Attach::next`].
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
    /// The input of the process.
    pub fn input(&self) -> Input {
        self.input.clone()
    }

    /// The next event; `None` when the process's output has ended. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The process has ended before this came, or somebody else sends input; executord is away for too long.
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

    /// Judges an error that is executord's own.
    fn ended(&self, status: &Status) -> Result<Option<Attached>, Error> {
        // The container has ended, or its shim takes no client: what was written is in the log.
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
                    // The client whose connection broke was this one.
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

    /// Counts an answer, and gives the event that it is.
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
