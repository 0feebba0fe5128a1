//! Follows executord: the state of pods and containers at the start, then by its events (rules C14, C43).

use std::sync::Arc;
use std::time::Duration;

use executor_client::v1;
use executor_client::v1::event::Kind;
use executor_client::{Code, Error, ListFilter, PodFilter};
use tokio::time::sleep;

use crate::events::{learn, refresh};
use crate::failure::forgiving;
use crate::lower::LABEL;
use crate::node::Node;

/// Pause before the next attempt while executord is away.
const PAUSE: Duration = Duration::from_millis(500);

/// Compares the records with what executord has, and returns the cursor of the events after that. executord wins: what
/// has no record is ended, and what was never created is forgotten.
///
/// # Errors
/// Returns an error if executord is away.
pub(crate) async fn recover(node: &Arc<Node>) -> Result<u64, Error> {
    let cursor = node.client.info().await?.cursor;
    let is_ours = |labels: &std::collections::HashMap<String, String>| labels.contains_key(LABEL);
    let labels_of_pod = |pod: &v1::Pod| pod.spec.as_ref().is_some_and(|spec| is_ours(&spec.labels));
    let labels_of_run = |run: &v1::Container| run.spec.as_ref().is_some_and(|spec| is_ours(&spec.labels));
    let (sandboxes, containers) = node.store.everything();
    let pods = node.client.pods().list(&PodFilter::default()).await?;
    let runs = node.client.list(&ListFilter::default()).await?;
    for run in runs.into_iter().filter(labels_of_run) {
        match containers.iter().find(|container| container.record.id == run.id) {
            Some(container) if container.record.is_created => learn(node, run),
            _ => {
                tracing::warn!(container = run.id, "ending a container without a record");
                forgiving(node.client.delete(&run.id, true).await)?;
                node.store.remove_container(&run.id);
            }
        }
    }
    for pod in pods.into_iter().filter(labels_of_pod) {
        match sandboxes.iter().find(|sandbox| sandbox.record.id == pod.id) {
            Some(sandbox) if sandbox.record.is_created => node.store.set_pod(pod),
            _ => {
                tracing::warn!(sandbox = pod.id, "ending a sandbox without a record");
                forgiving(node.client.pods().delete(&pod.id, true).await)?;
                node.store.remove_sandbox(&pod.id);
            }
        }
    }
    for sandbox in sandboxes.into_iter().filter(|sandbox| !sandbox.record.is_created) {
        node.store.remove_sandbox(&sandbox.record.id);
    }
    for container in containers.into_iter().filter(|container| !container.record.is_created) {
        node.store.remove_container(&container.record.id);
    }
    Ok(cursor)
}

/// Follows the events of executord, as long as the process runs.
pub(crate) async fn follow(node: Arc<Node>, mut cursor: u64) {
    loop {
        if let Err(error) = follow_from(&node, &mut cursor).await {
            tracing::warn!("cannot follow executord: {error}");
        }
        sleep(PAUSE).await;
        // Events can be missing: read everything again.
        match recover_states(&node).await {
            Ok(newest) => cursor = newest,
            Err(error) => tracing::warn!("cannot read the state of executord: {error}"),
        }
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
            Kind::Created | Kind::Running | Kind::Stopping | Kind::Completed | Kind::LimitsUpdated
                if node.store.container(id).is_some() =>
            {
                refresh(node, id).await?;
            }
            Kind::PodReady | Kind::PodEnded if node.store.sandbox(id).is_some() => {
                match node.client.pods().get(id).await {
                    Ok(pod) => node.store.set_pod(pod),
                    Err(error) if error.code() == Some(Code::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            _ => {}
        }
    }
}

/// Reads the state of all pods and containers.
async fn recover_states(node: &Arc<Node>) -> Result<u64, Error> {
    let cursor = node.client.info().await?.cursor;
    for pod in node.client.pods().list(&PodFilter::default()).await? {
        node.store.set_pod(pod);
    }
    for run in node.client.list(&ListFilter::default()).await? {
        learn(node, run);
    }
    Ok(cursor)
}
