//! Flags of `run`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{DeliveryArgs, ImageOfRun, LimitArgs, OutputArgs, StreamArgs, label};
use crate::isolation::IsolationArgs;
use crate::network::NetworkArgs;
use crate::units;

#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the container")]
pub(crate) struct RunArgs {
    /// Id of the container; a UUID when left out
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Root file system: `host` (a read-only view of this machine's), `dir:/absolute/path`, or an image with its scheme:
    /// docker://..., oci:/..., oci-archive:/..., docker-archive:/... [default: host]
    #[arg(long, value_name = "REF")]
    pub(crate) rootfs: Option<String>,
    /// Run as `user`, `uid`, `user:group` or `uid:gid`, looked up in the rootfs [default: the image's, or root]
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Working directory [default: the image's, or /]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<String>,
    /// Variable of the process's environment; NAME alone takes the value it has here
    #[arg(long, short, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Secret file: PATH=@FILE, PATH=@- (standard input) or PATH=@env:VARIABLE
    ///
    /// A relative PATH lies under executord's root for such files (/etc/cf-service-bindings by default). The
    /// content itself cannot be given here, where everyone on the machine could read it. A file called `-` or
    /// `env:x` is written @./- or @./env:x. It is 0600 and its user's; `,mode=0640` and `,group=GROUP` behind the source, a
    /// number or a name in the container's /etc/group, let an image read it that becomes another user by itself.
    #[arg(long = "file", value_name = "PATH=SOURCE")]
    pub(crate) files: Vec<String>,
    /// The same for a file that is no secret in itself, such as a binding's type: it is not masked in the output
    #[arg(long = "public-file", value_name = "PATH=SOURCE")]
    pub(crate) public_files: Vec<String>,
    /// Directory that holds secret files alone; may be repeated
    ///
    /// Where the root file system lacks it, it is mounted as a whole: its files change in one step, and `rotate` can add
    /// some. In a home, and in directories with a dot, files are
    /// mounted by themselves without it, and all around them stays writable.
    #[arg(long = "file-directory", value_name = "PATH")]
    pub(crate) file_directories: Vec<String>,
    /// Secret variable of the process's environment: NAME=@FILE, NAME=@- or NAME=@env:VARIABLE
    ///
    /// One newline at the end of FILE or of standard input is left out. Every process of the same user can read a
    /// process's environment (/proc/PID/environ): prefer --file.
    #[arg(long = "secret-env", value_name = "NAME=SOURCE")]
    pub(crate) secret_env: Vec<String>,
    /// Secret argument: INDEX=@FILE, INDEX=@- or INDEX=@env:VARIABLE, INDEX counted from 0 without CMD (with an IMAGE and
    /// without --entrypoint: with CMD)
    ///
    /// It fills an ARG that is written as '', or is appended where INDEX is the number of ARGs: `--secret-arg 1=@pw --
    /// mysql -p` makes `mysql -p PW`. One newline at the end of FILE or of standard input is left out. Every process of the
    /// host can read arguments (/proc/PID/cmdline): prefer --file.
    #[arg(long = "secret-arg", value_name = "INDEX=SOURCE")]
    pub(crate) secret_args: Vec<String>,
    /// Mask secrets in what the process writes
    #[arg(long, value_enum, default_value_t = RedactArg::Auto)]
    pub(crate) redact: RedactArg,
    /// File that gets the container's runtime token, with which the process can ask for its secrets again
    ///
    /// PATH is one in the container, as for --file. `agent-cli secrets` asks with it, from within the container.
    #[arg(long, value_name = "PATH")]
    pub(crate) runtime_token: Option<String>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Limit of open files
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub(crate) nofile: Option<u64>,
    /// Between SIGTERM and SIGKILL when it is stopped: 500ms, 10s, 1m30s [default: executord's, 10s]
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub(crate) grace: Option<Duration>,
    /// Label to find it by; may be repeated
    #[arg(long = "label", short, value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Mark of its log lines
    #[arg(long, value_name = "NAME")]
    pub(crate) log_source: Option<String>,
    /// Keep nothing of what the process writes; this command shows it
    #[arg(long)]
    pub(crate) no_logs: bool,
    /// Print the id and leave the container running
    #[arg(long, short, help_heading = "Options of the command")]
    pub(crate) detach: bool,
    /// Do not delete the container at the end
    #[arg(long, help_heading = "Options of the command")]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) isolation: IsolationArgs,
    #[command(flatten)]
    pub(crate) bindings: DeliveryArgs,
    #[command(flatten)]
    pub(crate) outputs: OutputArgs,
    #[command(flatten)]
    pub(crate) streams: StreamArgs,
    #[command(flatten)]
    pub(crate) image: ImageOfRun,
    /// The program (an absolute path, or a name to look up in PATH of --env) and its arguments; with an IMAGE what its
    /// entrypoint is given, instead of its own command
    #[arg(last = true, value_names = ["CMD", "ARG"])]
    pub(crate) command: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RedactArg {
    /// Values of 8 bytes or more
    Auto,
    /// Values of 4 bytes or more
    All,
    /// Nothing
    None,
}
