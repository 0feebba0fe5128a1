//! Processes executed in a running container.

use executor_proto::v1::exec_request::Part as Request;
use executor_proto::v1::exec_response::Part;
use executor_proto::v1::{EndOfInput, ExecDetach, ExecFailure, ExecRequest, ExecResponse, ExecStart, ExitStatus};
use tonic::Streaming;

use crate::connect::Client;
use crate::error::Error;
use crate::input::{Input, Item, Queue, queue};

/// Event that [`Exec::next`] returns.
#[derive(Clone, Debug)]
pub enum Executed {
    /// The process has started.
    Started {
        /// Process id on the host.
        pid: i32,
    },
    /// Standard output. For a terminal, all output.
    Stdout(Vec<u8>),
    /// Standard error.
    Stderr(Vec<u8>),
    /// The last event: the exit status. All output precedes it.
    Exit(ExitStatus),
    /// The only event: the program could not be executed.
    Failed(ExecFailure),
}

/// An executed process. Dropping this value terminates the process with SIGHUP, and SIGKILL two seconds later. Other
/// processes that the process started are killed after its exit, unless the request has `leave_processes`. After
/// [`Exec::detach`], the process continues to run.
pub struct Exec {
    client: Client,
    input: Input,
    _queue: Queue,
    answers: Streaming<ExecResponse>,
}

impl Client {
    /// Executes a program in a running container. A broken connection terminates the process; there is no reconnect.
    ///
    /// # Errors
    /// Returns an error if the container is not running, or an error with every violation if the request is invalid.
    pub async fn exec(&self, start: ExecStart) -> Result<Exec, Error> {
        let (input, queue) = queue();
        let requests = queue.stream(vec![ExecRequest { part: Some(Request::Start(start)) }], |item| ExecRequest {
            part: Some(match item {
                Item::Bytes(bytes) => Request::Stdin(bytes),
                Item::End => Request::EndOfInput(EndOfInput {}),
                Item::Window(window) => Request::Window(window),
                Item::Detach => Request::Detach(ExecDetach {}),
            }),
        });
        let answers = self.answer(self.rpc().exec(requests).await)?;
        Ok(Exec { client: self.clone(), input, _queue: queue, answers })
    }
}

impl Exec {
    /// Returns the input of the process.
    pub fn input(&self) -> Input {
        self.input.clone()
    }

    /// Returns the next event. This method is cancel safe.
    ///
    /// # Errors
    /// Returns an error if the connection broke or the stream closed without an exit status.
    pub async fn next(&mut self) -> Result<Executed, Error> {
        loop {
            let answer = self.answers.message().await.map_err(|status| self.client.error(&status))?;
            return Ok(match answer.ok_or(Error::Incomplete("the exit of the process"))?.part {
                Some(Part::Started(started)) => Executed::Started { pid: started.pid },
                Some(Part::Stdout(bytes)) => Executed::Stdout(bytes),
                Some(Part::Stderr(bytes)) => Executed::Stderr(bytes),
                Some(Part::Exit(exit)) => Executed::Exit(exit),
                Some(Part::Failure(failure)) => Executed::Failed(failure),
                None => continue, // from a newer executord
            });
        }
    }

    /// Detaches from the process, which continues to run in its container.
    ///
    /// # Errors
    /// Returns an error if the connection broke.
    pub async fn detach(mut self) -> Result<(), Error> {
        self.input.detach().await;
        // executord ends the response stream after it has detached.
        while self.answers.message().await.map_err(|status| self.client.error(&status))?.is_some() {}
        Ok(())
    }
}
