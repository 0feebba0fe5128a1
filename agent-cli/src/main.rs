//! The executor's command line. The code is in the library, which related programs share.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    agent_cli::cli::main()
}
