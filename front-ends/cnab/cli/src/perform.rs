//! Runs one step of a plan, from the claim through the container to the final result.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

use std::time::SystemTime;

use executor_cli_kit::container::completed;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::follow;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::logs::{Form, Printer};
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json;
use executor_client::v1::Container;
use executor_client::{Code, Error};
use executor_cnab::action::INSTALL;
use executor_cnab::claim::{Claim, ClaimResult, Status};
use executor_cnab::store::Store;

use crate::ended::{LOG_MAX, conclude, delete, record};
use crate::error::CnabError;
use crate::image;
use crate::plan::{Prepared, State, Step, state};
use crate::request::{self, Options};
use crate::settle as unfinished;
use crate::view;

/// Runs a step. Returns an error if the action fails (rule 2).
pub(crate) async fn run_invocation(
    session: &Session,
    store: &Store,
    prepared: Prepared,
    options: &Options,
    interrupts: &mut Interrupts,
) -> Result<(), Failure> {
    let name = plain(&prepared.installation);
    if !prepared.action.is_stateless() {
        unfinished::settle(session, store, &prepared.installation, Some(interrupts)).await?;
        permitted(store, &prepared)?;
    }
    let step = prepared.ready(store)?;
    for warning in &step.warnings {
        session.output.note(format!("{name}: {}", plain(warning)));
    }
    let rootfs = image::reference(session, &step.invocation, &step.image).await?;
    session.output.note(format!(
        "{name}: {} with {} {}",
        step.action.name(),
        plain(&step.bundle.name),
        step.bundle.version
    ));
    let id = step.claim.container();
    let writable = request::files_can_be_written(session).await?;
    let request = request::build(&id, &rootfs, &step.invocation, step.docker, options, writable)?;
    // Validate the request before recording anything.
    session.client.validate_run(request.run()).await.or_else(ignore_unsupported).doing(&format!("run {id}"))?;
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
        follow::run_foreground(session, request, interrupts, &mut printer, started).await
    };
    let (container, failure) = match result {
        Ok(container) => (container, None),
        Err(failure @ (Failure::Abandoned { .. } | Failure::GaveUp { .. })) => {
            if recorded {
                session.output.note(format!("`agent-cli cnab show {name}` shows the result"));
            }
            return Err(failure);
        }
        Err(failure) => match container(session, &id).await {
            Some(container) => (container, Some(failure)),
            // The container was refused or not created.
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
        session.output.text(json::to_document(&view::Done::new(&step, result.as_ref(), &ended))).await;
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    match ended.status {
        Status::Succeeded => {
            session.output.note(format!("{name}: {} succeeded", action.name()));
            Ok(())
        }
        status => Err(CnabError::ActionFailed {
            name: format!("{name}: {}", action.name()),
            status: status.name(),
            message: ended.message,
            exit: ended.exit,
        }
        .into()),
    }
}

/// Checks that the state of the installation permits the action (rule 5). After a failure every action is permitted,
/// because it may repair the installation (rule 2).
fn permitted(store: &Store, prepared: &Prepared) -> Result<(), CnabError> {
    let name = &prepared.installation;
    let history = store.history(name)?;
    match (prepared.action.name(), state(&history)) {
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

/// Ignores the error of an older executord that does not support `Validate`. Such an executord refuses an invalid
/// request when the container is started.
fn ignore_unsupported(error: Error) -> Result<(), Error> {
    match error.code() {
        Some(Code::Unimplemented | Code::PermissionDenied) if error.violations().is_empty() => Ok(()),
        _ => Err(error),
    }
}

/// Returns the container if it exists and has exited.
async fn container(session: &Session, id: &str) -> Option<Container> {
    completed(&session.client, id).await.ok()
}
