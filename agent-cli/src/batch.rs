//! Runs operations on several containers, reports the results, and explains why a container exited.

use executor_cli_kit::connect::Client;
use executor_cli_kit::exit::{OURS, Outcome};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json::to_document;
use executor_cli_kit::view::quantity::bytes;
use executor_client::v1::{Container, failure};
use serde::Serialize;

use crate::ids;
use crate::view::{human, json};

/// Runs an operation on several containers concurrently. Each container is identified by its id or a unique prefix.
/// Returns the results in the order of the ids.
pub(crate) async fn each<F>(
    session: &Session,
    ids: Vec<String>,
    work: impl Fn(Client, String) -> F + Clone + Send + Sync + 'static,
) -> Vec<(String, Result<Container, Failure>)>
where
    F: Future<Output = Result<Container, Failure>> + Send,
{
    let mut tasks = Vec::with_capacity(ids.len());
    for id in ids {
        let (client, work, asked) = (session.client.clone(), work.clone(), id.clone());
        let task = async move { ids::with(&client, asked, |id| work(client.clone(), id)).await };
        tasks.push((id, tokio::spawn(task)));
    }
    let mut done = Vec::with_capacity(tasks.len());
    for (id, task) in tasks {
        let lost = |error: tokio::task::JoinError| Err(Failure::System(std::io::Error::other(error)));
        done.push((id, task.await.unwrap_or_else(lost)));
    }
    done
}

/// Prints the documents of [`each`]. Returns the containers if all operations succeeded.
pub(crate) async fn report(
    session: &Session,
    done: Vec<(String, Result<Container, Failure>)>,
) -> Result<Vec<Container>, Failure> {
    if let [(_, done)] = &done[..] {
        if let (Ok(container), true) = (done, session.json) {
            session.output.text(to_document(&json::Container::from(container))).await;
        }
    } else if session.json {
        let documents: Vec<json::ContainerOutcome> =
            done.iter().map(|(id, done)| json::ContainerOutcome::new(id, done)).collect();
        session.output.text(to_document(&documents)).await;
    }
    successes(session, done.into_iter().map(|(_, done)| done).collect())
}

/// Returns the results if all operations succeeded. A single failure is returned; several failures are printed one by
/// one.
pub(crate) fn successes<T>(session: &Session, done: Vec<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let all = done.len();
    let (mut successes, mut failures) = (Vec::with_capacity(all), Vec::new());
    for done in done {
        match done {
            Ok(success) => successes.push(success),
            Err(failure) => failures.push(failure),
        }
    }
    match failures.len() {
        0 => Ok(successes),
        1 => Err(failures.swap_remove(0)),
        failed => {
            failures.iter().for_each(|failure| session.output.note(failure.describe()));
            Err(Failure::Several { failed, all })
        }
    }
}

/// Runs an operation on containers sequentially. Each container is identified by its id or a unique prefix. Prints the
/// id of each success. With --json, prints the documents that `done` creates from each id and error.
pub(crate) async fn in_turn<F>(
    session: &Session,
    ids: Vec<String>,
    work: impl Fn(String) -> F,
    done: impl Fn(String, Option<String>) -> json::Done,
) -> Result<u8, Failure>
where
    F: Future<Output = Result<String, Failure>>,
{
    let (mut all, mut failures) = (Vec::with_capacity(ids.len()), Vec::new());
    for id in ids {
        match ids::with(&session.client, id.clone(), &work).await {
            Ok(id) => {
                if !session.json {
                    session.output.text(format!("{id}\n")).await;
                }
                all.push(done(id, None));
            }
            Err(failure) => {
                all.push(done(id, Some(failure.describe())));
                failures.push(failure);
            }
        }
    }
    finish(session, &all, failures).await
}

/// Finishes a command that ran several operations. A single failure is returned; several failures are printed one by
/// one.
pub(crate) async fn finish<T: Serialize>(
    session: &Session,
    done: &[T],
    mut failures: Vec<Failure>,
) -> Result<u8, Failure> {
    if session.json {
        session.output.text(to_document(&done)).await;
    }
    if failures.len() < 2 {
        return failures.pop().map_or(Ok(0), Err);
    }
    for failure in &failures {
        session.output.note(failure.describe());
    }
    Err(Failure::Several { failed: failures.len(), all: done.len() })
}

/// Prints notes about the exit of a container: a reached memory limit, missing output, captured outputs, and the
/// failure. Missing output and the failure are not printed if the log's `messages` already contain them.
pub(crate) fn explain_end(session: &Session, container: &Container, messages: &[String]) {
    let Some(result) = &container.result else { return };
    if result.oom_killed {
        let limit =
            container.spec.as_ref().and_then(|spec| spec.limits.as_ref()).map_or(0, |limits| limits.memory_bytes);
        session.output.note(match limit {
            0 => "the kernel killed a process for lack of memory; the container has no memory limit".to_owned(),
            limit => format!("the memory limit ({}) was reached: the kernel killed a process", bytes(limit)),
        });
    }
    if result.output_incomplete && !messages.iter().any(|line| line.contains(human::OUTPUT_INCOMPLETE)) {
        session.output.note(human::OUTPUT_INCOMPLETE);
    }
    if let Some(outputs) = &result.outputs {
        session.output.note(format!("outputs: {}", plain(&human::outputs(outputs))));
    }
    match &result.failure {
        // The exit status of this program already shows the failure of a single `run` action.
        Some(failure) if failure.kind() == failure::Kind::Action && container.steps.is_empty() => {}
        Some(failure) if !messages.iter().any(|line| line.contains(&failure.message)) => {
            session.output.note(plain(&failure.message));
        }
        None if Outcome::new(Some(result)).status() == OURS && result.exit.is_none() => {
            session.output.note(format!("the exit of {} is unknown", container.id));
        }
        _ => {}
    }
}
