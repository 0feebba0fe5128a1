//! New secret files for a running container: what UpdateFiles does.
//!
//! In goes the decoded message, by value, because it holds the only copies of the new contents; out comes the container
//! with its new generation. The list is made from the shim's own record and judged at once; the shim judges it again.
//! Updates of a container go one after the other, and each goes on once it has begun, whether the caller waits or not.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use executor_core::payload;
use executor_core::protocol::{self, Reason, ShimCall};
use executor_core::record::ContainerRecord;
use executor_core::update::{FileUpdate, forbidden};
use executor_core::validate::{PlannedUpdate, UpdateDraft, validate_update};
use executor_proto::v1;
use executor_sys::memfile::MemFile;
use tokio::time::Instant;
use zeroize::Zeroize as _;

use crate::api::draft;
use crate::container::facts::Facts;
use crate::container::link::shim_is_gone;
use crate::container::{Handle, Known, records};
use crate::node::Node;
use crate::problem::{Kind, Problem};

/// How long a shim that is busy is asked again, and the pauses between. Old generations go within half a second.
const BUSY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(20));
/// How often a list is made anew when another daemon's update came in between.
const STALE_MAX: u32 = 5;
/// The shim's report of the new record comes before its answer, on the same connection.
const REPORT_PATIENCE: Duration = Duration::from_secs(1);

/// A request that is overwritten when it is no longer needed, however that comes.
struct Request(v1::UpdateFilesRequest);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.files.iter_mut().for_each(|file| file.content.zeroize());
    }
}

/// Replaces, adds and removes secret files.
///
/// # Errors
/// Those that the interface lists for UpdateFiles. After them the files are as they were, but for UNAVAILABLE where
/// the shim's answer was lost.
pub async fn update(node: &Arc<Node>, request: v1::UpdateFilesRequest) -> Result<Arc<Facts>, Problem> {
    let request = Request(request);
    let task = tokio::spawn({
        let node = Arc::clone(node);
        async move { carry_out(&node, &request.0).await }
    });
    tokio::select! {
        done = task => done.unwrap_or_else(|error| Err(Problem::new(Kind::Internal, format!("update: {error}")))),
        () = node.until_stopping() => Err(Problem::stopping()),
    }
}

async fn carry_out(node: &Node, request: &v1::UpdateFilesRequest) -> Result<Arc<Facts>, Problem> {
    let handle = node.find(&request.id)?;
    let _turn = handle.updating.lock().await;
    let deadline = Instant::now() + BUSY.0;
    let mut stale = 0;
    let base = loop {
        let record = current(node, &handle)?;
        expected(request, &record)?;
        match attempt(node, &handle, request, &record).await {
            Ok(()) => break record.files_generation,
            Err((Again::Stale, _)) if stale < STALE_MAX => stale += 1,
            Err((Again::Busy, _)) if Instant::now() < deadline => tokio::time::sleep(BUSY.1).await,
            Err((_, problem)) => return Err(problem),
        }
    };
    let mut watch = handle.watch();
    let news = watch.wait_for(|known| !matches!(known, Known::Here(facts) if facts.files_generation <= base));
    let _ = tokio::time::timeout(REPORT_PATIENCE, news).await;
    handle.facts().ok_or_else(|| Problem::no_container(handle.id().as_str()))
}

/// The shim's own record of a container that runs.
fn current(node: &Node, handle: &Handle) -> Result<ContainerRecord, Problem> {
    let id = handle.id();
    let facts = handle.facts().ok_or_else(|| Problem::no_container(id.as_str()))?;
    if facts.state != State::Running {
        let why = format!("container {id} is {}: its files are replaced while it runs", facts.state.name());
        return Err(Problem::new(Kind::Precondition, why));
    }
    match records::live(&node.paths, id) {
        Ok(Some(record)) => match forbidden(&record.plan) {
            None => Ok(record),
            Some(why) => Err(Problem::new(Kind::Precondition, why)),
        },
        Ok(None) => Err(shim_is_gone(id)),
        Err(error) => Err(Problem::of_system(&format!("container {id}"), &error)),
    }
}

fn expected(request: &v1::UpdateFilesRequest, record: &ContainerRecord) -> Result<(), Problem> {
    let is = record.files_generation;
    match request.expected_generation {
        Some(expected) if expected != is => {
            let why = format!("the files of container {} are of generation {is}, not {expected}", record.plan.id);
            Err(Problem::new(Kind::Aborted, why))
        }
        _ => Ok(()),
    }
}

/// Whether another attempt may go better.
#[derive(Clone, Copy)]
enum Again {
    /// The list was made from a state of things that is no longer.
    Stale,
    /// Not at this moment.
    Busy,
    /// No.
    No,
}

/// Asks the shim once.
async fn attempt(
    node: &Node,
    handle: &Handle,
    request: &v1::UpdateFilesRequest,
    record: &ContainerRecord,
) -> Result<(), (Again, Problem)> {
    let no = |problem| (Again::No, problem);
    let planned = validate_update(&drafted(request), &record.plan, &node.policy);
    let planned = planned.map_err(|violations| no(Problem::invalid(violations)))?;
    let link = handle.shim().ok_or_else(|| no(shim_is_gone(handle.id())))?;
    let signal = planned.signal;
    let (list, contents) = load(request, record, planned).map_err(|error| {
        let why = format!("no memory or descriptors for new files of container {}: {error}", handle.id());
        no(Problem::new(Kind::Exhausted, why))
    })?;
    let call = ShimCall::UpdateFiles(protocol::UpdateFiles { signal });
    let answer = link.ask(call, &[list.as_fd(), contents.as_fd()]).await;
    // A shim that is there has done so, too; one that is gone, or gave no answer, has not.
    if let Err(error) = contents.wipe() {
        tracing::error!(container = %handle.id(), %error, "a memory file of new files could not be wiped");
    }
    answer.map(drop).map_err(|told| match told {
        None => no(unanswered(handle)),
        Some(refused) => {
            let again = match refused.reason() {
                Reason::Stale => Again::Stale,
                Reason::Busy => Again::Busy,
                _ => Again::No,
            };
            (again, refused.into())
        }
    })
}

fn unanswered(handle: &Handle) -> Problem {
    if handle.state().is_none_or(|state| state >= State::Wiping) {
        return shim_is_gone(handle.id());
    }
    Problem::new(
        Kind::Unavailable,
        format!(
            "the connection to the shim of container {} was lost: its files_generation tells whether they were replaced",
            handle.id()
        ),
    )
}

fn drafted(request: &v1::UpdateFilesRequest) -> UpdateDraft<'_> {
    let files = request.files.iter().enumerate();
    UpdateDraft {
        files: files.map(|(index, file)| draft::drafted(format!("files[{index}]"), file)).collect(),
        removed: request.removed_paths.iter().map(String::as_str).collect(),
        signal: request.signal,
    }
}

/// Puts the list and the contents into memory files.
fn load(
    request: &v1::UpdateFilesRequest,
    record: &ContainerRecord,
    planned: PlannedUpdate,
) -> std::io::Result<(MemFile, MemFile)> {
    let PlannedUpdate { files, changed, sources, signal: _ } = planned;
    let json = serde_json::to_vec(&FileUpdate { base_generation: record.files_generation, files, changed })?;
    let mut list = MemFile::create("executor-update", json.len())?;
    list.fill(|bytes| bytes.copy_from_slice(&json))?;
    let contents: Vec<&[u8]> = sources.iter().map(|index| &*request.files[*index].content).collect();
    let mut file = MemFile::create("executor-files", payload::encoded_len(contents.iter().copied()))?;
    file.fill(|bytes| payload::encode(contents.iter().copied(), bytes))?;
    Ok((list, file))
}
