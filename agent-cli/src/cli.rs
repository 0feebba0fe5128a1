//! The command line: help, manual and completions come from these definitions.
//!
//! Values that can be secret (`--file`, `--env`) are taken as plain text and parsed elsewhere, because clap
//! repeats a value that it refuses.

mod bindings;
mod cnab;
pub(crate) mod images;
mod limits;
mod outputs;
mod run;
mod streams;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::audit::inputs::SIZES;
use crate::failure::Failure;
use crate::view::format::Template;
use crate::{exit, signals, units};

pub(crate) use bindings::{BindingArgs, BindingsCommand, CheckArgs, DeliveryArgs, ShowArgs, WriteArgs};
pub(crate) use cnab::{ActionArgs, BundleArg, CnabArgs, CnabCommand, ExplainArgs, OfClaimArgs, OutputsArgs};
pub(crate) use images::{ImageArgs, ImageOfRun};
pub(crate) use limits::LimitArgs;
pub(crate) use outputs::{Copy, CpArgs, CpSource, OutputArgs};
pub(crate) use run::{RedactArg, RunArgs};
pub(crate) use streams::{AttachArgs, ExecArgs, StreamArgs};

/// Run containers with secret files on this machine and look after them, through executord.
#[derive(Debug, Parser)]
#[command(
    name = "agent-cli",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection and output")]
pub(crate) struct Global {
    /// Socket of executord [environment: EXECUTOR_SOCKET; default: /run/executor/executor.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Start a private executord in a temporary directory, use it and take it down again (needs root)
    ///
    /// executord is looked for beside agent-cli, then in PATH. Its containers end with the command.
    #[arg(long, global = true)]
    pub(crate) local: bool,
    /// Print JSON: one document, or one object a line from `logs` and `events`
    ///
    /// Times are RFC 3339 in UTC, durations are seconds, sizes are bytes, unknown values are null.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program in a new container
    ///
    /// The process's standard output and standard error come out as agent-cli's own, byte for byte. Ctrl-C (SIGINT,
    /// also SIGTERM and SIGHUP) stops the container, a second one kills it, a third one leaves at once. At the end the
    /// container is deleted, unless --keep or --detach is given, or it was there before under the same --id.
    ///
    /// When the reader of the output goes away (`| head`), the container is stopped with a grace period of at
    /// most one second.
    ///
    /// With --json, standard output carries one document, the container as it ended, and all that the process writes
    /// comes out on standard error. An error of agent-cli's leaves standard output empty.
    Run(Box<RunArgs>),
    /// List containers
    Ps(PsArgs),
    /// Show everything about a container, but no secret
    Inspect(IdArg),
    /// Print what a container's process wrote
    ///
    /// Standard output and standard error come out on their own streams, byte for byte.
    Logs(LogsArgs),
    /// Wait for the end of a container and exit as its process did
    ///
    /// With several ids a line for each tells its status, in their order; the exit status is the first that is not 0.
    Wait(WaitArgs),
    /// Copy files out of a running container or into it, and outputs of a completed one
    ///
    /// As cp -r does it: a file goes to a file, or into a directory that is there; a directory becomes DEST, or goes into
    /// DEST where that is there; of SOURCE/. only what is in it is copied. Permissions are kept, links stay links. Files
    /// are whole or not there.
    ///
    /// In a running container it is done as the container's user, who owns what comes, and with no program of its image.
    /// Secret files, sockets and what is in /proc and /sys are left out. `-` is a tar archive: of the source on standard
    /// output, and on standard input one that is unpacked in the directory DEST.
    ///
    /// Of a completed container outputs alone are there. `ID:` fetches all of them into the directory DEST: files under
    /// their own names, what is below a declared directory as it lies there. `-` writes one file, as it is.
    ///
    /// On this machine nothing is written but below DEST, no symbolic link is followed there, and set-user-id bits are
    /// left out. A line on standard error tells each entry that was not captured, or not copied, and why; the exit status
    /// is 125 then, with all else copied.
    Cp(CpArgs),
    /// Stop containers: SIGTERM, their grace period, SIGKILL
    ///
    /// Comes back when they are completed and their secrets are wiped. Several are stopped at once.
    Stop(StopArgs),
    /// Execute a program in a running container
    ///
    /// It has the container's namespaces, limits, capabilities and filter on system calls, and of its variables none: PATH,
    /// HOME and what --env gives. It ends with this command, unless it was left to itself (--detach, --detach-keys): when
    /// that is interrupted, the process gets SIGHUP, and SIGKILL two seconds later. What it writes is not masked and in no
    /// log.
    Exec(ExecArgs),
    /// Watch what a container's process writes from now on, and send it input where it was run with -i
    ///
    /// With a terminal (run -it), the keys of --detach-keys leave the process to itself. Exits as the process did. While
    /// this command does not read, the process waits for it for ten seconds at most, where it sends input; one that only
    /// watches is let go.
    Attach(AttachArgs),
    /// Send a signal to a container's process
    Signal(SignalArgs),
    /// Replace, add and remove secret files of a running container, all of them at once
    ///
    /// Prints the new generation of the files. A program sees the old files or the new ones and no mixture, if it
    /// opens the directory that one of them leads to (realpath) once and reads through that; one path alone is always
    /// whole. Files can be added where a directory of secret files is mounted (`agent-cli inspect` shows where). A file that
    /// is mounted by itself can be replaced and not removed.
    ///
    /// Old contents stay readable through what was open before, for half a second; then they are overwritten with zeros.
    Rotate(RotateArgs),
    /// Remove completed containers with their logs
    Rm(RmArgs),
    /// Print secrets of the container that this command runs in
    ///
    /// For use within a container that was started with --runtime-token. Prints one value as it is, byte for byte; all of
    /// them with --json or --reveal. The default of --socket is /run/executor/runtime.sock here. A container whose process
    /// has ended has no secrets any more.
    Secrets(SecretsArgs),
    /// Fetch, take in, list, show and remove images
    Image(ImageArgs),
    /// Follow what happens to containers
    ///
    /// Goes on until it is interrupted, also over a restart of executord.
    Events(EventsArgs),
    /// Show that nothing of a secret is left on this machine (as root)
    ///
    /// Runs a container with random text (canaries) in every kind of input that can be secret: files, one that is
    /// rotated while it runs, variables, arguments, the runtime token. The container prints its secrets. Then this
    /// searches, while the container runs and one second after its end: all memory of executord, its launcher and its
    /// shims and what only their descriptors lead to, their environment, command lines and mount tables, and every file
    /// below the run and the state directory. Any 31 bytes of a canary count as found, also in base64 and hexadecimal.
    ///
    /// A table says for every canary and every place where it was. That it is in the container while that runs shows
    /// that the search would find it. The shim has it, too, because it masks secrets in the log.
    ///
    /// Not searched: agent-cli itself, which makes the canaries; other programs; disks beyond those directories. Free
    /// memory belongs to nobody: it is searched with --kernel-memory alone, and holds copies (of this very command's,
    /// of socket buffers) until it is used again, unless the kernel runs with init_on_free=1.
    Audit(AuditArgs),
    /// Service bindings: what VCAP_SERVICES or a directory becomes; works without executord
    ///
    /// `run` and `rotate` deliver bindings by the same flags.
    #[command(subcommand)]
    Bindings(BindingsCommand),
    /// Install, upgrade and uninstall Cloud Native Application Bundles (CNAB)
    Cnab(Box<CnabArgs>),
    /// Show executord's version, capacity and state
    Info,
    /// Write the manual or shell completions
    Generate(GenerateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SecretsArgs {
    /// File that holds the container's runtime token [environment: EXECUTOR_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print the value of this variable
    #[arg(long, value_name = "NAME", group = "one")]
    pub(crate) env: Option<String>,
    /// Print the argument of this index, counted from 0
    #[arg(long, value_name = "INDEX", group = "one")]
    pub(crate) arg: Option<u32>,
    /// Print the content of this file, named by its absolute path
    #[arg(long, value_name = "PATH", group = "one")]
    pub(crate) file: Option<String>,
    /// Print every value, for a person to read
    #[arg(long, conflicts_with = "one")]
    pub(crate) reveal: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct IdArg {
    /// Id of the container, or a unique beginning of it
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Show completed containers too
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Only in this state; may be repeated
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) state: Vec<StateArg>,
    /// Only with this label; with all of them when repeated
    #[arg(long = "label", short, value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Print ids only, one a line
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print a line for each as this template says: '{{.ID}} {{.Ports}}'; `table ...` with a heading, `json`
    ///
    /// Fields: .ID, .Names (the same), .Image (its root file system), .Command, .CreatedAt, .RunningFor, .State, .Status,
    /// .Exit, .Ports, .Addresses, .Networks, .Labels, .Label \"NAME\"; {{json .FIELD}} writes one as JSON. \\t and \\n are a
    /// tabulator and a new line.
    #[arg(long, value_name = "TEMPLATE", value_parser = Template::parse, conflicts_with_all = ["json", "quiet"])]
    pub(crate) format: Option<Template>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateArg {
    Reserved,
    Initializing,
    Created,
    Running,
    Stopping,
    Wiping,
    Completed,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct LogsArgs {
    /// Go on until the container is completed
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// From this time on: 2026-01-31T12:00:00Z, or 10m for the last ten minutes
    #[arg(long, value_name = "TIME", value_parser = |text: &str| units::instant(text, SystemTime::now()))]
    pub(crate) since: Option<SystemTime>,
    /// Only so many lines of what there is, the last ones; `all` for all of them
    #[arg(long, short = 'n', value_name = "LINES", value_parser = units::lines, default_value = "all", allow_hyphen_values = true)]
    pub(crate) tail: units::Lines,
    /// Write the time in front of each line
    #[arg(long, short)]
    pub(crate) timestamps: bool,
    /// Id of the container, or a unique beginning of it
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Ids of the containers, or unique beginnings of them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Instead of the container's own grace period: 0s, 500ms, 1m30s; 10 are ten seconds
    #[arg(long, short = 't', visible_aliases = ["time", "timeout"], value_name = "DURATION", value_parser = units::grace)]
    pub(crate) grace: Option<Duration>,
    /// Come back at once
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Ids of the containers, or unique beginnings of them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SignalArgs {
    /// Id of the container, or a unique beginning of it
    pub(crate) id: String,
    /// Name or number: TERM, SIGUSR1, 9, RTMIN+1
    #[arg(value_parser = signals::parse)]
    pub(crate) signal: u32,
}

#[derive(Debug, Args)]
pub(crate) struct RotateArgs {
    /// Id of the container, or a unique beginning of it
    pub(crate) id: String,
    /// File to be replaced or added: PATH=@FILE, PATH=@- (standard input) or PATH=@env:VARIABLE, as with `run`
    #[arg(long = "file", value_name = "PATH=SOURCE")]
    pub(crate) files: Vec<String>,
    /// The same for a file that is no secret in itself, as with `run`
    #[arg(long = "public-file", value_name = "PATH=SOURCE")]
    pub(crate) public_files: Vec<String>,
    /// File to be removed; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) remove: Vec<String>,
    /// Then send this signal to the container's process: HUP, SIGUSR1, 10
    #[arg(long, value_name = "NAME", value_parser = signals::parse)]
    pub(crate) signal: Option<u32>,
    /// Only if the files are of this generation, as an earlier `rotate` or `inspect` told it
    #[arg(long, value_name = "N")]
    pub(crate) expect_generation: Option<u64>,
    #[command(flatten)]
    pub(crate) bindings: DeliveryArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Kill it first if it runs
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Ids of the containers, or unique beginnings of them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Begin after this event; 0 for all that are kept [default: what happens from now on]
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<u64>,
    /// Of this container only
    #[arg(long)]
    pub(crate) id: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Size of each canary: 64 to 450000; in variables and arguments at most 100000
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = canary_size)]
    pub(crate) size: u64,
    /// Root file system of the container: `host` or `dir:/absolute/path`; it must have /bin/sh, cat and sleep
    #[arg(long, value_name = "REF", default_value = "host")]
    pub(crate) rootfs: String,
    /// Run the container as `user`, `uid`, `user:group` or `uid:gid` [default: root]
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Search the journal, too
    #[arg(long)]
    pub(crate) journal: bool,
    /// Search all of the machine's memory, too, through /proc/kcore (a second or two for each gigabyte)
    #[arg(long)]
    pub(crate) kernel_memory: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// What to write
    #[arg(value_enum)]
    pub(crate) what: Generated,
    /// Directory to write into; made when it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// For this shell only; may be repeated [default: all]
    #[arg(long, value_enum)]
    pub(crate) shell: Vec<ShellArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Generated {
    /// agent-cli.1 and a page for each command
    Man,
    /// Completions under the names that the shells look for
    Completions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellArg {
    Bash,
    Zsh,
    Fish,
}

fn canary_size(text: &str) -> Result<u64, String> {
    let (least, most) = (SIZES.start(), SIZES.end());
    let size = units::size(text)?;
    if SIZES.contains(&size) { Ok(size) } else { Err(format!("is {size}; {least} to {most} is allowed")) }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a label is NAME=VALUE".into()),
    }
}

/// Commands whose exit status says more than done and failed.
pub(crate) const WITH_STATUSES: [&str; 5] = ["run", "wait", "exec", "attach", "audit"];

/// The definitions with the table of exit statuses where it belongs.
pub(crate) fn command() -> clap::Command {
    let mut statuses = String::from("Exit status:\n");
    for (status, meaning) in exit::TABLE {
        statuses.push_str(&format!("  {status:<7} {meaning}\n"));
    }
    let mut command = Cli::command().after_help(statuses.clone());
    for name in WITH_STATUSES {
        command = command.mut_subcommand(name, |subcommand| subcommand.after_help(statuses.clone()));
    }
    command
}

/// Parses this process's command line. An error says itself how to be shown.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let line = std::env::args_os().collect::<Vec<_>>();
    Cli::read(&line).map_err(|error| match error.kind() {
        ErrorKind::InvalidUtf8 => not_utf8(&line),
        _ => error,
    })
}

/// The error for arguments that are not UTF-8. It names their places alone: an argument may be a secret.
fn not_utf8(line: &[OsString]) -> clap::Error {
    let bad = |argument: &OsString| argument.to_str().is_none();
    let places: Vec<String> = (1..line.len())
        .filter(|at| bad(&line[*at]))
        .map(|at| match line[at - 1].to_str() {
            Some(flag) if flag.starts_with("--") && flag != "--" => format!("{at} (after {flag})"),
            _ => at.to_string(),
        })
        .collect();
    let (word, verb) = if places.len() == 1 { ("argument", "is") } else { ("arguments", "are") };
    let why = format!("{word} {} {verb} not UTF-8: what has other bytes goes into a file (--file)", places.join(", "));
    command().error(ErrorKind::InvalidUtf8, why)
}

impl Cli {
    /// Reads a command line, the program's name first.
    pub(crate) fn read(line: &[OsString]) -> Result<Self, clap::Error> {
        let mut cli = Self::from_arg_matches(&command().try_get_matches_from(line)?)?;
        if let Command::Run(run) = &mut cli.command {
            // The words of what is run end the line. Whether `--` stands before them decides what the first one is.
            let before = line.len().checked_sub(run.command.len() + 1);
            run.name_image(before.is_some_and(|at| line[at] == "--"));
        }
        Ok(cli)
    }

    /// What the definitions cannot say: flags that contradict one another.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        if self.global.local && self.global.socket.is_some() {
            return usage("--local and --socket exclude one another: --local starts an executord of its own");
        }
        match &self.command {
            Command::Run(run) if self.global.local && (run.detach || run.keep) => {
                usage("--detach and --keep are of no use with --local: the private executord ends with the command")
            }
            Command::Run(run) => run.outputs.check(run.detach, run.keep),
            Command::Secrets(_) if self.global.local => {
                usage("--local is of no use with secrets: it asks the executord of the container that it runs in")
            }
            Command::Secrets(SecretsArgs { env: None, arg: None, file: None, reveal: false, .. })
                if !self.global.json =>
            {
                usage("secrets prints one value (--env, --arg, --file); with --json or --reveal it prints all of them")
            }
            _ => Ok(()),
        }
    }
}

impl Global {
    /// `--socket`, else EXECUTOR_SOCKET, else the command's default.
    pub(crate) fn socket(&self, default: &str) -> PathBuf {
        let from_environment =
            || std::env::var_os("EXECUTOR_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
        self.socket.clone().or_else(from_environment).unwrap_or_else(|| default.into())
    }
}

#[cfg(test)]
mod tests;
