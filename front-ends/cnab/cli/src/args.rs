//! Arguments of the commands.

use std::path::PathBuf;
use std::str::FromStr as _;

use clap::{Args, Subcommand};
use executor_cli_kit::limits::LimitArgs;
use executor_cli_kit::network::Chosen;
use executor_cli_kit::units;

/// Location of the records.
#[derive(Debug, Args)]
pub(crate) struct ClaimsArgs {
    /// Directory of claims, results and outputs [default: ~/.cnab]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) claims_dir: Option<PathBuf>,
}

/// The commands, in the order of the help.
#[derive(Debug, Subcommand)]
pub(crate) enum CnabCommand {
    /// Install a bundle under a name
    ///
    /// The bundle's own run tool does the work, in a container. Credentials, and parameters that the bundle declares
    /// writeOnly, are passed as secret inputs of the container: no claim, log or command line contains them.
    ///
    /// If agent-cli is interrupted (Ctrl-C), the container is stopped, and the existing outputs are kept. If agent-cli
    /// is killed, the container continues; `cnab show` and the next action determine its outcome.
    Install(ActionArgs),
    /// Upgrade an installation: with other parameters, another bundle, or both
    ///
    /// Parameters of earlier actions keep their values, except writeOnly parameters, which are not stored. Without
    /// --bundle, the bundle of the last action is used.
    Upgrade(ActionArgs),
    /// Uninstall an installation; its last claim is kept
    Uninstall(UninstallArgs),
    /// Run a custom action of the bundle
    Invoke(InvokeArgs),
    /// Check a bundle; show all errors and warnings
    Validate(BundleArg),
    /// Show parameters, credentials, outputs and actions of a bundle, and their locations in the container
    ///
    /// Values of credentials and parameters are not shown, except for defaults that are not writeOnly.
    Explain(ExplainArgs),
    /// List installations
    List(ListArgs),
    /// Show an installation: its last action and the result, parameters and outputs
    Show(NameArg),
    /// List the claims of an installation
    Claims(NameArg),
    /// Print the output of the run tool, with secrets masked
    Logs(ClaimChoiceArgs),
    /// List the outputs of an installation, or print one
    Outputs(OutputsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BundleArg {
    /// bundle.json, or a thick bundle (.tgz)
    #[arg(value_name = "FILE")]
    pub(crate) bundle: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) bundle: BundleArg,
    /// Show this action only
    #[arg(long, value_name = "ACTION")]
    pub(crate) action: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct NameArg {
    /// Name of the installation
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Include uninstalled installations
    #[arg(long, short)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ClaimChoiceArgs {
    /// Name of the installation
    pub(crate) name: String,
    /// Use this claim [default: the last one]
    #[arg(long, value_name = "ID")]
    pub(crate) claim: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OutputsArgs {
    #[command(flatten)]
    pub(crate) of: ClaimChoiceArgs,
    /// Print this output, byte for byte
    pub(crate) output: Option<String>,
    /// Print the output even if it is writeOnly
    #[arg(long)]
    pub(crate) reveal: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    pub(crate) action: ActionArgs,
    /// Delete the installation with all of its claims and outputs, even if the bundle's own uninstall fails
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InvokeArgs {
    #[command(flatten)]
    pub(crate) action: ActionArgs,
    /// Name of the action, as the bundle declares it
    #[arg(long = "action", value_name = "ACTION")]
    pub(crate) invoked: String,
}

/// Options of every action.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the action")]
pub(crate) struct ActionArgs {
    /// Name of the installation
    pub(crate) name: String,
    /// bundle.json, or a thick bundle (.tgz) with its images
    #[arg(long, short, value_name = "FILE")]
    pub(crate) bundle: Option<PathBuf>,
    /// Parameter: NAME=VALUE, NAME=@FILE, NAME=@- (standard input) or NAME=@env:VARIABLE; may be repeated
    ///
    /// A value that is not a string is written as JSON. A VALUE that begins with @ is written @@. A writeOnly parameter
    /// accepts no VALUE, because every user of the machine can read a command line. DEPENDENCY#NAME=... sets a
    /// parameter of a dependency.
    #[arg(long = "param", short, value_name = "NAME=VALUE")]
    pub(crate) params: Vec<String>,
    /// Credential set: a file (JSON or YAML), or the name of a set below CLAIMS_DIR/credentials; may be repeated
    #[arg(long = "cred", short, value_name = "SET")]
    pub(crate) creds: Vec<String>,
    /// Discard the parameter values of earlier actions
    #[arg(long)]
    pub(crate) reset_params: bool,
    /// Relocation mapping (JSON): new references of images that were copied
    #[arg(long, value_name = "FILE")]
    pub(crate) relocation_mapping: Option<PathBuf>,
    /// Bundle of a dependency; may be repeated
    #[arg(long = "dependency", value_name = "NAME=FILE")]
    pub(crate) dependencies: Vec<String>,
    /// Run this image instead of the bundle's: as for `run --rootfs`; DEPENDENCY#REF for a dependency
    #[arg(long = "image-override", value_name = "REF")]
    pub(crate) images: Vec<String>,
    /// Run the image even if its digest cannot be verified
    #[arg(long)]
    pub(crate) insecure_ignore_digest: bool,
    /// Give a bundle that requires it (io.cnab.docker) access to this machine's Docker daemon, if executord's
    /// configuration permits it
    ///
    /// The socket is /var/run/docker.sock in the container, which uses the host's user namespace. A process that can
    /// use the socket is effectively root on this machine.
    #[arg(long)]
    pub(crate) allow_docker_host_access: bool,
    /// Create no file for a parameter without a value, instead of an empty file
    #[arg(long)]
    pub(crate) omit_unset_files: bool,
    /// Run as this user instead of the image's
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Network: none, host, bridge, cni, or the name of another network, as for `run`
    #[arg(long, value_name = "NETWORK", default_value = "none", value_parser = Chosen::from_str)]
    pub(crate) network: Chosen,
    /// Allow connections from the container's network to other networks, if executord's configuration permits it
    #[arg(long)]
    pub(crate) egress: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Time between SIGTERM and SIGKILL when the container is stopped: 500ms, 10s, 1m30s [default: executord's, 10s]
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub(crate) grace: Option<std::time::Duration>,
}
