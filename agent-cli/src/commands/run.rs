//! `run`: creates a container, connects this command's streams to it, and deletes it after its exit.
//!
//! ```text
//! create -> follow: process -> our streams  -> fetch outputs -> delete -> exit like the process
//!                   wait for completion
//!                   Ctrl-C: stop, kill, exit
//!                   output closed by its reader: stop
//! ```
//! Everything between create and fetch happens concurrently, and continues across restarts of executord. If an error
//! occurs after the creation, the container is deleted, unless it must be kept.

mod args;
mod checks;
pub(super) mod host_options;
mod identity;
pub(super) mod isolation;
mod logging;
mod lower;
mod message;
mod name;
mod network;
mod outputs;
mod program;
mod restart;
mod streams;
mod surroundings;
mod volumes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_cli_kit::container::completed;
use executor_cli_kit::exit::{OURS, Outcome};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::flag_names;
use executor_cli_kit::follow::{Attached, GRACE_WITHOUT_READER, SignalCounter, Streams, create, left_behind};
use executor_cli_kit::images::{fetch_first, send_first};
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::logs::{Form, Printer};
use executor_cli_kit::request::Request;
use executor_cli_kit::session::Session;
use executor_cli_kit::source::Flag;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json::to_document;
use executor_client::Code;
use executor_client::v1::{Container, Result as Ending};

use super::bindings;
use super::cp::{self, To, Wanted};
use crate::batch;
use crate::bindings::Delivery;
use crate::view::json;

pub(crate) use args::RunArgs;
pub(super) use isolation::{HostNamespaceArgs, id_map};
pub(super) use logging::pairs;
pub(super) use network::NetworkArgs;
pub(super) use surroundings::{host, sysctl};

/// A container that is ready to be created.
pub(crate) struct Prepared {
    request: Request,
    delivery: Option<Delivery>,
    ending: EndOptions,
    /// True if the request is only validated.
    is_dry: bool,
    /// True if the id is a new name, which no other container may have.
    is_name: bool,
    /// True if an existing container with the name is removed.
    replace: bool,
}

impl RunArgs {
    /// Checks for conflicting flags that clap's definitions cannot express.
    pub(super) fn check(&self, local: bool) -> Result<(), Failure> {
        if local && (self.detach || self.keep || self.keep_until_deleted || self.hold) {
            return Err(Failure::Usage(
                "--detach, --hold, --keep and --keep-until-deleted cannot be used with --local: the private \
                 executord exits with the command"
                    .to_owned(),
            ));
        }
        self.outputs.check(self.detach || self.hold, self.keep || self.keep_until_deleted)
    }

    /// Reads the inputs that the flags name. `can_stay` is true if a container can outlive this command.
    pub(super) fn prepare(mut self, can_stay: bool) -> Result<Prepared, Failure> {
        self.detach |= self.hold;
        self.keep |= self.keep_until_deleted && !self.detach;
        let (is_dry, is_name, replace) = (self.dry_run, self.name.is_some(), self.replace);
        let fetch_to = self.outputs.output_to.take();
        let sources = [&self.files, &self.public_files, &self.secret_env, &self.secret_args, &self.provider_tokens];
        self.streams.check(self.detach, sources.into_iter().flatten())?;
        let streams = self.streams.streams();
        let ending = EndOptions { detach: self.detach, keep: self.keep, fetch_to, can_stay, streams };
        let others = [
            (Flag::File, &*self.files),
            (Flag::PublicFile, &self.public_files),
            (Flag::SecretEnv, &self.secret_env),
            (Flag::SecretArg, &self.secret_args),
            (Flag::ProviderToken, &self.provider_tokens),
        ];
        let delivery = bindings::delivery(&self.bindings, &others)?;
        let request = lower::lower(self, &mut std::io::stdin().lock(), &|name| std::env::var_os(name))?;
        if let Some(delivery) = &delivery {
            delivery.check(&request)?;
        }
        if let (Some(to), Some(outputs)) = (&ending.fetch_to, request.outputs()) {
            cp::check_destination(outputs, to)?;
        }
        Ok(Prepared { request, delivery, ending, is_dry, is_name, replace })
    }
}

/// Options that apply after the container was created.
#[derive(Clone, Debug)]
struct EndOptions {
    detach: bool,
    keep: bool,
    /// Destination of the outputs, which are fetched before the container is deleted.
    fetch_to: Option<PathBuf>,
    /// True if executord keeps running after this command, so that the container can be kept.
    can_stay: bool,
    streams: Streams,
}

pub(super) async fn run(session: &Session, prepared: Prepared, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    let Prepared { mut request, delivery, ending, is_dry, is_name, replace } = prepared;
    bindings::deliver(session, &mut request, delivery, interrupts).await?;
    tokio::select! {
        prepared = volumes::prepare(session, &mut request) => prepared?,
        signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
    }
    tokio::select! {
        prepared = host_options::prepare(session, &mut request) => prepared?,
        signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
    }
    if is_dry {
        let validated = async { session.client.validate_run(request.run()).await.doing_named(request.names()) };
        tokio::select! {
            validated = validated => validated?,
            signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
        }
        session.output.note("executord accepts the request; nothing was started");
        return Ok(0);
    }
    if is_name {
        tokio::select! {
            claimed = name::claim(session, request.id(), replace) => claimed?,
            signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
        }
    }
    tokio::select! {
        fetched = volumes::fetch(session, &request) => fetched?,
        signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
    }
    if let Some((image, always)) = request.to_pull() {
        tokio::select! {
            fetched = fetch_first(session, image, always) => fetched?,
            signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
        }
    }
    if let Some(reference) = request.on_disk() {
        tokio::select! {
            sent = send_first(session, &reference) => if sent? {
                request.mark_imported();
            },
            signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
        }
    }
    let id = request.id().to_owned();
    let mut signals = SignalCounter::new(&id);
    request.await_reader(!ending.detach);
    let started = match create(session, request, interrupts, &mut signals).await {
        // Another command used the name after the check.
        Err(failure) if is_name && failure.code() == Some(Code::AlreadyExists) => {
            name::claim(session, &id, false).await?;
            return Err(failure);
        }
        started => started?,
    };
    let created = started.created;
    let container = started.container;
    if created && !session.json {
        // `inspect` also shows the other warnings.
        for warning in container.spec.iter().flat_map(|spec| &spec.warnings) {
            match warning.split_once(": ") {
                Some(("rootfs", _)) => session.output.note(format!("warning: {}", plain(warning))),
                Some((field @ "limits.cpu_millis", why)) => {
                    session.output.note(format!("warning: {}: {}", flag_names::flag(field, "run"), plain(why)));
                }
                _ => {}
            }
        }
    }
    if ending.detach && signals.times == 0 {
        return detached(session, &container).await;
    }
    let own_grace = container.spec.as_ref().and_then(|spec| Duration::try_from(spec.grace_period?).ok());
    let grace_without_reader = own_grace.map_or(GRACE_WITHOUT_READER, |own| own.min(GRACE_WITHOUT_READER));
    let streams = ending.streams.clone();
    let suppressed = container.spec.as_ref().is_some_and(|spec| spec.suppress_log_output);
    // Ctrl-C during a creation with --detach also reaches this point. The process must then not wait for a reader.
    let created_for_us = created && !ending.detach;
    let attached =
        Attached { session, id: &id, signals, grace_without_reader, streams, created: created_for_us, suppressed };
    follow_and_delete(attached, interrupts, EndOptions { keep: ending.keep || !created, ..ending }).await
}

/// Follows the container until it completes, fetches its outputs and deletes it.
async fn follow_and_delete(
    mut attached: Attached<'_>,
    interrupts: &mut Interrupts,
    ending: EndOptions,
) -> Result<u8, Failure> {
    let form = if attached.session.json { Form::OnStderr } else { Form::AsItWas };
    let mut printer = Printer::new(attached.session.output.clone(), form);
    let result = attached.follow(interrupts, &mut printer).await;
    let fetched = match &ending.fetch_to {
        Some(to) => fetch(&attached, &result, to, interrupts).await,
        None => Ok(()),
    };
    match &result {
        Err(Failure::Abandoned { .. } | Failure::Detached { .. }) => {}
        Err(Failure::GaveUp { .. }) => attached.session.output.note(left_behind(attached.id)),
        _ if ending.keep => {}
        _ if fetched.is_err() && ending.can_stay => attached.session.output.note(format!(
            "the container is kept with its outputs: `agent-cli cp {0}: DEST` fetches the outputs, `agent-cli rm {0}` \
             removes the container",
            attached.id
        )),
        _ => attached.delete(interrupts).await?,
    }
    if let Err(left @ Failure::Detached { .. }) = &result {
        attached.session.output.note(left.to_string());
        return Ok(0);
    }
    let container = result?;
    fetched?;
    if attached.session.json {
        let document = json::Container::from(&container).with_dropped_output(printer.dropped);
        let document = to_document(&document);
        tokio::select! {
            () = attached.session.output.text(document) => {}
            signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
        }
    }
    batch::explain_end(attached.session, &container, &printer.messages);
    if printer.dropped > 0 {
        return Err(Failure::LogLost { id: attached.id.to_owned() });
    }
    let captured = |result: &Ending| result.outputs.as_ref().is_none_or(|outputs| outputs.failure.is_empty());
    if ending.fetch_to.is_some() && !container.result.as_ref().is_none_or(captured) {
        return Ok(OURS);
    }
    Ok(Outcome::new(container.result.as_ref()).status())
}

/// Fetches captured outputs, if there are any.
async fn fetch(
    attached: &Attached<'_>,
    result: &Result<Container, Failure>,
    to: &Path,
    interrupts: &mut Interrupts,
) -> Result<(), Failure> {
    let work = async {
        let container = match result {
            Ok(container) => container.clone(),
            Err(
                Failure::Abandoned { .. } | Failure::Detached { .. } | Failure::GaveUp { .. } | Failure::Interrupted(_),
            ) => return Ok(()),
            // The printed output is incomplete, but the container has completed.
            Err(_) => completed(&attached.session.client, attached.id).await?,
        };
        let summary = container.result.as_ref().and_then(|result| result.outputs.as_ref());
        if summary.is_none_or(|outputs| !outputs.failure.is_empty()) {
            return Ok(());
        }
        let declared = container.spec.and_then(|spec| spec.outputs).unwrap_or_default();
        let fetched = cp::fetch(attached.session, attached.id, &Wanted::Declared(declared), To::Path(to)).await?;
        fetched.warn(attached.session);
        Ok(())
    };
    tokio::select! {
        result = work => result,
        signal = interrupts.next() => Err(Failure::Interrupted(signal)),
    }
}

/// Prints the id or the document. If the program could not be executed, returns the same exit status as without
/// --detach.
async fn detached(session: &Session, container: &Container) -> Result<u8, Failure> {
    session.print(&json::Container::from(container), || format!("{}\n", container.id)).await;
    batch::explain_end(session, container, &[]);
    match Outcome::new(container.result.as_ref()) {
        outcome @ (Outcome::NotExecuted(_) | Outcome::Failed(_)) => Ok(outcome.status()),
        _ => Ok(0),
    }
}
