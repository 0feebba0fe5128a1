//! Determines status, message and outputs of an action from its exited container, and stores them with the log.

use executor_cli_kit::exit::{OURS, Outcome};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_client::v1::{Container, failure};
use executor_client::{Code, Error, Output};
use std::collections::BTreeMap;
use std::time::SystemTime;

use executor_cnab::action::Action;
use executor_cnab::bundle::Bundle;
use executor_cnab::claim::{Claim, ClaimResult, Status};
use executor_cnab::outputs::{Content, LOGS, metadata, settle};
use executor_cnab::store::{OUTPUT_MAX, Store};
use serde_json::json;

use crate::error::CnabError;

/// Maximum size of the stored output of a run tool, in bytes.
pub(crate) const LOG_MAX: usize = 8 << 20;

pub(crate) struct Conclusion {
    pub(crate) status: Status,
    pub(crate) message: String,
    pub(crate) exit: u8,
    pub(crate) outputs: BTreeMap<String, Content>,
}

/// Determines the result of an action from its exited container.
pub(crate) async fn conclude(
    session: &Session,
    bundle: &Bundle,
    action: &Action,
    container: &Container,
    paths: &BTreeMap<String, String>,
) -> Result<Conclusion, Failure> {
    let (status, mut message) = evaluate(container);
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
    let mut ended = Conclusion { status, message: String::new(), exit: 0, outputs: settled.outputs };
    if !settled.wrong.is_empty() {
        ended.status = Status::Failed;
        message = settled.wrong.to_string();
    }
    ended.exit = match (ended.status, Outcome::new(container.result.as_ref()).status()) {
        (Status::Succeeded, _) => 0,
        (_, 0) => OURS,
        (_, status) => status,
    };
    ended.message = message;
    Ok(ended)
}

/// Returns the status and message for a container's exit.
pub(crate) fn evaluate(container: &Container) -> (Status, String) {
    let result = container.result.as_ref();
    let said =
        result.and_then(|result| result.failure.as_ref()).map(|failure| failure.message.clone()).unwrap_or_default();
    if result.is_some_and(|result| result.oom_killed) {
        return (Status::Failed, "the run tool reached the memory limit".into());
    }
    let stopped = result.is_some_and(|result| result.stopped);
    match Outcome::new(result) {
        Outcome::Exited(0) if !stopped => (Status::Succeeded, String::new()),
        Outcome::Exited(_) | Outcome::Signaled(_) if stopped => (Status::Canceled, "the run tool was stopped".into()),
        Outcome::Exited(code) => (Status::Failed, format!("the run tool exited with {code}")),
        Outcome::Signaled(signal) => {
            (Status::Failed, format!("the run tool was killed by {}", executor_cli_kit::signals::name(signal)))
        }
        Outcome::NotExecuted(_) => (Status::Failed, said),
        Outcome::Failed(failure::Kind::Prepare) => (Status::Failed, said),
        Outcome::Failed(_) | Outcome::Unknown if said.is_empty() => {
            (Status::Unknown, "the run tool's exit status is unknown".into())
        }
        Outcome::Failed(_) | Outcome::Unknown => (Status::Unknown, said),
    }
}

/// Stores outputs, log and final result, in this order.
pub(crate) fn record(
    store: &Store,
    claim: &Claim,
    last: Option<&ClaimResult>,
    ended: &Conclusion,
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
            json!({ "contentDigest": executor_cnab::digest::sha256(log), "generatedByBundle": "false" }),
        );
    }
    store.save_result(&result)?;
    Ok(result)
}

/// Contents of captured files by path, and the paths that were not captured, each with the reason.
type Files = (BTreeMap<String, Vec<u8>>, Vec<(String, String)>);

/// Fetches the captured outputs. Retries if executord restarts.
pub(crate) async fn outputs(session: &Session, id: &str) -> Result<Files, Failure> {
    let doing = format!("fetch the outputs of {id}");
    let mut attempts = session.client.attempts();
    loop {
        match fetch(session, id).await {
            Ok(files) => return Ok(files),
            // The process never ran, or nothing could be captured: the result contains the reason.
            Err(error) if error.code() == Some(Code::FailedPrecondition) => return Ok(Files::default()),
            Err(error) => attempts.again(error).await.doing(&doing)?,
        }
    }
}

async fn fetch(session: &Session, id: &str) -> Result<Files, Error> {
    let mut stream = session.client.outputs(id, "").await?;
    let mut files = Files::default();
    let mut current: Option<String> = None;
    let mut total = 0u64;
    while let Some(part) = stream.next().await? {
        match part {
            Output::File(file) => {
                files.0.insert(file.path.clone(), Vec::new());
                current = Some(file.path);
            }
            Output::Data(data) => {
                total += data.len() as u64;
                if total > OUTPUT_MAX {
                    return Err(Error::Argument(format!(
                        "the outputs are larger than the maximum of {OUTPUT_MAX} bytes"
                    )));
                }
                if let Some(content) = current.as_ref().and_then(|path| files.0.get_mut(path)) {
                    content.extend_from_slice(&data);
                }
            }
            Output::Skipped(entry) => files.1.push((entry.path, entry.reason)),
        }
    }
    // A missing file is no error here, because the output may have a default.
    files.1.retain(|(_, reason)| reason != "no such file");
    Ok(files)
}

/// Deletes a container. Prints an error instead of returning it.
pub(crate) async fn delete(session: &Session, id: &str) {
    if let Err(failure) = session.client.delete(id, true).await.doing(&format!("remove {id}"))
        && failure.code() != Some(Code::NotFound)
    {
        session.output.note(failure.describe());
    }
}
