//! Recovers the containers of earlier daemons.
//!
//! There are three sources: the ledger (admitted and completed containers), the run directory (containers with a shim)
//! and the state directory (containers with an exit record). No source is complete: the ledger may lack the last
//! changes before a kill, the run directory does not survive a reboot, and an exit record is written last and may be
//! lost in a power failure. All known containers are registered before the first call is served; each container's own
//! task then determines the container's actual state, with the launcher's help.

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
use crate::actor::forwarding;
use crate::model::container::link::ShimLink;
use crate::model::container::{Handle, records};
use crate::model::events::EventKind;
use crate::model::status::{ContainerResult, ContainerStatus};
use crate::node::{Node, Remembered};
use crate::operations::members;
use crate::operations::reserve;
use crate::paths::containers_in;

/// Time limit for shims to report their states. A hung shim must not block the clients of other containers.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Registers every container of earlier daemons, and resumes the containers that are not completed. `node.settled`
/// becomes true when each resumed container is connected or completed, or after a time limit.
pub fn recover(node: &Arc<Node>, remembered: Remembered) {
    let Remembered { containers: remembered, reservations } = remembered;
    let (deleted, mut remembered): (Vec<_>, Vec<_>) =
        remembered.into_iter().partition(|facts| was_deleted(node, facts));
    deleted.iter().for_each(|facts| node.ledger.remove(&facts.plan.id));
    if node.booted {
        remembered.iter_mut().for_each(|facts| mark_missing_record(node, facts));
    }
    node.ledger.keep_boot(&node.boot_id); // after the containers of earlier boots are handled
    let mut known: BTreeMap<ContainerId, ContainerStatus> =
        remembered.into_iter().map(|facts| (facts.plan.id.clone(), facts)).collect();
    // These steps and restarts already have events.
    let reported = |facts: &ContainerStatus| (facts.steps.clone(), facts.restarts.clone());
    let reported: BTreeMap<ContainerId, (Vec<StepRecord>, Option<RestartRecord>)> =
        known.iter().map(|(id, facts)| (id.clone(), reported(facts))).collect();
    for id in containers(&node.config.paths.kept_containers()) {
        if let Some(record) = read_exit_record(node, &id) {
            merge(&mut known, record);
        }
    }
    let mut recorded = BTreeMap::new();
    for id in containers(&node.config.paths.live_containers()) {
        if let Some(record) = read_live_record(node, &id) {
            recorded.insert(id, record.state);
            merge(&mut known, record);
        }
    }
    for id in containers(&node.config.paths.kept_containers()) {
        if !known.contains_key(&id)
            && let Some(facts) = lost(node, &id)
        {
            known.insert(id, facts);
        }
    }
    let (mut completed, mut open) = (0, Vec::new());
    for facts in known.into_values() {
        if facts.state == State::Completed {
            completed += 1;
            let is_removed = !node.config.paths.live_container(&facts.plan.id).exists();
            let facts = if is_removed { out_of_quarantine(node, facts) } else { facts };
            let adopted = node.registry.adopt(facts.clone(), is_removed);
            if let Some(handle) = &adopted {
                forwarding::start(node, handle, &facts, true);
            }
            if let Some(handle) = adopted.filter(|_| !is_removed) {
                tokio::spawn(actor::resume(Arc::clone(node), handle, facts, (State::Completed, None)));
            }
        } else {
            let reported = reported.get(&facts.plan.id);
            let reported = reported.map_or((&[][..], None), |(steps, restarts)| (&steps[..], restarts.as_ref()));
            let recorded = recorded.get(&facts.plan.id).copied().unwrap_or(facts.state);
            open.extend(resume(node, facts, recorded, reported));
        }
    }
    reserve::restore(node, reservations);
    tracing::info!(completed, open = open.len(), "registered the containers of earlier daemons");
    tokio::spawn(wait_until_settled(Arc::clone(node), open));
}

/// Returns true if the exit record of a completed container is missing: the container was deleted just before the
/// daemon was killed, and the ledger lacks the deletion. Returns false for a container that never had an exit record.
/// Also returns false after a reboot: a power failure may have destroyed the record, which is not synced, unlike the
/// ledger.
fn was_deleted(node: &Node, facts: &ContainerStatus) -> bool {
    !node.booted && has_record(facts) && !node.config.paths.exit_record(&facts.plan.id).exists()
}

/// Returns true if the ledger states that the completed container has an exit record.
fn has_record(facts: &ContainerStatus) -> bool {
    let recorded = |end: &Arc<ContainerResult>| (end.recorded || end.wipe.is_some()) && !end.record_lost;
    facts.state == State::Completed && facts.end.as_ref().is_some_and(recorded)
}

/// Marks a completed container in the ledger if its exit record is missing or damaged after the host has restarted. The
/// ledger still has the container's result.
fn mark_missing_record(node: &Node, facts: &mut ContainerStatus) {
    if !has_record(facts) || matches!(records::exit(&node.config.paths, &facts.plan.id), Ok(Some(_))) {
        return;
    }
    tracing::warn!(
        container = %facts.plan.id,
        "the exit record is missing or damaged after the host's restart: using the result in the ledger"
    );
    if let Some(end) = &mut facts.end {
        Arc::make_mut(end).record_lost = true;
    }
    node.ledger.put(Arc::new(facts.clone()));
}

/// Returns the status of a container of which only the first record is left: the container has no ledger entry, live
/// record or exit record. The state is `created`. The container's task then searches for the shim, and completes the
/// container as lost.
fn lost(node: &Node, id: &ContainerId) -> Option<ContainerStatus> {
    match records::first(&node.config.paths, id) {
        Ok(Some(record)) => Some(ContainerStatus { state: State::Created, ..ContainerStatus::from_record(record) }),
        Ok(None) => {
            let directory = node.config.paths.kept_container(id);
            tracing::error!(container = %id, directory = %directory.display(), "the directory of a container has no record: the container is still being created, or the launcher removes the directory at its next start");
            None
        }
        Err(error) => {
            tracing::error!(container = %id, error = executor_core::errors::chain(&error), "cannot read the container's first record");
            None
        }
    }
}

/// Ends the quarantine of a completed container whose node resources are removed.
fn out_of_quarantine(node: &Node, mut facts: ContainerStatus) -> ContainerStatus {
    if let Some(quarantine) = facts.quarantine.take() {
        let ended = EventKind::QuarantineEnded(quarantine.phase);
        node.events.append(&facts.plan.id, ended, None, crate::now());
        node.ledger.put(Arc::new(facts.clone()));
    }
    facts
}

/// Registers a container that is not completed, and starts its task. `recorded` is the state in the shim's record.
fn resume(
    node: &Arc<Node>,
    facts: ContainerStatus,
    recorded: State,
    (reported, restarts): (&[StepRecord], Option<&RestartRecord>),
) -> Option<Arc<Handle>> {
    let handle = node.registry.adopt(facts.clone(), false)?;
    forwarding::start(node, &handle, &facts, facts.state == State::Completed);
    node.events.append_steps(&facts.plan.id, reported, &facts.steps);
    node.events.append_restart(&facts.plan.id, restarts, facts.restarts.as_ref());
    node.ledger.put(Arc::new(facts.clone()));
    let link = Seqpacket::connect(&node.config.paths.shim_socket(handle.id())).and_then(ShimLink::new);
    let (id, state, shim) = (handle.id(), facts.state.name(), link.is_ok());
    tracing::info!(container = %id, state, shim, "found a container of an earlier daemon");
    tokio::spawn(actor::resume(Arc::clone(node), Arc::clone(&handle), facts, (recorded, link.ok())));
    Some(handle)
}

/// Registers a container that is not in the ledger.
fn resume_unknown(node: &Arc<Node>, record: ContainerRecord) -> Option<Arc<Handle>> {
    let facts = ContainerStatus::from_record(record);
    let state = facts.state;
    resume(node, facts, state, (&[], None))
}

fn read_exit_record(node: &Node, id: &ContainerId) -> Option<ContainerRecord> {
    match records::exit(&node.config.paths, id) {
        Ok(exit) => exit.map(|exit| exit.container),
        Err(error) => {
            tracing::error!(container = %id, error = executor_core::errors::chain(&error), "cannot read the container's exit record");
            None
        }
    }
}

/// Reads the record of a container with a shim.
fn read_live_record(node: &Node, id: &ContainerId) -> Option<ContainerRecord> {
    records::live(&node.config.paths, id).unwrap_or_else(|error| {
        tracing::error!(container = %id, error = executor_core::errors::chain(&error), "cannot read the container's record");
        None
    })
}

/// Merges a record into the containers of the ledger. The ledger's entry may belong to an earlier container with the
/// same id, if the container was deleted and created again just before the daemon was killed. In that case the record
/// replaces the entry.
fn merge(known: &mut BTreeMap<ContainerId, ContainerStatus>, record: ContainerRecord) {
    match known.get_mut(&record.plan.id) {
        Some(facts) if facts.created_at == record.created_at => {
            if facts.state != State::Completed {
                facts.update(record);
            }
        }
        _ => drop(known.insert(record.plan.id.clone(), ContainerStatus::from_record(record))),
    }
}

/// Waits until each container is connected or completed, at most for [`REPORT_TIMEOUT`] after the launcher's greeting.
async fn wait_until_settled(node: Arc<Node>, mut open: Vec<Arc<Handle>>) {
    let _ = node.launcher.watch_greetings().wait_for(|greetings| *greetings > 0).await;
    // By now the launcher has cleaned up the containers that it found, and has forked shims for the last requests of a
    // killed executord. Therefore the directories may contain more containers than before.
    let unknown = |directory: &Path| {
        let ids = containers(directory);
        ids.into_iter().filter(|id| node.registry.get(id).is_none()).collect::<Vec<_>>()
    };
    for id in unknown(&node.config.paths.kept_containers()) {
        open.extend(read_exit_record(&node, &id).and_then(|record| resume_unknown(&node, record)));
    }
    for id in unknown(&node.config.paths.live_containers()) {
        open.extend(read_live_record(&node, &id).and_then(|record| resume_unknown(&node, record)));
    }
    node.found.send_replace(true);
    members::stop_all_orphaned(&node);
    let all = async {
        for handle in &open {
            handle.settled().await;
        }
    };
    if timeout(REPORT_TIMEOUT, all).await.is_err() {
        tracing::error!(
            "some shims of earlier daemons' containers did not report within {} s",
            REPORT_TIMEOUT.as_secs()
        );
    }
    node.settled.send_replace(true);
}

fn containers(directory: &Path) -> Vec<ContainerId> {
    containers_in(directory).unwrap_or_else(|error| {
        tracing::error!(%error, directory = %directory.display(), "cannot list the containers of earlier daemons");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use executor_core::record::{Exit, ExitRecord, FailureKind, Timings};
    use executor_core::time::Timestamp;
    use executor_core::validate::{Draft, Policy, validate};
    use executor_sys::identity;

    use super::*;
    use crate::access::rules::Rules;
    use crate::config::Config;
    use crate::config::cli::Args;
    use crate::store::ledger::Ledger;

    /// Directories of a node between two daemons.
    struct Disk(tempfile::TempDir);

    impl Disk {
        /// Creates the state of an earlier daemon with this boot id: completed containers, whose results are in the
        /// ledger.
        fn left_by(boot_id: Option<&str>, ids: &[&str]) -> Self {
            let disk = Self(tempfile::tempdir().unwrap());
            std::fs::create_dir_all(disk.config().paths.ledger()).unwrap();
            let (ledger, _) = Ledger::open(&disk.config().paths.ledger()).unwrap();
            for id in ids {
                let record = record(id);
                let mut facts = ContainerStatus::from_record(record.container.clone());
                facts.conclude(record);
                facts.state = State::Completed;
                ledger.put(Arc::new(facts));
            }
            boot_id.iter().for_each(|boot_id| ledger.keep_boot(boot_id));
            ledger.close(1);
            disk
        }

        fn config(&self) -> Arc<Config> {
            let path = |name| Some(self.0.path().join(name));
            let args = Args { run_dir: path("run"), state_dir: path("state"), ..Args::default() };
            Arc::new(Config::load(&args).unwrap())
        }

        fn open(&self) -> (Arc<Node>, Remembered) {
            let config = self.config();
            let rules = Arc::new(Rules::new(config.rules()));
            Node::open(config, rules).unwrap()
        }

        fn write_record(&self, id: &str, content: &[u8]) {
            let path = self.config().paths.exit_record(&id.parse().unwrap());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }

        /// Starts and stops a daemon. Returns the exit codes of the recovered containers, by id.
        fn codes(&self) -> Vec<(String, Option<Exit>)> {
            let (node, remembered) = self.open();
            recover(&node, remembered);
            let known = node.registry.all();
            let code = |handle: &Arc<Handle>| handle.facts().and_then(|facts| facts.end.as_ref()?.exit);
            let codes = known.iter().map(|handle| (handle.id().to_string(), code(handle))).collect();
            node.ledger.close(node.events.close());
            codes
        }
    }

    fn record(id: &str) -> ExitRecord {
        let plan = validate(&Draft { id, path: "/bin/true", ..Draft::default() }, &Policy::default()).unwrap();
        let container = ContainerRecord {
            state: State::Completed,
            started_at: Some(Timestamp(3)),
            exit: Some(Exit::Code(7)),
            ..ContainerRecord::first(
                plan,
                (Timestamp(1), Timestamp(2)),
                executor_core::ident::ProcessIdentity { pid: 1, start_time: 1, boot_id: "before".into() },
                id.into(),
            )
        };
        ExitRecord {
            container,
            exit: Some(Exit::Code(7)),
            oom_killed: false,
            failure: None,
            timings: Timings::default(),
            wipe: None,
            outputs: None,
            output_incomplete: false,
            usage: None,
            termination_message: String::new(),
            finished_at: Timestamp(4),
        }
    }

    /// Returns variants of an unsynced exit record after a power failure.
    fn torn() -> Vec<(&'static str, Vec<u8>)> {
        let whole = serde_json::to_vec(&record("torn")).unwrap();
        let mut holed = whole.clone();
        holed[40..].fill(0);
        vec![
            ("empty", Vec::new()),
            ("half", whole[..whole.len() / 2].to_vec()),
            ("zeros", vec![0; whole.len()]),
            ("its beginning", holed),
        ]
    }

    #[tokio::test]
    async fn power_failure_preserves_results_in_ledger() {
        let seven = |id: &str| (id.to_owned(), Some(Exit::Code(7)));
        for (form, content) in torn() {
            let disk = Disk::left_by(Some("another boot"), &["gone", "torn", "whole"]);
            disk.write_record("torn", &content);
            disk.write_record("whole", &serde_json::to_vec(&record("whole")).unwrap());
            let expected = ["gone", "torn", "whole"].map(seven);
            assert_eq!(disk.codes(), expected, "{form}");
            // The launcher of this boot removes directories that it does not recognize as containers.
            std::fs::remove_dir_all(disk.config().paths.kept_container(&"torn".parse().unwrap())).unwrap();
            assert_eq!(disk.codes(), expected, "{form}: the next daemon");
        }
    }

    /// Control: if the host was not rebooted, a missing record means that the container was deleted.
    #[tokio::test]
    async fn missing_record_in_same_boot_means_deleted() {
        let boot_id = identity::boot_id().unwrap();
        for boot_id in [Some(&*boot_id), None] {
            assert!(Disk::left_by(boot_id, &["gone"]).codes().is_empty(), "{boot_id:?}");
        }
    }

    /// If the ledger has no entry, a truncated record is not used as a result: the container does not count as having
    /// exited normally.
    #[tokio::test]
    async fn truncated_record_is_never_result() {
        for (form, content) in torn() {
            let disk = Disk::left_by(None, &[]);
            disk.write_record("torn", &content);
            assert!(disk.codes().is_empty(), "{form}: no container is known by it");
            let (node, _) = disk.open();
            let facts =
                ContainerStatus { state: State::Running, ..ContainerStatus::from_record(record("torn").container) };
            let handle = node.registry.adopt(facts.clone(), false).unwrap();
            actor::resume(Arc::clone(&node), Arc::clone(&handle), facts, (State::Completed, None)).await;
            let end = handle.facts().unwrap().end.clone().unwrap();
            assert_eq!(
                (end.exit, end.failure.as_ref().map(|failure| failure.kind)),
                (None, Some(FailureKind::HostStopped))
            );
            node.ledger.close(node.events.close());
        }
    }
}
