//! Flags of `run` for the streams of the process.

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::follow::Streams;
use executor_cli_kit::terminal::{self, DetachKeys};
use executor_client::v1::RunRequest;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Container")]
pub(crate) struct StreamArgs {
    /// Send this command's standard input to the process
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Give the process a terminal; with -i, this terminal
    #[arg(long, short)]
    pub(crate) tty: bool,
    /// Keys that detach from the process, with -t
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", value_parser = DetachKeys::parse)]
    pub(crate) detach_keys: DetachKeys,
    /// Signal that stops the process: INT, QUIT, 10 [default: the image's, else TERM]
    #[arg(long, value_name = "NAME", value_parser = executor_cli_kit::signals::parse)]
    pub(crate) stop_signal: Option<u32>,
}

impl StreamArgs {
    /// Checks for conflicting flags. `sources` are the values of all flags that may read standard input.
    pub(crate) fn check<'a>(&self, detach: bool, mut sources: impl Iterator<Item = &'a String>) -> Result<(), Failure> {
        if self.interactive && sources.any(|source| source.ends_with("=@-")) {
            let why = "--interactive and a value of @- cannot be used together: both read standard input";
            return Err(Failure::Usage(why.to_owned()));
        }
        if self.tty && !detach { terminal::require(self.interactive) } else { Ok(()) }
    }

    /// Returns the streams between this command and the process.
    pub(crate) fn streams(&self) -> Streams {
        Streams { input: self.interactive, terminal: self.tty, keys: self.detach_keys.clone() }
    }

    /// Adds the terminal, standard input and the stop signal to a run request.
    pub(crate) fn apply(&self, request: &mut RunRequest) {
        request.terminal = self.tty;
        request.window = self.tty.then(terminal::window).flatten();
        request.stdin = self.interactive;
        request.stop_signal = self.stop_signal.unwrap_or(0);
    }
}
