//! `cnab-executor`: reads an operation of cnab-go or Porter from standard input, runs it in a container, and writes its
//! outputs to `CNAB_OUTPUT_DIR`. The run tool's standard output and standard error are forwarded immediately.
//!
//! SIGINT, SIGTERM and SIGHUP stop the container; the outputs are still fetched. The exit status is the run tool's exit
//! status.
//!
//! Environment variables:
//!
//! - EXECUTOR_SOCKET, or EXECUTOR_ADDRESS with the TLS files, selects executord, as for agent-cli.
//! - EXECUTOR_CNAB_NETWORK and EXECUTOR_CNAB_EGRESS=1 correspond to `--network` and `--egress` of `run`.
//! - EXECUTOR_CNAB_IMAGE is an image to run instead of the bundle's image.
//! - EXECUTOR_CNAB_USER is the user to run as.
//! - EXECUTOR_CNAB_IGNORE_DIGEST=1 permits images whose digest cannot be verified.
//!
//! The variables with value 1 are boolean: `1`, `true`, `yes` and `on` enable them; `0`, `false`, `no` and `off`
//! disable them.

use std::process::ExitCode;
use std::str::FromStr as _;

use executor_cli_kit::connect::{DEFAULT_SOCKET, connect};
use executor_cli_kit::container::completed;
use executor_cli_kit::destination::{Place, Tree, below};
use executor_cli_kit::execute::block_on;
use executor_cli_kit::exit::{OURS, Outcome};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::follow;
use executor_cli_kit::global::Global;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::logs::{Form, Printer};
use executor_cli_kit::network::Chosen;
use executor_cli_kit::output::Output;
use executor_cli_kit::report::report;
use executor_cli_kit::request::forbid_dumps;
use executor_cli_kit::session::Session;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::style::Style;
use executor_cnab::claim::Status;
use executor_cnab::paths::OUTPUTS;

use crate::ended::{delete, evaluate, outputs};
use crate::error::CnabError;
use crate::image;
use crate::operation::{HANDLES, Operation};
use crate::plan::ImageChoice;
use crate::request::{self, Options};

/// Program name at the start of messages.
const PROGRAM: &str = "cnab-executor";
const USAGE: &str = "cnab-executor is a command driver for cnab-go and Porter: `cnab-executor --handles` prints the types of \
                     images that it runs, and without arguments it reads an operation from standard input";

/// Runs the program under the name `cnab-executor`.
pub(crate) fn drive() -> ExitCode {
    let result = match std::env::args_os().nth(1) {
        Some(argument) if argument == "--handles" => {
            // Print nothing else: callers read standard output and standard error together.
            print!("{HANDLES}");
            return ExitCode::SUCCESS;
        }
        Some(_) => Err(Failure::Usage(USAGE.into())),
        None => operate(),
    };
    report(PROGRAM, false, result)
}

fn operate() -> Result<u8, Failure> {
    forbid_dumps();
    let operation = Operation::read(&mut std::io::stdin().lock())?;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let network = variable("EXECUTOR_CNAB_NETWORK").map_or(Ok(Chosen::None), |name| Chosen::from_str(&name));
    let network = network.map_err(|why| Failure::Usage(format!("EXECUTOR_CNAB_NETWORK {why}")))?;
    let switch = |name: &str| variable(name).map_or(Ok(false), |value| switched(name, &value));
    let egress = switch("EXECUTOR_CNAB_EGRESS")?;
    let options = Options { network, egress, user: variable("EXECUTOR_CNAB_USER"), ..Options::default() };
    let image = ImageChoice {
        replacement: variable("EXECUTOR_CNAB_IMAGE"),
        ignore_digest: switch("EXECUTOR_CNAB_IGNORE_DIGEST")?,
        ..ImageChoice::default()
    };
    let server = Global::default().server(DEFAULT_SOCKET)?;
    block_on(async {
        let mut interrupts = Interrupts::install().map_err(Failure::System)?;
        let output = Output::start(PROGRAM).map_err(Failure::System)?;
        let client = connect(&server).await?;
        let session = Session { client, output, style: Style::detect(), json: false };
        let result = perform(&session, &operation, &options, &image, &mut interrupts).await;
        let written = session.output.finish().await;
        result.and_then(|status| written.map(|()| status))
    })
}

/// Parses the value of an on/off variable.
fn switched(name: &str, value: &str) -> Result<bool, Failure> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(Failure::Usage(format!("{name}={} is not a boolean; use true or false (1 or 0)", plain(value)))),
    }
}

async fn perform(
    session: &Session,
    operation: &Operation,
    options: &Options,
    choice: &ImageChoice,
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    let invocation = operation.invocation();
    let rootfs = image::reference(session, &invocation, choice).await?;
    let id = format!("cnab-driver-{}", uuid::Uuid::new_v4());
    let writable = request::files_can_be_written(session).await?;
    let request = request::build(&id, &rootfs, &invocation, None, options, writable)?;
    drop(invocation);
    let mut printer = Printer::new(session.output.clone(), Form::AsItWas);
    let (container, failure) = match follow::run_foreground(session, request, interrupts, &mut printer, || Ok(())).await
    {
        Ok(container) => (container, None),
        Err(failure @ (Failure::Abandoned { .. } | Failure::GaveUp { .. })) => return Err(failure),
        Err(failure) => match completed(&session.client, &id).await {
            Ok(container) => (container, Some(failure)),
            Err(_) => return Err(failure),
        },
    };
    let fetched = fetch(session, &id).await;
    delete(session, &id).await;
    fetched?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let (status, message) = evaluate(&container);
    if status == Status::Succeeded {
        return Ok(0);
    }
    session.output.note(format!(
        "{} {}: {}",
        plain(&operation.action),
        plain(&operation.installation_name),
        plain(&message)
    ));
    let code = Outcome::new(container.result.as_ref()).status();
    // If the caller stopped the operation, the exit status must not be 0.
    Ok(if code == 0 { OURS } else { code })
}

/// Writes the captured outputs below CNAB_OUTPUT_DIR, at the same paths as in the container.
async fn fetch(session: &Session, id: &str) -> Result<(), Failure> {
    let Some(directory) = std::env::var_os("CNAB_OUTPUT_DIR").filter(|directory| !directory.is_empty()) else {
        return Ok(());
    };
    let (files, skipped) = outputs(session, id).await?;
    for (path, reason) in skipped {
        session.output.note(format!("not captured: {}: {}", plain(&path), plain(&reason)));
    }
    let tree = Tree::open(&Place { directory: directory.into(), make: true, name: None })?;
    for (path, content) in files {
        let relative = below("", &path).filter(|_| path.starts_with(OUTPUTS));
        let relative =
            relative.ok_or_else(|| CnabError::Driver(format!("executord sent {path:?}, which was not requested")))?;
        let mut file = tree.file(&relative, 0o600)?;
        file.write(&content)?;
        file.finish()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_boolean_switches_are_accepted() {
        for (text, expected) in
            [("1", true), ("true", true), ("TRUE", true), ("yes", true), ("0", false), ("False", false)]
        {
            assert_eq!(switched("X", text).unwrap(), expected, "{text}");
        }
        assert!(switched("X", "maybe").unwrap_err().describe().contains("X=maybe"));
    }
}
