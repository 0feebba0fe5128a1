//! Defines the command line. Help, manual and completions are generated from these definitions.
//!
//! Values that can be secret (`--file`, `--env`) are accepted as plain text and parsed elsewhere, because clap repeats
//! a value that it rejects.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{FromArgMatches, Parser};
use executor_cli_kit::execute;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::generate::Documented;
use executor_cli_kit::global::Global;
use executor_cli_kit::program::{Program, run};
use executor_cli_kit::report::{PROGRAM, report, usage};

use crate::commands::{Command, Next};
use crate::docker;
use crate::programs::{self, Call};

const HELP: &str = "help";

/// Run and manage containers with secret files on this machine, through executord.
///
/// If NAME is not a command, `agent-cli NAME` runs the program agent-cli-NAME. The directory of agent-cli is searched
/// first, then PATH.
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

/// A parsed command line: a command, or an external program to run.
#[derive(Debug)]
enum ParsedLine {
    Command(Box<Cli>),
    Program(Box<Global>, Call),
}

/// Parses the command line of agent-cli, and runs the command or the external program.
pub(crate) fn main() -> ExitCode {
    let line = std::env::args_os().collect::<Vec<_>>();
    match read(&line) {
        Err(error) => usage(&error),
        Ok(ParsedLine::Command(cli)) => run(*cli),
        Ok(ParsedLine::Program(global, call)) => report(PROGRAM, global.json, call.run(&global)),
    }
}

/// Returns the definitions, with external programs.
fn documented_with_programs() -> Documented {
    let documented = Cli::documented();
    let is_command = |name: &str| name == HELP || documented.command.find_subcommand(name).is_some();
    let programs = programs::names().filter(|name| !is_command(name)).collect();
    Documented { programs, ..documented }
}

fn command() -> clap::Command {
    Cli::documented().with_help()
}

/// Parses a command line. The first element is the program's name.
fn read(line: &[OsString]) -> Result<ParsedLine, clap::Error> {
    let error = match Cli::parse_line(line) {
        Ok(cli) => return Ok(ParsedLine::Command(Box::new(cli))),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::InvalidUtf8 => Err(not_utf8(line)),
        ErrorKind::InvalidSubcommand => program(line, error),
        ErrorKind::UnknownArgument => Err(docker_argument(line, error)),
        // Only the help lists the external programs, so the programs are searched for only now.
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(documented_with_programs().with_help().try_get_matches_from(line).err().unwrap_or(error))
        }
        _ => Err(error),
    }
}

/// Parses a command line whose command is an external program. Returns `error` if there is no such program.
fn program(line: &[OsString], error: clap::Error) -> Result<ParsedLine, clap::Error> {
    let definitions = command().disable_help_subcommand(true).allow_external_subcommands(true);
    let definitions = definitions.external_subcommand_value_parser(clap::value_parser!(OsString));
    // If this fails, the unknown word is the subcommand of a built-in command.
    let Ok(matches) = definitions.try_get_matches_from(line) else { return Err(docker_group(line, error)) };
    let Some((name, words)) = matches.subcommand() else { return Err(error) };
    let mut global = Global::from_arg_matches(&matches)?;
    global.apply_environment();
    let words: Vec<OsString> = words.get_many("").into_iter().flatten().cloned().collect();
    let (name, arguments) = match &words[..] {
        [topic] if name == HELP => (topic.to_str().unwrap_or_default(), vec!["--help".into()]),
        _ => (name, words),
    };
    match (Call::find(name, arguments), programs::file_name(name)) {
        (Some(call), _) => Ok(ParsedLine::Program(Box::new(global), call)),
        (None, Some(_)) if docker::advice(name).is_some() => {
            Err(docker_word(ErrorKind::InvalidSubcommand, name).unwrap_or(error))
        }
        (None, Some(file)) => Err(with_tip(error, format!("there is no program {file} next to agent-cli or in PATH"))),
        (None, None) => Err(error),
    }
}

/// Returns the error for a docker command or option that agent-cli does not have.
fn docker_word(kind: ErrorKind, word: &str) -> Option<clap::Error> {
    let advice = docker::advice(word)?;
    Some(command().error(kind, format!("{word} is a docker command or option that agent-cli does not have: {advice}")))
}

/// Replaces the error for an unknown argument if docker has that argument.
fn docker_argument(line: &[OsString], error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return error };
    let word = match argument.split('=').next() {
        // In `stats -a` and `images -a`, the flag has another meaning.
        Some("-a") if !line.iter().any(|word| word == "run") => return error,
        Some(flag) if flag.starts_with('-') => flag,
        _ if line.iter().any(|word| word == "top") => "top ID",
        _ => return error,
    };
    docker_word(ErrorKind::UnknownArgument, word).unwrap_or(error)
}

/// Replaces the error for an unknown subcommand, or adds advice to it: docker has `container ls`, for example.
fn docker_group(line: &[OsString], error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let word = word.clone();
    let group = line.windows(2).find(|pair| *pair[1] == *word).and_then(|pair| pair[0].to_str()).unwrap_or_default();
    if let Some(advised) = docker_word(ErrorKind::InvalidSubcommand, &format!("{group} {word}")) {
        return advised;
    }
    let name = if matches!(&*word, "ls" | "list") { "ps" } else { &*word };
    if command().find_subcommand(name).is_some() {
        return with_tip(error, format!("use `agent-cli {name}`"));
    }
    docker_word(ErrorKind::InvalidSubcommand, &word).unwrap_or(error)
}

/// Adds a tip to a usage error.
fn with_tip(mut error: clap::Error, tip: String) -> clap::Error {
    let mut tips = match error.insert(ContextKind::Suggested, ContextValue::None) {
        Some(ContextValue::StyledStrs(tips)) => tips,
        _ => Vec::new(),
    };
    tips.push(tip.into());
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    error
}

/// Returns the error for arguments that are not UTF-8. The error contains only their positions, because an argument may
/// be a secret.
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
    let why = format!("{word} {} {verb} not UTF-8: pass binary values in a file (--file)", places.join(", "));
    command().error(ErrorKind::InvalidUtf8, why)
}

impl Program for Cli {
    const STATUSES: &'static [(&'static str, &'static str)] = &[
        (
            "0-255",
            "run, wait, exec, attach: exit code of the process; external program: its exit code; other commands: 0",
        ),
        (
            "1",
            "audit: a canary was left over or misplaced, or the search was incomplete; health: unhealthy; network check: a \
             container is broken or was not checked",
        ),
        ("125", "an error of agent-cli or executord, bad usage, a lost container, incomplete output of run or attach"),
        (
            "126",
            "run, wait, exec, external program: the program (of a tree: the first that failed) could not be executed",
        ),
        ("127", "run, wait, exec: the program (of a tree: the first that failed) was not found"),
        ("128+N", "run, wait, exec, attach: signal N killed the process; other commands: signal N killed agent-cli"),
        ("141", "the output was closed by its reader (| head); run stops the container"),
    ];
    const WITH_STATUSES: &'static [&'static str] = &["run", "wait", "exec", "attach", "audit", "health"];

    fn global(&mut self) -> &mut Global {
        &mut self.global
    }

    fn execute(self) -> Result<u8, Failure> {
        let Self { global, command: given } = self;
        given.check(&global)?;
        match given.prepare(&global, documented_with_programs)? {
            Next::Done(status) => Ok(status),
            Next::Execute(prepared) => execute::perform(&global, *prepared),
        }
    }
}

impl Cli {
    /// Parses a command line like [`Program::read`], and determines which argument of `run` is the image.
    pub(crate) fn parse_line(line: &[OsString]) -> Result<Self, clap::Error> {
        let mut cli = Self::read(line)?;
        if let Command::Run(run) = &mut cli.command {
            // The command is at the end of the line. Its first word is the image, unless `--` precedes the word.
            let before = line.len().checked_sub(run.command.len() + 1);
            let named = run.name_image(before.is_some_and(|at| line[at] == "--"));
            named.map_err(|why| clap::Error::raw(ErrorKind::ArgumentConflict, why + "\n"))?;
        }
        Ok(cli)
    }
}

#[cfg(test)]
mod tests;
