//! Arguments of the commands.

use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use executor_cli_kit::generate::GenerateArgs;
use executor_cli_kit::network::Chosen;
use executor_cli_kit::units;

/// The commands, in the order of the help.
#[derive(Debug, Subcommand)]
pub(crate) enum KubeCommand {
    /// Run the Kubernetes objects of files: create new objects, update changed objects, and keep unchanged objects
    ///
    /// If a mounted Secret or ConfigMap changes, its files are replaced in place and atomically, without a restart; if
    /// a variable or an argument uses its value, the pods are replaced. Objects that are no longer in the files are
    /// removed. Everything is checked before anything runs: every violation is reported with its file and line.
    Play(PlayArgs),
    /// Stop and remove everything that a play created
    Down(DownArgs),
    /// List the pods and containers of plays
    Ps(PsArgs),
    /// Print the log of a container; secrets are masked
    Logs(LogsArgs),
    /// Show what `play` would change, without changing it; values of Secrets are not shown
    ///
    /// The exit status is 1 if `play` would change something.
    Diff(FilesArgs),
    /// Write systemd units that play files, or the manual and shell completions
    Generate(MakeArgs),
}

/// The files of a play and how to read them.
#[derive(Clone, Debug, Args)]
pub(crate) struct FilesArgs {
    /// Files, directories (their .yaml, .yml and .json files), or `-` for standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Name of the play, which `down` uses to remove it [default: name of the first file]
    #[arg(long, value_name = "NAME", value_parser = play_name)]
    pub(crate) name: Option<String>,
    /// Treatment of unknown fields, unknown kinds and duplicate keys: errors, warnings, or ignored
    #[arg(long, value_enum, default_value_t = ValidateArg::Strict)]
    pub(crate) validate: ValidateArg,
    /// Network of the pods: none, host, bridge, cni, or the name of another network, as for `run`
    #[arg(long, value_name = "NETWORK", default_value = "none", value_parser = Chosen::from_str)]
    pub(crate) network: Chosen,
    /// Allow connections from the pods' network to other networks, if executord's configuration permits it
    #[arg(long)]
    pub(crate) egress: bool,
    /// Root file system to use instead of an image, as for `run --rootfs`; may be repeated
    #[arg(long = "image-override", value_name = "IMAGE=ROOTFS", value_parser = image)]
    pub(crate) images: Vec<(String, String)>,
    /// File of conventions that decorate the pods' templates [default: as for `agent-cli convention`]
    #[arg(long, value_name = "FILE")]
    pub(crate) conventions: Option<PathBuf>,
    /// File with registry credentials for the image metadata that conventions receive, as written by `docker login`
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PlayArgs {
    #[command(flatten)]
    pub(crate) files: FilesArgs,
    /// Maximum time to wait until each pod is ready; the command fails after a timeout
    #[arg(long, value_name = "DURATION", value_parser = units::duration, default_value = "5m")]
    pub(crate) wait: Duration,
    /// Return when everything was started, without waiting for pods to be ready or jobs to complete
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Replace all pods, including unchanged ones
    #[arg(long)]
    pub(crate) replace: bool,
    /// Run one CronJob of the files once, now, and nothing else
    #[arg(long, value_name = "NAME")]
    pub(crate) cron_job: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DownArgs {
    /// Name of the play, or one of the files that it was played from
    #[arg(required = true, value_name = "NAME|FILE")]
    pub(crate) what: Vec<PathBuf>,
    /// Grace period of all containers, instead of their own
    #[arg(long, short = 't', value_name = "DURATION", value_parser = units::grace)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PsArgs {
    /// List only this play
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct LogsArgs {
    /// The pod: its name, NAMESPACE/NAME, or its id
    #[arg(value_name = "POD")]
    pub(crate) pod: String,
    /// The container [default: the first main container]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// Follow the log until the container exits
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Number of lines to print from the end of the current log; `all` for all lines
    #[arg(long, short = 'n', value_name = "LINES", value_parser = units::lines, default_value = "all", allow_hyphen_values = true)]
    pub(crate) tail: units::Lines,
    /// Print the time before each line
    #[arg(long, short)]
    pub(crate) timestamps: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MakeArgs {
    #[command(subcommand)]
    pub(crate) what: MakeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MakeCommand {
    /// Write a service that plays files at boot and takes them down at shutdown, and a timer for each CronJob
    Unit(UnitArgs),
    /// Write the manual or shell completions
    #[command(flatten)]
    Own(OwnCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum OwnCommand {
    /// Write the manual: a page for the program and one for each of its commands
    Man(OutArgs),
    /// Write completions, with the file names that the shells expect
    Completions(OutArgs),
}

#[derive(Debug, Args)]
pub(crate) struct OutArgs {
    /// Directory to write into; created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

impl OwnCommand {
    pub(crate) fn args(self) -> GenerateArgs {
        use executor_cli_kit::generate::Generated;
        let (what, OutArgs { out }) = match self {
            Self::Man(args) => (Generated::Man, args),
            Self::Completions(args) => (Generated::Completions, args),
        };
        GenerateArgs { what, out, shell: Vec::new() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct UnitArgs {
    #[command(flatten)]
    pub(crate) files: FilesArgs,
    /// Directory to write the units into; created if it does not exist [default: the service is printed]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Treatment of unknown fields and kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ValidateArg {
    /// Report errors
    Strict,
    /// Report warnings
    Warn,
    /// Ignore them
    Ignore,
}

/// Parses the name of a play: 1 to 63 of [A-Za-z0-9._-], beginning with a letter or a digit.
pub(crate) fn play_name(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (1..=63).contains(&text.len()) && text.bytes().all(plain) && text.as_bytes()[0].is_ascii_alphanumeric() {
        true => Ok(text.to_owned()),
        false => {
            Err("must be 1 to 63 characters of A-Z, a-z, 0-9, `.`, `_` and `-`, beginning with a letter or a digit"
                .into())
        }
    }
}

fn image(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((image, rootfs)) if !image.is_empty() && !rootfs.is_empty() => Ok((image.to_owned(), rootfs.to_owned())),
        _ => Err("must be IMAGE=ROOTFS, such as nginx:1.27=dir:/srv/rootfs/nginx".into()),
    }
}
