//! Reports results and failures, and converts a failure to the exit status.

use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use crate::exit;
use crate::failure::Failure;
use crate::global::Global;
use crate::output::{has_written, print};
use crate::text::plain;
use crate::view::json;

/// Prefix of messages. Programs that agent-cli runs have the same prefix.
pub const PROGRAM: &str = "agent-cli";

/// Prints the result of a command that has no session: the document with `--json`, else the text.
///
/// # Errors
/// Returns an error if the reader closed the output, or if the write failed.
pub fn print_result(global: &Global, document: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
    print(if global.json { json::to_document(document) } else { text() })
}

/// Prints a note to standard error, for commands that have no session.
pub fn note(text: &str) {
    // Best effort: without a working output there is no place to report an error.
    let _ = writeln!(std::io::stderr(), "{PROGRAM}: {}", plain(text));
}

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
    // Standard output has at most one document. If a document was already printed, it contains the failure.
    if let (true, false, Some(document)) = (json, has_written(), json::Refusal::new(&failure)) {
        let _ = std::io::stdout().write_all(json::to_document(&document).as_bytes());
    }
    if !failure.is_quiet() {
        let _ = writeln!(std::io::stderr(), "{program}: {}", failure.describe());
    }
    ExitCode::from(failure.exit_status())
}
