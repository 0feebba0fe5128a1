//! The task that drives a container from launch or recovery to completion. No other task changes the container.
//!
//! ```text
//!  launch ──> follow the shim's reports ──> exit record ──> completed ──> resources removed: capacity free
//!    │               │  connection lost
//!    │               └──> exit record? reconnect? else wait for the launcher, which cleans up after a lost shim
//!    └─ refused ──> wiping, completed, deleted: the id is free, and waiting callers get the reason
//! ```
//! Reports may be duplicated, late or lost. `lifecycle::advance` alone decides which reports are new. An exit record
//! completes a container. If the shim was lost before it wrote the record, the container completes without a record
//! after the launcher has cleaned up.

mod changes;
pub(crate) mod checks;
mod deadline;
pub(crate) mod following;
pub(crate) mod forwarding;
mod payload;
pub(crate) mod transfers;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use executor_core::backoff::Backoff;
use executor_core::lifecycle::{State, advance};
use executor_core::protocol::{self, LauncherAnswer, LauncherCall, ShimCall, ShimNews};
use executor_core::record::{Exit, FailureKind};
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::deadline::Deadline;
pub(crate) use self::payload::LaunchPayload;
use crate::actor::checks::Checking;
use crate::actor::following::Following;
use crate::actor::transfers::Transferring;
use crate::api_error::{ApiError, Kind};
use crate::launcher::{CallError, Session};
use crate::model::container::link::ShimLink;
use crate::model::container::{Handle, Presence, records};
use crate::model::events::EventKind;
use crate::model::quarantine::{Phase, Quarantine};
use crate::model::sources::SourceUpdate;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::certify::Renewing;
use crate::operations::delete::unregister;
use crate::operations::members;

/// Pauses between attempts to reach a shim whose connection broke.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// Maximum time to wait until the ledger is on disk. After this time the container continues, and the ledger is written
/// later.
const DURABLE_TIMEOUT: Duration = Duration::from_secs(2);

/// State of a container's task.
struct Actor {
    node: Arc<Node>,
    handle: Arc<Handle>,
    facts: ContainerStatus,
    /// Secrets that were sent to the launcher and that no shim has confirmed. The secrets are overwritten when the
    /// container runs, completes or is refused.
    unconfirmed: Vec<MemFile>,
    /// Task that runs the checks over the current connection.
    checking: Option<Checking>,
    /// Downloads and uploads that run over the current connection.
    transferring: Transferring,
    /// Current lifecycle phase, and when it started.
    phase: Option<(Phase, Instant)>,
    /// Task that refreshes secret references over the current connection.
    following: Option<Following>,
    /// Task that renews the certificate over the current connection.
    renewing: Option<Renewing>,
    /// Changes of the secret sources.
    source_updates: Option<mpsc::UnboundedReceiver<SourceUpdate>>,
}

/// Reason why the task stopped following a connection to a shim.
enum FollowEnd {
    Completed,
    Lost,
    /// The launcher reported that the shim has exited and that the container is cleaned up.
    Finished,
}

/// Waits for the next change of the secret sources.
async fn next_source_update(news: &mut Option<mpsc::UnboundedReceiver<SourceUpdate>>) -> SourceUpdate {
    if let Some(receiver) = news
        && let Some(change) = receiver.recv().await
    {
        return change;
    }
    std::future::pending().await
}

/// Launches an admitted container, and drives it to completion.
pub(crate) fn launch(
    node: Arc<Node>,
    handle: Arc<Handle>,
    facts: ContainerStatus,
    session: Arc<Session>,
    payload: LaunchPayload,
) -> impl Future<Output = ()> + Send {
    Actor::new(node, handle, facts).launch(session, payload)
}

/// Drives a container of an earlier daemon to completion.
pub(crate) fn resume(
    node: Arc<Node>,
    handle: Arc<Handle>,
    facts: ContainerStatus,
    (recorded, link): (State, Option<Arc<ShimLink>>),
) -> impl Future<Output = ()> + Send {
    let mut actor = Actor::new(node, handle, facts);
    actor.catch_up(recorded);
    actor.resume(link)
}

/// Methods that consume the actor take a `Box`, because an async function reserves space for its arguments until its
/// task ends.
impl Actor {
    fn new(node: Arc<Node>, handle: Arc<Handle>, facts: ContainerStatus) -> Box<Self> {
        let source_updates = handle.take_source_updates();
        Box::new(Self {
            node,
            handle,
            facts,
            unconfirmed: Vec::new(),
            checking: None,
            transferring: Transferring::default(),
            following: None,
            renewing: None,
            source_updates,
            phase: None,
        })
    }

    async fn launch(mut self: Box<Self>, session: Arc<Session>, payload: LaunchPayload) {
        self.admitted().await;
        let handed_over = self.send_to_launcher(&session, payload).await;
        drop(session); // the container may outlive this launcher, whose connection is then closed
        let link = match handed_over {
            Ok(link) => link,
            Err(problem) => return self.refuse(problem),
        };
        self.advance(State::Initializing);
        self.drive(Some(link)).await;
    }

    async fn resume(mut self: Box<Self>, link: Option<Arc<ShimLink>>) {
        // The shim may still be cleaning up. This shim has already reported the exit to the previous daemon, and sends
        // no further reports.
        if self.facts.state == State::Completed || self.conclude_from_record() {
            return self.watch_removal(link).await;
        }
        self.drive(link).await;
    }

    /// Sends the container to the launcher.
    async fn send_to_launcher(&mut self, session: &Session, payload: LaunchPayload) -> Result<Arc<ShimLink>, ApiError> {
        let launch = LauncherCall::Launch(protocol::Launch {
            container_id: self.handle.id().to_string(),
            request_tag: self.facts.request_tag.clone(),
            created_at: self.facts.created_at.0,
            pod_id: self.facts.plan.member_of().map(ToString::to_string).unwrap_or_default(),
            fits_warm: executor_core::spec::fits_warm(&self.facts.plan),
            network: self.facts.plan.own_network().map(str::to_owned),
            given_ids: self.facts.plan.isolation.id_map.map_or(0, |mapping| mapping.host_id),
        });
        let fds = [payload.theirs.as_fd(), payload.plan.as_fd(), payload.process.as_fd(), payload.files.as_fd()];
        let answer = session.call(launch, &fds).await;
        let refused = match answer {
            Ok(LauncherAnswer::Done(_)) => None,
            // It is unknown whether the launcher forked a shim. The connection shows whether a shim exists.
            Err(CallError::NotAnswered | CallError::Timeout(_)) => {
                self.unconfirmed = vec![payload.process, payload.files];
                return Ok(payload.ours);
            }
            Ok(LauncherAnswer::Refused(refused)) => Some(refused.into()),
            Ok(_) => Some(ApiError::new(Kind::Internal, "the launcher sent an unexpected response")),
            Err(lost @ CallError::NotSent) => Some(self.node.launcher.unanswered(&lost)),
        };
        if let Some(problem) = refused {
            payload.wipe();
            return Err(problem);
        }
        Ok(payload.ours)
    }

    /// Follows the container to completion. Reconnects to the shim as often as needed.
    async fn drive(mut self: Box<Self>, mut link: Option<Arc<ShimLink>>) {
        let mut reconnect = RECONNECT;
        // A container without a connection was started by an earlier daemon. The container's shim may have been forked
        // only moments ago.
        let mut greeted = link.is_some();
        loop {
            if let Some(link) = link.take() {
                self.handle.set_shim(Some(Arc::clone(&link)));
                let followed = self.follow(&link).await;
                self.checking = None;
                self.following = None;
                self.renewing = None;
                self.transferring = Transferring::default();
                self.handle.set_shim(None);
                link.close();
                match followed {
                    Ok(FollowEnd::Completed) => return self.watch_removal(Some(link)).await,
                    Ok(FollowEnd::Lost) => {}
                    Ok(FollowEnd::Finished) => return self.finished().await,
                    Err(refused) => return self.refuse(refused),
                }
            }
            // Subscribe before checking the disk, so that no greeting is missed before the wait below.
            let mut greetings = self.node.launcher.watch_greetings();
            greetings.mark_unchanged();
            if self.conclude_from_record() {
                return self.watch_removal(None).await;
            }
            if self.facts.boot_id != self.node.boot_id {
                self.conclude_without_record(
                    FailureKind::HostStopped,
                    "the host was restarted before the container completed",
                );
                return self.watch_removal(None).await;
            }
            if !greeted {
                // When a launcher has greeted, every shim is either listening or has exited. The greeting may have
                // arrived before this task started.
                greeted = true;
                let mut first = self.node.launcher.watch_greetings();
                let _ = first.wait_for(|greetings| *greetings > 0).await;
                continue;
            }
            match Seqpacket::connect(&self.node.config.paths.shim_socket(self.handle.id())) {
                Ok(socket) => match ShimLink::new(socket) {
                    Ok(again) => {
                        tokio::time::sleep(reconnect.pause()).await;
                        link = Some(again);
                        continue;
                    }
                    Err(error) => {
                        let id = self.handle.id();
                        tracing::error!(container = %id, %error, "cannot watch the connection to the container's shim");
                    }
                },
                Err(error) => {
                    tracing::debug!(container = %self.handle.id(), %error, "cannot connect to the container's shim");
                }
            }
            // The run directory is removed last: if the directory does not exist, cleanup is complete.
            if !self.node.config.paths.live_container(self.handle.id()).exists() {
                return self.finished().await;
            }
            // There is no shim and no exit record. The launcher, possibly after a restart, cleans up the container.
            loop {
                let deadline = self.deadline(None);
                tokio::select! {
                    () = self.handle.shim_lost.notified() => return self.finished().await,
                    _ = greetings.changed() => break,
                    () = Deadline::reached(deadline) => self.quarantine(None),
                }
            }
            if Seqpacket::connect(&self.node.config.paths.shim_socket(self.handle.id())).is_err() {
                return self.finished().await;
            }
        }
    }

    /// Waits until the node resources of a completed container are removed, then releases its capacity. The shim
    /// removes the resources and exits. If the shim was lost, the launcher removes them. The run directory is removed
    /// last.
    async fn watch_removal(mut self: Box<Self>, mut link: Option<Arc<ShimLink>>) {
        let mut pause = RECONNECT;
        let path = self.node.config.paths.live_container(self.handle.id());
        loop {
            let deadline = self.deadline(None);
            if let Some(open) = &link {
                tokio::select! {
                    news = open.next() => {
                        if !matches!(news, Ok(Some(_))) {
                            link.take().iter().for_each(|link| link.close());
                        }
                    }
                    () = Deadline::reached(deadline) => self.quarantine(None),
                }
                continue;
            }
            if !path.exists() {
                break;
            }
            tokio::select! {
                () = self.handle.shim_lost.notified() => {}
                () = self.handle.until_removed() => break, // the container was deleted
                () = tokio::time::sleep(pause.pause()) => {} // there is no notification of a directory's removal
                () = Deadline::reached(deadline) => self.quarantine(None),
            }
        }
        if self.facts.quarantine.is_some() && self.handle.state().is_some() {
            self.leave_quarantine();
            let facts = Arc::new(self.facts.clone());
            self.handle.publish(Presence::Present(Arc::clone(&facts)));
            self.node.ledger.put(facts);
        }
        self.node.registry.release(&self.handle);
    }

    /// Returns the time limit of the current phase. Returns `None` if the phase has no limit, or if the container is
    /// already in quarantine for this phase.
    fn deadline(&mut self, link: Option<&Arc<ShimLink>>) -> Option<Deadline> {
        let phase = Phase::from_state(self.facts.state).filter(|_| !self.facts.is_held());
        if self.phase.map(|(phase, _)| phase) != phase {
            self.phase = phase.map(|phase| (phase, Instant::now()));
        }
        let (phase, since) = self.phase?;
        if self.facts.quarantine.is_some_and(|quarantine| quarantine.phase == phase) {
            return None;
        }
        let limit = self.node.config.phase_limits.limit(phase);
        Some(Deadline { phase, since, limit, grace: self.facts.plan.grace, link: link.cloned() })
    }

    /// Quarantines the container. Also kills the container if a shim is connected and the phase is creation or stop.
    fn quarantine(&mut self, link: Option<&Arc<ShimLink>>) {
        let Some((phase, _)) = self.phase else { return };
        let (now, id) = (crate::now(), self.handle.id());
        self.facts.quarantine = Some(Quarantine { phase, since: now });
        let facts = Arc::new(self.facts.clone());
        self.handle.publish(Presence::Present(Arc::clone(&facts)));
        tracing::error!(container = %id, phase = phase.name(), "quarantined: the phase exceeded its time limit");
        if !id.is_self_test() {
            self.node.events.append(id, EventKind::Quarantined(phase), None, now);
        }
        self.node.ledger.put(facts);
        // No kill in the wiping phase: the container may be waiting for a client that reads the last output, which a
        // kill would discard.
        if let (Some(link), Phase::Create | Phase::Stop) = (link, phase) {
            let link = Arc::clone(link);
            // Ignore the result: later state reports show whether the kill worked.
            tokio::spawn(async move { link.call(ShimCall::Stop(protocol::Stop { grace_ms: 0, signal: 0 })).await });
        }
    }

    /// Ends the quarantine when the container makes progress.
    fn leave_quarantine(&mut self) {
        let Some(Quarantine { phase, .. }) = self.facts.quarantine.take() else { return };
        let id = self.handle.id();
        tracing::info!(container = %id, phase = phase.name(), "released from quarantine");
        if !id.is_self_test() {
            self.node.events.append(id, EventKind::QuarantineEnded(phase), None, crate::now());
        }
    }

    /// Ends the quarantine if `state` belongs to another phase than the quarantined one.
    fn leave_quarantine_on_phase_change(&mut self, state: State) {
        if self.facts.quarantine.is_some_and(|quarantine| Phase::from_state(state) != Some(quarantine.phase)) {
            self.leave_quarantine();
        }
    }

    /// Follows one connection until it is closed or the container completes.
    async fn follow(&mut self, link: &Arc<ShimLink>) -> Result<FollowEnd, ApiError> {
        loop {
            let deadline = self.deadline(Some(link));
            let news = tokio::select! {
                news = link.next() => news,
                report = Checking::next(&mut self.checking) => {
                    self.checked(link, report);
                    continue;
                }
                change = next_source_update(&mut self.source_updates) => {
                    self.sources_changed(change);
                    continue;
                }
                () = self.handle.shim_lost.notified() => return Ok(FollowEnd::Finished),
                () = Deadline::reached(deadline) => {
                    self.quarantine(Some(link));
                    continue;
                }
            };
            match news {
                Ok(Some(ShimNews::Reached(reached))) => match protocol::state_of(reached.state) {
                    Some(State::Completed) => {
                        if self.conclude_from_record() {
                            return Ok(FollowEnd::Completed);
                        }
                        return Ok(FollowEnd::Lost);
                    }
                    // Skip a repeated report of `initializing`: the record is not needed before the next state.
                    Some(State::Initializing) if self.facts.state == State::Initializing => {}
                    Some(state) => {
                        self.reached(state);
                        self.transferring.follow(&self.node, &self.handle, &self.facts, link);
                    }
                    None => {
                        let (id, state) = (self.handle.id(), reached.state);
                        tracing::debug!(container = %id, state, "the container's shim reported an unknown state");
                    }
                },
                Ok(Some(ShimNews::Refused(refused))) if self.facts.started_at.is_none() => return Err(refused.into()),
                Ok(Some(ShimNews::Refused(refused))) => {
                    let (id, why) = (self.handle.id(), refused.message);
                    tracing::error!(container = %id, "the shim of a running container reported a failed creation: {why}");
                }
                Ok(Some(ShimNews::Done(_) | ShimNews::Usage(_))) => {}
                Ok(None) => return Ok(FollowEnd::Lost),
                Err(error) => {
                    tracing::warn!(container = %self.handle.id(), %error, "the connection to the container's shim broke");
                    return Ok(FollowEnd::Lost);
                }
            }
        }
    }

    /// Completes the container if its exit record exists; returns true if so.
    fn conclude_from_record(&mut self) -> bool {
        let (steps, restarts) = (self.facts.steps.clone(), self.facts.restarts.clone());
        match records::conclude(&self.node.config.paths, &mut self.facts) {
            Ok(false) => false,
            Ok(true) => {
                self.steps_changed(&steps, restarts.as_ref());
                self.complete();
                true
            }
            Err(error) => {
                let reported = executor_core::errors::chain(&error);
                tracing::error!(container = %self.handle.id(), error = reported, "cannot read the container's exit record");
                self.conclude_without_record(
                    FailureKind::SupervisorLost,
                    format!("the exit of the process is unknown: {reported}"),
                );
                true
            }
        }
    }

    fn conclude_without_record(&mut self, kind: FailureKind, message: impl Into<String>) {
        self.facts.conclude_without_record(kind, message, crate::now());
        self.complete();
    }

    /// Completes, unregisters or refuses a container whose shim has exited and which the launcher has cleaned up.
    async fn finished(mut self: Box<Self>) {
        if self.conclude_from_record() {
            return self.watch_removal(None).await;
        }
        if self.facts.state > State::Initializing && !self.node.config.paths.kept_container(self.handle.id()).exists() {
            return self.unregister_deleted();
        }
        if self.facts.state <= State::Initializing && self.facts.prepared.is_none() {
            return self.refuse(ApiError::new(
                Kind::Unavailable,
                "the launcher or the shim was lost while the container was being created; the container was removed",
            ));
        }
        self.conclude_without_record(
            FailureKind::SupervisorLost,
            "the container's shim was lost without an exit record",
        );
        self.watch_removal(None).await;
    }

    fn wipe_unconfirmed(&mut self) {
        self.unconfirmed.drain(..).for_each(|file| payload::wipe(&file));
    }

    /// Reports the admission. If the container has secret sources or a certificate, waits until the ledger is on disk,
    /// because no other record holds them.
    async fn admitted(&self) {
        self.node.metrics.admitted(&self.facts);
        self.report(State::Reserved);
        let facts = Arc::new(self.facts.clone());
        if facts.sources.is_empty() && facts.identity.is_none() {
            return self.node.ledger.put(facts);
        }
        if tokio::time::timeout(DURABLE_TIMEOUT, self.node.ledger.put_durably(facts)).await.is_err() {
            tracing::warn!(container = %self.handle.id(), "the container's secret sources and identity are not on disk yet");
        }
    }

    /// Advances the container to a state before `completed`, and publishes the state.
    fn advance(&mut self, reached: State) {
        let is_later = reached > self.facts.state;
        let passed = advance(self.facts.state, reached, self.facts.started_at.is_some());
        self.facts.state = self.facts.state.max(reached);
        self.leave_quarantine_on_phase_change(self.facts.state);
        if self.facts.state >= State::Running {
            self.wipe_unconfirmed();
        }
        // Checks are suspended while the container is paused.
        let run = self.facts.run().filter(|_| self.facts.state == State::Running && !self.facts.paused);
        let run = run.map(|(run, _)| run);
        // A restarted run gets new checks, from its own start.
        self.checking.take_if(|checking| Some(checking.run()) != run);
        if run.is_some() && self.checking.is_none() {
            self.checking = Checking::start(&self.node, &self.handle, &self.facts);
        }
        let runs = self.facts.state == State::Running;
        self.following.take_if(|_| !runs);
        if runs && self.following.is_none() {
            self.following = Following::start(&self.node, &self.handle, &self.facts);
        }
        self.renewing.take_if(|_| !runs);
        let facts = Arc::new(self.facts.clone());
        self.handle.publish(Presence::Present(Arc::clone(&facts)));
        if runs && self.renewing.is_none() {
            self.renewing = Renewing::start(&self.node, &self.handle, &facts);
        }
        passed.for_each(|state| self.report(state));
        if is_later {
            self.node.ledger.put(facts);
        }
    }

    /// Completes the container. Its capacity is released when its resources are removed.
    fn complete(&mut self) {
        let passed = advance(self.facts.state, State::Completed, self.facts.started_at.is_some());
        self.facts.state = State::Completed;
        self.leave_quarantine_on_phase_change(State::Completed);
        self.wipe_unconfirmed();
        let facts = Arc::new(self.facts.clone());
        self.handle.publish(Presence::Present(Arc::clone(&facts)));
        // Clear the logins only after the publication. A later update with tokens then sees that the container is
        // completed, and clears its tokens.
        self.handle.logins.clear();
        passed.for_each(|state| self.report(state));
        self.node.ledger.put(facts);
        if self.facts.plan.is_pod() {
            tokio::spawn(members::stop_orphaned(Arc::clone(&self.node), self.handle.id().clone()));
        }
        self.node.completed.notify_one();
    }

    /// Unregisters a container whose files no longer exist. The container was completed and deleted shortly before the
    /// daemon was killed, and the ledger does not record the deletion.
    fn unregister_deleted(&mut self) {
        self.wipe_unconfirmed();
        let id = self.handle.id();
        tracing::info!(container = %id, "the container was deleted before the restart");
        unregister(&self.node, &self.handle, Presence::Refused(ApiError::no_container(id.as_str())));
    }

    /// Removes a container that could not be created as requested, and returns the reason to the callers.
    fn refuse(mut self: Box<Self>, problem: ApiError) {
        self.wipe_unconfirmed();
        let id = self.handle.id();
        tracing::warn!(container = %id, "cannot create the container: {problem}");
        self.facts.conclude_without_record(FailureKind::Prepare, &*problem.message, crate::now());
        advance(self.facts.state, State::Completed, false).for_each(|state| self.report(state));
        unregister(&self.node, &self.handle, Presence::Refused(problem));
    }

    /// Writes a state transition to the daemon's log and to the event log.
    fn report(&self, state: State) {
        let id = self.handle.id();
        let end = self.facts.end.as_ref().filter(|_| state == State::Completed);
        match end {
            _ if id.is_self_test() => tracing::debug!(container = %id, state = state.name()),
            None => tracing::info!(container = %id, state = state.name()),
            Some(end) => {
                let (code, signal) = match end.exit {
                    Some(Exit::Code(code)) => (Some(code), None),
                    Some(Exit::Signal(signal)) => (None, Some(signal)),
                    None => (None, None),
                };
                let failure = end.failure.as_ref().map(|failure| failure.message.as_str());
                tracing::info!(container = %id, state = state.name(), code, signal, oom = end.oom_killed, failure);
            }
        }
        match end {
            _ if self.facts.plan.is_pod() => {}
            Some(end) => {
                self.node.metrics.ended(&self.facts, end);
                self.node.traces.ended(&self.facts, end);
            }
            None if state == State::Running => {
                self.node.metrics.started(&self.facts);
                self.node.traces.started(&self.facts);
            }
            None => {}
        }
        let kind = match state {
            _ if id.is_self_test() => return,
            State::Running if self.facts.plan.is_pod() => EventKind::PodReady,
            State::Completed if self.facts.plan.is_pod() => EventKind::PodEnded,
            _ if self.facts.plan.is_pod() => return,
            state => EventKind::Reached(state),
        };
        self.node.events.append(id, kind, end.cloned(), crate::now());
    }
}
