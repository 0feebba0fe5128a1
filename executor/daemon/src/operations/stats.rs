//! Container counters: from the shims of running containers, and from the records of completed containers.

use std::collections::BTreeSet;
use std::sync::Arc;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::usage::Usage;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api_error::ApiError;
use crate::model::container::Handle;
use crate::model::container::reading::RESPONSE_TIMEOUT;
use crate::model::status::ContainerStatus;
use crate::node::Node;

/// Maximum number of shims that are queried in parallel.
const PARALLEL_QUERIES_MAX: usize = 64;

/// Status of a container, and its counters if they could be read.
pub(crate) type UsageReading = (Arc<ContainerStatus>, Option<Usage>);

/// Containers whose counters are read.
#[derive(Clone, Debug)]
pub(crate) enum ContainerSelection {
    /// Containers in the order of their ids.
    Named(Vec<Arc<Handle>>),
    /// Every running container.
    Running,
}

impl ContainerSelection {
    /// Finds the named containers; selects every running container if `ids` is empty.
    ///
    /// # Errors
    /// Returns an error if a container does not exist.
    pub(crate) fn new(node: &Node, ids: &[String]) -> Result<Self, ApiError> {
        if ids.is_empty() {
            return Ok(Self::Running);
        }
        let ids: BTreeSet<&String> = ids.iter().collect();
        Ok(Self::Named(ids.into_iter().map(|id| node.find(id)).collect::<Result<_, _>>()?))
    }

    /// Returns up to `most` containers with a higher id than `after` that match the filter `takes`, sorted by id. Also
    /// returns true if there are more.
    pub(crate) fn page(
        &self,
        node: &Node,
        after: Option<&ContainerId>,
        most: usize,
        takes: impl Fn(&ContainerStatus) -> bool,
    ) -> (Vec<Arc<Handle>>, bool) {
        let (mut page, mut more) = (Vec::new(), false);
        let runs = |facts: &ContainerStatus| matches!(facts.state, State::Running | State::Stopping);
        let mut take = |handle: &Arc<Handle>, is_named: bool| {
            if handle.facts().is_some_and(|facts| (is_named || runs(&facts)) && takes(&facts)) {
                more = page.len() == most;
                if !more {
                    page.push(Arc::clone(handle));
                }
            }
            !more
        };
        match self {
            Self::Running => node.registry.visit(after, |handle| take(handle, false)),
            Self::Named(handles) => {
                let mut behind = handles.iter().filter(|handle| after.is_none_or(|after| handle.id() > after));
                while behind.next().is_some_and(|handle| take(handle, true)) {}
            }
        }
        (page, more)
    }

    /// Waits until every named container is completed, refused or deleted; pends forever if no container is named.
    pub(crate) async fn over(&self) {
        match self {
            Self::Running => std::future::pending().await,
            Self::Named(handles) => {
                for handle in handles {
                    let _ = handle.completed().await; // also resolves for a refused container
                }
            }
        }
    }

    /// Returns true if every named container is completed, refused or deleted.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Named(handles) if handles.iter().all(|handle| handle.is_over()))
    }
}

/// Reads the counters of these containers, in order. Containers that were deleted in the meantime are omitted. Counters
/// may be as old as [`READING_LIFETIME`](crate::model::container::reading::READING_LIFETIME).
pub(crate) async fn read(node: &Node, handles: Vec<Arc<Handle>>) -> Vec<UsageReading> {
    read_within(node, handles.into_iter().map(|handle| (handle, false)).collect(), None).await
}

/// Reads the counters of these containers. If the flag of a container is true, reads only the counters of its log. Does
/// not wait for shims that have not responded by the deadline.
pub(crate) async fn read_within(
    node: &Node,
    handles: Vec<(Arc<Handle>, bool)>,
    deadline: Option<Instant>,
) -> Vec<UsageReading> {
    let mut readings: Vec<Option<UsageReading>> = handles.iter().map(|_| None).collect();
    let mut waiting = handles.into_iter().enumerate();
    let mut asked = JoinSet::new();
    loop {
        while asked.len() < PARALLEL_QUERIES_MAX
            && let Some((index, (handle, log_only))) = waiting.next()
        {
            let Some(facts) = handle.facts() else { continue };
            let shim = match (facts.state, handle.shim()) {
                (State::Running | State::Stopping, Some(shim)) => shim,
                _ => {
                    readings[index] = Some(reading_of(facts, None));
                    continue;
                }
            };
            if let Ok(usage) = handle.reading.get(log_only) {
                readings[index] = Some(reading_of(facts, usage));
                continue;
            }
            let by = Instant::now() + RESPONSE_TIMEOUT;
            let by = deadline.map_or(by, |deadline| deadline.min(by));
            let requests = node.metrics.readings.clone();
            asked.spawn(async move {
                let usage = handle.reading.read(shim, log_only, by, requests).await;
                // A container that has completed in the meantime has final counters.
                (index, reading_of(handle.facts().unwrap_or(facts), usage))
            });
        }
        match asked.join_next().await {
            Some(Ok((index, reading))) => readings[index] = Some(reading),
            Some(Err(_)) => {} // the daemon is stopping
            None => return readings.into_iter().flatten().collect(),
        }
    }
}

/// Creates a reading. The reading of a completed container has the final counters.
fn reading_of(facts: Arc<ContainerStatus>, usage: Option<Usage>) -> UsageReading {
    let usage = facts.end.as_ref().map_or(usage, |end| end.usage.clone());
    (facts, usage)
}
