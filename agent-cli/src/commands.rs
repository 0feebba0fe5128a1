//! The commands. Each has a module with its arguments, its preparation and its execution.
//!
//! Secrets and other inputs are read during preparation, before anything is started. Therefore an error during
//! preparation has no side effects, and Ctrl-C simply terminates the program.

mod action;
mod attach;
pub(crate) mod audit;
mod bindings;
mod container;
pub(crate) mod context;
mod cp;
mod drain;
mod egress;
mod events;
mod exec;
mod image;
mod info;
mod inspect;
mod logs;
mod network;
mod pause;
pub(crate) mod pod;
mod ps;
mod reopen_log;
mod reserve;
mod rm;
mod rotate;
mod run;
mod secrets;
mod signal;
mod start;
mod stats;
mod stop;
mod system;
mod top;
mod update;
mod wait;

use clap::Subcommand;
use executor_cli_kit::connect::DEFAULT_SOCKET;
use executor_cli_kit::execute::{Interruption, Work};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::generate::{Documented, GenerateArgs};
use executor_cli_kit::global::Global;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::request::forbid_dumps;
use executor_cli_kit::session::Session;

use crate::ids;

use self::action::ActionCommand;
use self::attach::AttachArgs;
use self::audit::AuditArgs;
use self::bindings::BindingsCommand;
use self::container::ContainerCommand;
use self::context::ContextCommand;
use self::cp::CpArgs;
use self::drain::{DrainArgs, HealthArgs};
use self::egress::EgressArgs;
use self::events::EventsArgs;
use self::exec::ExecArgs;
use self::image::{ImageArgs, ImageCommand, ImageRmArgs, ImportArgs, LsArgs, PullArgs};
use self::inspect::InspectArgs;
use self::logs::LogsArgs;
use self::network::NetworkCommand;
use self::pause::PauseArgs;
use self::pod::PodArgs;
use self::ps::PsArgs;
use self::reopen_log::ReopenLogArgs;
use self::reserve::{ReleaseArgs, ReserveArgs};
use self::rm::RmArgs;
use self::rotate::RotateArgs;
use self::run::RunArgs;
use self::secrets::SecretsArgs;
use self::signal::{KillArgs, SignalArgs};
use self::start::StartArgs;
use self::stats::StatsArgs;
use self::stop::StopArgs;
use self::system::SystemCommand;
use self::top::TopArgs;
use self::update::UpdateArgs;
use self::wait::WaitArgs;

/// The commands, in the order of the help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program in a new container
    ///
    /// Standard output and standard error of the process are written to the standard output and standard error of
    /// agent-cli, byte for byte. Ctrl-C stops the container, a second Ctrl-C kills it, and a third exits immediately.
    /// SIGTERM and SIGHUP do the same; several of them within half a second count as one. A completed container is
    /// deleted. With --keep or --detach, or if the container existed before, agent-cli does not delete it.
    ///
    /// If the reader of the output closes it (`| head`), the container is stopped with a grace period of at most one
    /// second.
    ///
    /// With --json, standard output carries a single document, the completed container, and all output of the process
    /// goes to standard error. If executord returns an error, the document is the error.
    Run(Box<RunArgs>),
    #[command(flatten)]
    Direct(Direct),
    /// Replace, add and remove secret files of a running container in one update
    ///
    /// Prints the new generation of the files. A single file is always consistent. A program sees either all old or all
    /// new files if it resolves the directory of the files once (realpath) and opens them below the resolved path.
    /// Files can be added where a directory of secret files is mounted (see `agent-cli inspect`). A file that is
    /// mounted by itself can be replaced, but not removed.
    ///
    /// Old contents stay readable through open descriptors for half a second; then they are overwritten with zeros.
    Rotate(RotateArgs),
    /// Show and replace the connections that a container on a network may open
    Egress(EgressArgs),
    /// Pull, import, list, show and remove images
    Image(ImageArgs),
    /// Pull an image, like `image pull`
    Pull(PullArgs),
    /// List images, like `image ls`
    Images(LsArgs),
    /// Remove images, like `image rm`
    Rmi(ImageRmArgs),
    /// Import an image from an archive, like `image import`
    Load(ImportArgs),
    /// Create, list, show, stop and remove pods: groups of containers that share a network
    Pod(PodArgs),
    /// Prove that no secret is left on this machine (as root)
    ///
    /// Runs a container with random text (canaries) in every kind of input that can be secret: files, a file that is
    /// rotated while the container runs, variables, arguments, the runtime token. The container prints its secrets.
    ///
    /// Searches twice: while the container runs, and one second after its exit. Each search reads the memory of
    /// executord, the launcher and the shims, their open files, environment, command lines and mount tables, and every
    /// file in the run and state directories. A match is any 31 bytes of a canary, as text, base64 or hexadecimal.
    ///
    /// A table shows each canary and where it was found. Canaries found in the running container show that the search
    /// works. The shim also holds them, because it masks secrets in the log.
    ///
    /// Not searched: agent-cli itself, which makes the canaries; other programs; disks outside those directories. Free
    /// memory belongs to no process and is searched only with --kernel-memory. Unless the kernel runs with
    /// init_on_free=1, free memory holds copies, such as socket buffers and this command's own memory, until it is
    /// reused.
    Audit(AuditArgs),
    /// Validate action trees for `run --action`; works without executord
    #[command(subcommand)]
    Action(ActionCommand),
    /// Show, check and write service bindings; works without executord
    ///
    /// Bindings come from VCAP_SERVICES or a directory. `run` and `rotate` deliver bindings with the same flags.
    #[command(subcommand)]
    Bindings(BindingsCommand),
    /// List, select, add and remove contexts, which are names for executords
    ///
    /// A context names an executord on this machine or on another machine.
    #[command(subcommand)]
    Context(ContextCommand),
    /// Write the manual or shell completions
    Generate(GenerateArgs),
}

/// Commands that need only their flags and executord.
#[derive(Debug, Subcommand)]
pub(crate) enum Direct {
    /// List containers
    Ps(PsArgs),
    /// Show all details of containers, except secrets
    Inspect(InspectArgs),
    /// Show resource usage of containers: CPU, memory, network, disks
    ///
    /// Shows the running or the named containers every second, until interrupted or until all named containers have
    /// completed. MEMORY excludes inactive page cache.
    Stats(StatsArgs),
    /// Show resource usage of containers on a screen that keys sort, filter and scroll
    ///
    /// The keys c, m, p, n, d and i sort by CPU, memory, processes, network, disk and id. The key r reverses the
    /// order. The key / filters by a substring of the id: Enter applies the filter, Escape clears it. The list scrolls
    /// with the arrow keys, Page Up and Page Down. Press q or Ctrl-C to quit.
    /// While executord is unavailable, the last reading stays. If standard output is not a terminal, and with --batch
    /// or --json, readings are printed one after the other.
    Top(TopArgs),
    /// Print the output of a container's process
    ///
    /// Standard output and standard error are written to the matching streams, byte for byte.
    Logs(LogsArgs),
    /// Wait until containers complete and exit like the process
    ///
    /// With several ids, prints one line with the status of each, in order; the exit status is the first that is not 0.
    Wait(WaitArgs),
    /// Copy files from or to a running container, and outputs from a completed container
    ///
    /// As with cp -r, a file is copied to a file or into an existing directory; a directory becomes DEST, or is copied
    /// into an existing DEST. SOURCE/. copies only the contents of SOURCE. Permissions and links are preserved. A file
    /// appears when it is complete.
    ///
    /// In a running container, files are read and written as the container's user, who owns new files, without using a
    /// program of the image. Secret files, sockets, and files in /proc and /sys are skipped. As DEST, `-` writes a tar
    /// archive of the source to standard output. As SOURCE, `-` reads a tar archive from standard input and unpacks it
    /// in the directory DEST.
    ///
    /// From a completed container, only outputs can be copied. `ID:` copies all of them into the directory DEST:
    /// declared files keep their names, and files below a declared directory keep their relative paths. `-` writes a
    /// single file, unchanged.
    ///
    /// On this machine, files are written only below DEST, symbolic links below it are not followed, and set-user-id
    /// bits are removed. Each entry that was not captured or not copied is reported on standard error with the reason.
    /// The exit status is then 125, and all other entries are copied.
    Cp(CpArgs),
    /// Stop containers: stop signal, grace period, SIGKILL
    ///
    /// Returns when the containers have completed and their secrets are wiped. Several containers are stopped
    /// concurrently.
    Stop(StopArgs),
    /// Execute a program in a running container
    ///
    /// The process has the container's namespaces, limits, capabilities and system call filter. Its variables are PATH,
    /// HOME and the variables of --env; --container-env adds the container's variables. Its output is neither masked
    /// nor logged.
    ///
    /// The process ends with this command, unless detached (--detach, --detach-keys): if this command is interrupted,
    /// the process gets SIGHUP, and SIGKILL two seconds later. When the process has exited, the processes that it
    /// started are killed, unless --leave-processes is given.
    Exec(ExecArgs),
    /// Attach to a container's process: show its output and send input
    ///
    /// Shows new output, and sends input if the container was run with -i. With a terminal (run -it), the keys of
    /// --detach-keys detach. Exits like the process. While this command sends input but does not read output, the
    /// process blocks, for at most ten seconds. A command that only reads output and falls behind is disconnected.
    Attach(AttachArgs),
    /// Send a signal to a container's process
    Signal(SignalArgs),
    /// Kill containers, or send another signal to their processes
    Kill(KillArgs),
    /// Start the processes of containers that were created with `run --hold`
    Start(StartArgs),
    /// Suspend all processes of containers until unpause
    ///
    /// Health checks and timeouts of a tree of actions are suspended too. `stop`, `kill` and `rm` work on a paused
    /// container.
    Pause(PauseArgs),
    /// Resume the processes of paused containers
    Unpause(PauseArgs),
    /// Open the log files of containers again, after they were renamed
    ///
    /// The containers must have a file from `run --log-file`. When the command returns, all later output goes to the
    /// new file. The command creates the new file, but no directories. After an error the old file stays in use.
    ReopenLog(ReopenLogArgs),
    /// Change limits of running containers
    ///
    /// Limits that are not given stay unchanged. A memory limit below the container's current use is rejected and
    /// changes nothing.
    Update(Box<UpdateArgs>),
    /// Remove completed containers with their logs
    Rm(RmArgs),
    /// Remove all completed containers
    #[command(subcommand)]
    Container(ContainerCommand),
    /// Print secrets of the container that this command runs in
    ///
    /// The container must have been started with --runtime-token. Prints a single value, byte for byte; with --json or
    /// --reveal, prints all values. --socket defaults to /run/executor/runtime.sock here. Secrets are no longer
    /// available after the container's process has exited.
    Secrets(SecretsArgs),
    /// Follow the events of containers
    ///
    /// Runs until interrupted, even across restarts of executord.
    Events(EventsArgs),
    /// Reserve capacity for a container that is run later with `run --reservation ID`
    ///
    /// Prints the id. `ps` lists the reservation as reserved. The reservation ends when the container is run, when it
    /// is released with `release`, or when it expires. An event reports the expiry. The same command again extends the
    /// reservation.
    Reserve(ReserveArgs),
    /// Release reservations before they expire
    Release(ReleaseArgs),
    /// Accept no new containers, stop the running containers, and kill the remaining containers at the deadline
    ///
    /// Each container has its grace period. Shows the progress, and then lists the killed containers. If this command
    /// is interrupted, the drain continues; running the same command again follows it. The exit status is 125 if a
    /// container could not be killed. Executord stays drained, and unhealthy, until `undrain` or a reboot.
    Drain(DrainArgs),
    /// Accept new containers again after `drain`
    Undrain,
    /// Show whether executord is healthy or why it is unhealthy, or set its health
    ///
    /// Executord is unhealthy while it is drained, has no launcher, fails its self-test, or was marked by --unhealthy.
    Health(HealthArgs),
    /// Show executord's version, capacity and state
    Info,
    /// Show disk usage
    #[command(subcommand)]
    System(SystemCommand),
    /// List networks and show their details
    #[command(subcommand)]
    Network(NetworkCommand),
}

/// A command that is ready to run with an executord.
pub(crate) enum Prepared {
    Run(Box<run::Prepared>),
    Rotate(rotate::Prepared),
    Egress(egress::Prepared),
    Image(image::Prepared),
    Pod(pod::Prepared),
    Audit(AuditArgs),
    Direct(Direct),
}

/// Result of preparing a command: the command is done, or it needs executord.
pub(crate) enum Next {
    /// Done without executord; holds the exit status.
    Done(u8),
    Execute(Box<Prepared>),
}

impl Command {
    /// Checks for conflicting flags that clap's definitions cannot express.
    pub(crate) fn check(&self, global: &Global) -> Result<(), Failure> {
        match self {
            Self::Run(run) => run.check(global.local),
            Self::Direct(Direct::Secrets(secrets)) => secrets.check(global.local, global.json),
            _ => Ok(()),
        }
    }

    /// Reads the command's inputs, and executes the command if it needs no executord.
    pub(crate) fn prepare(self, global: &Global, definitions: fn() -> Documented) -> Result<Next, Failure> {
        let prepared = match self {
            Self::Generate(args) => return args.generate(definitions()).map(|()| Next::Done(0)),
            Self::Bindings(command) => {
                forbid_dumps();
                return bindings::local(command, global.json).map(Next::Done);
            }
            Self::Action(command) => {
                forbid_dumps();
                return action::local(command, global.json).map(Next::Done);
            }
            Self::Context(command) => return context::local(command, global).map(Next::Done),
            Self::Run(args) => Prepared::Run(Box::new(args.prepare(!global.local)?)),
            Self::Rotate(args) => Prepared::Rotate(args.prepare()?),
            Self::Egress(args) => Prepared::Egress(args.command.prepare()?),
            Self::Image(args) => Prepared::Image(args.command.prepare()?),
            Self::Pull(args) => Prepared::Image(ImageCommand::Pull(args).prepare()?),
            Self::Images(args) => Prepared::Image(image::Prepared::Direct(image::Direct::Ls(args))),
            Self::Rmi(args) => Prepared::Image(image::Prepared::Direct(image::Direct::Rm(args))),
            Self::Load(args) => Prepared::Image(image::Prepared::Direct(image::Direct::Import(args))),
            Self::Pod(args) => Prepared::Pod(args.command.prepare()?),
            Self::Audit(args) => {
                audit::require_root()?;
                Prepared::Audit(args)
            }
            Self::Direct(direct) => Prepared::Direct(direct),
        };
        if prepared.holds_secrets() {
            forbid_dumps();
        }
        Ok(Next::Execute(Box::new(prepared)))
    }
}

impl Prepared {
    fn holds_secrets(&self) -> bool {
        !matches!(self, Self::Egress(_) | Self::Pod(_))
            && !matches!(self, Self::Direct(direct) if !matches!(direct, Direct::Secrets(_)))
    }
}

impl Work for Prepared {
    fn default_socket(&self) -> &'static str {
        if matches!(self, Self::Direct(Direct::Secrets(_))) { secrets::SOCKET } else { DEFAULT_SOCKET }
    }

    fn interruption(&self) -> Interruption {
        match self {
            Self::Run(_) | Self::Audit(_) | Self::Direct(Direct::Drain(_)) => Interruption::Heeded,
            // `cp` removes a partly fetched file, and the other commands restore the terminal.
            Self::Direct(Direct::Cp(_) | Direct::Exec(_) | Direct::Attach(_) | Direct::Top(_)) => Interruption::CutOff,
            _ => Interruption::Ends,
        }
    }

    async fn perform(self, session: &Session, interrupts: &mut Interrupts) -> Result<u8, Failure> {
        match self {
            Self::Run(prepared) => run::run(session, *prepared, interrupts).await,
            Self::Rotate(prepared) => rotate::rotate(session, prepared).await,
            Self::Egress(prepared) => egress::egress(session, prepared).await,
            Self::Image(prepared) => image::image(session, prepared).await,
            Self::Pod(prepared) => pod::pod(session, prepared).await,
            Self::Audit(args) => audit::audit(session, args, interrupts).await,
            Self::Direct(direct) => direct.perform(session, interrupts).await,
        }
    }
}

impl Direct {
    async fn perform(self, session: &Session, interrupts: &mut Interrupts) -> Result<u8, Failure> {
        let client = &session.client;
        match self {
            Self::Ps(args) => ps::ps(session, args).await,
            Self::Inspect(args) => inspect::inspect(session, args).await,
            Self::Logs(args) => {
                ids::with(client, args.id.clone(), |id| logs::logs(session, LogsArgs { id, ..args.clone() })).await
            }
            Self::Cp(args) => cp::cp(session, args).await,
            Self::Wait(args) => wait::wait(session, args).await,
            Self::Stats(args) => stats::stats(session, args).await,
            Self::Top(args) => top::top(session, args).await,
            Self::Stop(args) => stop::stop(session, args).await,
            Self::Signal(args) => {
                ids::with(client, args.id.clone(), |id| signal::signal(session, SignalArgs { id, ..args.clone() }))
                    .await
            }
            Self::Exec(args) => {
                ids::with(client, args.id.clone(), |id| exec::exec(session, ExecArgs { id, ..args.clone() })).await
            }
            Self::Attach(args) => {
                ids::with(client, args.id.clone(), |id| attach::attach(session, AttachArgs { id, ..args.clone() }))
                    .await
            }
            Self::Kill(args) => signal::kill(session, args).await,
            Self::Start(args) => start::start(session, args).await,
            Self::Pause(args) => pause::pause(session, args, true).await,
            Self::Unpause(args) => pause::pause(session, args, false).await,
            Self::ReopenLog(args) => reopen_log::reopen_log(session, args).await,
            Self::Update(args) => update::update(session, *args).await,
            Self::Rm(args) => rm::rm(session, args).await,
            Self::Container(command) => container::container(session, command).await,
            Self::Secrets(args) => secrets::secrets(session, args).await,
            Self::Events(args) => events::events(session, args).await,
            Self::Reserve(args) => reserve::reserve(session, args).await,
            Self::Release(args) => reserve::release(session, args).await,
            Self::Drain(args) => drain::drain(session, args, interrupts).await,
            Self::Undrain => drain::undrain(session).await,
            Self::Health(args) => drain::health(session, args).await,
            Self::Info => info::info(session).await,
            Self::System(command) => system::system(session, command).await,
            Self::Network(command) => network::network(session, command).await,
        }
    }
}
