//! Reports the checks: prints a line when a check finishes, a summary, and JSON if requested.
//!
//! The guest sends the lines `@begin NAME`, `@note TEXT` (a figure to display), `@log TEXT` (output of a failed check)
//! and `@end STATUS SECONDS`, where STATUS is `pass`, `fail` or `skip`. All other lines are console output.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use serde_json::json;

/// Maximum number of retained lines of a failed check.
const LOG_MAX: usize = 400;

#[derive(Default)]
struct Check {
    name: String,
    status: String,
    seconds: f64,
    notes: Vec<String>,
    log: Vec<String>,
}

/// The results so far.
pub(super) struct Report {
    json: bool,
    ended: Vec<Check>,
    open: Option<Check>,
}

impl Report {
    pub(super) fn new(json: bool) -> Self {
        Self { json, ended: Vec::new(), open: None }
    }

    /// Handles one line of the guest.
    pub(super) fn add_line(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, &mut self.open) {
            ("@begin", open) => {
                *open = Some(Check { name: rest.to_owned(), ..Check::default() });
                if std::io::stderr().is_terminal() {
                    eprint!("  … {rest}\r");
                    let _ = std::io::stderr().flush();
                }
            }
            ("@note", Some(check)) => check.notes.push(rest.to_owned()),
            ("@log", Some(check)) if check.log.len() < LOG_MAX => check.log.push(rest.to_owned()),
            ("@end", open) => {
                let Some(mut check) = open.take() else { return };
                let (status, seconds) = rest.split_once(' ').unwrap_or((rest, ""));
                check.status = status.to_owned();
                check.seconds = seconds.parse().unwrap_or_default();
                print_check(&check);
                self.ended.push(check);
            }
            _ => {}
        }
    }

    /// Prints the failures, and returns the exit status.
    pub(super) fn finish(mut self, ended: anyhow::Result<()>, console: &str) -> anyhow::Result<ExitCode> {
        if let Some(mut check) = self.open.take() {
            "unfinished".clone_into(&mut check.status);
            print_check(&check);
            self.ended.push(check);
        }
        let count = |status: &str| self.ended.iter().filter(|check| check.status == status).count();
        let (passed, skipped) = (count("pass"), count("skip"));
        let failed = self.ended.len() - passed - skipped;
        let good = ended.is_ok() && failed == 0 && passed > 0;
        if self.json {
            let checks = self.ended.iter().map(|check| {
                json!({"name": check.name, "status": check.status, "seconds": check.seconds, "notes": check.notes, "log": check.log})
            });
            let error = ended.as_ref().err().map(|error| format!("{error:#}"));
            println!("{:#}", json!({"passed": good, "error": error, "checks": checks.collect::<Vec<_>>()}));
        }
        eprintln!("{passed} passed, {failed} failed, {skipped} skipped");
        if let Err(error) = ended {
            eprintln!("--- last lines of the machine's console:\n{console}\n---");
            return Err(error);
        }
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn print_check(check: &Check) {
    let sign = match &*check.status {
        "pass" => '✔',
        "skip" => '-',
        _ => '✘',
    };
    eprintln!("{sign} {:<44} {:>6.1} s", check.name, check.seconds);
    for note in &check.notes {
        eprintln!("    {note}");
    }
    for line in &check.log {
        eprintln!("    | {line}");
    }
}
