//! The streams of a container's own process, here: what it writes and reads.
//!
//! The process waits while its output is not read here, as if it wrote into this program's own pipe. After a restart of
//! executord the streams go on where they were.

use executor_client::{AttachOptions, Attached};

use crate::failure::Failure;
use crate::feed::feed;
use crate::logs::Printer;
use crate::output::Stream;
use crate::session::Session;
use crate::status::ErrorContext as _;
use crate::terminal::{self, DetachKeys, Keyboard, Raw};

/// Options of an attachment to a process.
pub(crate) struct Wanted {
    pub(crate) input: bool,
    pub(crate) output: bool,
    /// The process has a terminal.
    pub(crate) terminal: bool,
    pub(crate) take_over: bool,
    pub(crate) keys: DetachKeys,
    /// The process waits while its output is not read.
    pub(crate) lossless: bool,
    /// Byte of the output to begin at, kept output included. None begins with new output.
    pub(crate) from: Option<u64>,
}

/// End of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The process's output has ended.
    Ended,
    /// The detach keys were pressed, and the process goes on.
    Detached,
    /// The output from this byte on is in the log alone.
    Behind(u64),
}

/// Stays attached until the process's output has ended or the keys were pressed, also over a restart of executord.
pub(crate) async fn stream(
    session: &Session,
    id: &str,
    wanted: Wanted,
    printer: &mut Printer,
) -> Result<Left, Failure> {
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
                None => return Ok(Left::Ended),
                Some(Attached::Stdout(bytes)) => printer.bytes(Stream::Out, bytes).await,
                Some(Attached::Stderr(bytes)) => printer.bytes(Stream::Err, bytes).await,
                Some(Attached::Missed(bytes)) => printer.dropped(bytes, None),
                Some(Attached::RestInLog(offset)) => return Ok(Left::Behind(offset)),
            }
        }
    };
    // Both at once: keys are heard while nobody reads the output.
    tokio::select! {
        left = heard => left,
        fed = feed(&mut keyboard, terminal, &input) => fed.map(|()| Left::Detached),
    }
}
