//! Defines the command line. Help, manual and completions are generated from these definitions.

use clap::{Parser, Subcommand};
use executor_cli_kit::execute::{self, Interruption, Work};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::generate::GenerateArgs;
use executor_cli_kit::global::Global;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::program::Program;
use executor_cli_kit::request::forbid_dumps;
use executor_cli_kit::session::Session;

use crate::actions::{self, Planned, StartOutcome};
use crate::args::{ClaimsArgs, CnabCommand};

/// Install, upgrade and uninstall Cloud Native Application Bundles (CNAB), through executord
#[derive(Debug, Parser)]
#[command(
    name = "agent-cli-cnab",
    bin_name = "agent-cli cnab",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
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

impl Program for Cli {
    const STATUSES: &'static [(&'static str, &'static str)] = &[
        ("0-255", "install, upgrade, uninstall, invoke: as the run tool; other commands: 0 when done"),
        ("1", "validate: the bundle is not valid"),
        ("125", "an error of agent-cli or executord, bad usage, a lost container"),
        ("128+N", "signal N killed the run tool, or this program"),
        ("141", "the output was closed by its reader (| head)"),
    ];

    fn global(&mut self) -> &mut Global {
        &mut self.global
    }

    fn execute(self) -> Result<u8, Failure> {
        let Self { global, claims, command } = self;
        match command {
            Command::Generate(args) => args.generate(Self::documented()).map(|()| 0),
            Command::Cnab(command) => match actions::start(&global, claims, &command)? {
                StartOutcome::Done(status) => Ok(status),
                StartOutcome::Planned(planned) => {
                    forbid_dumps();
                    execute::perform(&global, *planned)
                }
            },
        }
    }
}

impl Work for Planned {
    fn interruption(&self) -> Interruption {
        Interruption::Heeded
    }

    async fn perform(self, session: &Session, interrupts: &mut Interrupts) -> Result<u8, Failure> {
        actions::perform(session, self, interrupts).await
    }
}
