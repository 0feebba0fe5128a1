//! `exec ID -- CMD`: runs a process in a running container, connected to this command's streams.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use executor_cli_kit::exit::Outcome;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::input::feed;
use executor_cli_kit::output::Stream;
use executor_cli_kit::request::to_proto;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::terminal::{self, DetachKeys, Keyboard, Raw};
use executor_cli_kit::text::plain;
use executor_cli_kit::units;
use executor_client::Executed;
use executor_client::v1::ExecStart;

use crate::variables::environment;
use crate::view::json;

#[derive(Clone, Debug, Args)]
pub(crate) struct ExecArgs {
    /// Send this command's standard input to the process
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Give the process a terminal; with -i, this terminal
    #[arg(long, short)]
    pub(crate) tty: bool,
    /// Detach as soon as the process runs
    ///
    /// The output is dropped. The process ends with its container, or with executord.
    #[arg(long, short, conflicts_with = "interactive")]
    pub(crate) detach: bool,
    /// Keys that detach from the process, with -it
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", value_parser = DetachKeys::parse)]
    pub(crate) detach_keys: DetachKeys,
    /// Run as `user`, `uid`, `user:group` or `uid:gid`, looked up in the container [default: the container's user]
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Working directory [default: the container's]
    #[arg(long, short = 'w', visible_alias = "workdir", value_name = "DIR")]
    pub(crate) dir: Option<String>,
    /// Environment variable of the process; NAME alone copies this command's value
    #[arg(long, short, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// File with variables, one NAME=VALUE or NAME per line, as with `run`; can be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Add the variables that the container's process was started with, if it was run with --keep-env; --env takes
    /// precedence
    #[arg(long)]
    pub(crate) container_env: bool,
    /// Time limit for the program, for example 500ms or 10s; at most 7 days.
    /// If the limit is exceeded, the program and all processes it started are killed, and this command fails
    #[arg(long, value_name = "DURATION", value_parser = units::grace)]
    pub(crate) timeout: Option<Duration>,
    /// Keep the processes that the program started after the program exits
    #[arg(long)]
    pub(crate) leave_processes: bool,
    /// Id of the container, or a unique prefix
    pub(crate) id: String,
    /// The program (an absolute path, or a name to look up in PATH of --env) and its arguments
    #[arg(trailing_var_arg = true, required = true, value_names = ["CMD", "ARG"])]
    pub(crate) command: Vec<String>,
}

pub(super) async fn exec(session: &Session, args: ExecArgs) -> Result<u8, Failure> {
    if args.tty && !args.detach {
        terminal::require(args.interactive)?;
    }
    let doing = format!("exec in {}", args.id);
    let id = args.id.clone();
    let mut command = args.command.into_iter();
    let start = ExecStart {
        id: args.id,
        path: command.next().unwrap_or_default(),
        args: command.collect(),
        env: environment(&args.env_file, args.env, &|name| std::env::var_os(name))?,
        user: args.user.unwrap_or_default(),
        dir: args.dir.unwrap_or_default(),
        terminal: args.tty,
        window: args.tty.then(terminal::window).flatten(),
        stdin: args.interactive,
        detached: args.detach,
        container_environment: args.container_env,
        timeout: args.timeout.map(to_proto).transpose()?,
        leave_processes: args.leave_processes,
    };
    let mut executed = session.client.exec(start).await.doing(&doing)?;
    let _raw = (args.tty && args.interactive).then(Raw::enter).transpose()?;
    let mut keyboard =
        args.interactive.then(|| Keyboard::start(args.tty.then(|| args.detach_keys.clone()))).transpose()?;
    let input = executed.input();
    let mut fed = std::pin::pin!(feed(&mut keyboard, args.tty, &input));
    loop {
        let event = tokio::select! {
            event = executed.next() => event.doing(&doing)?,
            fed = &mut fed => {
                fed?;
                executed.detach().await.doing(&doing)?;
                session.output.note(format!("the process keeps running in {id}"));
                return Ok(0);
            }
        };
        match event {
            Executed::Stdout(bytes) => session.output.bytes(Stream::Out, bytes).await,
            Executed::Stderr(bytes) => session.output.bytes(Stream::Err, bytes).await,
            Executed::Exit(exit) => return Ok(Outcome::from_exit(&exit).status()),
            Executed::Failed(failure) => {
                session.output.note(plain(&failure.message));
                return Ok(Outcome::NotExecuted(failure.errno).status());
            }
            Executed::Started { pid } if args.detach => {
                session.print(&json::Executed { id, pid }, String::new).await;
                return Ok(0);
            }
            Executed::Started { .. } => {}
        }
    }
}
