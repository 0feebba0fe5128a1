//! One step: a container from the claim to the final result.

use std::collections::BTreeMap;
use std::time::SystemTime;

use executor_cnab::action::{Action, INSTALL};
use executor_cnab::bundle::Bundle;
use executor_cnab::claim::{Claim, ClaimResult, Status};
use executor_cnab::outputs::{Content, LOGS, metadata, settle};
use executor_cnab::store::{OUTPUT_MAX, Store};
use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::get_outputs_response::Part;
use executor_proto::v1::{Container, DeleteRequest, GetOutputsRequest, failure};
use serde_json::json;
use tokio::time::Instant;
use tonic::Code;

use super::super::logs::{Form, Printer};
use super::super::{Session, run, wait};
use super::{image, settle as unfinished};
use crate::cnab::plan::{State, Step, state};
use crate::cnab::request::{self, Options};
use crate::cnab::{CnabError, view};
use crate::connect::{Patience, is_away, is_lost};
use crate::exit::{OURS, Outcome};
use crate::failure::Failure;
use crate::interrupt::Interrupts;
use crate::view::json;
use crate::view::table::plain;

/// Most bytes of what a run tool printed that are kept.
pub(super) const LOG_MAX: usize = 8 << 20;

/// Carries a step out. An action that fails is an error (rule 2).
pub(super) async fn perform(
    session: &Session,
    store: &Store,
    step: Step,
    options: &Options,
    interrupts: &mut Interrupts,
) -> Result<(), Failure> {
    let name = plain(&step.claim.installation);
    for warning in &step.warnings {
        session.output.note(format!("{name}: {}", plain(warning)));
    }
    if !step.action.is_stateless() {
        unfinished::settle(session, store, &step.claim.installation, Some(interrupts)).await?;
        permitted(store, &step)?;
    }
    let rootfs = image::reference(session, &step.invocation, &step.image).await?;
    session.output.note(format!(
        "{name}: {} with {} {}",
        step.action.name(),
        plain(&step.bundle.name),
        step.bundle.version
    ));
    let id = step.claim.container();
    let request = request::build(&id, &rootfs, &step.invocation, options)?;
    let Step { bundle, action, claim, invocation, .. } = &step;
    let recorded = !action.is_stateless();
    let mut last = None;
    if recorded {
        if let Some(digest) = claim.bundle_digest() {
            store.save_bundle(digest, bundle.original()).map_err(CnabError::from)?;
        }
        store.save_claim(claim).map_err(CnabError::from)?;
        last = Some(mark(store, claim, None, Status::Pending)?);
    }
    let form = if session.json { Form::OnStderr } else { Form::AsItWas };
    let mut printer = Printer::new(session.output.clone(), form).keeping(LOG_MAX);
    let result = {
        let last = &mut last;
        let started = || {
            if recorded {
                *last = Some(mark(store, claim, last.as_ref(), Status::Running)?);
            }
            Ok(())
        };
        run::attend(session, request, interrupts, &mut printer, started).await
    };
    let (container, failure) = match result {
        Ok(container) => (container, None),
        Err(failure @ (Failure::Abandoned { .. } | Failure::GaveUp { .. })) => {
            if recorded {
                session.output.note(format!("`agent-cli cnab show {name}` tells how it ends"));
            }
            return Err(failure);
        }
        Err(failure) => match container(session, &id).await {
            Some(container) => (container, Some(failure)),
            // It was refused, or never made.
            None => {
                if recorded {
                    let result = ClaimResult::new(claim, last.as_ref(), Status::Failed, SystemTime::now());
                    let result = result.map_err(CnabError::from)?.saying(failure.describe());
                    store.save_result(&result).map_err(CnabError::from)?;
                }
                return Err(failure);
            }
        },
    };
    let log = printer.into_kept();
    let paths = &invocation.outputs;
    let ended = conclude(session, bundle, action, &container, paths).await?;
    let result = if recorded { Some(record(store, claim, last.as_ref(), &ended, &log)?) } else { None };
    delete(session, &id).await;
    if session.json {
        session.output.text(json::document(&view::Done::new(&step, result.as_ref(), &ended))).await;
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    match ended.status {
        Status::Succeeded => {
            session.output.note(format!("{name}: {} succeeded", action.name()));
            Ok(())
        }
        status => Err(CnabError::Ended {
            name: format!("{name}: {}", action.name()),
            status: status.name(),
            message: ended.message,
            exit: ended.exit,
        }
        .into()),
    }
}

/// Whether the action has something to work on, or nothing in its way (rule 5). After a failure any action may put things
/// in order (rule 2).
fn permitted(store: &Store, step: &Step) -> Result<(), CnabError> {
    let name = &step.claim.installation;
    let history = store.history(name)?;
    match (step.action.name(), state(&history)) {
        (INSTALL, State::Present) => {
            let revision = history.last().map(|record| record.claim.revision.clone()).unwrap_or_default();
            Err(CnabError::Installed { name: name.clone(), revision })
        }
        (INSTALL, _) | (_, State::Present | State::Undefined) => Ok(()),
        (_, State::Absent) => Err(CnabError::NotInstalled(name.clone())),
    }
}

fn mark(store: &Store, claim: &Claim, last: Option<&ClaimResult>, status: Status) -> Result<ClaimResult, CnabError> {
    let result = ClaimResult::new(claim, last, status, SystemTime::now())?;
    store.save_result(&result)?;
    Ok(result)
}

/// How an action ended.
pub(crate) struct Ended {
    pub(crate) status: Status,
    pub(crate) message: String,
    pub(crate) exit: u8,
    pub(crate) outputs: BTreeMap<String, Content>,
}

/// What a completed container means.
pub(super) async fn conclude(
    session: &Session,
    bundle: &Bundle,
    action: &Action,
    container: &Container,
    paths: &BTreeMap<String, String>,
) -> Result<Ended, Failure> {
    let (status, mut message) = judge(container);
    let mut found = BTreeMap::new();
    if !paths.is_empty() {
        let (files, skipped) = outputs(session, &container.id).await?;
        let named = files.into_iter().filter_map(|(path, content)| Some((paths.get(&path)?.clone(), content)));
        found.extend(named);
        for (path, reason) in skipped {
            session.output.note(format!("not captured: {}: {}", plain(&path), plain(&reason)));
        }
    }
    let settled = settle(bundle, action, status == Status::Succeeded, found);
    let mut ended = Ended { status, message: String::new(), exit: 0, outputs: settled.outputs };
    if !settled.wrong.is_empty() {
        ended.status = Status::Failed;
        message = settled.wrong.to_string();
    }
    ended.exit = match (ended.status, Outcome::of(container.result.as_ref()).status()) {
        (Status::Succeeded, _) => 0,
        (_, 0) => OURS,
        (_, status) => status,
    };
    ended.message = message;
    Ok(ended)
}

/// Status and message of how a container ended.
pub(super) fn judge(container: &Container) -> (Status, String) {
    let result = container.result.as_ref();
    let said =
        result.and_then(|result| result.failure.as_ref()).map(|failure| failure.message.clone()).unwrap_or_default();
    if result.is_some_and(|result| result.oom_killed) {
        return (Status::Failed, "its memory limit was reached".into());
    }
    let stopped = result.is_some_and(|result| result.stopped);
    match Outcome::of(result) {
        Outcome::Exited(0) if !stopped => (Status::Succeeded, String::new()),
        Outcome::Exited(_) | Outcome::Signaled(_) if stopped => (Status::Canceled, "it was stopped".into()),
        Outcome::Exited(code) => (Status::Failed, format!("the run tool exited with {code}")),
        Outcome::Signaled(signal) => {
            (Status::Failed, format!("the run tool was ended by {}", crate::signals::name(signal)))
        }
        Outcome::NotExecuted(_) => (Status::Failed, said),
        Outcome::Failed(failure::Kind::Prepare) => (Status::Failed, said),
        Outcome::Failed(_) | Outcome::Unknown if said.is_empty() => {
            (Status::Unknown, "nobody knows how it ended".into())
        }
        Outcome::Failed(_) | Outcome::Unknown => (Status::Unknown, said),
    }
}

/// Keeps outputs, log and final result, in this order.
pub(super) fn record(
    store: &Store,
    claim: &Claim,
    last: Option<&ClaimResult>,
    ended: &Ended,
    log: &[u8],
) -> Result<ClaimResult, CnabError> {
    let mut result = ClaimResult::new(claim, last, ended.status, SystemTime::now())?.saying(&*ended.message);
    for (name, content) in &ended.outputs {
        store.save_output(&result.id, name, &content.bytes)?;
        result.outputs.insert(name.clone(), metadata(content));
    }
    if !log.is_empty() && !ended.outputs.contains_key(LOGS) {
        store.save_output(&result.id, LOGS, log)?;
        result.outputs.insert(
            LOGS.into(),
            json!({ "contentDigest": executor_cnab::claim::digest(log), "generatedByBundle": "false" }),
        );
    }
    store.save_result(&result)?;
    Ok(result)
}

/// The container as it ended, if it is there.
async fn container(session: &Session, id: &str) -> Option<Container> {
    wait::completed(&session.client, id).await.ok()
}

/// Contents by path, and what was not captured.
type Files = (BTreeMap<String, Vec<u8>>, Vec<(String, String)>);

/// Fetches what was captured, over restarts of executord.
pub(super) async fn outputs(session: &Session, id: &str) -> Result<Files, Failure> {
    let doing = format!("fetch the outputs of {id}");
    let mut patience = Patience::default();
    loop {
        let begun = Instant::now();
        let status = match fetch(session, id).await {
            Ok(files) => return Ok(files),
            // The process never ran, or nothing could be captured: the result tells.
            Err(status) if status.code() == Code::FailedPrecondition => return Ok(Files::default()),
            Err(status) => status,
        };
        if !is_away(&status) {
            return Err(session.client.failure(&doing, &status));
        }
        patience.since(begun);
        if !patience.pause().await {
            return Err(Failure::GaveUp { doing, socket: session.client.socket().into() });
        }
    }
}

async fn fetch(session: &Session, id: &str) -> Result<Files, tonic::Status> {
    let request = GetOutputsRequest { id: id.to_owned(), path: String::new() };
    let mut stream = session.client.rpc().get_outputs(request).await?.into_inner();
    let mut files = Files::default();
    let mut current: Option<String> = None;
    let mut total = 0u64;
    while let Some(message) = stream.message().await? {
        match message.part {
            Some(Part::File(file)) => {
                files.0.insert(file.path.clone(), Vec::new());
                current = Some(file.path);
            }
            Some(Part::Data(data)) => {
                total += data.len() as u64;
                if total > OUTPUT_MAX {
                    return Err(tonic::Status::out_of_range(format!("the outputs have more than {OUTPUT_MAX} bytes")));
                }
                if let Some(content) = current.as_ref().and_then(|path| files.0.get_mut(path)) {
                    content.extend_from_slice(&data);
                }
            }
            Some(Part::Skipped(entry)) => files.1.push((entry.path, entry.reason)),
            None => {} // of a newer executord
        }
    }
    // A missing file is the bundle's to answer for: it may have a default.
    files.1.retain(|(_, reason)| reason != "not there");
    Ok(files)
}

/// Deletes a container. Where it cannot be, that is told, and changes nothing.
pub(super) async fn delete(session: &Session, id: &str) {
    let call = |mut rpc: ExecutorClient<_>| {
        let request = DeleteRequest { id: id.to_owned(), force: true };
        async move { rpc.delete(request).await }
    };
    if let Err(failure) = session.client.patiently(&format!("remove {id}"), is_lost, call).await
        && failure.code() != Some(Code::NotFound)
    {
        session.output.note(failure.describe());
    }
}
