//! UpdateFiles: replaces secret files of a running container.
//!
//! The decoded message is passed by value, because it holds the only copies of the new contents; the result is the
//! container with its new generation. The list of files is built from the shim's own record and validated here; the
//! shim validates it again. Updates of a container run one at a time, and an update that has started continues even if
//! its client disconnects.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use executor_core::plan::Plan;
use executor_core::protocol::{self, Reason, ShimCall};
use executor_core::record::ContainerRecord;
use executor_core::update::{FileUpdate, forbidden};
use executor_core::validate::{PlannedUpdate, UpdateDraft, Violation, ViolationReason, validate_update};
use executor_proto::{Wiped, v1};
use executor_sys::memfile::MemFile;
use tokio::time::Instant;

use crate::access::Client;
use crate::api_error::{ApiError, Kind};
use crate::ipc::memfiles;
use crate::ipc::memfiles::WipedPayload;
use crate::model::container::link::shim_is_gone;
use crate::model::container::{Handle, Presence, records};
use crate::model::sources::SourceChange;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::requests::draft;
use crate::requests::references;

/// Time limit for retries while the shim has too many old generations. A shim wipes each old generation after half a
/// second.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two requests to a busy shim, which does not report when it is free.
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(20);
/// Maximum number of times that the list of files is rebuilt because of another daemon's concurrent update.
const STALE_MAX: u32 = 5;
/// Maximum wait for the shim's record update, which normally precedes the response.
pub(crate) const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Replaces, adds and removes secret files.
///
/// # Errors
/// Returns the errors that the interface lists for UpdateFiles. In that case the files are unchanged, except after
/// UNAVAILABLE if the shim's response was lost.
pub(crate) async fn update(
    node: &Arc<Node>,
    request: v1::UpdateFilesRequest,
    client: Option<&Client>,
) -> Result<Arc<ContainerStatus>, ApiError> {
    let mut request = Wiped::new(request);
    let handle = node.find(&request.id)?;
    let has_tokens = !request.provider_tokens.is_empty();
    if has_tokens {
        // A refused update must not replace tokens.
        let facts = handle.facts().ok_or_else(|| ApiError::no_container(handle.id().as_str()))?;
        expected(&request, &facts.plan, facts.files_generation)?;
    }
    let change = with_values(node, &handle, &mut request, client).await?;
    let v1::UpdateFilesRequest { files, removed_paths, signal, .. } = &*request;
    if has_tokens && files.is_empty() && removed_paths.is_empty() && *signal == 0 {
        if handle.is_over() {
            let why = format!("container {} is completed and accepts no tokens", handle.id());
            return Err(ApiError::new(Kind::Precondition, why));
        }
        return handle.facts().ok_or_else(|| ApiError::no_container(handle.id().as_str()));
    }
    let shared = Arc::clone(node);
    node.run_detached(async move { execute(&shared, &request, change).await }).await
}

/// Replaces files that the executor refreshed. `change` is the resulting change of the container's sources.
///
/// # Errors
/// Returns the same errors as [`update`].
pub(crate) async fn replace(
    node: &Arc<Node>,
    request: v1::UpdateFilesRequest,
    change: SourceChange,
) -> Result<(), ApiError> {
    let request = Wiped::new(request);
    let node = Arc::clone(node);
    // Use a separate task: the caller is part of the container's task, which may end in the meantime.
    tokio::spawn(async move { execute(&node, &request, Some(change)).await.map(drop) }).await?
}

/// Fetches the values of an update's references. Returns the resulting change of the container's sources, if any.
async fn with_values(
    node: &Node,
    handle: &Handle,
    request: &mut v1::UpdateFilesRequest,
    client: Option<&Client>,
) -> Result<Option<SourceChange>, ApiError> {
    let collected = references::resolve_update(node, request, client, &handle.logins);
    if let Some(problem) = collected.problem() {
        return Err(problem);
    }
    let root = &node.config.policy.files_root;
    let reserved = handle.facts().map(|facts| of_identity(root, &facts, request)).unwrap_or_default();
    if !reserved.is_empty() {
        return Err(ApiError::invalid(reserved));
    }
    if handle.logins.merge(&collected.logins) {
        handle.tokens_changed.notify_one();
    }
    if handle.is_over() {
        handle.logins.clear(); // the container's task may have cleared the logins before the merge
    }
    let has_sources = handle.facts().is_some_and(|facts| !facts.sources.is_empty());
    if collected.asked.is_empty() && !has_sources {
        return Ok(None);
    }
    let paths = request.files.iter().map(|file| &file.path).chain(&request.removed_paths);
    let files = paths.map(|path| root.join(path)).collect();
    let mut sources = Vec::new();
    if !collected.asked.is_empty() {
        let key =
            node.launcher.tag_key().ok_or_else(|| ApiError::new(Kind::Unavailable, "the launcher is not connected"))?;
        let fetched = references::fetch(node, &collected, &key, &handle.logins).await?;
        references::fill_update(request, &collected.asked, fetched.values);
        sources = fetched.records;
    }
    Ok(Some(SourceChange::Replaced { files, sources }))
}

/// Returns a violation for each file of an update that belongs to the container's identity.
fn of_identity(root: &Path, facts: &ContainerStatus, request: &v1::UpdateFilesRequest) -> Vec<Violation> {
    let Some(identity) = &facts.identity else { return Vec::new() };
    let is_ours = |path: &str| identity.files.contains(&root.join(path));
    let fault =
        || ViolationReason::Reserved.because("is a file of the container's identity, which only executord replaces");
    let files = request.files.iter().enumerate().filter(|(_, file)| is_ours(&file.path));
    let files = files.map(|(index, _)| Violation::new(format!("files[{index}].path"), fault()));
    let removed = request.removed_paths.iter().enumerate().filter(|(_, path)| is_ours(path));
    files.chain(removed.map(|(index, _)| Violation::new(format!("removed_paths[{index}]"), fault()))).collect()
}

async fn execute(
    node: &Node,
    request: &v1::UpdateFilesRequest,
    change: Option<SourceChange>,
) -> Result<Arc<ContainerStatus>, ApiError> {
    let handle = node.find(&request.id)?;
    let _turn = handle.updating.lock().await;
    let deadline = Instant::now() + BUSY_TIMEOUT;
    let mut stale = 0;
    let base = loop {
        let record = current(node, &handle)?;
        expected(request, &record.plan, record.files_generation)?;
        match attempt(node, &handle, request, &record).await {
            Ok(()) => break record.files_generation,
            Err((Retry::Stale, _)) if stale < STALE_MAX => stale += 1,
            Err((Retry::Busy, _)) if Instant::now() < deadline => tokio::time::sleep(BUSY_RETRY_DELAY).await,
            Err((_, problem)) => return Err(problem),
        }
    };
    let mut watch = handle.watch();
    let news =
        watch.wait_for(|presence| !matches!(presence, Presence::Present(facts) if facts.files_generation <= base));
    let _ = tokio::time::timeout(REPORT_TIMEOUT, news).await;
    if let Some(change) = change {
        // Report under the lock, so that the next reader sees matching generation and sources.
        handle.report_sources(change).await;
    }
    handle.facts().ok_or_else(|| ApiError::no_container(handle.id().as_str()))
}

/// Returns the shim's own record of a running container whose files can be updated.
fn current(node: &Node, handle: &Handle) -> Result<ContainerRecord, ApiError> {
    let record = running(node, handle, "its files can be replaced")?;
    match forbidden(&record.plan) {
        None => Ok(record),
        Some(why) => Err(ApiError::new(Kind::Precondition, why)),
    }
}

/// Returns the shim's own record of a running container.
///
/// # Errors
/// Returns `what` followed by "only while it runs" if the container is not running, or an error if it has no record.
pub(crate) fn running(node: &Node, handle: &Handle, what: &str) -> Result<ContainerRecord, ApiError> {
    let id = handle.id();
    let facts = handle.facts().ok_or_else(|| ApiError::no_container(id.as_str()))?;
    if facts.state != State::Running {
        let why = format!("container {id} is {}: {what} only while it runs", facts.state.name());
        return Err(ApiError::new(Kind::Precondition, why));
    }
    match records::live(&node.config.paths, id) {
        Ok(Some(record)) => Ok(record),
        Ok(None) => Err(shim_is_gone(id)),
        Err(error) => Err(ApiError::from_system(&format!("container {id}"), &error)),
    }
}

fn expected(request: &v1::UpdateFilesRequest, plan: &Plan, is: u64) -> Result<(), ApiError> {
    match request.expected_generation {
        Some(expected) if expected != is => {
            let why =
                format!("the files of container {} have generation {is}; the request expects {expected}", plan.id);
            Err(ApiError::new(Kind::Aborted, why))
        }
        _ => Ok(()),
    }
}

/// Kind of retry that is possible after a failed attempt.
#[derive(Clone, Copy)]
enum Retry {
    /// The list of files is based on an older generation: a new list may be accepted.
    Stale,
    /// The shim is busy: it may accept the list of files later.
    Busy,
    /// The failure is final.
    Never,
}

/// Sends one update request to the shim.
async fn attempt(
    node: &Node,
    handle: &Handle,
    request: &v1::UpdateFilesRequest,
    record: &ContainerRecord,
) -> Result<(), (Retry, ApiError)> {
    let failed = |problem| (Retry::Never, problem);
    let planned = validate_update(&draft_of(request), &record.plan, &node.config.policy);
    let planned = planned.map_err(|violations| failed(ApiError::invalid(violations)))?;
    let link = handle.shim().ok_or_else(|| failed(shim_is_gone(handle.id())))?;
    let signal = planned.signal;
    let (list, contents) = load(request, record, planned).map_err(|error| {
        let why = format!("no memory or descriptors for the new files of container {}: {error}", handle.id());
        failed(ApiError::new(Kind::Exhausted, why))
    })?;
    let call = ShimCall::UpdateFiles(protocol::UpdateFiles { signal });
    let answer = link.call_with_fds(call, &[list.as_fd(), contents.0.as_fd()]).await;
    drop(contents);
    answer.map(drop).map_err(|reported| match reported {
        None => failed(handle.response_lost("check files_generation to see whether the files were replaced")),
        Some(refused) => {
            let retry = match refused.reason() {
                Reason::Stale => Retry::Stale,
                Reason::Busy => Retry::Busy,
                _ => Retry::Never,
            };
            (retry, refused.into())
        }
    })
}

fn draft_of(request: &v1::UpdateFilesRequest) -> UpdateDraft<'_> {
    let files = request.files.iter().enumerate();
    UpdateDraft {
        files: files.map(|(index, file)| draft::file(format!("files[{index}]"), file)).collect(),
        removed: request.removed_paths.iter().map(String::as_str).collect(),
        signal: request.signal,
    }
}

/// Writes the list of files and their contents into memory files.
fn load(
    request: &v1::UpdateFilesRequest,
    record: &ContainerRecord,
    planned: PlannedUpdate,
) -> std::io::Result<(MemFile, WipedPayload)> {
    let PlannedUpdate { files, changed, sources, signal: _ } = planned;
    let update = FileUpdate { base_generation: record.files_generation, files, changed };
    let list = memfiles::json("executor-update", &update)?;
    let contents: Vec<&[u8]> = sources.iter().map(|index| &*request.files[*index].content).collect();
    Ok((list, WipedPayload(MemFile::with_strings("executor-files", &contents)?)))
}
