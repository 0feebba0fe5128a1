//! Flags of every command.

use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;

/// Flags of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection and output")]
pub(crate) struct Global {
    /// Socket of executord [environment: EXECUTOR_SOCKET; default: /run/executor/executor.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Start a private executord in a temporary directory, use it and take it down again (needs root)
    ///
    /// executord is looked for beside agent-cli, then in PATH. Its containers end with the command.
    #[arg(long, global = true)]
    pub(crate) local: bool,
    /// Print JSON: one document, or one object a line from `logs` and `events`
    ///
    /// Times are RFC 3339 in UTC, durations are seconds, sizes are bytes, unknown values are null.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Global {
    /// Checks what the definitions cannot say.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.local && self.socket.is_some() {
            return Err(Failure::Usage(
                "--local and --socket exclude one another: --local starts an executord of its own".to_owned(),
            ));
        }
        Ok(())
    }

    /// `--socket`, else EXECUTOR_SOCKET, else the command's default.
    pub(crate) fn socket(&self, default: &str) -> PathBuf {
        let from_environment =
            || std::env::var_os("EXECUTOR_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
        self.socket.clone().or_else(from_environment).unwrap_or_else(|| default.into())
    }
}
