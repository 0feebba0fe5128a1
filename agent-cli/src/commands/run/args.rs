//! Flags of `run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use executor_cli_kit::limits::LimitArgs;
use executor_cli_kit::text::plain;
use executor_cli_kit::units;

use super::checks::CheckArgs;
use super::host_options::HostArgs;
use super::identity::IdentityArgs;
use super::isolation::IsolationArgs;
use super::logging::LoggingArgs;
use super::message::MessageArgs;
use super::network::NetworkArgs;
use super::outputs::OutputArgs;
use super::program::ImageOfRun;
use super::restart::RestartArgs;
use super::streams::StreamArgs;
use super::surroundings::SurroundingsArgs;
use super::volumes::VolumeArgs;
use crate::bindings::DeliveryArgs;

/// Flags of `run`, in the groups of its help.
#[derive(Debug, Args)]
#[command(next_help_heading = "Program")]
pub(crate) struct RunArgs {
    /// Image to run, and arguments instead of the image's command; after `--` or with --rootfs, a program and its
    /// arguments
    ///
    /// Images: debian:12, registry.example:5000/team/app@sha256:..., oci:/dir:name, oci-archive:/file.tar,
    /// docker-archive:/file.tar; or `host`, or dir:/path. A name without a scheme refers to a registry, by default
    /// docker.io. The arguments are passed to the image's entrypoint. Options must precede the image: all later words
    /// are arguments.
    ///
    /// A program is an absolute path, or a name to look up in PATH of --env.
    #[arg(trailing_var_arg = true, value_names = ["IMAGE", "CMD"], num_args = 0..)]
    pub(crate) command: Vec<String>,
    /// Root file system: `host` (a read-only view of this machine's), `dir:/absolute/path`, or an image with its
    /// scheme: docker://..., oci:/..., oci-archive:/..., docker-archive:/... [default: host]
    #[arg(long, value_name = "REF")]
    pub(crate) rootfs: Option<String>,
    #[command(flatten)]
    pub(crate) image: ImageOfRun,
    /// Run a tree of actions instead of a single program: YAML or JSON, as checked by `agent-cli action check FILE`
    ///
    /// Variables of --env apply to every process that does not set them itself, --log-source to actions without a log
    /// source, and secret files of --file to the whole container. Only an image may be given in addition.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "dir", "no_logs", "secret_env", "secret_args", "nofile", "entrypoint", "interactive", "tty"])]
    pub(crate) action: Option<PathBuf>,
    /// Run as `user`, `uid`, `user:group` or `uid:gid`, looked up in the rootfs [default: the image's, or root]
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Working directory [default: the image's, or /]
    #[arg(long, short = 'w', visible_alias = "workdir", value_name = "DIR")]
    pub(crate) dir: Option<String>,
    /// Environment variable of the process; NAME alone copies this command's value; the last occurrence of a name wins
    #[arg(long, short, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// File with variables: one NAME=VALUE per line, or NAME for this command's value; can be repeated
    ///
    /// Lines that begin with # are ignored. --env takes precedence. Use --secret-env for secrets.
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Name of a new container, which becomes its id; rejected if a container with this name exists
    #[arg(long, value_name = "NAME", conflicts_with_all = ["id", "reservation"], help_heading = "Container")]
    pub(crate) name: Option<String>,
    /// Remove an existing container with that name first, even if it is running
    #[arg(long, requires = "name", conflicts_with = "dry_run", help_heading = "Container")]
    pub(crate) replace: bool,
    /// Id of the container [default: a new UUID]
    ///
    /// If the same request has already created a container with this id, starts nothing, and shows the output and the
    /// result of the existing container.
    #[arg(long, help_heading = "Container")]
    pub(crate) id: Option<String>,
    /// Id of a reservation (`agent-cli reserve`), which becomes the container's id; rejected if it has expired
    #[arg(long, value_name = "ID", conflicts_with = "id", help_heading = "Container")]
    pub(crate) reservation: Option<String>,
    /// Have executord validate the request, and start nothing
    ///
    /// Checks every field, the node's policy and its total capacity. Does not pull the image. Only a run
    /// reports errors of the image, such as a missing program.
    #[arg(long, help_heading = "Container")]
    pub(crate) dry_run: bool,
    /// Print the id and leave the container running
    #[arg(long, short, help_heading = "Container")]
    pub(crate) detach: bool,
    /// Create the container and leave its process to `agent-cli start`; implies --detach
    ///
    /// Until it is started, the container counts as running, and its secrets are in memory. `stop` or `rm -f` ends it.
    #[arg(long, conflicts_with = "keep", help_heading = "Container")]
    pub(crate) hold: bool,
    /// Remove the completed container, even with --detach
    ///
    /// This option is the default without --detach and --keep.
    #[arg(long, conflicts_with = "keep", help_heading = "Container")]
    pub(crate) rm: bool,
    /// Do not delete the container when it has completed
    #[arg(long, help_heading = "Container")]
    pub(crate) keep: bool,
    /// Let executord keep the completed container until it is removed, regardless of its retention limits
    ///
    /// Implies --keep. executord's configuration must allow it (keep_until_deleted_max).
    #[arg(long, conflicts_with = "rm", help_heading = "Container")]
    pub(crate) keep_until_deleted: bool,
    /// Pod to join: the container shares the pod's network, host name, IPC and hosts, and ends with the pod
    #[arg(long, value_name = "POD", help_heading = "Container")]
    pub(crate) pod: Option<String>,
    #[command(flatten)]
    pub(crate) streams: StreamArgs,
    /// Label of the container; can be repeated
    #[arg(help_heading = "Container", long = "label", short, value_name = "NAME=VALUE", value_parser = units::label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Time between SIGTERM and SIGKILL when the container is stopped: 500ms, 10s, 1m30s; a plain number is seconds
    /// [default: executord's, 10s]
    #[arg(help_heading = "Container", long, visible_alias = "stop-timeout", value_name = "DURATION", value_parser = units::grace)]
    pub(crate) grace: Option<Duration>,
    /// Source named in the container's log lines
    #[arg(help_heading = "Container", long, value_name = "NAME")]
    pub(crate) log_source: Option<String>,
    /// Do not log the output; this command still shows it
    #[arg(help_heading = "Container", long)]
    pub(crate) no_logs: bool,
    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
    /// Secret file: PATH=@FILE, PATH=@- (standard input), PATH=@env:VARIABLE or a reference, PATH=PROVIDER:PATH#KEY
    ///
    /// A relative PATH is below executord's root for such files (/etc/cf-service-bindings by default). The content
    /// cannot be given here, where every user of the machine could read it. Write a file called `-` or `env:x` as @./-
    /// or @./env:x. The file has mode 0600 and belongs to the process's user. If the image switches its user itself,
    /// append `,mode=0640` and `,group=GROUP` to the source; GROUP is a number or a name in the container's /etc/group.
    ///
    /// A reference names a secret of a provider in executord's configuration (see `agent-cli info`). executord fetches
    /// the secret at the start and again when it changes: db/password=vault:kv/db#password, with a version
    /// db/password=vault:kv/db#password@3, or without keys db/password=credentials:db-password.
    #[arg(help_heading = "Secrets", long = "file", value_name = "PATH=SOURCE")]
    pub(crate) files: Vec<String>,
    /// File without a secret, such as a binding's type, in the same form as --file: not masked in the output
    #[arg(help_heading = "Secrets", long = "public-file", value_name = "PATH=SOURCE")]
    pub(crate) public_files: Vec<String>,
    /// Directory that holds only secret files; can be repeated
    ///
    /// If the root file system lacks the directory, it is mounted as a whole: its files change atomically, and `rotate`
    /// can add files. Without this option, files in a home directory, or in a directory whose name begins with a dot,
    /// are mounted individually, and the directory itself stays writable.
    #[arg(help_heading = "Secrets", long = "file-directory", value_name = "PATH")]
    pub(crate) file_directories: Vec<String>,
    /// Let the process change its secret files and create files next to them, up to SIZE beyond their current size
    /// (64M, 1.5G)
    ///
    /// The process owns directories that hold only secret files: it can create, rename and delete files there. It can
    /// write to a file that is mounted individually, but not rename or delete the file. Everything is wiped like the
    /// secret files when the container ends, and nothing there can be executed. `rotate` can no longer replace these
    /// files. Without SIZE, the limit is a quarter of the memory limit, at most 64 MiB. Needs Linux 6.4.
    #[arg(help_heading = "Secrets", long, value_name = "SIZE", num_args = 0..=1, require_equals = true, value_parser = units::size)]
    pub(crate) writable_files: Option<Option<u64>>,
    /// Secret environment variable of the process: NAME=@FILE, NAME=@-, NAME=@env:VARIABLE or NAME=PROVIDER:PATH#KEY
    ///
    /// One newline at the end of FILE or of standard input is removed. Every process of the same user can read a
    /// process's environment (/proc/PID/environ): prefer --file.
    #[arg(help_heading = "Secrets", long = "secret-env", value_name = "NAME=SOURCE")]
    pub(crate) secret_env: Vec<String>,
    /// Secret argument: INDEX=@FILE, INDEX=@- or INDEX=@env:VARIABLE; INDEX 0 is the first argument
    ///
    /// The value replaces an argument written as '', or is appended if INDEX is the number of arguments: `--secret-arg
    /// 1=@pw -- mysql -p` results in `mysql -p PW`. CMD is the program and has no index, except after an IMAGE without
    /// --entrypoint: there CMD is the first argument. One newline at the end of FILE or of standard input is removed.
    /// Every process of the host can read arguments (/proc/PID/cmdline): prefer --file.
    #[arg(help_heading = "Secrets", long = "secret-arg", value_name = "INDEX=SOURCE")]
    pub(crate) secret_args: Vec<String>,
    /// Token for a provider with `auth = "jwt"`: PROVIDER=@FILE, PROVIDER=@- or PROVIDER=@env:VARIABLE
    ///
    /// executord logs in with the token to fetch the references to the provider, so the provider decides what the
    /// workload may read. PROVIDER/ROLE=@FILE names the role of the login. One newline at the end of FILE or of standard
    /// input is removed. Tokens expire: `rotate --provider-token` replaces them.
    #[arg(help_heading = "Secrets", long = "provider-token", value_name = "PROVIDER[/ROLE]=SOURCE")]
    pub(crate) provider_tokens: Vec<String>,
    /// Keep the process's initial environment in memory until the container ends, for `exec --container-env`
    ///
    /// The environment is stored in the file system of the secret files, and wiped together with them.
    #[arg(help_heading = "Secrets", long)]
    pub(crate) keep_env: bool,
    /// Mask secrets in the output of the process
    #[arg(help_heading = "Secrets", long, value_enum, default_value_t = RedactArg::Auto)]
    pub(crate) redact: RedactArg,
    /// File that receives the container's runtime token, with which the process can request its secrets again
    ///
    /// PATH is a path in the container, as for --file. `agent-cli secrets` uses the token inside the container.
    #[arg(help_heading = "Secrets", long, value_name = "PATH")]
    pub(crate) runtime_token: Option<String>,
    #[command(flatten)]
    pub(crate) bindings: DeliveryArgs,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Limit of open files
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = units::count)]
    pub(crate) nofile: Option<u64>,
    /// Resource limit of each process, as in docker: nofile=1024, nproc=100, memlock=65536:-1 (-1 is no limit); can be
    /// repeated
    ///
    /// A hard limit can be up to the hard limit of executor-launcher, or the maximum in executord's configuration
    /// (ulimits_max).
    #[arg(help_heading = "Limits", long, value_name = "NAME=SOFT[:HARD]", value_parser = units::ulimit)]
    pub(crate) ulimit: Vec<units::Ulimit>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) isolation: IsolationArgs,
    #[command(flatten)]
    pub(crate) surroundings: SurroundingsArgs,
    #[command(flatten)]
    pub(crate) host_options: HostArgs,
    #[command(flatten)]
    pub(crate) volumes: VolumeArgs,
    #[command(flatten)]
    pub(crate) checks: CheckArgs,
    #[command(flatten)]
    pub(crate) message: MessageArgs,
    #[command(flatten)]
    pub(crate) restart: RestartArgs,
    #[command(flatten)]
    pub(crate) outputs: OutputArgs,
}

impl RunArgs {
    /// Moves the image from the words of the command to the image options. Does nothing if the command follows `--` or
    /// `--rootfs` is set.
    ///
    /// # Errors
    /// Returns the reason if `--action` follows the image, because it would be an argument of the image's program.
    pub(crate) fn name_image(&mut self, escaped: bool) -> Result<(), String> {
        if escaped || self.rootfs.is_some() || self.command.is_empty() {
            return Ok(());
        }
        let image = self.command.remove(0);
        match self.command.first().map(String::as_str) {
            Some("--") => drop(self.command.remove(0)),
            Some(word) if word == "--action" || word.starts_with("--action=") => {
                let image = plain(&image);
                return Err(format!(
                    "--action follows the image: options must come first, as in `run --action FILE {image}`; \
                     `run {image} -- --action ...` passes it to the image's program"
                ));
            }
            _ => {}
        }
        self.image.image = Some(image);
        Ok(())
    }
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
