//! The executor's command line, over gRPC only: it runs containers with secret files and looks after them.
//!
//! Where to look: [`cli`] reads the command line, [`commands`] has a module for each command with its arguments, [`work`] carries a
//! command out, over [`connect`], the way to executord, or [`local`], the private executord of `--local`. [`source`] and
//! [`request`] are about what goes into a container, [`stay`] and [`logs`] about what comes out of one, [`view`] is how things
//! look, [`failure`] and [`exit`] how it ends.

#![forbid(unsafe_code)]

mod attach;
mod bindings;
mod cli;
mod cnab;
mod commands;
mod connect;
mod container;
mod destination;
mod exit;
mod failure;
mod feed;
mod fields;
mod generate;
mod global;
mod ids;
mod images;
mod interrupt;
mod limits;
mod local;
mod logs;
mod network;
mod output;
mod registry;
mod request;
mod session;
mod signals;
mod source;
mod status;
mod stay;
mod terminal;
mod text;
mod units;
mod variables;
mod view;
mod work;

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
    match cli.execute() {
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
