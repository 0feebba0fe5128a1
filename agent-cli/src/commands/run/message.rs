//! Options of `run` for the termination message of a process.

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_client::v1::{RunRequest, TerminationMessage};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Container")]
pub(crate) struct MessageArgs {
    /// File for the process's termination message, which `inspect` shows [default PATH: /dev/termination-log]
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true)]
    termination_message: Option<Option<String>>,
    /// Maximum size of the message in bytes; its end is kept: 1 to 16384 [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    termination_message_max: Option<u32>,
    /// Use the end of the log, at most 80 lines and 2048 bytes, if the process fails without a message
    #[arg(long)]
    termination_message_from_logs: bool,
}

impl MessageArgs {
    /// Adds the options for the termination message to a run request.
    ///
    /// # Errors
    /// Returns an error if the message's maximum size or `--termination-message-from-logs` is set without the file.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        let Some(path) = self.termination_message else {
            if self.termination_message_max.is_some() || self.termination_message_from_logs {
                let why = "--termination-message-max and --termination-message-from-logs need --termination-message";
                return Err(Failure::Usage(why.into()));
            }
            return Ok(());
        };
        request.termination_message = Some(TerminationMessage {
            path: path.unwrap_or_default(),
            bytes_max: self.termination_message_max.unwrap_or(0),
            fallback_to_logs: self.termination_message_from_logs,
        });
        Ok(())
    }
}
