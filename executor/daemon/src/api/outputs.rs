//! GetOutputs: streams the captured outputs of a completed container. The description and content of each file come
//! first, then the skipped files.

use std::sync::Arc;

use executor_core::lifecycle::State;
use executor_core::limits::PATH_MAX;
use executor_core::outputs::{CapturedFile, OutputsList};
use executor_core::plan::OutputSource;
use executor_core::validate::{FieldFault, ViolationReason};
use executor_proto::v1;
use executor_proto::v1::get_outputs_response::Part;
use executor_transport::wire::conversation::{Answers, Conversation, Outlet};
use tokio::task::spawn_blocking;

use super::StreamError;
use crate::api_error::{ApiError, Kind};
use crate::model::container::Handle;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::store::outputs::{OpenOutput, Outputs, OutputsError};

/// Maximum size of the file content in one message, in bytes.
const PIECE: usize = 64 << 10;
/// Maximum number of messages that are read from disk in one call on a blocking thread.
const PIECES: usize = 8;

type OutputSender = Outlet<v1::GetOutputsResponse>;

/// Finds the requested outputs, and starts to stream them.
pub(super) async fn stream(
    node: &Arc<Node>,
    request: v1::GetOutputsRequest,
    conversation: &Conversation,
) -> Result<Answers<v1::GetOutputsResponse>, ApiError> {
    let selection = OutputSelection::parse(&request.path)?;
    let handle = node.find(&request.id)?;
    let facts = handle.facts().ok_or_else(|| ApiError::no_container(&request.id))?;
    let source = captured(&facts)?;
    let outputs = Outputs::from_container(&node.config.paths.kept_container(handle.id()));
    let reader = outputs.clone();
    let list = blocking(move || reader.list()).await?.map_err(|error| problem(&handle, &error))?;
    let list = selection.choose(list, source).ok_or_else(|| {
        let shown: String = request.path.chars().take(200).collect();
        ApiError::new(Kind::NotFound, format!("container {} has no output {shown:?}", handle.id()))
    })?;
    let (sender, answers) = conversation.answers();
    let node = Arc::clone(node);
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = send(&handle, &outputs, list, &sender) => ended,
            () = node.until_stopping() => Err(StreamError::ApiError(ApiError::stopping())),
        };
        if let Err(StreamError::ApiError(problem)) = ended {
            let _ = sender.send(Err(problem.into())).await;
        }
    });
    Ok(answers)
}

/// Returns the declared outputs, or an error if they were not captured.
fn captured(facts: &ContainerStatus) -> Result<&OutputSource, ApiError> {
    let id = &facts.plan.id;
    let not = |why: String| Err(ApiError::new(Kind::Precondition, why));
    let Some(planned) = &facts.plan.outputs else {
        return not(format!("container {id} declared no outputs"));
    };
    let Some(end) = facts.end.as_ref().filter(|_| facts.state == State::Completed) else {
        let state = facts.state.name();
        return not(format!("container {id} is {state}: its outputs can be read when it is completed"));
    };
    match &end.outputs {
        None if end.recorded => not(format!("container {id} has no outputs: its process never ran")),
        None => not(format!("the outputs of container {id} were not captured: the container has no exit record")),
        Some(outputs) => match &outputs.failure {
            Some(why) => not(format!("the outputs of container {id} were not captured: {why}")),
            None => Ok(&planned.source),
        },
    }
}

/// Outputs that a request selects.
#[derive(Debug)]
enum OutputSelection {
    All,
    /// This file, or the files below this directory.
    Path(String),
}

impl OutputSelection {
    fn parse(path: &str) -> Result<Self, ApiError> {
        let wrong = |fault: FieldFault| Err(ApiError::invalid_field("path", fault));
        if path.len() >= PATH_MAX {
            let why = format!("is {} bytes; the maximum is {}", path.len(), PATH_MAX - 1);
            return wrong(ViolationReason::TooLong.because(why));
        }
        if !path.is_empty() && !path.starts_with('/') {
            return wrong(ViolationReason::InvalidFormat.because("must be an absolute path"));
        }
        Ok(match path.trim_end_matches('/') {
            "" => Self::All,
            path => Self::Path(path.to_owned()),
        })
    }

    /// Returns the selected part of the list; `None` if nothing matches. A declared directory matches even if empty.
    fn choose(&self, mut list: OutputsList, declared: &OutputSource) -> Option<OutputsList> {
        let Self::Path(wanted) = self else { return Some(list) };
        list.files.retain(|file| covers(wanted, &file.path));
        list.skipped.retain(|entry| covers(wanted, &entry.path));
        let whole = match declared {
            OutputSource::Files(_) => false,
            OutputSource::Directory(directory) => directory.to_str().is_some_and(|directory| covers(wanted, directory)),
        };
        if !whole {
            list.skipped_more = 0; // the paths of these entries are unknown
        }
        (whole || !list.files.is_empty() || !list.skipped.is_empty()).then_some(list)
    }
}

/// Returns true if `path` is `wanted` or below it.
fn covers(wanted: &str, path: &str) -> bool {
    path.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn send(
    handle: &Arc<Handle>,
    outputs: &Outputs,
    list: OutputsList,
    sender: &OutputSender,
) -> Result<(), StreamError> {
    for file in list.files {
        send_file(handle, outputs, file, sender).await?;
    }
    for entry in list.skipped {
        part(sender, Part::Skipped(v1::SkippedOutput { path: entry.path, reason: entry.reason })).await?;
    }
    if list.skipped_more > 0 {
        let reason = format!("{} more files were skipped and are not listed", list.skipped_more);
        part(sender, Part::Skipped(v1::SkippedOutput { path: String::new(), reason })).await?;
    }
    Ok(())
}

async fn send_file(
    handle: &Arc<Handle>,
    outputs: &Outputs,
    file: CapturedFile,
    sender: &OutputSender,
) -> Result<(), StreamError> {
    let (reader, opened) = (outputs.clone(), file.clone());
    // Open the file before sending its description.
    let mut reading = blocking(move || reader.open(&opened)).await?.map_err(|error| problem(handle, &error))?;
    part(sender, Part::File(v1::OutputFile { path: file.path, size: file.size, mode: file.mode })).await?;
    loop {
        let (back, pieces) = blocking(move || {
            let pieces = some_pieces(&mut reading);
            (reading, pieces)
        })
        .await?;
        reading = back;
        let pieces = pieces.map_err(|error| problem(handle, &error))?;
        let last = pieces.len() < PIECES;
        for piece in pieces {
            part(sender, Part::Data(piece)).await?;
        }
        if last {
            return Ok(());
        }
    }
}

fn some_pieces(reading: &mut OpenOutput) -> Result<Vec<Vec<u8>>, OutputsError> {
    let mut pieces = Vec::with_capacity(PIECES);
    while pieces.len() < PIECES {
        match reading.next(PIECE)? {
            Some(piece) => pieces.push(piece),
            None => break,
        }
    }
    Ok(pieces)
}

async fn part(sender: &OutputSender, part: Part) -> Result<(), StreamError> {
    sender.send(Ok(v1::GetOutputsResponse { part: Some(part) })).await.map_err(|_| StreamError::ClientGone)
}

/// Runs blocking work on a blocking thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    spawn_blocking(work).await.map_err(ApiError::from)
}

fn problem(handle: &Handle, error: &OutputsError) -> ApiError {
    let id = handle.id();
    // A deletion removes the files first and the container afterwards.
    let deleted = || handle.facts().is_none() || handle.deleting.try_lock().is_err();
    match error {
        OutputsError::Gone(_) if deleted() => {
            ApiError::new(Kind::NotFound, format!("the outputs of container {id} were deleted with the container"))
        }
        error => ApiError::from_system(&format!("outputs of container {id}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(paths: &[&str]) -> OutputsList {
        let mut list = OutputsList::default();
        for path in paths {
            list.add(CapturedFile { number: 0, path: (*path).into(), size: 0, mode: 0 });
        }
        list.skip("/out/link", "a symbolic link");
        list
    }

    fn found(path: &str, declared: &OutputSource) -> Option<(Vec<String>, usize)> {
        let list = OutputSelection::parse(path).unwrap().choose(list(&["/out/a", "/out/a.b", "/out/c/d"]), declared)?;
        Some((list.files.into_iter().map(|file| file.path).collect(), list.skipped.len()))
    }

    #[test]
    fn output_path_selects_file_or_directory() {
        let directory = OutputSource::Directory("/out".into());
        let names = |names: &[&str], skipped| Some((names.iter().map(|name| (*name).to_owned()).collect(), skipped));
        let all = names(&["/out/a", "/out/a.b", "/out/c/d"], 1);
        for path in ["", "/", "/out", "/out/"] {
            assert_eq!(found(path, &directory), all, "{path}");
        }
        assert_eq!(found("/out/a", &directory), names(&["/out/a"], 0));
        assert_eq!(found("/out/c", &directory), names(&["/out/c/d"], 0));
        assert_eq!(found("/out/link", &directory), names(&[], 1));
        for path in ["/o", "/out/x", "/out/a/b", "/out/c/d/e", "/tmp"] {
            assert_eq!(found(path, &directory), None, "{path}");
        }
        assert!(
            OutputSelection::parse("out/a").is_err()
                && OutputSelection::parse(&format!("/{}", "x".repeat(5000))).is_err()
        );
    }

    #[test]
    fn empty_output_directory_can_be_selected() {
        let of = |path: &str, source| {
            OutputSelection::parse(path).unwrap().choose(OutputsList::default(), &source).is_some()
        };
        assert!(of("/out/d", OutputSource::Directory("/out/d".into())));
        assert!(of("/out", OutputSource::Directory("/out/d".into())));
        assert!(!of("/out/d/e", OutputSource::Directory("/out/d".into())));
        assert!(!of("/out/d", OutputSource::Files(vec!["/out/d".into()])));
    }
}
