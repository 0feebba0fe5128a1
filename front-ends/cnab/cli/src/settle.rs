//! Records the results of actions that an earlier agent-cli left unfinished. An action is unfinished if the last result
//! of its claim is pending or running, or is missing (rule 47 of `docs/guides/cnab-rules.md`).
//!
//! The name of the container is derived from the claim. executord reports whether the container is running, has exited
//! or does not exist, and the result is derived from this state. The caller holds the lock of the installation,
//! so no other process changes the installation. Unfinished actions of other tools are ignored.

use executor_cli_kit::failure::Failure;
use executor_cli_kit::follow;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::logs::{Form, Printer, follow};
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_client::Code;
use std::collections::BTreeMap;
use std::time::SystemTime;

use executor_client::v1::{Container, State, StreamLogsRequest};
use executor_cnab::action::Action;
use executor_cnab::bundle::Bundle;
use executor_cnab::claim::{ClaimResult, Status};
use executor_cnab::invocation::outputs;
use executor_cnab::store::{Record, Store};

use crate::ended::{Conclusion, LOG_MAX, conclude, delete, evaluate, record};
use crate::error::CnabError;

/// Records the results of the installation's unfinished actions. If `interrupts` is given, waits for containers that
/// still run, and shows their output. Otherwise skips these containers.
pub(crate) async fn settle(
    session: &Session,
    store: &Store,
    installation: &str,
    mut interrupts: Option<&mut Interrupts>,
) -> Result<(), Failure> {
    let history = store.history(installation).map_err(CnabError::from)?;
    for unfinished in history.iter().filter(|record| record.is_unfinished() && record.claim.is_from_executor()) {
        let id = unfinished.claim.container();
        let container = match get(session, &id).await {
            Ok(container) => container,
            Err(failure) if failure.code() == Some(Code::NotFound) => {
                record_missing_container(store, unfinished)?;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let mut printer = Printer::new(session.output.clone(), Form::Silent).keeping(LOG_MAX);
        let container = match (&mut interrupts, container.state()) {
            (_, State::Completed) => {
                let request = StreamLogsRequest { id: id.clone(), follow: false, ..StreamLogsRequest::default() };
                follow(&session.client, request, &mut printer).await?;
                container
            }
            (None, _) => continue,
            (Some(interrupts), _) => {
                session.output.note(format!(
                    "{}: the action {}, started by an earlier agent-cli, is still running ({id}); waiting for it to finish",
                    plain(installation),
                    plain(&unfinished.claim.action),
                ));
                printer = Printer::new(session.output.clone(), Form::OnStderr).keeping(LOG_MAX);
                follow::stay_with(session, &id, interrupts, &mut printer).await?
            }
        };
        let ended = ended(session, unfinished, &container).await?;
        let log = printer.into_kept();
        record(store, &unfinished.claim, unfinished.last(), &ended, &log).map_err(Failure::from)?;
        delete(session, &id).await;
    }
    Ok(())
}

/// Records the result of an action whose container does not exist. The container was never created, or was deleted.
fn record_missing_container(store: &Store, unfinished: &Record) -> Result<(), CnabError> {
    let last = unfinished.last();
    let (status, message) = if last.is_some_and(|result| result.status == Status::Running) {
        (Status::Unknown, "the container no longer exists, and its result is unknown")
    } else {
        (Status::Failed, "agent-cli exited before the container was created")
    };
    let result = ClaimResult::new(&unfinished.claim, last, status, SystemTime::now())?.saying(message);
    Ok(store.save_result(&result)?)
}

async fn ended(session: &Session, unfinished: &Record, container: &Container) -> Result<Conclusion, Failure> {
    let bundle = Bundle::from_claim(&unfinished.claim.bundle);
    let action = bundle.as_ref().ok().and_then(|bundle| Action::new(&bundle.actions, &unfinished.claim.action).ok());
    match (bundle, action) {
        (Ok(bundle), Some(action)) => conclude(session, &bundle, &action, container, &outputs(&bundle, &action)).await,
        // An older version accepted this claim, but this version does not. Record only the exit.
        _ => {
            let (status, message) = evaluate(container);
            Ok(Conclusion { status, message, exit: 0, outputs: BTreeMap::new() })
        }
    }
}

async fn get(session: &Session, id: &str) -> Result<Container, Failure> {
    session.client.get(id).await.doing(&format!("inspect {id}"))
}
