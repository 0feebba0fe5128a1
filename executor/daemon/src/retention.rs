//! Deletes completed containers that nobody deletes: after a while, beyond a number, or at once where the request says
//! so.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
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
    let mut seen = Seen::default();
    loop {
        for handle in superfluous(&node, &mut seen) {
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

/// First sights of completed containers. Ages are counted from there by the monotonic clock: a wall clock that is set makes
/// no container old. Only the age at the first sight is computed from dates: for a container of an earlier daemon.
#[derive(Default)]
struct Seen(HashMap<ContainerId, Sight>);

#[derive(Clone, Copy)]
struct Sight {
    finished_at: Timestamp,
    at: Instant,
    age: Duration,
}

impl Seen {
    /// Returns the age of a container that is completed.
    fn age(&mut self, id: &ContainerId, finished_at: Timestamp, (now, instant): (Timestamp, Instant)) -> Duration {
        let sight = Sight { finished_at, at: instant, age: now.since(finished_at) };
        let known = self.0.entry(id.clone()).or_insert(sight);
        if known.finished_at != finished_at {
            *known = sight; // another container of the same id
        }
        known.age + instant.saturating_duration_since(known.at)
    }

    /// Forgets the containers that are gone.
    fn keep_only(&mut self, completed: &BTreeSet<ContainerId>) {
        self.0.retain(|id, _| completed.contains(id));
    }
}

/// Returns the containers to delete, the oldest first.
fn superfluous(node: &Node, seen: &mut Seen) -> Vec<Arc<Handle>> {
    let now = (crate::now(), Instant::now());
    let mut completed: Vec<(Duration, Arc<Handle>)> = Vec::new();
    let mut unwanted = Vec::new();
    let mut with_members = BTreeSet::new();
    node.registry.visit(None, |handle| {
        let Some(facts) = handle.facts() else { return true };
        with_members.extend(facts.plan.member_of().cloned());
        match facts.end.as_ref().map(|end| end.finished_at) {
            Some(_) if facts.plan.remove_when_completed => unwanted.push(Arc::clone(handle)),
            finished_at => {
                let age = finished_at.map(|at| seen.age(handle.id(), at, now));
                completed.extend(age.map(|age| (age, Arc::clone(handle))));
            }
        }
        true
    });
    seen.keep_only(&completed.iter().map(|(_, handle)| handle.id().clone()).collect());
    // A pod is kept for as long as any of its members is.
    completed.retain(|(_, handle)| !with_members.contains(handle.id()));
    // Containers that were first seen at the same time are in the order of their dates.
    completed.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
    let too_many = completed.len().saturating_sub(node.config.completed_kept);
    let kept_for = node.config.completed_kept_for;
    let expired = |(index, (age, _)): &(usize, (Duration, _))| *index < too_many || *age > kept_for;
    let expired = completed.into_iter().enumerate().filter(expired).map(|(_, (_, handle))| handle);
    unwanted.into_iter().chain(expired).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn clock_jumps_make_no_container_old() {
        let date = |hours: u64| Timestamp(hours * 3600 * 1_000_000_000);
        let (mut seen, start) = (Seen::default(), Instant::now());
        let (a, b): (ContainerId, ContainerId) = ("a".parse().unwrap(), "b".parse().unwrap());
        assert_eq!(seen.age(&a, date(100), (date(100), start)), Duration::ZERO);
        for (now, passed) in [(106, HOUR), (94, 2 * HOUR)] {
            assert_eq!(seen.age(&a, date(100), (date(now), start + passed)), passed);
        }
        // One that ends after the clock was set back is the younger one, though its date is the earlier one.
        assert_eq!(seen.age(&b, date(94), (date(94), start + 2 * HOUR)), Duration::ZERO);
        // The control: a container of an earlier daemon is as old as its dates say.
        seen.keep_only(&BTreeSet::new());
        assert_eq!(seen.age(&a, date(100), (date(106), start)), 6 * HOUR);
    }
}
