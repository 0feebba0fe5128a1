//! Steps of a tree of actions.

use executor_cli_kit::view::json::time;
use executor_client::v1;
use serde::Serialize;

use super::ending::{Exit, Wipe};
use crate::view::human::word;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Step {
    path: String,
    kind: String,
    state: String,
    log_source: String,
    /// Program of a run action.
    program: Option<String>,
    pid: Option<u32>,
    exit: Option<Exit>,
    error: Option<String>,
    started_at: Option<String>,
    finished_at: Option<String>,
    files: Vec<String>,
    wipe: Option<Wipe>,
    /// Name of the artifact that a download or an upload transfers.
    artifact: Option<String>,
    /// Path in the container of a download or an upload.
    container_path: Option<String>,
    /// Size of a successful transfer, in bytes.
    transferred_bytes: Option<u64>,
}

impl From<&v1::Step> for Step {
    fn from(step: &v1::Step) -> Self {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Self {
            path: step.path.clone(),
            kind: step.kind.clone(),
            state: word(step.state().as_str_name(), "STATE_"),
            log_source: step.log_source.clone(),
            program: some(&step.program),
            pid: Some(step.pid).filter(|pid| *pid != 0),
            exit: step.exit.and_then(Exit::from_exit),
            error: some(&step.error),
            started_at: time(step.started_at.as_ref()),
            finished_at: time(step.finished_at.as_ref()),
            files: step.files.clone(),
            wipe: step.wipe.as_ref().map(Wipe::from),
            artifact: some(&step.artifact),
            container_path: some(&step.container_path),
            transferred_bytes: Some(step.transferred_bytes).filter(|bytes| *bytes != 0),
        }
    }
}
