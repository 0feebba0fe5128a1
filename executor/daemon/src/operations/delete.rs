//! Deletes containers, on a client's request or when their retention expires. Only this module removes containers from
//! the registry and the ledger, and publishes the removal.

use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use tokio::time::timeout;

use crate::api_error::{ApiError, Kind};
use crate::model::container::{Handle, Presence};
use crate::model::events::EventKind;
use crate::node::Node;
use crate::operations::members;

/// Maximum time to wait for the removal of the container's node resources. After this time the launcher deletes the
/// container anyway.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Deletes a container with its logs and its record. If `force` is true, a running container is killed first.
///
/// # Errors
/// Returns an error if the container has not completed and `force` is false, no launcher is connected, or the launcher
/// cannot remove the files.
pub async fn delete(node: &Arc<Node>, handle: Arc<Handle>, force: bool) -> Result<(), ApiError> {
    // Use a task, so that a client that disconnects does not interrupt the deletion.
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
        // Check this before the kill: without a launcher the files cannot be removed afterwards.
        node.launcher.session()?;
        // A container in quarantine may never receive the stop.
        tokio::select! {
            reported = members::request_stop(&handle, (Duration::ZERO, 0)) => reported?,
            ended = handle.ended() => drop(ended?),
        }
        handle.ended().await?;
    }
    // The shim or the launcher removes the resources. If the removal fails, the call to the launcher below returns the
    // reason.
    node.launcher.session()?;
    let _ = timeout(REMOVAL_TIMEOUT, handle.until_removed()).await;
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
    unregister(&node, &handle, Presence::Deleted(facts));
    Ok(())
}

/// Unregisters a container that has no files on disk: removes its entries in the registry and the ledger, and publishes
/// `last` to its watchers.
///
/// The order of the steps matters, because the id is free as soon as the container is removed from the registry:
/// - The deletion event precedes any event of a later container with the same id.
/// - The ledger deletes the entry of the old container, not the entry of the later container.
/// - A client that receives the deletion finds the id free.
///
/// The event precedes the deletion from the ledger, so that a crash between the two loses neither.
pub(crate) fn unregister(node: &Node, handle: &Handle, last: Presence) {
    let id = handle.id();
    node.registry.remove(id, || {
        let kind = if handle.is_pod() { EventKind::PodDeleted } else { EventKind::Deleted };
        if !handle.is_self_test() {
            node.events.append(id, kind, None, crate::now());
        }
        node.ledger.remove(id);
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
    use crate::store::registry::{Admission, Terms};

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

    /// If another thread claims each id as soon as it is free, the ledger keeps the new container, and its events
    /// follow the deletion. A subscriber that receives a deletion no longer finds the old container.
    #[tokio::test(flavor = "multi_thread")]
    async fn container_is_deleted_before_id_is_free() {
        const CONTAINERS: usize = 500;
        let dir = tempfile::tempdir().unwrap();
        let node = &node(dir.path());
        let (old, new): (Vec<ContainerStatus>, Vec<ContainerStatus>) = (0..CONTAINERS)
            .map(|index| (facts(&format!("c{index}"), "old"), facts(&format!("c{index}"), "new")))
            .unzip();
        let admit = |facts: &ContainerStatus| loop {
            if let Admission::New(handle) = node.registry.admit(facts.clone(), Terms::default(), |_| ()).unwrap() {
                node.events.append(handle.id(), EventKind::Reached(State::Reserved), None, crate::now());
                node.ledger.put(Arc::new(facts.clone()));
                node.registry.release(&handle); // the capacity is too small for all containers
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
                unregister(node, &handle, Presence::Refused(ApiError::no_container("a")));
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
