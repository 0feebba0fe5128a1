//! The commands, one module each with its arguments, and how each is prepared and carried out.
//!
//! Secrets and other inputs are read while a command is prepared, before anything is started: an error costs nothing then, and
//! Ctrl-C just ends the program.

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
mod pause;
mod pod;
mod ps;
mod reserve;
mod rm;
mod rotate;
mod run;
mod secrets;
mod signal;
mod stats;
mod stop;
mod system;
mod top;
mod update;
mod wait;

use clap::Subcommand;

use crate::connect::DEFAULT_SOCKET;
use crate::failure::Failure;
use crate::generate::{Documented, GenerateArgs};
use crate::global::Global;
use crate::ids;
use crate::interrupt::Interrupts;
use crate::programs::PROGRAM;
use crate::request::forbid_dumps;
use crate::session::Session;
use crate::work::{Interruption, Work};

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
use self::pause::PauseArgs;
use self::pod::PodArgs;
use self::ps::PsArgs;
use self::reserve::{ReleaseArgs, ReserveArgs};
use self::rm::RmArgs;
use self::rotate::RotateArgs;
use self::run::RunArgs;
use self::secrets::SecretsArgs;
use self::signal::{KillArgs, SignalArgs};
use self::stats::StatsArgs;
use self::stop::StopArgs;
use self::system::SystemCommand;
use self::top::TopArgs;
use self::update::UpdateArgs;
use self::wait::WaitArgs;

/// The commands in the order of the help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program in a new container
    ///
    /// The process's standard output and standard error come out as agent-cli's own, byte for byte. Ctrl-C (SIGINT,
    /// also SIGTERM and SIGHUP) stops the container, a second one kills it, a third one leaves at once; SIGTERMs, and SIGHUPs,
    /// within half a second are one. At the end the container is deleted, unless --keep or --detach is given, or it was there
    /// before under the same --id.
    ///
    /// When the reader of the output goes away (`| head`), the container is stopped with a grace period of at
    /// most one second.
    ///
    /// With --json, standard output carries one document, the container as it ended, and all that the process writes
    /// comes out on standard error. An error of agent-cli's leaves standard output empty.
    Run(Box<RunArgs>),
    #[command(flatten)]
    Direct(Direct),
    /// Replace, add and remove secret files of a running container, all of them at once
    ///
    /// Prints the new generation of the files. A program sees the old files or the new ones and no mixture, if it
    /// opens the directory that one of them leads to (realpath) once and reads through that; one path alone is always
    /// whole. Files can be added where a directory of secret files is mounted (`agent-cli inspect` shows where). A file that
    /// is mounted by itself can be replaced and not removed.
    ///
    /// Old contents stay readable through what was open before, for half a second; then they are overwritten with zeros.
    Rotate(RotateArgs),
    /// Show and replace the connections that a container on a CNI network may open
    Egress(EgressArgs),
    /// Fetch, take in, list, show and remove images
    Image(ImageArgs),
    /// Fetch an image, as `image pull`
    Pull(PullArgs),
    /// List images, as `image ls`
    Images(LsArgs),
    /// Remove images, as `image rm`
    Rmi(ImageRmArgs),
    /// Take an image in from an archive, as `image import`
    Load(ImportArgs),
    /// Create, list, show, stop and remove pods: groups of containers that share a network
    Pod(PodArgs),
    /// Show that nothing of a secret is left on this machine (as root)
    ///
    /// Runs a container with random text (canaries) in every kind of input that can be secret: files, one that is
    /// rotated while it runs, variables, arguments, the runtime token. The container prints its secrets. Then this
    /// searches, while the container runs and one second after its end: all memory of executord, its launcher and its
    /// shims and what only their descriptors lead to, their environment, command lines and mount tables, and every file
    /// below the run and the state directory. Any 31 bytes of a canary count as found, also in base64 and hexadecimal.
    ///
    /// A table shows every canary and every place where it was found. Finding a canary in the running container shows that the
    /// search works. The shim has it, too, because it masks secrets in the log.
    ///
    /// Not searched: agent-cli itself, which makes the canaries; other programs; disks beyond those directories. Free
    /// memory belongs to nobody: it is searched with --kernel-memory alone, and holds copies (of this very command's,
    /// of socket buffers) until it is used again, unless the kernel runs with init_on_free=1.
    Audit(AuditArgs),
    /// Check trees of actions for `run --action`; needs no executord
    #[command(subcommand)]
    Action(ActionCommand),
    /// Show, check and write service bindings from VCAP_SERVICES or a directory; needs no executord
    ///
    /// `run` and `rotate` deliver bindings by the same flags.
    #[command(subcommand)]
    Bindings(BindingsCommand),
    /// List, choose, add and remove contexts: names for executords of this machine and of others
    #[command(subcommand)]
    Context(ContextCommand),
    /// Write the manual or shell completions
    Generate(GenerateArgs),
}

/// Commands that need nothing but their flags and executord.
#[derive(Debug, Subcommand)]
pub(crate) enum Direct {
    /// List containers
    Ps(PsArgs),
    /// Show everything about containers, but no secret
    Inspect(InspectArgs),
    /// Show what containers use: processor, memory, network, disks
    ///
    /// Shows the containers that run, or those that are named, every second, until it is interrupted or all that are named have
    /// ended. MEMORY is without page cache that is not in active use.
    Stats(StatsArgs),
    /// Watch what containers use, on a screen that is sorted, filtered and scrolled by keys
    ///
    /// Keys: c, m, p, n, d, i sort by processor, memory, processes, network, disk, id; r reverses; / filters by a part of the id (Enter
    /// keeps it, Escape clears it); arrows, Page Up and Page Down scroll; q or Ctrl-C quits. While executord is away the last reading
    /// stays. Through a pipe, and with --batch or --json, each reading is printed behind the one before.
    Top(TopArgs),
    /// Print the output of a container's process
    ///
    /// Standard output and standard error come out on their own streams, byte for byte.
    Logs(LogsArgs),
    /// Wait for the end of a container and exit as its process did
    ///
    /// With several ids, prints a line with the status of each, in their order; the exit status is the first that is not 0.
    Wait(WaitArgs),
    /// Copy files out of a running container or into it, and outputs of a completed one
    ///
    /// As with cp -r, a file is copied to a file or into an existing directory; a directory becomes DEST, or is copied into
    /// an existing DEST. SOURCE/. copies the contents of SOURCE alone. Permissions are kept, links stay links. A file appears
    /// when it is complete.
    ///
    /// In a running container, files are read and written as the container's user, who owns new files, and without a program
    /// of its image. Secret files, sockets and files in /proc and /sys are left out. `-` is a tar archive: of the source on
    /// standard output, or on standard input to be unpacked in the directory DEST.
    ///
    /// A completed container has its outputs alone. `ID:` fetches all of them into the directory DEST: declared files keep their
    /// names, files below a declared directory their relative paths. `-` writes one file, unchanged.
    ///
    /// On this machine nothing is written but below DEST, no symbolic link is followed there, and set-user-id bits are
    /// left out. Each entry that was not captured or not copied is reported on standard error with the reason; the exit
    /// status is 125 then, and everything else is copied.
    Cp(CpArgs),
    /// Stop containers: their stop signal, their grace period, SIGKILL
    ///
    /// Returns when they are completed and their secrets are wiped. Several containers are stopped at the same time.
    Stop(StopArgs),
    /// Execute a program in a running container
    ///
    /// The process has the container's namespaces, limits, capabilities and filter on system calls. Its variables are PATH,
    /// HOME and those of --env, and the container's with --container-env alone. It ends with this command, unless it was left to itself (--detach,
    /// --detach-keys): when this command is interrupted, the process gets SIGHUP, and SIGKILL two seconds later. Its output
    /// is not masked and in no log.
    Exec(ExecArgs),
    /// Show the output of a container's process from now on, and send it input if it was run with -i
    ///
    /// With a terminal (run -it), the keys of --detach-keys leave the process to itself. Exits as the process did. While
    /// this command sends input and does not read, the process waits for it, ten seconds at most. A command that only watches
    /// is disconnected.
    Attach(AttachArgs),
    /// Send a signal to a container's process
    Signal(SignalArgs),
    /// Kill containers, or send another signal to their processes
    Kill(KillArgs),
    /// Stop all processes of containers until unpause
    ///
    /// Checks rest, and the times of a tree of actions stand still. `stop`, `kill` and `rm` end a paused container as any other.
    Pause(PauseArgs),
    /// Let the processes of paused containers go on
    Unpause(PauseArgs),
    /// Replace limits of running containers
    ///
    /// Limits that are not given stay as they are. A limit on memory below what the container uses is refused, and changes nothing.
    Update(UpdateArgs),
    /// Remove completed containers with their logs
    Rm(RmArgs),
    /// Remove all completed containers
    #[command(subcommand)]
    Container(ContainerCommand),
    /// Print secrets of the container that this command runs in
    ///
    /// For use within a container that was started with --runtime-token. Prints one value as it is, byte for byte; all of
    /// them with --json or --reveal. The default of --socket is /run/executor/runtime.sock here. A container whose process
    /// has ended has no secrets any more.
    Secrets(SecretsArgs),
    /// Follow the events of containers
    ///
    /// Goes on until it is interrupted, also over a restart of executord.
    Events(EventsArgs),
    /// Reserve capacity for a container that is run later with `run --reservation ID`
    ///
    /// Prints the id. The reservation is listed by `ps` as reserved. It ends with the run, with `release`, or when its time is
    /// over, which is an event. Reserving the same again begins the time anew.
    Reserve(ReserveArgs),
    /// End reservations before their time
    Release(ReleaseArgs),
    /// Take no new containers, stop all that there are, and kill the rest at the deadline
    ///
    /// Each container has its grace period. Shows the progress, and at the end what was killed. Executord goes on when this command
    /// is interrupted; the same command joins it again. The exit status is 125 where a container could not be killed.
    /// Executord stays drained, and not healthy, until `undrain` or a restart of the machine.
    Drain(DrainArgs),
    /// Take new containers again after `drain`
    Undrain,
    /// Show whether executord is healthy, with the reasons where it is not, or set that
    ///
    /// It is not healthy while it is drained or has no launcher, when its test of itself fails, or when --unhealthy says so.
    Health(HealthArgs),
    /// Show executord's version, capacity and state
    Info,
    /// Show how much of the disk is used
    #[command(subcommand)]
    System(SystemCommand),
}

/// A command that is ready to be carried out with an executord.
pub(crate) enum Prepared {
    Run(Box<run::Prepared>),
    Rotate(rotate::Prepared),
    Egress(egress::Prepared),
    Image(image::Prepared),
    Pod(pod::Prepared),
    Audit(AuditArgs),
    Direct(Direct),
}

/// Rest of a command after its preparation.
pub(crate) enum Next {
    /// The command is done without executord; the program ends with this status.
    Done(u8),
    CarryOut(Prepared),
}

impl Command {
    /// Checks what the definitions cannot say: flags that contradict one another.
    pub(crate) fn check(&self, global: &Global) -> Result<(), Failure> {
        global.check()?;
        match self {
            Self::Run(run) => run.check(global.local),
            Self::Direct(Direct::Secrets(secrets)) => secrets.check(global.local, global.json),
            _ => Ok(()),
        }
    }

    /// Reads what the command needs, and does what needs no executord.
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
        Ok(Next::CarryOut(prepared))
    }
}

impl Prepared {
    fn holds_secrets(&self) -> bool {
        !matches!(self, Self::Egress(_) | Self::Pod(_))
            && !matches!(self, Self::Direct(direct) if !matches!(direct, Direct::Secrets(_)))
    }
}

impl Work for Prepared {
    fn program(&self) -> &'static str {
        PROGRAM
    }

    fn default_socket(&self) -> &'static str {
        if matches!(self, Self::Direct(Direct::Secrets(_))) { secrets::SOCKET } else { DEFAULT_SOCKET }
    }

    fn interruption(&self) -> Interruption {
        match self {
            Self::Run(_) | Self::Audit(_) | Self::Direct(Direct::Drain(_)) => Interruption::Heeded,
            // A file that is half fetched is taken away again; a terminal is put back.
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
            Self::Pause(args) => pause::pause(session, args, true).await,
            Self::Unpause(args) => pause::pause(session, args, false).await,
            Self::Update(args) => update::update(session, args).await,
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
        }
    }
}
