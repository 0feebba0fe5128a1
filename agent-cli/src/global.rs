//! Flags of every command.

use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;

/// Variable that names the socket of executord.
pub const SOCKET: &str = "EXECUTOR_SOCKET";
/// Variable that asks for JSON.
pub const JSON: &str = "EXECUTOR_JSON";

/// Connection and output flags.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Connection and output")]
pub struct Global {
    /// Socket of executord [environment: EXECUTOR_SOCKET; default: /run/executor/executor.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Start a private executord in a temporary directory, use it and take it down again (needs root)
    ///
    /// executord is looked for beside agent-cli, then in PATH. Its containers end with the command.
    #[arg(long, global = true)]
    pub local: bool,
    /// Print JSON: one document, or one object a line where it goes on [environment: EXECUTOR_JSON=1]
    ///
    /// Times are RFC 3339 in UTC, durations are seconds, sizes are bytes, unknown values are null.
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    /// Takes the flags that were not given from the environment.
    pub fn complete(&mut self) {
        self.json |= std::env::var_os(JSON).is_some_and(|json| json == "1");
    }

    /// Checks what the definitions cannot say.
    pub fn check(&self) -> Result<(), Failure> {
        if self.local && self.socket.is_some() {
            return Err(Failure::Usage(
                "--local and --socket exclude one another: --local starts an executord of its own".to_owned(),
            ));
        }
        Ok(())
    }

    /// `--socket`, else EXECUTOR_SOCKET, else the command's default.
    pub fn socket(&self, default: &str) -> PathBuf {
        let from_environment = || std::env::var_os(SOCKET).filter(|path| !path.is_empty()).map(PathBuf::from);
        self.socket.clone().or_else(from_environment).unwrap_or_else(|| default.into())
    }
}
