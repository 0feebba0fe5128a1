//! `bindings show|check|write`, which need no executord, and the calls of `run` and `rotate` that deliver bindings.

use std::io;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use executor_bindings::{BYTES_MAX, Bindings, Layout};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::output::print;
use executor_cli_kit::request::Request;
use executor_cli_kit::session::Session;
use executor_cli_kit::source::Flag;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::view::json::to_document;
use executor_cli_kit::view::quantity;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_client::v1::{UpdateFilesRequest, UpdateFilesResponse};
use executor_client::{Code, Error, Wiped};

use crate::bindings::{self, BindingArgs, BindingsError, Delivery, DeliveryArgs};
use crate::view::json;

#[derive(Debug, Subcommand)]
pub(crate) enum BindingsCommand {
    /// List the files of bindings: names and sizes; values only with --reveal
    Show(ShowArgs),
    /// Check bindings, and print all errors
    Check(CheckArgs),
    /// Write bindings into a directory: files 0600, all or none
    ///
    /// DIR is replaced atomically. DIR may be missing, empty, or written by this command; any other directory is left
    /// unchanged. Programs outside of containers can read the files there, and `--bind` accepts the directory.
    Write(WriteArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) of: CheckArgs,
    /// Also print the values
    #[arg(long)]
    pub(crate) reveal: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Directory of bindings, as for --bind
    #[arg(value_name = "DIR", group = "bindings", conflicts_with = "vcap_file")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) from: BindingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    /// Directory to write
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) from: BindingArgs,
}

/// Maximum number of attempts to replace bindings while other clients replace files.
const ATTEMPTS: u32 = 5;

pub(super) fn local(command: BindingsCommand, as_json: bool) -> Result<u8, Failure> {
    match command {
        BindingsCommand::Show(ShowArgs { of, reveal }) => {
            let bindings = read("show", "a directory, --vcap-services or --bind", &from(of))?;
            let text = if as_json {
                to_document(&json::ShownBindings::new(&bindings, reveal))
            } else {
                table(&bindings, reveal)
            };
            print(&text)?;
        }
        BindingsCommand::Check(args) => {
            let result = read("check", "a directory, --vcap-services or --bind", &from(args));
            if as_json {
                if let Some(checked) = checked(&result) {
                    print(to_document(&checked))?;
                }
            } else if let Ok(bindings) = &result {
                print(format!("{}\n", summary(bindings)))?;
            }
            result?;
        }
        BindingsCommand::Write(WriteArgs { dir, from }) => {
            let bindings = read("write", "--vcap-services or --bind, in addition to the directory to write to", &from)?;
            bindings::write(&bindings, &dir).map_err(BindingsError::from)?;
            if as_json {
                print(to_document(&json::CheckedBindings::fine(&bindings)))?;
            }
        }
    }
    Ok(0)
}

/// Adds the positional directory to the directories of `--bind`.
fn from(CheckArgs { dir, mut from }: CheckArgs) -> BindingArgs {
    from.bind.splice(..0, dir);
    from
}

fn read(command: &str, wanted: &str, args: &BindingArgs) -> Result<Bindings, Failure> {
    let bindings = bindings::read(args, &[], &mut io::stdin().lock(), &|name| std::env::var_os(name))?;
    bindings.ok_or_else(|| Failure::Usage(format!("bindings {command}: no bindings are given; use {wanted}")))
}

/// Formats a summary: `2 bindings, 7 files, 312 of 1000000 bytes`.
fn summary(bindings: &Bindings) -> String {
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let files = count(bindings.files().len(), "file");
    let all = match bindings.layout() {
        Layout::Directories => format!("{}, {files}", count(bindings.bindings().len(), "binding")),
        Layout::OneFile => files,
    };
    format!("{all}, {} of {BYTES_MAX} bytes", bindings.bytes())
}

/// Returns the document of `bindings check`; `None` if the error is not about the bindings.
fn checked(result: &Result<Bindings, Failure>) -> Option<json::CheckedBindings> {
    match result {
        Ok(bindings) => Some(json::CheckedBindings::fine(bindings)),
        Err(failure) => match failure.wrapped() {
            Some(BindingsError::Refused(refused)) => Some(json::CheckedBindings::bad(refused)),
            _ => None,
        },
    }
}

/// Formats the bindings for people, one line per file.
fn table(bindings: &Bindings, reveal: bool) -> String {
    let mut heading = vec!["FILE", "SIZE", "MASKED"];
    if reveal {
        heading.push("VALUE");
    }
    let mut table = Table::with_heading(0, &heading);
    for file in bindings.files() {
        let masked = if file.public { ("no".to_owned(), Role::Faint) } else { ("yes".to_owned(), Role::Plain) };
        let mut row =
            vec![(file.path.clone(), Role::Plain), (quantity::bytes(file.content.len() as u64), Role::Plain), masked];
        if reveal {
            row.push(match std::str::from_utf8(&file.content) {
                Ok(text) => (text.to_owned(), Role::Plain),
                Err(_) => ("(not text; --json shows it in base64)".to_owned(), Role::Faint),
            });
        }
        table.row(row);
    }
    format!("{}{}\n", table.render(Style::detect()), summary(bindings))
}

/// Reads the bindings that the flags name, before anything is started. `others` are the flags that may also read
/// standard input.
pub(super) fn delivery(args: &DeliveryArgs, others: &[(Flag, &[String])]) -> Result<Option<Delivery>, Failure> {
    Delivery::read(args, others, &mut io::stdin().lock(), &|name| std::env::var_os(name))
}

/// Adds bindings to the request of `run`, with paths that depend on executord's directory for files.
pub(super) async fn deliver(
    session: &Session,
    request: &mut Request,
    delivery: Option<Delivery>,
    interrupts: &mut Interrupts,
) -> Result<(), Failure> {
    let Some(delivery) = delivery else { return Ok(()) };
    let doing = format!("run {}", request.id());
    let root = tokio::select! {
        root = files_root(session, &doing) => root?,
        signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
    };
    let lowered = delivery.lower(&root);
    request.bind(lowered.files, lowered.directory, lowered.variable);
    Ok(())
}

/// Returns executord's directory for files with relative paths; empty if executord is too old to report it.
async fn files_root(session: &Session, doing: &str) -> Result<String, Failure> {
    Ok(session.client.info().await.doing(doing)?.files_root)
}

/// Replaces the bindings of a running container, together with the changes in `base`. Tries again after a concurrent
/// update, unless `base` has an expected generation. The inner result is the response to the update; the caller
/// explains its errors.
pub(super) async fn replace(
    session: &Session,
    base: &UpdateFilesRequest,
    delivery: &Delivery,
) -> Result<Result<UpdateFilesResponse, Error>, Failure> {
    let doing = format!("rotate {}", base.id);
    let root = files_root(session, &doing).await?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let container = session.client.get(&base.id).await.doing(&doing)?;
        let update = delivery.update(base, &container, &root)?;
        match session.client.update_files(Wiped::new(update.message())).await {
            Err(error)
                if error.code() == Some(Code::Aborted) && base.expected_generation.is_none() && attempts < ATTEMPTS => {
            }
            answer => return Ok(answer),
        }
    }
}
