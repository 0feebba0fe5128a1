//! Connects this command's standard streams to the standard streams of a container's process.
//!
//! The process blocks while its output is not read, like a process that writes to a pipe. After a restart of
//! executord the streams resume at the same position.

use executor_client::{AttachOptions, Attached};

use crate::failure::Failure;
use crate::input::feed;
use crate::logs::Printer;
use crate::output::Stream;
use crate::session::Session;
use crate::status::ErrorContext as _;
use crate::terminal::{self, DetachKeys, Keyboard, Raw};

/// Options for attaching to a process.
pub struct Wanted {
    pub input: bool,
    pub output: bool,
    /// True if the process has a terminal.
    pub terminal: bool,
    pub take_over: bool,
    pub keys: DetachKeys,
    /// True if the process blocks while its output is not read.
    pub lossless: bool,
    /// Byte offset in the output at which to begin; may be in earlier output that executord has kept. `None` begins
    /// with new output.
    pub from: Option<u64>,
}

/// Reason why an attachment was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The process closed its output.
    Ended,
    /// The detach keys were pressed; the process keeps running.
    Detached,
    /// From this byte offset on, output is available only in the log.
    RestInLog(u64),
}

/// Stays attached until the process closes its output or the detach keys are pressed, even across restarts of
/// executord.
pub async fn stream(
    session: &Session,
    id: &str,
    wanted: Wanted,
    printer: &mut Printer,
) -> Result<CloseReason, Failure> {
    let doing = format!("attach to {id}");
    let Wanted { input, output, terminal, take_over, keys, lossless, from } = wanted;
    let _raw = (terminal && input).then(Raw::enter).transpose()?;
    let mut keyboard = input.then(|| Keyboard::start(terminal.then_some(keys))).transpose()?;
    let window = terminal.then(terminal::window).flatten();
    let options = AttachOptions { input, take_over, no_output: !output, lossless, from, window };
    let mut attached = session.client.attach(id, options);
    let input = attached.input();
    let heard = async {
        loop {
            match attached.next().await.doing(&doing)? {
                None => return Ok(CloseReason::Ended),
                Some(Attached::Stdout(bytes)) => printer.bytes(Stream::Out, bytes).await,
                Some(Attached::Stderr(bytes)) => printer.bytes(Stream::Err, bytes).await,
                Some(Attached::Missed(bytes)) => printer.dropped(bytes, None),
                Some(Attached::RestInLog(offset)) => return Ok(CloseReason::RestInLog(offset)),
            }
        }
    };
    // Run both concurrently, so that the detach keys work while the output is blocked.
    tokio::select! {
        left = heard => left,
        fed = feed(&mut keyboard, terminal, &input) => fed.map(|()| CloseReason::Detached),
    }
}
