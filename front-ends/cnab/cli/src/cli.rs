//! The command line: help, manual and completions come from these definitions.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use executor_cli_kit::connect::DEFAULT_SOCKET;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::generate::{Documented, GenerateArgs};
use executor_cli_kit::global::Global;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::report::{report, usage};
use executor_cli_kit::request::forbid_dumps;
use executor_cli_kit::session::Session;
use executor_cli_kit::work::{self, Interruption, Work};

use crate::actions::{self, Begun, Planned};
use crate::args::{ClaimsArgs, CnabCommand};

const PROGRAM: &str = "agent-cli-cnab";
/// Name that precedes the messages of this program: the program that runs it.
const NOTES: &str = "agent-cli";

/// Description of each exit status for the manual.
const STATUSES: [(&str, &str); 5] = [
    ("0-255", "install, upgrade, uninstall, invoke: as the run tool; other commands: 0 when done"),
    ("1", "validate: the bundle is not valid"),
    ("125", "an error of agent-cli or executord, bad usage, a lost container"),
    ("128+N", "signal N ended the run tool, or this program"),
    ("141", "the reader of the output went away (| head)"),
];

/// Install, upgrade and uninstall Cloud Native Application Bundles (CNAB), through executord.
#[derive(Debug, Parser)]
#[command(
    name = "agent-cli-cnab",
    bin_name = "agent-cli cnab",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    claims: ClaimsArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Cnab(Box<CnabCommand>),
    /// Write the manual or shell completions
    Generate(GenerateArgs),
}

/// Entry point of the program.
pub(crate) fn main() -> ExitCode {
    let matches = match documented().with_help().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let mut cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    cli.global.complete();
    report(NOTES, cli.global.json, cli.execute())
}

fn documented() -> Documented {
    Documented { name: PROGRAM, command: Cli::command(), statuses: &STATUSES, with_statuses: &[], programs: Vec::new() }
}

impl Cli {
    fn execute(self) -> Result<u8, Failure> {
        let Self { global, claims, command } = self;
        global.check()?;
        match command {
            Command::Generate(args) => args.generate(documented()).map(|()| 0),
            Command::Cnab(command) => match actions::start(&global, claims, &command)? {
                Begun::Done(status) => Ok(status),
                Begun::Planned(planned) => {
                    forbid_dumps();
                    work::perform(&global, *planned)
                }
            },
        }
    }
}

impl Work for Planned {
    fn program(&self) -> &'static str {
        NOTES
    }

    fn default_socket(&self) -> &'static str {
        DEFAULT_SOCKET
    }

    fn interruption(&self) -> Interruption {
        Interruption::Heeded
    }

    async fn perform(self, session: &Session, interrupts: &mut Interrupts) -> Result<u8, Failure> {
        actions::perform(session, self, interrupts).await
    }
}
