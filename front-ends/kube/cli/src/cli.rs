//! Defines the command line. Help, manual and completions are generated from these definitions.

use clap::Parser;
use executor_cli_kit::execute::{self, Interruption, Work};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::global::Global;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::program::Program;
use executor_cli_kit::request::forbid_dumps;
use executor_cli_kit::session::Session;

use crate::args::{DownArgs, KubeCommand, LogsArgs, MakeCommand, PlayArgs, PsArgs};
use crate::input::Input;
use crate::{down, play, read, units};

/// Run Kubernetes objects on this host, through executord, without a cluster
#[derive(Debug, Parser)]
#[command(
    name = "agent-cli-kube",
    bin_name = "agent-cli kube",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: KubeCommand,
}

/// A command whose input files have been read.
enum Prepared {
    Play(Box<(PlayArgs, Input)>),
    Down(DownArgs),
    Ps(PsArgs),
    Logs(LogsArgs),
    Diff(Box<Input>),
}

impl Program for Cli {
    const STATUSES: &'static [(&'static str, &'static str)] = &[
        ("0", "done"),
        ("1", "diff: play would change something"),
        ("125", "an error of agent-cli or executord, bad usage, a file that is not valid, a pod or a job that failed"),
        ("128+N", "signal N killed this program"),
        ("141", "the output was closed by its reader (| head)"),
    ];

    fn global(&mut self) -> &mut Global {
        &mut self.global
    }

    fn execute(self) -> Result<u8, Failure> {
        let Self { global, command } = self;
        // From now on, the memory of the process holds Secrets.
        forbid_dumps();
        let prepared = match command {
            KubeCommand::Generate(make) => match make.what {
                MakeCommand::Own(own) => return own.args().generate(Self::documented()).map(|()| 0),
                MakeCommand::Unit(args) => return units::generate(&args),
            },
            KubeCommand::Play(args) => {
                let input = Input::read(&args.files)?;
                Prepared::Play(Box::new((args, input)))
            }
            KubeCommand::Diff(args) => Prepared::Diff(Box::new(Input::read(&args)?)),
            KubeCommand::Down(args) => Prepared::Down(args),
            KubeCommand::Ps(args) => Prepared::Ps(args),
            KubeCommand::Logs(args) => Prepared::Logs(args),
        };
        execute::perform(&global, prepared)
    }
}

impl Work for Prepared {
    fn interruption(&self) -> Interruption {
        match self {
            // An interrupted change is completed by the next play, or removed by `down`.
            Self::Play(_) | Self::Down(_) | Self::Logs(_) => Interruption::CutOff,
            Self::Ps(_) | Self::Diff(_) => Interruption::Ends,
        }
    }

    async fn perform(self, session: &Session, _: &mut Interrupts) -> Result<u8, Failure> {
        match self {
            Self::Play(what) => play::play(session, &what.0, &what.1).await,
            Self::Diff(input) => play::diff(session, &input).await,
            Self::Down(args) => down::down(session, &args).await,
            Self::Ps(args) => read::ps(session, &args).await,
            Self::Logs(args) => read::logs(session, args).await,
        }
    }
}
