//! The command line: help, manual and completions come from these definitions.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::generate::{Documented, GenerateArgs};
use executor_cli_kit::global::Global;
use executor_cli_kit::report::{report, usage};
use executor_cli_kit::request::forbid_dumps;

use crate::args::{ConfigArgs, FilesArgs, NOTES};
use crate::work;

const PROGRAM: &str = "agent-cli-convention";
/// Description of each exit status for the manual.
const STATUSES: [(&str, &str); 4] = [
    ("0", "done"),
    ("125", "a file, a registration, an image or a convention is at fault; nothing was decorated in part"),
    ("128+N", "signal N ended the program"),
    ("141", "the reader of the output went away (| head)"),
];

/// Decorate pod templates of Kubernetes objects by conventions: HTTPS servers that the operator registers.
///
/// Conventions are registered in a file: --config, else EXECUTOR_CONVENTIONS, else ~/.config/executor/conventions.toml,
/// else /etc/executor/conventions.toml. See docs/guides/conventions.md.
#[derive(Debug, Parser)]
#[command(
    name = "agent-cli-convention",
    bin_name = "agent-cli convention",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the conventions in the order in which they are called
    ///
    /// No convention server is called.
    List,
    /// Show what each convention changes in the objects of files, as a diff
    ///
    /// Values of Secrets in the files are not shown.
    Explain(FilesArgs),
    /// Print the objects of files as decorated by the conventions
    ///
    /// Objects without a pod template, such as Secrets, are printed unchanged. A PodIntent is printed with its status.
    Apply(FilesArgs),
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
        let Self { global, config, command } = self;
        global.check()?;
        match command {
            Command::Generate(args) => args.generate(documented())?,
            Command::List => work::list(&global, &config)?,
            Command::Explain(args) => {
                forbid_dumps();
                work::explain(&global, &config, &args)?;
            }
            Command::Apply(args) => {
                forbid_dumps();
                work::apply(&global, &config, &args)?;
            }
        }
        Ok(0)
    }
}
