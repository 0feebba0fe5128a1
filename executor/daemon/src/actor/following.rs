//! Refreshes the secret references of a running container: polls their providers and replaces changed values.
//!
//! Each running container with such references has one task. All new values of a container are sent as one update, with
//! the generation that they were fetched for. If a caller updates the container in the meantime, the caller's update is
//! kept and the task polls again. While a provider does not respond, the container keeps its values, its sources are
//! marked as stale, and the pauses between polls grow. After a restart of executord the task continues from the
//! container's records.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use executor_core::backoff::Backoff;
use executor_core::lifecycle::State;
use executor_proto::v1;
use executor_providers::{FetchRequest, Fetched};
use tokio::task::AbortHandle;
use zeroize::Zeroize as _;

use crate::api_error::Kind;
use crate::model::container::Handle;
use crate::model::sources::{SourceChange, SourceRecord, StaleValue, ValueTarget};
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::rotate;

/// Maximum pause between polls while a provider does not respond.
const POLL_DELAY_MAX: Duration = Duration::from_secs(600);
/// Pause before the next poll if another update of the container was applied first, or if an earlier daemon left stale
/// sources. Also the minimum time until the next renewal of a lease.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The task that refreshes a container's references. Dropping this stops the task.
#[derive(Debug)]
pub(crate) struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Following {
    /// Starts the task; `None` if there is nothing to refresh.
    pub(crate) fn start(node: &Arc<Node>, handle: &Arc<Handle>, facts: &ContainerStatus) -> Option<Self> {
        facts.sources.iter().find(|source| source.followed)?;
        let (node, handle) = (Arc::clone(node), Arc::clone(handle));
        let task = tokio::spawn(async move { follow(&node, &handle).await });
        Some(Self(task.abort_handle()))
    }
}

/// Result of polling the providers.
enum RefreshOutcome {
    /// Every provider responded.
    Fresh,
    /// At least one provider did not respond.
    Stale,
    /// Another update of the container was applied first, or no launcher has connected yet. The poll is repeated.
    Superseded,
}

async fn follow(node: &Arc<Node>, handle: &Arc<Handle>) {
    let mut backoff: Option<Backoff> = None;
    let mut rules = node.rules.subscribe();
    let mut again = false;
    while let Some(facts) = handle.facts().filter(|facts| facts.state == State::Running) {
        let Some(pause) = due_in(node, &facts) else { return };
        let pause = match &mut backoff {
            _ if again => RETRY_DELAY,
            Some(backoff) => backoff.pause(),
            None if is_any_followed_stale(&facts.sources) => RETRY_DELAY, // stale since an earlier daemon
            None => pause,
        };
        let mut pause = std::pin::pin!(tokio::time::sleep(crate::with_jitter(pause)));
        loop {
            tokio::select! {
                () = &mut pause => break,
                Ok(()) = rules.changed() => stop_denied(node, handle).await,
                // The last fetch may have failed for lack of a valid token.
                () = handle.tokens_changed.notified() => {
                    if handle.facts().is_some_and(|facts| is_any_followed_stale(&facts.sources)) {
                        break;
                    }
                }
            }
        }
        again = false;
        match refresh(node, handle).await {
            RefreshOutcome::Fresh => backoff = None,
            RefreshOutcome::Stale if backoff.is_none() => {
                backoff = Some(Backoff::new(shortest_poll(node, &facts), POLL_DELAY_MAX));
            }
            RefreshOutcome::Stale => {}
            RefreshOutcome::Superseded => again = true,
        }
    }
}

/// Returns the poll interval of a source's provider.
fn poll(node: &Node, source: &SourceRecord) -> Duration {
    node.providers.config(&source.reference.provider).map_or(POLL_DELAY_MAX, |config| config.poll())
}

/// Returns the shortest poll interval among the providers in use.
fn shortest_poll(node: &Node, facts: &ContainerStatus) -> Duration {
    let followed = facts.sources.iter().filter(|source| source.followed);
    followed.map(|source| poll(node, source)).min().unwrap_or(POLL_DELAY_MAX)
}

/// Returns the time until the next poll: a lease's renewal, or the shortest poll interval. Returns `None` if nothing is
/// refreshed.
fn due_in(node: &Node, facts: &ContainerStatus) -> Option<Duration> {
    let now = seconds();
    let due = |source: &SourceRecord| match &source.lease {
        Some(lease) => Duration::from_secs(lease.due_in(now)).max(RETRY_DELAY),
        None => poll(node, source),
    };
    facts.sources.iter().filter(|source| source.followed).map(due).min()
}

/// Returns the current time in seconds on the clock that leases use.
fn seconds() -> u64 {
    executor_providers::now_seconds()
}

/// Returns true if at least one refreshed source is marked as stale.
fn is_any_followed_stale(sources: &[SourceRecord]) -> bool {
    sources.iter().any(|source| source.followed && source.stale.is_some())
}

/// Returns the path of the current rule that allows the source's requester to use the source, if any. Records of
/// earlier versions have no requester. For such records, any rule that covers the path is enough.
fn covering_rule(node: &Node, source: &SourceRecord) -> Option<String> {
    let (rules, reference) = (node.rules.current(), &source.reference);
    let covering = match &source.requester {
        Some(requester) => rules.covering(requester, &reference.provider, &reference.path),
        None => rules.covering_any(&reference.provider, &reference.path),
    };
    covering.map(str::to_owned)
}

fn is_allowed(node: &Node, source: &SourceRecord) -> bool {
    covering_rule(node, source).is_some()
}

/// Stops refreshing sources that no rule allows any longer. The container keeps the values, marked as stale, until an
/// update names the sources again.
async fn stop_denied(node: &Node, handle: &Handle) {
    let Some(facts) = handle.facts() else { return };
    let denied = facts.sources.iter().filter(|source| source.followed && !is_allowed(node, source));
    let mut ended = Vec::new();
    for old in denied {
        let who = old.requester.as_ref().map_or_else(|| "the caller".to_owned(), ToString::to_string);
        let why =
            format!("no longer refreshed: no rule of secret_providers.allow allows {who} to use {}", old.reference);
        tracing::warn!(container = %handle.id(), "a secret reference is {why}");
        ended.push(SourceRecord { followed: false, lease: None, stale: Some(stale(old, why)), ..old.clone() });
    }
    if !ended.is_empty() {
        handle.report_sources(SourceChange::Polled(ended)).await;
    }
}

/// Polls the providers once, and replaces changed values.
async fn refresh(node: &Arc<Node>, handle: &Arc<Handle>) -> RefreshOutcome {
    stop_denied(node, handle).await;
    // Sources and generation are consistent under the update lock.
    let turn = handle.updating.lock().await;
    let Some(facts) = handle.facts() else { return RefreshOutcome::Fresh };
    drop(turn);
    // Values cannot be compared without the launcher's key.
    let Some(key) = node.launcher.tag_key() else { return RefreshOutcome::Superseded };
    let now = seconds();
    let is_due = |source: &&SourceRecord| {
        source.followed && source.lease.as_ref().is_none_or(|lease| source.stale.is_some() || lease.due_in(now) == 0)
    };
    let due = facts.sources.iter().filter(is_due);
    let due = due.filter_map(|source| Some((source, covering_rule(node, source)?)));
    let (due, wanted): (Vec<&SourceRecord>, Vec<FetchRequest>) = due
        .map(|(source, rule)| {
            let (reference, lease) = (source.reference.clone(), source.lease.clone());
            let login = handle.logins.get(&reference.provider);
            (source, FetchRequest { reference, rule, lease, login })
        })
        .unzip();
    let results = node.providers.fetch(&wanted).await;
    let (mut looked, mut files) = (Vec::new(), BTreeMap::new());
    // The rules may have changed during the fetch.
    for (old, result) in due.into_iter().zip(results).filter(|(old, _)| is_allowed(node, old)) {
        let mut new = SourceRecord { stale: None, ..old.clone() };
        match result {
            Ok(Fetched::Renewed(lease)) => new.lease = Some(lease),
            Ok(Fetched::Value(mut value)) => {
                (new.tag, new.version) = (key.tag([&value.content[..]]), value.version.clone());
                new.lease = value.lease.take();
                if new.tag != old.tag {
                    new.fetched_at = crate::now();
                    if let ValueTarget::File(path) = &old.target {
                        files.insert(path.clone(), std::mem::take(&mut *value.content));
                    }
                }
            }
            Err(error) => new.stale = Some(stale(old, error.why)),
        }
        looked.push(new);
    }
    executor_secrets::scrub_stack();
    if !files.is_empty() {
        let request = update(&facts, files);
        match rotate::replace(node, request, SourceChange::Polled(looked.clone())).await {
            Ok(()) => {
                return if is_any_followed_stale(&looked) { RefreshOutcome::Stale } else { RefreshOutcome::Fresh };
            }
            Err(problem) if problem.kind == Kind::Aborted => return RefreshOutcome::Superseded,
            Err(_) if handle.state() != Some(State::Running) => return RefreshOutcome::Fresh,
            Err(problem) => {
                tracing::warn!(container = %handle.id(), "new secrets were not applied: {problem}");
                let reported = format!("the new value was not applied: {problem}");
                looked = facts.sources.iter().filter(is_due).cloned().collect();
                looked.iter_mut().for_each(|source| source.stale = Some(stale(source, reported.clone())));
            }
        }
    }
    let outcome = if is_any_followed_stale(&looked) { RefreshOutcome::Stale } else { RefreshOutcome::Fresh };
    if looked.iter().any(|source| !facts.sources.contains(source)) {
        handle.report_sources(SourceChange::Polled(looked)).await;
    }
    outcome
}

fn stale(old: &SourceRecord, why: String) -> StaleValue {
    StaleValue { since: old.stale.as_ref().map_or_else(crate::now, |stale| stale.since), why }
}

/// Creates the update of a container's files. Public files stay public.
fn update(facts: &ContainerStatus, files: BTreeMap<PathBuf, Vec<u8>>) -> v1::UpdateFilesRequest {
    let is_public = |path: &PathBuf| facts.plan.files.iter().any(|file| file.path == *path && file.public);
    let files = files.into_iter().map(|(path, mut content)| {
        let public = is_public(&path);
        match path.into_os_string().into_string() {
            Ok(path) => v1::File { path, content, public, ..v1::File::default() },
            Err(_) => {
                content.zeroize();
                v1::File::default() // paths of requests are UTF-8
            }
        }
    });
    v1::UpdateFilesRequest {
        id: facts.plan.id.to_string(),
        files: files.collect(),
        expected_generation: Some(facts.files_generation),
        ..v1::UpdateFilesRequest::default()
    }
}
