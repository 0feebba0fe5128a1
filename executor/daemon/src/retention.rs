//! How long completed containers are kept when nobody deletes them: for a while, or not at all where the request says so.

use std::sync::Arc;
use std::time::Duration;

use executor_core::time::Timestamp;
use tokio::sync::Notify;

use crate::container::Handle;
use crate::deletion;
use crate::node::Node;
use crate::problem::Kind;

/// Between looks for what has become too old.
const LOOK: Duration = Duration::from_secs(60);
/// Between looks for what has become too much: each goes over all containers.
const PAUSE: Duration = Duration::from_secs(1);

/// The limits, and news of containers that completed.
#[derive(Debug)]
pub struct Retention {
    most: usize,
    longest: Duration,
    completed: Notify,
}

impl Retention {
    /// At most `most` completed containers, none for longer than `longest`.
    pub fn new(most: usize, longest: Duration) -> Self {
        Self { most, longest, completed: Notify::new() }
    }

    /// There is one more.
    pub(crate) fn completed(&self) {
        self.completed.notify_one();
    }
}

/// Deletes what is too old or too much, for as long as the daemon lives.
pub(crate) async fn keep(node: Arc<Node>) {
    loop {
        for handle in superfluous(&node) {
            if let Err(problem) = deletion::delete(&node, Arc::clone(&handle), false).await {
                tracing::warn!(container = %handle.id(), "it is kept longer than it should be: {problem}");
                if problem.kind == Kind::Unavailable {
                    break; // no launcher: the next look may find one
                }
            }
        }
        let _ = tokio::time::timeout(LOOK, node.retention.completed.notified()).await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// What is to be deleted, the oldest first.
fn superfluous(node: &Node) -> Vec<Arc<Handle>> {
    let now = crate::now();
    let mut completed: Vec<(Timestamp, Arc<Handle>)> = Vec::new();
    let mut unwanted = Vec::new();
    node.registry.visit(None, |handle| {
        let Some(facts) = handle.facts() else { return true };
        match facts.end.as_ref().map(|end| end.finished_at) {
            Some(_) if facts.plan.remove_when_completed => unwanted.push(Arc::clone(handle)),
            finished_at => completed.extend(finished_at.map(|at| (at, Arc::clone(handle)))),
        }
        true
    });
    completed.sort_by_key(|(at, _)| *at);
    let too_many = completed.len().saturating_sub(node.retention.most);
    let doomed =
        |(index, (at, _)): &(usize, (Timestamp, _))| *index < too_many || now.since(*at) > node.retention.longest;
    let doomed = completed.into_iter().enumerate().filter(doomed).map(|(_, (_, handle))| handle);
    unwanted.into_iter().chain(doomed).collect()
}
