//! Deletes containers: on a caller's request, or because their retention is over. And forgets them: the one place that
//! takes a container out of the registry, the ledger and the sight of its watchers.

use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use tokio::time::timeout;

use crate::api_error::{ApiError, Kind};
use crate::model::container::{Handle, Presence};
use crate::model::events::EventKind;
use crate::node::Node;
use crate::operations::members;

/// Time that a deletion waits for the removal of what the container held, before the launcher is asked all the same.
const REMOVAL: Duration = Duration::from_secs(30);

/// Deletes a container with its logs and its record. With `force` a living one is killed first.
///
/// # Errors
/// The container lives, and `force` is not given; there is no launcher; the launcher cannot remove the files.
pub async fn delete(node: &Arc<Node>, handle: Arc<Handle>, force: bool) -> Result<(), ApiError> {
    // A task of its own: a caller that goes away does not leave a deletion half done.
    node.run_detached(delete_whole(Arc::clone(node), handle, force)).await
}

async fn delete_whole(node: Arc<Node>, handle: Arc<Handle>, force: bool) -> Result<(), ApiError> {
    let id = handle.id();
    let state = handle.state().ok_or_else(|| ApiError::no_container(id.as_str()))?;
    if state != State::Completed {
        if !force {
            return Err(ApiError::new(
                Kind::Precondition,
                format!("container {id} is {}: stop it first, or delete it with force", state.name()),
            ));
        }
        // Checked before anything is killed: without a launcher nothing can be removed afterwards.
        node.launcher.session()?;
        // One that is in quarantine may never be told.
        tokio::select! {
            reported = members::request_stop(&handle, (Duration::ZERO, 0)) => reported?,
            ended = handle.ended() => drop(ended?),
        }
        handle.ended().await?;
    }
    // Its shim, or the launcher, removes what it held; a launcher that cannot says why.
    node.launcher.session()?;
    let _ = timeout(REMOVAL, handle.until_removed()).await;
    let _alone = handle.deleting.lock().await;
    let facts = handle.facts().ok_or_else(|| ApiError::no_container(id.as_str()))?;
    if !node.outward.targets().is_empty() {
        let (last, directory) = (Arc::clone(&node), node.config.paths.kept_container(id));
        let held = id.clone();
        let _ = tokio::task::spawn_blocking(move || last.outward.hold(&held, &directory)).await;
    }
    node.launcher.remove(id).await?;
    if !handle.is_self_test() {
        tracing::info!(container = %id, "deleted");
    }
    forget(&node, &handle, Presence::Deleted(facts));
    Ok(())
}

/// Forgets a container of which nothing is left on disk, and tells its watchers the `last` that is to be known of it.
///
/// The order matters, because the id is free as soon as the registry has forgotten it: the event of the deletion stands
/// before any event of a later container of that id, the ledger forgets the old container and not the later one, and
/// whoever learns of the deletion finds the id free. The event comes before the ledger's forgetting, so that a crash
/// between the two loses neither.
pub(crate) fn forget(node: &Node, handle: &Handle, last: Presence) {
    let id = handle.id();
    node.registry.remove(id, || {
        let kind = if handle.is_pod() { EventKind::PodDeleted } else { EventKind::Deleted };
        if !handle.is_self_test() {
            node.events.append(id, kind, None, crate::now());
        }
        node.ledger.forget(id);
    });
    handle.publish(last);
}

#[cfg(test)]
mod tests {
    use executor_core::validate::{Draft, Policy, validate};

    use super::*;
    use crate::access::rules::Rules;
    use crate::config::Config;
    use crate::config::cli::Args;
    use crate::model::status::ContainerStatus;
    use crate::store::event_log::Position;
    use crate::store::registry::Admission;

    fn node(dir: &std::path::Path) -> Arc<Node> {
        let path = |name| Some(dir.join(name));
        let config = Config::load(&Args { run_dir: path("run"), state_dir: path("state"), ..Args::default() }).unwrap();
        std::fs::create_dir_all(config.paths.ledger()).unwrap();
        let rules = Arc::new(Rules::new(config.rules()));
        Node::open(Arc::new(config), rules).unwrap().0
    }

    fn facts(id: &str, tag: &str) -> ContainerStatus {
        let plan = validate(&Draft { id, path: "/bin/true", ..Draft::default() }, &Policy::default()).unwrap();
        ContainerStatus::admitted(plan, tag.into(), crate::now(), "boot".into())
    }

    /// Another thread takes each id in the moment in which it is free: the ledger keeps the new container, and its
    /// events come after the deletion. A follower of the events that sees a deletion does not find the old container
    /// any more.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_container_is_forgotten_before_its_id_is_free() {
        const CONTAINERS: usize = 500;
        let dir = tempfile::tempdir().unwrap();
        let node = &node(dir.path());
        let (old, new): (Vec<ContainerStatus>, Vec<ContainerStatus>) = (0..CONTAINERS)
            .map(|index| (facts(&format!("c{index}"), "old"), facts(&format!("c{index}"), "new")))
            .unzip();
        let admit = |facts: &ContainerStatus| loop {
            if let Admission::New(handle) = node.registry.admit(facts.clone(), false, |_| ()).unwrap() {
                node.events.append(handle.id(), EventKind::Reached(State::Reserved), None, crate::now());
                node.ledger.put(Arc::new(facts.clone()));
                node.registry.release(&handle); // there is not enough memory for all of them
                return handle;
            }
        };
        let (next, taken) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for facts in &new {
                    next.wait();
                    admit(facts);
                    taken.wait();
                }
            });
            scope.spawn(|| {
                let (mut position, mut deleted) = (Position::behind(0), 0);
                while deleted < CONTAINERS {
                    let batch = node.events.after(position, None, 1);
                    position = batch.position;
                    for (event, _) in batch.events.iter().filter(|(event, _)| event.kind == EventKind::Deleted) {
                        let found = node.registry.get(&event.container);
                        assert!(found.is_none_or(|handle| handle.request_tag() == "new"), "{}", event.container);
                        deleted += 1;
                    }
                }
            });
            for facts in &old {
                let handle = admit(facts);
                next.wait();
                std::thread::yield_now();
                forget(node, &handle, Presence::Refused(ApiError::no_container("a")));
                taken.wait();
            }
        });
        let batch = node.events.after(Position::behind(0), None, usize::MAX);
        for (index, (event, _)) in batch.events.iter().enumerate() {
            assert_eq!(event.kind == EventKind::Deleted, index % 3 == 1, "event {index}");
        }
        node.ledger.close(node.events.close());
        let (_, loaded) = crate::store::ledger::Ledger::open(&node.config.paths.ledger()).unwrap();
        let kept = loaded.containers.iter().filter(|facts| facts.request_tag == "new").count();
        assert_eq!((kept, loaded.containers.len()), (CONTAINERS, CONTAINERS));
    }
}
