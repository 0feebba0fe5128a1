//! Bidirectional calls that last as long as a process: Exec and Attach.

use executor_proto::v1::attach_request::Part as ToAttached;
use executor_proto::v1::attach_response::Part as FromAttached;
use executor_proto::v1::exec_request::Part as ToExecuted;
use executor_proto::v1::exec_response::Part as FromExecuted;
use executor_proto::v1::{
    AttachRequest, AttachResponse, AttachStart, EndOfInput, ExecFailure, ExecRequest, ExecResponse, ExecStart,
    ExitStatus, WindowSize, exit_status,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::api::Api;

/// Builds an Exec request for a program.
pub fn start(id: &str, path: &str, args: &[&str]) -> ExecStart {
    let args = args.iter().map(|arg| (*arg).into()).collect();
    ExecStart { id: id.into(), path: path.into(), args, ..ExecStart::default() }
}

/// Builds an Exec request for a shell script.
pub fn script(id: &str, script: &str) -> ExecStart {
    start(id, "/bin/sh", &["-c", script])
}

/// Reads messages until the output contains `words`.
fn until<T>(
    call: &mut T,
    words: &str,
    stdout: impl Fn(&T) -> &[u8],
    read_message: impl Fn(&mut T) -> Result<bool, Status>,
) -> String {
    loop {
        let text = String::from_utf8_lossy(stdout(call)).into_owned();
        if text.contains(words) {
            return text;
        }
        assert!(
            read_message(call).expect("the call continues"),
            "the call ended without the words {words:?}: {text:?}"
        );
    }
}

/// An executed process and its stream.
pub struct Executed {
    api: Api,
    requests: Option<mpsc::Sender<ExecRequest>>,
    answers: Streaming<ExecResponse>,
    /// Pid on the host; 0 if the process did not start.
    pub pid: i32,
    /// Reason why the process did not start.
    pub failure: Option<ExecFailure>,
    /// Standard output so far.
    pub stdout: Vec<u8>,
    /// Standard error so far.
    pub stderr: Vec<u8>,
    /// Exit of the process: `Ok(code)` or `Err(signal)`.
    pub exit: Option<Result<i32, i32>>,
}

impl Executed {
    /// Executes a process and waits until it runs or has failed to start.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn start(api: &Api, start: ExecStart) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(16);
        requests.try_send(ExecRequest { part: Some(ToExecuted::Start(start)) }).expect("room");
        let mut rpc = api.rpc();
        let answers = api.block_on(rpc.exec(ReceiverStream::new(receiver)))?.into_inner();
        let mut executed = Self {
            api: api.clone(),
            requests: Some(requests),
            answers,
            pid: 0,
            failure: None,
            stdout: Vec::new(),
            stderr: Vec::new(),
            exit: None,
        };
        executed.read_message()?;
        Ok(executed)
    }

    /// Reads one message. Returns false at the end of the stream.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn read_message(&mut self) -> Result<bool, Status> {
        match self.api.block_on(self.answers.message())?.and_then(|answer| answer.part) {
            None => return Ok(false),
            Some(FromExecuted::Started(started)) => self.pid = started.pid,
            Some(FromExecuted::Stdout(bytes)) => self.stdout.extend(bytes),
            Some(FromExecuted::Stderr(bytes)) => self.stderr.extend(bytes),
            Some(FromExecuted::Failure(failure)) => self.failure = Some(failure),
            Some(FromExecuted::Exit(ExitStatus { status })) => {
                self.exit = status.map(|status| match status {
                    exit_status::Status::Code(code) => Ok(code),
                    exit_status::Status::Signal(signal) => Err(signal),
                });
            }
        }
        Ok(true)
    }

    pub fn send(&self, part: ToExecuted) {
        let requests = self.requests.clone().expect("not closed");
        self.api.block_on(requests.send(ExecRequest { part: Some(part) })).expect("the call continues");
    }

    /// Sends standard input.
    pub fn send_input(&self, bytes: &[u8]) {
        self.send(ToExecuted::Stdin(bytes.into()));
    }

    /// Closes standard input.
    pub fn end_input(&self) {
        self.send(ToExecuted::EndOfInput(EndOfInput {}));
    }

    /// Resizes the terminal.
    pub fn resize(&self, rows: u32, columns: u32) {
        self.send(ToExecuted::Window(WindowSize { rows, columns }));
    }

    /// Closes the client's half of the stream.
    pub fn close(&mut self) {
        self.requests = None;
    }

    /// Reads messages until the output contains `words`.
    pub fn until(&mut self, words: &str) -> String {
        until(self, words, |call| &call.stdout, Self::read_message)
    }

    /// Reads messages until the end of the stream.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn end(mut self) -> Result<Self, Status> {
        while self.read_message()? {}
        Ok(self)
    }

    /// Returns standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Executes a process and waits for its exit.
///
/// # Errors
/// Returns the daemon's status if the call fails.
pub fn executed(api: &Api, start: ExecStart) -> Result<Executed, Status> {
    Executed::start(api, start)?.end()
}

/// An attached client and its stream.
pub struct Attached {
    api: Api,
    requests: Option<mpsc::Sender<AttachRequest>>,
    answers: Streaming<AttachResponse>,
    /// True if the process has a terminal.
    pub terminal: bool,
    /// Standard output so far.
    pub stdout: Vec<u8>,
    /// Standard error so far.
    pub stderr: Vec<u8>,
    /// Stream position of the next output byte, as reported by the daemon.
    pub place: u64,
    /// Number of bytes that were skipped.
    pub missed: u64,
}

impl Attached {
    /// Attaches to a container.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn start(api: &Api, start: AttachStart) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(16);
        requests.try_send(AttachRequest { part: Some(ToAttached::Start(start)) }).expect("room");
        let mut rpc = api.rpc();
        let answers = api.block_on(rpc.attach(ReceiverStream::new(receiver)))?.into_inner();
        let mut attached = Self {
            api: api.clone(),
            requests: Some(requests),
            answers,
            terminal: false,
            stdout: Vec::new(),
            stderr: Vec::new(),
            place: 0,
            missed: 0,
        };
        attached.read_message()?;
        Ok(attached)
    }

    /// Reads one message. Returns false at the end of the stream.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn read_message(&mut self) -> Result<bool, Status> {
        match self.api.block_on(self.answers.message())?.and_then(|answer| answer.part) {
            None => return Ok(false),
            Some(FromAttached::Started(started)) => self.terminal = started.terminal,
            Some(FromAttached::Stdout(bytes)) => {
                self.place += bytes.len() as u64;
                self.stdout.extend(bytes);
            }
            Some(FromAttached::Stderr(bytes)) => {
                self.place += bytes.len() as u64;
                self.stderr.extend(bytes);
            }
            Some(FromAttached::Position(position)) => {
                self.place = position.offset;
                self.missed += position.missed;
            }
        }
        Ok(true)
    }

    pub fn send(&self, part: ToAttached) {
        let requests = self.requests.clone().expect("not closed");
        self.api.block_on(requests.send(AttachRequest { part: Some(part) })).expect("the call continues");
    }

    /// Sends standard input.
    pub fn send_input(&self, bytes: &[u8]) {
        self.send(ToAttached::Stdin(bytes.into()));
    }

    /// Reads messages until the output contains `words`.
    pub fn until(&mut self, words: &str) -> String {
        until(self, words, |call| &call.stdout, Self::read_message)
    }

    /// Reads messages until the end of the process's output.
    ///
    /// # Errors
    /// Returns the daemon's status if the call fails.
    pub fn end(mut self) -> Result<Self, Status> {
        while self.read_message()? {}
        Ok(self)
    }
}
