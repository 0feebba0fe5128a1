//! What goes from here to a process: standard input, its end, and the size of the window.

use executor_proto::v1::WindowSize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::terminal::{self, Keyboard, Typed};

/// Messages that wait for executord.
pub(crate) const DEPTH: usize = 4;

/// One thing to be sent.
pub(crate) enum Said {
    Bytes(Vec<u8>),
    End,
    Window(WindowSize),
}

/// Sends what comes until the keys are pressed that leave the process to itself. Does not come back otherwise.
pub(crate) async fn feed<T>(
    keyboard: &mut Option<Keyboard>,
    window: bool,
    requests: &mpsc::Sender<T>,
    message: impl Fn(Said) -> T,
) -> Result<(), Failure> {
    let mut changes = signal(SignalKind::window_change()).map_err(Failure::System)?;
    let mut ended = false;
    loop {
        let typed = async {
            match keyboard.as_mut() {
                Some(keyboard) if !ended => keyboard.next().await,
                _ => std::future::pending().await,
            }
        };
        let said = tokio::select! {
            typed = typed => match typed {
                Typed::Bytes(mut bytes) => Said::Bytes(std::mem::take(&mut *bytes)),
                Typed::End => {
                    ended = true;
                    Said::End
                }
                Typed::Detach => return Ok(()),
            },
            _ = changes.recv(), if window => match terminal::window() {
                Some(window) => Said::Window(window),
                None => continue,
            },
        };
        if requests.send(message(said)).await.is_err() {
            return std::future::pending().await; // the call is over, which its other side tells
        }
    }
}
