//! `attach ID`: connects to the streams of a container's process.

use clap::Args;
use executor_cli_kit::attach::{CloseReason, Wanted, stream};
use executor_cli_kit::container::completed;
use executor_cli_kit::exit::Outcome;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::logs::{Form, Printer, follow};
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::terminal::{self, DetachKeys};
use executor_client::rest_of_log;

use crate::batch;

#[derive(Clone, Debug, Args)]
pub(crate) struct AttachArgs {
    /// Send no input
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// Take over the input from another client
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Keys that detach from the process, if it has a terminal
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", value_parser = DetachKeys::parse)]
    pub(crate) detach_keys: DetachKeys,
    /// Never block the process: output that is not read in time is skipped, and its size is reported
    #[arg(long)]
    pub(crate) lossy: bool,
    /// Id of the container, or a unique prefix
    pub(crate) id: String,
}

pub(super) async fn attach(session: &Session, args: AttachArgs) -> Result<u8, Failure> {
    let AttachArgs { no_stdin, take_over, detach_keys: keys, lossy, id } = args;
    let doing = format!("attach to {id}");
    let spec = session.client.get(&id).await.doing(&doing)?.spec.unwrap_or_default();
    let input = !no_stdin && spec.stdin;
    if spec.terminal
        && input
        && let Some(missing) = terminal::missing(true)
    {
        let why =
            format!("{doing}: its process has a terminal, but {missing} is not a terminal; use --no-stdin in scripts");
        return Err(Failure::Usage(why));
    }
    let lossless = !lossy;
    let wanted = Wanted { input, output: true, terminal: spec.terminal, take_over, keys, lossless, from: None };
    let mut printer = Printer::new(session.output.clone(), Form::AsItWas);
    match stream(session, &id, wanted, &mut printer).await? {
        CloseReason::Detached => return Ok(0),
        CloseReason::Ended => {}
        CloseReason::RestInLog(_) if spec.suppress_log_output => return Err(Failure::LogLost { id }),
        CloseReason::RestInLog(offset) => follow(&session.client, rest_of_log(&id, offset), &mut printer).await?,
    }
    let container = completed(&session.client, &id).await?;
    batch::explain_end(session, &container, &printer.messages);
    if printer.dropped > 0 && !lossy {
        return Err(Failure::LogLost { id });
    }
    Ok(Outcome::new(container.result.as_ref()).status())
}
