//! The executor's command line, over gRPC only: it runs containers with secret files and looks after them.
//!
//! Where to look: [`cli`] defines the flags, [`commands`] has a module for each command, [`connect`] the way
//! to executord, [`local`] the private executord of `--local`, [`source`] and [`request`] what becomes of
//! `--file` and the other flags of `run`, [`audit`] the search for what is left of a secret, [`view`] how things look, [`failure`] and [`exit`] how it ends.

#![forbid(unsafe_code)]

mod archive;
mod audit;
mod bindings;
mod cli;
mod cnab;
mod commands;
mod connect;
mod destination;
mod envfile;
mod exit;
mod failure;
mod fields;
mod ids;
mod interrupt;
mod isolation;
mod local;
mod network;
mod output;
mod request;
mod signals;
mod source;
mod status;
mod surroundings;
mod terminal;
mod text;
mod units;
mod view;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    if cnab::driver::is_called() {
        return commands::drive();
    }
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; where even they cannot be printed, nobody is there to be told.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::OURS } else { 0 });
        }
    };
    let json = cli.global.json;
    match commands::execute(cli) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            // Documents are on standard output; one that was printed says itself what failed.
            if let (true, false, Some(document)) = (json, output::has_written(), view::json::Refusal::of(&failure)) {
                let _ = std::io::stdout().write_all(view::json::document(&document).as_bytes());
            }
            if !failure.is_quiet() {
                let _ = writeln!(std::io::stderr(), "agent-cli: {}", failure.describe());
            }
            ExitCode::from(failure.exit_status())
        }
    }
}
