//! Forwards input to a process: standard input, its end, and the window size.

use executor_client::Input;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::terminal::{self, Keyboard, Typed};

/// Forwards standard input and window sizes to a process; returns only when the detach keys are pressed.
pub async fn feed(keyboard: &mut Option<Keyboard>, window: bool, input: &Input) -> Result<(), Failure> {
    let mut changes = signal(SignalKind::window_change()).map_err(Failure::System)?;
    let mut ended = false;
    loop {
        let typed = async {
            match keyboard.as_mut() {
                Some(keyboard) if !ended => keyboard.next().await,
                _ => std::future::pending().await,
            }
        };
        let is_open = tokio::select! {
            typed = typed => match typed {
                Typed::Bytes(mut bytes) => input.send(std::mem::take(&mut *bytes)).await,
                Typed::End => {
                    ended = true;
                    input.end().await
                }
                Typed::Detach => return Ok(()),
            },
            _ = changes.recv(), if window => match terminal::window() {
                Some(window) => input.resize(window).await,
                None => continue,
            },
        };
        if !is_open {
            return std::future::pending().await; // the RPC has completed; the receiver of its responses reports that
        }
    }
}
