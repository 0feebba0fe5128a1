//! Defines the command line. Help, manual and completions are generated from these definitions.

use clap::{Parser, Subcommand};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::generate::GenerateArgs;
use executor_cli_kit::global::Global;
use executor_cli_kit::program::Program;
use executor_cli_kit::request::forbid_dumps;

use crate::args::{ConfigArgs, FilesArgs};
use crate::work;

/// Decorate pod templates of Kubernetes objects by conventions: HTTPS servers that the operator registers
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
pub(crate) struct Cli {
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

impl Program for Cli {
    const STATUSES: &'static [(&'static str, &'static str)] = &[
        ("0", "done"),
        ("125", "an error in a file, a registration, an image or a convention; no template is decorated in part"),
        ("128+N", "signal N killed the program"),
        ("141", "the output was closed by its reader (| head)"),
    ];

    fn global(&mut self) -> &mut Global {
        &mut self.global
    }

    fn execute(self) -> Result<u8, Failure> {
        let Self { global, config, command } = self;
        match command {
            Command::Generate(args) => args.generate(Self::documented())?,
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
