//! Arguments of the commands.

use std::path::PathBuf;
use std::str::FromStr as _;

use agent_cli::limits::LimitArgs;
use agent_cli::network::Chosen;
use agent_cli::units;
use clap::{Args, Subcommand};

/// Place of the records.
#[derive(Debug, Args)]
pub(crate) struct ClaimsArgs {
    /// Directory of claims, results and outputs [default: ~/.cnab]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) claims_dir: Option<PathBuf>,
}

/// The commands in the order of the help.
#[derive(Debug, Subcommand)]
pub(crate) enum CnabCommand {
    /// Install a bundle under a name
    ///
    /// The bundle's own run tool does it, in a container. Credentials, and parameters that the bundle calls writeOnly, reach
    /// it as secret inputs of the container: they are in no claim, no log and no command line.
    ///
    /// When agent-cli is interrupted (Ctrl-C), the container is stopped, and what outputs there are are kept. When agent-cli
    /// is killed, the container goes on; `cnab show` and the next action find out how it ended.
    Install(ActionArgs),
    /// Upgrade an installation: with other parameters, another bundle, or both
    ///
    /// Parameters that were given to an earlier action keep their values, but for those that are writeOnly, which are not
    /// kept. Without --bundle it is the bundle of the last action.
    Upgrade(ActionArgs),
    /// Uninstall an installation; its last claim is kept
    Uninstall(UninstallArgs),
    /// Invoke an action of the bundle's own
    Invoke(InvokeArgs),
    /// Tell everything that is wrong with a bundle, and what is odd about it
    Validate(BundleArg),
    /// Show parameters, credentials, outputs and actions of a bundle, and what would be put where
    ///
    /// Values are not shown: neither of credentials nor of parameters, but for defaults that are not writeOnly.
    Explain(ExplainArgs),
    /// List installations
    List(ListArgs),
    /// Show an installation: its last action, how that ended, parameters and outputs
    Show(NameArg),
    /// List the claims of an installation
    Claims(NameArg),
    /// Print what the run tool printed, secrets masked
    Logs(OfClaimArgs),
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
    /// Of one action only
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
    /// Also those that were uninstalled
    #[arg(long, short)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OfClaimArgs {
    /// Name of the installation
    pub(crate) name: String,
    /// Of this claim [default: the last one]
    #[arg(long, value_name = "ID")]
    pub(crate) claim: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OutputsArgs {
    #[command(flatten)]
    pub(crate) of: OfClaimArgs,
    /// Print this output, byte for byte
    pub(crate) output: Option<String>,
    /// Also where it is writeOnly
    #[arg(long)]
    pub(crate) reveal: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    pub(crate) action: ActionArgs,
    /// Forget the installation with all of its claims and outputs, whether or not the bundle's own uninstall works
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
    /// A value that is not a string is written as JSON. A VALUE that begins with @ is written @@. A parameter that the bundle calls
    /// writeOnly takes no VALUE, because everyone on the machine can read a command line. DEPENDENCY#NAME=... is one of a
    /// dependency's.
    #[arg(long = "param", short, value_name = "NAME=VALUE")]
    pub(crate) params: Vec<String>,
    /// Credential set: a file (JSON or YAML), or the name of one below CLAIMS_DIR/credentials; may be repeated
    #[arg(long = "cred", short, value_name = "SET")]
    pub(crate) creds: Vec<String>,
    /// Forget the values that were given to earlier actions
    #[arg(long)]
    pub(crate) reset_params: bool,
    /// Map of where the images were copied to (JSON)
    #[arg(long, value_name = "FILE")]
    pub(crate) relocation_mapping: Option<PathBuf>,
    /// Bundle of a dependency; may be repeated
    #[arg(long = "dependency", value_name = "NAME=FILE")]
    pub(crate) dependencies: Vec<String>,
    /// Run this image instead of the bundle's: as --rootfs of `run` takes it; DEPENDENCY#REF for a dependency
    #[arg(long = "image-override", value_name = "REF")]
    pub(crate) images: Vec<String>,
    /// Run the image also where its digest cannot be verified
    #[arg(long)]
    pub(crate) insecure_ignore_digest: bool,
    /// Let a bundle that asks for it (io.cnab.docker) use the Docker daemon of this machine, where executord's configuration
    /// allows it
    ///
    /// Its socket is at /var/run/docker.sock in the container, whose users are the host's. A process that can use it is root on this
    /// machine.
    #[arg(long)]
    pub(crate) allow_docker_host_access: bool,
    /// No file for a parameter that has no value, instead of an empty one
    #[arg(long)]
    pub(crate) omit_unset_files: bool,
    /// Run as this user instead of the image's
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Network: none, host, cni, or the name of one that is configured for CNI plugins, as for `run`
    #[arg(long, value_name = "NETWORK", default_value = "none", value_parser = Chosen::from_str)]
    pub(crate) network: Chosen,
    /// Connections to beyond its own network may be opened, where executord's configuration allows it
    #[arg(long)]
    pub(crate) egress: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Between SIGTERM and SIGKILL when it is stopped: 500ms, 10s, 1m30s [default: executord's, 10s]
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub(crate) grace: Option<std::time::Duration>,
}
