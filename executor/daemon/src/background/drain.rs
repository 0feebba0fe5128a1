//! Drain: the cell accepts no new containers, and stops its existing containers, a few at a time, until a deadline.
//!
//! ```text
//!  containers and members, `parallel` at a time, each with its grace ──> pods ──> drained
//!        │ deadline
//!        └──> remaining containers killed ──> drained, or given up after EXIT_TIMEOUT: the drain always ends
//! ```
//! A container whose grace period would end after the deadline is stopped immediately, regardless of the `parallel`
//! limit. Otherwise slow containers would shorten the grace periods of other containers. The drain continues if the
//! client disconnects, and later requests join the drain. A restarted daemon continues the drain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::record::Exit;
use executor_core::time::Timestamp;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::model::cell::{Drain, DrainProgress};
use crate::model::container::Handle;
use crate::node::Node;
use crate::operations::members;
use crate::operations::reserve;

/// Time limit for containers to exit after they were killed at the deadline.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) struct DrainRequest {
    pub(crate) deadline: Duration,
    pub(crate) parallel: usize,
    pub(crate) reason: String,
}

/// Starts a drain, or joins the current drain. A request that joins can make the deadline earlier.
pub(crate) async fn start(node: &Arc<Node>, request: DrainRequest) {
    // Use a task, so that a client that disconnects does not interrupt the start of the drain.
    let _ = tokio::spawn(start_whole(Arc::clone(node), request)).await;
}

async fn start_whole(node: Arc<Node>, request: DrainRequest) {
    let now = crate::now();
    let deadline_at = after(now, request.deadline);
    node.registry.set_closed(true);
    let begun = node.change_cell(|state| {
        let drain = state.drain.get_or_insert_with(|| Drain {
            boot_id: node.boot_id.clone(),
            begun_at: now,
            deadline_at,
            parallel: request.parallel,
            reason: request.reason,
            done: false,
        });
        if drain.done {
            // After the drain was done, a container of an earlier daemon may have been recovered.
            (drain.begun_at, drain.deadline_at, drain.done) = (now, deadline_at, false);
        }
        drain.deadline_at = drain.deadline_at.min(deadline_at);
    });
    begun.await;
    tracing::info!(deadline_ms = request.deadline.as_millis(), "draining: new containers are refused");
    reserve::release_all(&node);
    tokio::spawn(execute(node));
}

/// Accepts containers again. Containers that have already received a stop request still stop.
pub(crate) async fn cancel(node: &Node) {
    let ended = node.change_cell(|state| {
        if state.drain.take().is_some() {
            node.registry.set_closed(false);
            tracing::info!("the drain was cancelled: new containers are accepted");
        }
    });
    ended.await;
}

/// Continues the drain of an earlier daemon.
pub(crate) async fn resume(node: Arc<Node>) {
    if node.cell.state().drain.is_some_and(|drain| !drain.done) {
        let _ = node.settled.subscribe().wait_for(|settled| *settled).await;
        execute(node).await;
    }
}

fn after(now: Timestamp, time: Duration) -> Timestamp {
    Timestamp(now.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

/// Result of stopping a container for the drain.
struct StopResult {
    id: ContainerId,
    killed: bool,
    /// True if the container counted towards the `parallel` limit.
    counted: bool,
}

/// A drain in progress.
struct Draining {
    node: Arc<Node>,
    progress: DrainProgress,
    stops: JoinSet<StopResult>,
    /// Number of stopping containers that count towards the `parallel` limit.
    counted: usize,
    /// Containers that received a stop request.
    reported: BTreeSet<ContainerId>,
    /// Containers that were killed at the deadline.
    killed: BTreeSet<ContainerId>,
    /// Pods that were found. The progress does not count pods.
    pods: BTreeSet<ContainerId>,
}

/// Deadline of a drain on the monotonic clock, so that a change of the wall clock neither shortens nor extends the
/// drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DrainDeadline {
    /// The wall-clock time that the deadline was computed from.
    deadline_at: Timestamp,
    at: Instant,
}

impl DrainDeadline {
    /// Computes the deadline of a drain. A known deadline stays if its date has not changed; a changed date can only
    /// make the deadline earlier.
    fn new(known: Option<Self>, drain: &Drain, instant: Instant, now: Timestamp) -> Self {
        let whole = drain.deadline_at.since(drain.begun_at);
        match known {
            Some(known) if known.deadline_at == drain.deadline_at => known,
            // A drain of an earlier daemon lasts no longer than requested, even if the clock was set back since then.
            _ => {
                let at = instant + drain.deadline_at.since(now).min(whole);
                let at = known.map_or(at, |known| known.at.min(at));
                Self { deadline_at: drain.deadline_at, at }
            }
        }
    }
}

async fn execute(node: Arc<Node>) {
    // Later requests change the cell state, so one waiting task serves all requests that arrived in the meantime.
    let Some(_alone) = node.cell.draining.next().await else { return };
    let mut draining = Draining {
        node: Arc::clone(&node),
        progress: DrainProgress::default(),
        stops: JoinSet::new(),
        counted: 0,
        reported: BTreeSet::new(),
        killed: BTreeSet::new(),
        pods: BTreeSet::new(),
    };
    let mut changes = node.cell.watch();
    let mut due: Option<DrainDeadline> = None;
    loop {
        let Some(drain) = changes.borrow_and_update().drain.clone().filter(|drain| !drain.done) else { return };
        let due = due.insert(DrainDeadline::new(due, &drain, Instant::now(), crate::now()));
        let left = due.at.saturating_duration_since(Instant::now());
        let (late, late_for) = (left.is_zero(), due.at.elapsed());
        let living = draining.living();
        let next_urgent = if late { draining.kill(&living) } else { draining.stop(&living, drain.parallel, left) };
        let given_up = late && late_for > EXIT_TIMEOUT;
        if living.is_empty() && draining.stops.is_empty() || given_up {
            return draining.conclude(&living).await;
        }
        draining.report(&living);
        let next = if late { EXIT_TIMEOUT.saturating_sub(late_for) } else { left };
        let next = next_urgent.map_or(next, |urgent| next.min(urgent));
        tokio::select! {
            Some(stopped) = draining.stops.join_next() => draining.stopped(stopped.ok()),
            () = tokio::time::sleep(next + Duration::from_millis(1)) => {}
            _ = changes.changed() => {}
        }
    }
}

impl Draining {
    /// Returns the containers and pods that have not exited. The list is recomputed each time, because a container may
    /// have been admitted just before the drain started.
    fn living(&self) -> Vec<Arc<Handle>> {
        let all = self.node.registry.all().into_iter();
        all.filter(|handle| !handle.is_over() && !handle.is_self_test()).collect()
    }

    /// Stops containers up to the parallel limit, and every container whose grace period would end after the deadline.
    /// Stops pods when only pods are left. Returns the time until the next container is due.
    fn stop(&mut self, living: &[Arc<Handle>], parallel: usize, left: Duration) -> Option<Duration> {
        let is_last = living.iter().all(|handle| handle.is_pod());
        let mut next: Option<Duration> = None;
        for handle in living.iter().filter(|handle| is_last || !handle.is_pod()) {
            let own = handle.facts().map_or(Duration::ZERO, |facts| facts.plan.grace);
            let time = left.saturating_sub(own);
            if self.reported.contains(handle.id()) {
                continue;
            }
            if time.is_zero() || self.counted < parallel {
                self.reported.insert(handle.id().clone());
                self.request_stop(handle, own.min(left), !time.is_zero());
            } else {
                next = Some(next.map_or(time, |next| next.min(time)));
            }
        }
        next
    }

    /// Kills the remaining containers.
    fn kill(&mut self, living: &[Arc<Handle>]) -> Option<Duration> {
        for handle in living {
            if self.killed.insert(handle.id().clone()) {
                self.reported.insert(handle.id().clone());
                tracing::warn!(container = %handle.id(), "killed: the drain's deadline has passed");
                self.request_stop(handle, Duration::ZERO, false);
            }
        }
        None
    }

    fn request_stop(&mut self, handle: &Arc<Handle>, grace: Duration, counted: bool) {
        self.counted += usize::from(counted);
        if handle.is_pod() {
            let _ = self.node.registry.close_pod(handle, false);
        }
        let handle = Arc::clone(handle);
        self.stops.spawn(async move {
            let begun = Instant::now();
            if let Err(problem) = members::stop(&handle, Some(grace)).await {
                tracing::error!(container = %handle.id(), "the drain did not stop the container: {problem}");
                // The shim refused, and a retry would not help; a second stop request follows at the deadline.
                let _ = handle.completed().await;
            }
            let facts = handle.facts();
            let exit = facts.and_then(|facts| facts.end.as_ref().and_then(|end| end.exit));
            let by_kill = exit == Some(Exit::Signal(KILL));
            StopResult {
                id: handle.id().clone(),
                killed: by_kill && !handle.is_pod() && begun.elapsed() >= grace,
                counted,
            }
        });
    }

    fn stopped(&mut self, stopped: Option<StopResult>) {
        let Some(StopResult { id, killed, counted }) = stopped else { return };
        self.counted -= usize::from(counted);
        if killed && !self.progress.killed.contains(&id) {
            self.progress.killed.push(id);
        }
    }

    fn count(&mut self, living: &[Arc<Handle>]) {
        self.reported
            .extend(living.iter().filter(|handle| handle.state() == Some(State::Stopping)).map(|h| h.id().clone()));
        self.pods.extend(living.iter().filter(|handle| handle.is_pod()).map(|pod| pod.id().clone()));
        let containers: Vec<_> = living.iter().filter(|handle| !handle.is_pod()).collect();
        let stopping = containers.iter().filter(|handle| self.reported.contains(handle.id())).count();
        let reported = self.reported.difference(&self.pods).count();
        self.progress.total = reported + containers.len() - stopping;
        self.progress.stopping = stopping;
        self.progress.ended = reported - stopping;
    }

    fn report(&mut self, living: &[Arc<Handle>]) {
        self.count(living);
        self.node.cell.report(self.progress.clone());
    }

    async fn conclude(mut self, living: &[Arc<Handle>]) {
        self.count(living);
        self.progress.left = living.iter().map(|handle| handle.id().clone()).collect();
        self.progress.killed.sort();
        self.progress.done = true;
        let DrainProgress { total, killed, left, .. } = &self.progress;
        tracing::info!(total, killed = killed.len(), left = left.len(), "drained");
        self.node.cell.report(self.progress.clone());
        self.node.change_cell(|state| state.drain.iter_mut().for_each(|drain| drain.done = true)).await;
    }
}

const KILL: i32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600 * 1_000_000_000;

    fn drain(deadline_at: u64) -> Drain {
        Drain {
            boot_id: String::new(),
            begun_at: Timestamp(100 * HOUR),
            deadline_at: Timestamp(deadline_at),
            parallel: 1,
            reason: String::new(),
            done: false,
        }
    }

    #[test]
    fn clock_jumps_leave_the_deadline() {
        let start = Instant::now();
        let hours = |hours: u64| Duration::from_nanos(hours * HOUR);
        let due = DrainDeadline::new(None, &drain(102 * HOUR), start, Timestamp(100 * HOUR));
        assert_eq!(due.at, start + hours(2));
        for now in [106, 88, 100] {
            assert_eq!(
                DrainDeadline::new(Some(due), &drain(102 * HOUR), start + hours(1), Timestamp(now * HOUR)),
                due,
                "{now}"
            );
        }
        // Control: another request can make the deadline earlier, but not later.
        let sooner = DrainDeadline::new(Some(due), &drain(101 * HOUR), start, Timestamp(100 * HOUR));
        assert_eq!(sooner.at, start + hours(1));
        assert_eq!(DrainDeadline::new(Some(sooner), &drain(102 * HOUR), start, Timestamp(100 * HOUR)).at, sooner.at);
        // If the clock was set back, a later daemon waits no longer than the total time.
        assert_eq!(DrainDeadline::new(None, &drain(102 * HOUR), start, Timestamp(88 * HOUR)).at, start + hours(2));
    }
}
