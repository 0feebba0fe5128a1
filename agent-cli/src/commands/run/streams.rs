//! Flags of `run` about what goes to and from the process.

use clap::Args;
use executor_client::v1::RunRequest;

use crate::failure::Failure;
use crate::stay::Streams;
use crate::terminal::{self, DetachKeys};

/// Of `run`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Container")]
pub(crate) struct StreamArgs {
    /// Send this command's standard input to the process
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Give the process a terminal; with -i it is this one
    #[arg(long, short)]
    pub(crate) tty: bool,
    /// Keys that leave the process to itself, with -t
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", value_parser = DetachKeys::parse)]
    pub(crate) detach_keys: DetachKeys,
    /// Signal that stops it: INT, QUIT, 10 [default: the image's, else TERM]
    #[arg(long, value_name = "NAME", value_parser = crate::signals::parse)]
    pub(crate) stop_signal: Option<u32>,
}

impl StreamArgs {
    /// Refuses what cannot be had. `sources` are the values of flags that may read standard input.
    pub(crate) fn check<'a>(&self, detach: bool, mut sources: impl Iterator<Item = &'a String>) -> Result<(), Failure> {
        if self.interactive && sources.any(|source| source.ends_with("=@-")) {
            let why = "--interactive and a value of @- exclude one another: both read standard input";
            return Err(Failure::Usage(why.to_owned()));
        }
        if self.tty && !detach { terminal::require(self.interactive) } else { Ok(()) }
    }

    /// Returns what goes between this command and the process.
    pub(crate) fn streams(&self) -> Streams {
        Streams { input: self.interactive, terminal: self.tty, keys: self.detach_keys.clone() }
    }

    /// Puts them into a request.
    pub(crate) fn apply(&self, request: &mut RunRequest) {
        request.terminal = self.tty;
        request.window = self.tty.then(terminal::window).flatten();
        request.stdin = self.interactive;
        request.stop_signal = self.stop_signal.unwrap_or(0);
    }
}
