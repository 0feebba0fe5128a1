//! Finds the containers of earlier daemons again.
//!
//! There are three sources: the ledger (containers that were admitted, and those that were completed), the run
//! directory (containers with a shim) and the state directory (containers with an exit record). None is complete: the
//! ledger lacks its last moment before a kill, the run directory goes with a reboot, an exit record comes last.
//! Together they are registered before the first call is served; what is still open is decided by each container's own
//! task, with the launcher's help.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::record::{ContainerRecord, RestartRecord, StepRecord};
use executor_sys::seqpacket::Seqpacket;
use tokio::time::timeout;

use crate::actor;
use crate::container::link::ShimLink;
use crate::container::{Handle, records};
use crate::facts::Facts;
use crate::members;
use crate::node::Node;
use crate::paths::containers_in;

/// Time limit for shims to report their states. One that hangs must not keep the clients of others waiting.
const PATIENCE: Duration = Duration::from_secs(10);

/// Registers every container that is known from before, and resumes those that are not completed. `node.settled`
/// becomes true when each of them is connected or completed.
pub fn recover(node: &Arc<Node>, remembered: Vec<Facts>) {
    let (deleted, remembered): (Vec<_>, Vec<_>) = remembered.into_iter().partition(|facts| was_deleted(node, facts));
    deleted.iter().for_each(|facts| node.ledger.forget(&facts.plan.id));
    let mut known: BTreeMap<ContainerId, Facts> =
        remembered.into_iter().map(|facts| (facts.plan.id.clone(), facts)).collect();
    // Steps and restarts of which events tell already.
    let told = |facts: &Facts| (facts.steps.clone(), facts.restarts.clone());
    let reported: BTreeMap<ContainerId, (Vec<StepRecord>, Option<RestartRecord>)> =
        known.iter().map(|(id, facts)| (id.clone(), told(facts))).collect();
    for id in containers(&node.config.paths.kept_containers()) {
        if let Some(record) = read_exit_record(node, &id) {
            merge(&mut known, record);
        }
    }
    for id in containers(&node.config.paths.live_containers()) {
        if let Some(record) = read_live_record(node, &id) {
            merge(&mut known, record);
        }
    }
    let (mut completed, mut open) = (0, Vec::new());
    for facts in known.into_values() {
        if facts.state == State::Completed {
            completed += 1;
            let _ = node.registry.adopt(facts);
        } else {
            let reported = reported.get(&facts.plan.id);
            let reported = reported.map_or((&[][..], None), |(steps, restarts)| (&steps[..], restarts.as_ref()));
            open.extend(resume(node, facts, reported));
        }
    }
    tracing::info!(completed, open = open.len(), "registered the containers of earlier daemons");
    tokio::spawn(settle(Arc::clone(node), open));
}

/// True of a completed container whose exit record is gone: it was deleted in the ledger's last moment before a kill. A
/// container that never had a record (its end is unknown) stays.
fn was_deleted(node: &Node, facts: &Facts) -> bool {
    let had_record = facts.end.as_ref().is_some_and(|end| end.recorded || end.wipe.is_some());
    facts.state == State::Completed && had_record && !node.config.paths.exit_record(&facts.plan.id).exists()
}

/// Registers a container that is not completed, and starts its task.
fn resume(
    node: &Arc<Node>,
    facts: Facts,
    (reported, restarts): (&[StepRecord], Option<&RestartRecord>),
) -> Option<Arc<Handle>> {
    let handle = node.registry.adopt(facts.clone())?;
    node.events.append_steps(&facts.plan.id, reported, &facts.steps);
    node.events.append_restart(&facts.plan.id, restarts, facts.restarts.as_ref());
    node.ledger.put(Arc::new(facts.clone()));
    let link = Seqpacket::connect(&node.config.paths.shim_socket(handle.id())).and_then(ShimLink::new);
    let (id, state, shim) = (handle.id(), facts.state.name(), link.is_ok());
    tracing::info!(container = %id, state, shim, "found a container of an earlier daemon");
    tokio::spawn(actor::resume(Arc::clone(node), Arc::clone(&handle), facts, link.ok()));
    Some(handle)
}

/// Reads the record of an ended container.
fn read_exit_record(node: &Node, id: &ContainerId) -> Option<ContainerRecord> {
    match records::exit(&node.config.paths, id) {
        Ok(exit) => exit.map(|exit| exit.container),
        Err(error) => {
            tracing::error!(container = %id, error = crate::chain(&error), "cannot use the container's exit record");
            None
        }
    }
}

/// Reads the record of a container with a shim.
fn read_live_record(node: &Node, id: &ContainerId) -> Option<ContainerRecord> {
    records::live(&node.config.paths, id).unwrap_or_else(|error| {
        tracing::error!(container = %id, error = crate::chain(&error), "cannot use the container's record");
        None
    })
}

/// Merges a record into the containers of the ledger. The ledger's entry under the same id may be an earlier container,
/// deleted and made again in the ledger's last moment: the record is the newer one then.
fn merge(known: &mut BTreeMap<ContainerId, Facts>, record: ContainerRecord) {
    match known.get_mut(&record.plan.id) {
        Some(facts) if facts.created_at == record.created_at => {
            if facts.state != State::Completed {
                facts.update(record);
            }
        }
        _ => drop(known.insert(record.plan.id.clone(), Facts::from_record(record))),
    }
}

/// Waits until each container is connected or completed.
async fn settle(node: Arc<Node>, mut open: Vec<Arc<Handle>>) {
    // The time limit begins with the launcher's greeting.
    let _ = node.launcher.watch_greetings().wait_for(|greetings| *greetings > 0).await;
    // By now the launcher has finished the containers that it found, and has forked those that an executord that died
    // asked for last: there may be more than the three sources had before.
    let unknown = |directory: &Path| {
        let ids = containers(directory);
        ids.into_iter().filter(|id| node.registry.get(id).is_none()).collect::<Vec<_>>()
    };
    for id in unknown(&node.config.paths.kept_containers()) {
        open.extend(
            read_exit_record(&node, &id).and_then(|record| resume(&node, Facts::from_record(record), (&[], None))),
        );
    }
    for id in unknown(&node.config.paths.live_containers()) {
        open.extend(
            read_live_record(&node, &id).and_then(|record| resume(&node, Facts::from_record(record), (&[], None))),
        );
    }
    node.found.send_replace(true);
    members::end_abandoned(&node);
    let all = async {
        for handle in &open {
            handle.settled().await;
        }
    };
    if timeout(PATIENCE, all).await.is_err() {
        tracing::error!("some shims of earlier daemons' containers did not report within {} s", PATIENCE.as_secs());
    }
    node.settled.send_replace(true);
}

fn containers(directory: &Path) -> Vec<ContainerId> {
    containers_in(directory).unwrap_or_else(|error| {
        tracing::error!(%error, directory = %directory.display(), "cannot list the containers of earlier daemons");
        Vec::new()
    })
}
