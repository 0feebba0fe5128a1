//! Counters of containers: from the shims of those that run, from the records of those that have ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::usage::Usage;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::container::Handle;
use crate::facts::Facts;
use crate::node::Node;
use crate::problem::Problem;

/// Time limit for a shim to answer. It may be writing new secret files.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of shims that are asked at the same time.
const ASKED_AT_ONCE: usize = 64;

/// What was read of a container.
pub(crate) type Reading = (Arc<Facts>, Option<Usage>);

/// Containers whose counters are read.
#[derive(Clone, Debug)]
pub(crate) enum Chosen {
    /// These, in the order of their ids.
    Named(Vec<Arc<Handle>>),
    /// Every one that runs.
    Running,
}

impl Chosen {
    /// Finds the named containers, or chooses every running one where none is named.
    ///
    /// # Errors
    /// One does not exist.
    pub(crate) fn of(node: &Node, ids: &[String]) -> Result<Self, Problem> {
        if ids.is_empty() {
            return Ok(Self::Running);
        }
        let ids: BTreeSet<&String> = ids.iter().collect();
        Ok(Self::Named(ids.into_iter().map(|id| node.find(id)).collect::<Result<_, _>>()?))
    }

    /// Returns the containers behind an id that a filter takes, in the order of their ids: `most` of them at most, and whether there
    /// are more.
    pub(crate) fn page(
        &self,
        node: &Node,
        after: Option<&ContainerId>,
        most: usize,
        takes: impl Fn(&Facts) -> bool,
    ) -> (Vec<Arc<Handle>>, bool) {
        let (mut page, mut more) = (Vec::new(), false);
        let runs = |facts: &Facts| matches!(facts.state, State::Running | State::Stopping);
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

    /// Waits until every named container has ended; for ever where none is named.
    pub(crate) async fn over(&self) {
        match self {
            Self::Running => std::future::pending().await,
            Self::Named(handles) => {
                for handle in handles {
                    let _ = handle.completed().await; // one that was refused has ended, too
                }
            }
        }
    }

    /// Tells whether every named container has ended.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Named(handles) if handles.iter().all(|handle| handle.is_over()))
    }
}

/// Reads the counters of these containers, in their order. Those that were deleted meanwhile are left out.
pub(crate) async fn read(handles: Vec<Arc<Handle>>) -> Vec<Reading> {
    read_within(handles.into_iter().map(|handle| (handle, false)).collect(), None).await
}

/// Reads the counters of these containers likewise, those of the log alone where the flag is set. Shims that have not answered at the
/// deadline are not waited for.
pub(crate) async fn read_within(handles: Vec<(Arc<Handle>, bool)>, deadline: Option<Instant>) -> Vec<Reading> {
    let mut readings: Vec<Option<Reading>> = handles.iter().map(|_| None).collect();
    let mut waiting = handles.into_iter().enumerate();
    let mut asked = JoinSet::new();
    loop {
        while asked.len() < ASKED_AT_ONCE
            && let Some((index, (handle, log_only))) = waiting.next()
        {
            let answered_by = Instant::now() + ANSWERED_WITHIN;
            let answered_by = deadline.map_or(answered_by, |deadline| deadline.min(answered_by));
            asked.spawn(async move { (index, read_one(&handle, log_only, answered_by).await) });
        }
        match asked.join_next().await {
            Some(Ok((index, reading))) => readings[index] = reading,
            Some(Err(_)) => {} // the daemon is stopping
            None => return readings.into_iter().flatten().collect(),
        }
    }
}

async fn read_one(handle: &Handle, log_only: bool, answered_by: Instant) -> Option<Reading> {
    let facts = handle.facts()?;
    let counted = match (facts.state, handle.shim()) {
        (State::Running | State::Stopping, Some(link)) => {
            timeout_at(answered_by, link.usage(log_only)).await.ok().and_then(Result::ok)
        }
        _ => None,
    };
    // One that has ended meanwhile has its final counters.
    let facts = handle.facts().unwrap_or(facts);
    let counted = facts.end.as_ref().map_or(counted, |end| end.usage.clone());
    Some((facts, counted))
}
