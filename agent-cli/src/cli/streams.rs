//! Flags of what goes to and from a process while it runs.

use std::path::PathBuf;

use clap::Args;
use executor_proto::v1::RunRequest;

use crate::failure::Failure;
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

    /// Puts them into a request.
    pub(crate) fn apply(&self, request: &mut RunRequest) {
        request.terminal = self.tty;
        request.stdin = self.interactive;
        request.stop_signal = self.stop_signal.unwrap_or(0);
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ExecArgs {
    /// Send this command's standard input to the process
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Give the process a terminal; with -i it is this one
    #[arg(long, short)]
    pub(crate) tty: bool,
    /// Leave the process to itself as soon as it runs: what it writes goes nowhere, and it ends with its container, or with
    /// executord
    #[arg(long, short, conflicts_with = "interactive")]
    pub(crate) detach: bool,
    /// Keys that leave the process to itself, with -it
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", value_parser = DetachKeys::parse)]
    pub(crate) detach_keys: DetachKeys,
    /// Run as `user`, `uid`, `user:group` or `uid:gid`, looked up in the container [default: the container's user]
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Working directory [default: the container's]
    #[arg(long, short = 'w', visible_alias = "workdir", value_name = "DIR")]
    pub(crate) dir: Option<String>,
    /// Variable of the process's environment; NAME alone takes the value it has here
    #[arg(long, short, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// File with variables, a NAME=VALUE or NAME a line, as with `run`; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Id of the container, or a unique beginning of it
    pub(crate) id: String,
    /// The program (an absolute path, or a name to look up in PATH of --env) and its arguments
    #[arg(trailing_var_arg = true, required = true, value_names = ["CMD", "ARG"])]
    pub(crate) command: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AttachArgs {
    /// Only watch
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// Let another client go that sends input
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Keys that leave the process to itself, where it has a terminal
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", value_parser = DetachKeys::parse)]
    pub(crate) detach_keys: DetachKeys,
    /// Never let the process wait: output that is not read in time is skipped, and how much that was is told
    #[arg(long)]
    pub(crate) lossy: bool,
    /// Id of the container, or a unique beginning of it
    pub(crate) id: String,
}
