//! Deletes completed containers that nobody deletes: after a while, beyond a number, or at once where the request says
//! so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use executor_core::time::Timestamp;

use crate::container::Handle;
use crate::deletion;
use crate::node::Node;
use crate::problem::Kind;

/// Interval between looks for containers that are too old.
const AGE_INTERVAL: Duration = Duration::from_secs(60);
/// Least time between two looks: each goes over all containers.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Deletes completed containers beyond the configured number and age, for as long as the daemon lives.
pub(crate) async fn keep(node: Arc<Node>) {
    loop {
        for handle in superfluous(&node) {
            if let Err(problem) = deletion::delete(&node, Arc::clone(&handle), false).await {
                tracing::warn!(container = %handle.id(), "cannot delete the container, whose retention is over: {problem}");
                if problem.kind == Kind::Unavailable {
                    break; // no launcher: the next look may find one
                }
            }
        }
        let _ = tokio::time::timeout(AGE_INTERVAL, node.completed.notified()).await;
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// Returns the containers to delete, the oldest first.
fn superfluous(node: &Node) -> Vec<Arc<Handle>> {
    let now = crate::now();
    let mut completed: Vec<(Timestamp, Arc<Handle>)> = Vec::new();
    let mut unwanted = Vec::new();
    let mut with_members = BTreeSet::new();
    node.registry.visit(None, |handle| {
        let Some(facts) = handle.facts() else { return true };
        with_members.extend(facts.plan.member_of().cloned());
        match facts.end.as_ref().map(|end| end.finished_at) {
            Some(_) if facts.plan.remove_when_completed => unwanted.push(Arc::clone(handle)),
            finished_at => completed.extend(finished_at.map(|at| (at, Arc::clone(handle)))),
        }
        true
    });
    // A pod is kept for as long as any of its members is.
    completed.retain(|(_, handle)| !with_members.contains(handle.id()));
    completed.sort_by_key(|(at, _)| *at);
    let too_many = completed.len().saturating_sub(node.config.completed_kept);
    let kept_for = node.config.completed_kept_for;
    let expired = |(index, (at, _)): &(usize, (Timestamp, _))| *index < too_many || now.since(*at) > kept_for;
    let expired = completed.into_iter().enumerate().filter(expired).map(|(_, (_, handle))| handle);
    unwanted.into_iter().chain(expired).collect()
}
