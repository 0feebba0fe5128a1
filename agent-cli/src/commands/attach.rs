//! `attach ID`, and the terminal of `run -it`: what a container's own process writes and reads, here.

use executor_proto::v1::attach_request::Part as Request;
use executor_proto::v1::attach_response::Part as Response;
use executor_proto::v1::{AttachRequest, AttachStart, EndOfInput, GetRequest};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::feed::{DEPTH, Said, feed};
use super::{Session, wait};
use crate::cli::AttachArgs;
use crate::connect::{Patience, is_away};
use crate::exit::Outcome;
use crate::failure::Failure;
use crate::output::Stream;
use crate::terminal::{self, DetachKeys, Keyboard, Raw};

/// What is wanted of a process.
pub(super) struct Wanted {
    pub(super) input: bool,
    pub(super) output: bool,
    /// It has a terminal.
    pub(super) terminal: bool,
    pub(super) take_over: bool,
    pub(super) keys: DetachKeys,
}

/// How it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Its output has ended.
    Ended,
    /// To itself.
    Detached,
}

pub(super) async fn attach(session: &Session, args: AttachArgs) -> Result<u8, Failure> {
    let AttachArgs { no_stdin, take_over, detach_keys: keys, id } = args;
    let doing = format!("attach to {id}");
    let got = session.client.rpc().get(GetRequest { id: id.clone() }).await;
    let container = got.map_err(|status| session.client.failure(&doing, &status))?.into_inner().container;
    let spec = container.and_then(|container| container.spec).unwrap_or_default();
    let input = !no_stdin && spec.stdin;
    if spec.terminal && input {
        terminal::require(true)?;
    }
    let wanted = Wanted { input, output: true, terminal: spec.terminal, take_over, keys };
    match stream(session, &id, wanted).await? {
        Left::Detached => Ok(0),
        Left::Ended => {
            let container = wait::completed(&session.client, &id).await?;
            session.explain_end(&container, &[]);
            Ok(Outcome::of(container.result.as_ref()).status())
        }
    }
}

/// Stays attached until the process's output has ended or the keys were pressed, also over a restart of executord.
pub(super) async fn stream(session: &Session, id: &str, wanted: Wanted) -> Result<Left, Failure> {
    let doing = format!("attach to {id}");
    let keys = wanted.terminal.then_some(wanted.keys.clone());
    let _raw = (wanted.terminal && wanted.input).then(Raw::enter).transpose()?;
    let mut keyboard = wanted.input.then(|| Keyboard::start(keys)).transpose()?;
    let mut patience = Patience::default();
    let mut again = false;
    loop {
        let begun = Instant::now();
        let status = match once(session, id, &wanted, &mut keyboard, again).await? {
            Ok(left) => return Ok(left),
            Err(status) => status,
        };
        // The container has ended meanwhile: what was missed of its output is in the log.
        if again && matches!(status.code(), tonic::Code::FailedPrecondition | tonic::Code::NotFound) {
            return Ok(Left::Ended);
        }
        if !is_away(&status) {
            return Err(session.client.failure(&doing, &status));
        }
        again = true;
        patience.since(begun);
        if !patience.pause().await {
            return Err(Failure::GaveUp { doing, socket: session.client.socket().into() });
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
) -> Result<Result<Left, Status>, Failure> {
    let (requests, receiver) = mpsc::channel(DEPTH);
    let start = AttachStart {
        id: id.to_owned(),
        input: wanted.input,
        // What a connection that broke left behind is our own.
        take_over: wanted.take_over || again,
        no_output: !wanted.output,
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
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer,
            fed = &mut input => return fed.map(|()| Ok(Left::Detached)),
        };
        match answer {
            Err(status) => return Ok(Err(status)),
            Ok(None) => return Ok(Ok(Left::Ended)),
            Ok(Some(answer)) => match answer.part {
                Some(Response::Stdout(bytes)) => session.output.bytes(Stream::Out, bytes).await,
                Some(Response::Stderr(bytes)) => session.output.bytes(Stream::Err, bytes).await,
                Some(Response::Started(_)) | None => {}
            },
        }
    }
}
