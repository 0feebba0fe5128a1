//! The command line: help, manual and completions come from these definitions.
//!
//! Values that can be secret (`--file`, `--env`) are taken as plain text and parsed elsewhere, because clap
//! repeats a value that it refuses.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::commands::{Command, Next};
use crate::exit::{self, WITH_STATUSES};
use crate::failure::Failure;
use crate::global::Global;
use crate::work;

/// Run containers with secret files on this machine and look after them, through executord.
#[derive(Debug, Parser)]
#[command(
    name = "agent-cli",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The definitions with the table of exit statuses where it belongs.
pub(crate) fn command() -> clap::Command {
    let mut statuses = String::from("Exit status:\n");
    for (status, meaning) in exit::TABLE {
        statuses.push_str(&format!("  {status:<7} {meaning}\n"));
    }
    let mut command = Cli::command().after_help(statuses.clone());
    for name in WITH_STATUSES {
        command = command.mut_subcommand(name, |subcommand| subcommand.after_help(statuses.clone()));
    }
    command
}

/// Parses this process's command line. An error says itself how to be shown.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let line = std::env::args_os().collect::<Vec<_>>();
    Cli::read(&line).map_err(|error| match error.kind() {
        ErrorKind::InvalidUtf8 => not_utf8(&line),
        _ => error,
    })
}

/// The error for arguments that are not UTF-8. It names their places alone: an argument may be a secret.
fn not_utf8(line: &[OsString]) -> clap::Error {
    let bad = |argument: &OsString| argument.to_str().is_none();
    let places: Vec<String> = (1..line.len())
        .filter(|at| bad(&line[*at]))
        .map(|at| match line[at - 1].to_str() {
            Some(flag) if flag.starts_with("--") && flag != "--" => format!("{at} (after {flag})"),
            _ => at.to_string(),
        })
        .collect();
    let (word, verb) = if places.len() == 1 { ("argument", "is") } else { ("arguments", "are") };
    let why = format!("{word} {} {verb} not UTF-8: what has other bytes goes into a file (--file)", places.join(", "));
    command().error(ErrorKind::InvalidUtf8, why)
}

impl Cli {
    /// Carries it out; the answer is the status to exit with.
    pub(crate) fn execute(self) -> Result<u8, Failure> {
        let Self { global, command: given } = self;
        given.check(&global)?;
        match given.prepare(&global, command)? {
            Next::Done(status) => Ok(status),
            Next::CarryOut(prepared) => work::carry_out(&global, prepared),
        }
    }

    /// Reads a command line, the program's name first.
    pub(crate) fn read(line: &[OsString]) -> Result<Self, clap::Error> {
        let mut cli = Self::from_arg_matches(&command().try_get_matches_from(line)?)?;
        if let Command::Run(run) = &mut cli.command {
            // The words of what is run end the line. Whether `--` stands before them decides what the first one is.
            let before = line.len().checked_sub(run.command.len() + 1);
            run.name_image(before.is_some_and(|at| line[at] == "--"));
        }
        Ok(cli)
    }
}

#[cfg(test)]
mod tests;
