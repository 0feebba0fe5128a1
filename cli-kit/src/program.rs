//! The entry point of a program: parses its command line, executes the command, and reports the result.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::failure::Failure;
use crate::generate::Documented;
use crate::global::Global;
use crate::report::{PROGRAM, report, usage};

/// The command line of a program.
pub trait Program: CommandFactory + FromArgMatches {
    /// The meaning of each exit status, for the help and the manual.
    const STATUSES: &'static [(&'static str, &'static str)];
    /// Commands whose exit status means more than success or failure.
    const WITH_STATUSES: &'static [&'static str] = &[];

    /// Returns the flags that all programs have.
    fn global(&mut self) -> &mut Global;

    /// Executes the command; returns the exit status.
    ///
    /// # Errors
    /// Returns an error if the command failed.
    fn execute(self) -> Result<u8, Failure>;

    /// Returns the definitions, for the help, the manual and completions.
    fn documented() -> Documented {
        let (statuses, with_statuses) = (Self::STATUSES, Self::WITH_STATUSES);
        Documented { command: Self::command(), statuses, with_statuses, programs: Vec::new() }
    }

    /// Parses a command line. The first element is the program's name.
    ///
    /// # Errors
    /// Returns a [`clap::Error`] if the line requests the help or the version, or has a usage error.
    fn read(line: &[OsString]) -> Result<Self, clap::Error> {
        let matches = Self::documented().with_help().try_get_matches_from(line)?;
        let mut program = Self::from_arg_matches(&matches)?;
        program.global().apply_environment();
        Ok(program)
    }
}

/// Parses this process's command line and runs the program.
pub fn main<P: Program>() -> ExitCode {
    match P::read(&std::env::args_os().collect::<Vec<_>>()) {
        Ok(program) => run(program),
        Err(error) => usage(&error),
    }
}

/// Executes a parsed command line and reports its result.
pub fn run(mut program: impl Program) -> ExitCode {
    let json = program.global().json;
    let checked = program.global().check();
    report(PROGRAM, json, checked.and_then(|()| program.execute()))
}
