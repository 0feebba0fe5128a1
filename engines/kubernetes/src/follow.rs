//! Follows executord: the state of pods and containers at the start, then by its events (rules C14, C43).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use executor_client::v1::event::Kind;
use executor_client::{Code, Error, ListFilter, PodFilter};
use tokio::time::sleep;

use crate::events::{learn, learn_pod, lose_pod, lose_run, refresh};
use crate::failure::forgiving;
use crate::lower::LABEL;
use crate::node::Node;
use crate::store::Record as _;

/// Pause before the next attempt while executord is away.
const PAUSE: Duration = Duration::from_millis(500);

/// Compares the records with what executord has, and returns the cursor of the events after that. executord wins: what
/// has no record is ended, and what was never created is forgotten.
///
/// # Errors
/// Returns an error if executord is away.
pub(crate) async fn recover(node: &Arc<Node>) -> Result<u64, Error> {
    let cursor = recover_states(node).await?;
    let is_ours = |labels: &std::collections::HashMap<String, String>| labels.contains_key(LABEL);
    for run in node.client.list(&ListFilter::default()).await? {
        if run.spec.as_ref().is_some_and(|spec| is_ours(&spec.labels)) && node.store.containers.get(&run.id).is_none() {
            tracing::warn!(container = run.id, "ending a container without a record");
            forget(node, run.id, String::new());
        }
    }
    for pod in node.client.pods().list(&PodFilter::default()).await? {
        if pod.spec.as_ref().is_some_and(|spec| is_ours(&spec.labels)) && node.store.sandboxes.get(&pod.id).is_none() {
            tracing::warn!(sandbox = pod.id, "ending a sandbox without a record");
            forget(node, String::new(), pod.id);
        }
    }
    Ok(cursor)
}

/// Deletes a container or a pod at executord. It is not waited for: the deletion of one object must not delay all others.
fn forget(node: &Arc<Node>, container: String, pod: String) {
    let node = Arc::clone(node);
    tokio::spawn(async move {
        let deleted = match pod.is_empty() {
            true => node.client.delete(&container, true).await,
            false => node.client.pods().delete(&pod, true).await,
        };
        if let Err(error) = forgiving(deleted) {
            tracing::warn!(container, pod, "cannot end what has no record: {error}");
        }
    });
}

/// Forgets records whose creation ended without a known outcome, unless a call is under way.
fn forget_unfinished(node: &Arc<Node>) {
    let (sandboxes, containers) = (node.store.sandboxes.everything(), node.store.containers.everything());
    for record in containers.iter().map(|container| &container.record).filter(|record| !record.is_created) {
        if let Some(_name) = node.try_lock_name(&record.name()) {
            node.store.containers.remove(&record.id);
            forget(node, record.id.clone(), String::new());
        }
    }
    for record in sandboxes.iter().map(|sandbox| &sandbox.record).filter(|record| !record.is_created) {
        if let Some(_name) = node.try_lock_name(&record.name()) {
            node.store.sandboxes.remove(&record.id);
            forget(node, String::new(), record.id.clone());
        }
    }
}

/// Follows the events of executord, as long as the process runs.
pub(crate) async fn follow(node: Arc<Node>, mut cursor: u64) {
    loop {
        if let Err(error) = follow_from(&node, &mut cursor).await {
            tracing::warn!("cannot follow executord: {error}");
        }
        // Events can be missing: read everything again.
        cursor = loop {
            sleep(PAUSE).await;
            match recover_states(&node).await {
                Ok(newest) => break newest,
                Err(error) => tracing::warn!("cannot read the state of executord: {error}"),
            }
        };
    }
}

async fn follow_from(node: &Arc<Node>, cursor: &mut u64) -> Result<(), Error> {
    let mut events = node.client.events(Some(*cursor), "").await?;
    loop {
        let response = events.next().await?;
        *cursor = events.cursor();
        if response.gap {
            recover_states(node).await?;
        }
        let Some(event) = response.event else { continue };
        let id = &event.container_id;
        match event.kind() {
            Kind::Created | Kind::Running | Kind::Stopping | Kind::Completed | Kind::LimitsUpdated | Kind::Deleted
                if node.store.containers.get(id).is_some() =>
            {
                refresh(node, id).await?;
            }
            Kind::PodReady | Kind::PodEnded | Kind::PodDeleted if node.store.sandboxes.get(id).is_some() => {
                match node.client.pods().get(id).await {
                    Ok(pod) => learn_pod(node, pod),
                    Err(error) if error.code() == Some(Code::NotFound) => lose_pod(node, id),
                    Err(error) => return Err(error),
                }
            }
            _ => {}
        }
    }
}

/// Reads the state of all pods and containers, and returns the cursor of the events after that.
///
/// # Errors
/// Returns an error if executord is away.
async fn recover_states(node: &Arc<Node>) -> Result<u64, Error> {
    let cursor = node.client.info().await?.cursor;
    forget_unfinished(node);
    // Objects that are created meanwhile are in neither list.
    let (sandboxes, containers) = (node.store.sandboxes.all(), node.store.containers.all());
    let pods = node.client.pods().list(&PodFilter::default()).await?;
    let runs = node.client.list(&ListFilter::default()).await?;
    let (has_pod, has_run): (BTreeSet<String>, BTreeSet<String>) =
        (pods.iter().map(|pod| pod.id.clone()).collect(), runs.iter().map(|run| run.id.clone()).collect());
    runs.into_iter().for_each(|run| learn(node, run));
    pods.into_iter().for_each(|pod| learn_pod(node, pod));
    for container in containers.iter().filter(|container| !has_run.contains(&container.record.id)) {
        lose_run(node, &container.record.id);
    }
    for sandbox in sandboxes.iter().filter(|sandbox| !has_pod.contains(&sandbox.record.id)) {
        lose_pod(node, &sandbox.record.id);
    }
    Ok(cursor)
}
