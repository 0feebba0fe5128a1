//! `agent-cli bundle`.

use std::process::ExitCode;

/// The name of this program.
pub(crate) const PROGRAM: &str = "agent-cli-bundle";

/// The whole program.
pub(crate) fn main() -> ExitCode {
    eprintln!("{PROGRAM}");
    ExitCode::FAILURE
}
