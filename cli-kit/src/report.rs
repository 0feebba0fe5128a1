//! Reports a failure at the end of a program, and converts it to the exit status.

use std::io::Write as _;
use std::process::ExitCode;

use crate::exit;
use crate::failure::Failure;
use crate::output::has_written;
use crate::view::json;

/// Prints help, version or a usage error.
pub fn usage(error: &clap::Error) -> ExitCode {
    // Best effort: without a working output there is no place to report an error.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { exit::OURS } else { 0 })
}

/// Prints a failure to standard error. With `json`, an error of executord is also printed as a document to standard
/// output.
pub fn report(program: &str, json: bool, result: Result<u8, Failure>) -> ExitCode {
    let failure = match result {
        Ok(status) => return ExitCode::from(status),
        Err(failure) => failure,
    };
    // Standard output carries one document; a document that was already printed contains the failure.
    if let (true, false, Some(document)) = (json, has_written(), json::Refusal::new(&failure)) {
        let _ = std::io::stdout().write_all(json::to_document(&document).as_bytes());
    }
    if !failure.is_quiet() {
        let _ = writeln!(std::io::stderr(), "{program}: {}", failure.describe());
    }
    ExitCode::from(failure.exit_status())
}
