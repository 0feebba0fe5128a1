//! The end of a program: what is said of a failure, and the status to exit with.

use std::io::Write as _;
use std::process::ExitCode;

use crate::exit;
use crate::failure::Failure;
use crate::output::has_written;
use crate::view::json;

/// Prints help, a version or an error of usage.
pub fn usage(error: &clap::Error) -> ExitCode {
    // Help and version are no errors; where even they cannot be printed, nobody is there to be told.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { exit::OURS } else { 0 })
}

/// Says on standard error what failed. With `json` a refusal of executord's is a document on standard output, too.
pub fn report(program: &str, json: bool, result: Result<u8, Failure>) -> ExitCode {
    let failure = match result {
        Ok(status) => return ExitCode::from(status),
        Err(failure) => failure,
    };
    // Documents are on standard output; one that was printed says itself what failed.
    if let (true, false, Some(document)) = (json, has_written(), json::Refusal::new(&failure)) {
        let _ = std::io::stdout().write_all(json::document(&document).as_bytes());
    }
    if !failure.is_quiet() {
        let _ = writeln!(std::io::stderr(), "{program}: {}", failure.describe());
    }
    ExitCode::from(failure.exit_status())
}
