//! The executor's command line. All of it is in the library, which programs beside it share.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    agent_cli::cli::main()
}
