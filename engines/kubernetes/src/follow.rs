//! Follows executord: reads the state of pods and containers at the start, and then the events (rules C14, C43).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use executor_client::v1::event::Kind;
use executor_client::v1::{Container, Pod};
use executor_client::{Code, Error, ListFilter, PodFilter};
use tokio::time::sleep;

use crate::events::{record_container, record_container_lost, record_pod, record_pod_lost, refresh};
use crate::failure::ignore_not_found;
use crate::lower::LABEL;
use crate::node::Node;
use crate::store::Record as _;

/// Interval of attempts to connect while executord is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Compares the records with the objects of executord, and returns the cursor of the following events. Deletes objects
/// without a record, and records of objects that were never created.
///
/// # Errors
/// Returns an error if executord is unavailable.
pub(crate) async fn recover(node: &Arc<Node>) -> Result<u64, Error> {
    let cursor = recover_states(node).await?;
    let is_ours = |labels: &std::collections::HashMap<String, String>| labels.contains_key(LABEL);
    for run in node.client.list(&ListFilter::default()).await? {
        if run.spec.as_ref().is_some_and(|spec| is_ours(&spec.labels)) && node.store.containers.get(&run.id).is_none() {
            tracing::warn!(container = run.id, "deleting a container without a record");
            delete_in_background(node, run.id, String::new());
        }
    }
    for pod in node.client.pods().list(&PodFilter::default()).await? {
        if pod.spec.as_ref().is_some_and(|spec| is_ours(&spec.labels)) && node.store.sandboxes.get(&pod.id).is_none() {
            tracing::warn!(sandbox = pod.id, "deleting a sandbox without a record");
            delete_in_background(node, String::new(), pod.id);
        }
    }
    Ok(cursor)
}

/// Deletes a container or a pod of executord in a background task, so that a slow deletion does not delay other
/// objects.
fn delete_in_background(node: &Arc<Node>, container: String, pod: String) {
    let node = Arc::clone(node);
    tokio::spawn(async move {
        let deleted = match pod.is_empty() {
            true => node.client.delete(&container, true).await,
            false => node.client.pods().delete(&pod, true).await,
        };
        if let Err(error) = ignore_not_found(deleted) {
            tracing::warn!(container, pod, "cannot delete an object without a record: {error}");
        }
    });
}

/// Deletes objects whose creation has an unknown outcome, and their records, unless a call is in progress.
fn delete_unfinished(node: &Arc<Node>) {
    let (sandboxes, containers) = (node.store.sandboxes.everything(), node.store.containers.everything());
    for record in containers.iter().map(|container| &container.record).filter(|record| !record.is_created) {
        if let Some(_name) = node.try_lock_name(&record.name()) {
            node.store.containers.remove(&record.id);
            delete_in_background(node, record.id.clone(), String::new());
        }
    }
    for record in sandboxes.iter().map(|sandbox| &sandbox.record).filter(|record| !record.is_created) {
        if let Some(_name) = node.try_lock_name(&record.name()) {
            node.store.sandboxes.remove(&record.id);
            delete_in_background(node, String::new(), record.id.clone());
        }
    }
}

/// Follows the events of executord until the process exits.
pub(crate) async fn follow(node: Arc<Node>, mut cursor: u64) {
    loop {
        if let Err(error) = follow_from(&node, &mut cursor).await {
            tracing::warn!("cannot follow executord: {error}");
        }
        // Events may have been missed: read all states again.
        cursor = loop {
            sleep(RETRY_INTERVAL).await;
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
                    Ok(pod) => record_pod(node, pod),
                    Err(error) if error.code() == Some(Code::NotFound) => record_pod_lost(node, id),
                    Err(error) => return Err(error),
                }
            }
            _ => {}
        }
    }
}

/// Reads the state of all pods and containers, and returns the cursor of the following events.
///
/// # Errors
/// Returns an error if executord is unavailable.
async fn recover_states(node: &Arc<Node>) -> Result<u64, Error> {
    let cursor = node.client.info().await?.cursor;
    delete_unfinished(node);
    // List the records first, and use only the states of their objects. An object that is created after this point is
    // not lost. Its state in the response may belong to an earlier attempt with the same id, which has been deleted
    // since.
    let (sandboxes, containers) = (node.store.sandboxes.all(), node.store.containers.all());
    let pods = node.client.pods().list(&PodFilter::default()).await?;
    let runs = node.client.list(&ListFilter::default()).await?;
    let mut pods: BTreeMap<String, Pod> = pods.into_iter().map(|pod| (pod.id.clone(), pod)).collect();
    let mut runs: BTreeMap<String, Container> = runs.into_iter().map(|run| (run.id.clone(), run)).collect();
    for id in containers.iter().map(|container| &container.record.id) {
        match runs.remove(id) {
            Some(run) => record_container(node, run),
            None => record_container_lost(node, id),
        }
    }
    for id in sandboxes.iter().map(|sandbox| &sandbox.record.id) {
        match pods.remove(id) {
            Some(pod) => record_pod(node, pod),
            None => record_pod_lost(node, id),
        }
    }
    Ok(cursor)
}
