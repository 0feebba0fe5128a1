//! State of the cell: whether it accepts containers, and whether it is healthy.
//!
//! The state survives restarts of the daemon. A drain is valid only for the boot in which it was started, because a
//! rebooted host has no containers to drain.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;
use executor_sys::mutex::locked;
use serde::{Deserialize, Serialize};
use tokio::sync::{MutexGuard, watch};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellState {
    /// Drain in progress or done.
    #[serde(default)]
    pub drain: Option<Drain>,
    /// Reason for which an operator marked the cell unhealthy.
    #[serde(default)]
    pub unhealthy: Option<String>,
    /// Result of the last self-test of this daemon.
    #[serde(skip)]
    pub self_test: Option<SelfTestResult>,
}

/// Parameters and state of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Id of the boot in which the drain was started.
    pub boot_id: String,
    /// Start of the drain.
    pub begun_at: Timestamp,
    /// Time at which remaining containers are killed.
    pub deadline_at: Timestamp,
    /// Maximum number of containers that are stopped in parallel.
    pub parallel: usize,
    /// Reason for the drain, which is reported to clients whose containers are refused.
    pub reason: String,
    /// True after all containers have exited, or 30 s after the remaining containers were killed.
    pub done: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfTestResult {
    /// Time at which the test ended.
    pub at: Timestamp,
    /// Duration of the test.
    pub took: Duration,
    /// Reason of the failure; `None` if the test passed.
    pub failure: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainProgress {
    /// Number of containers that the drain has found. Pods are not counted.
    pub total: usize,
    /// Number of containers that are stopping.
    pub stopping: usize,
    /// Number of containers that have exited.
    pub ended: usize,
    /// Completed containers that were killed because their grace period or the drain's deadline had passed.
    pub killed: Vec<ContainerId>,
    /// Containers that had not exited when the drain gave up.
    pub left: Vec<ContainerId>,
    /// True after the drain has finished.
    pub done: bool,
}

impl CellState {
    /// Returns the reasons why the cell is unhealthy; empty if the cell is healthy.
    pub fn unhealthy_reasons(&self) -> Vec<String> {
        let drained = self.drain.as_ref().map(|drain| drain.describe());
        let reported = self.unhealthy.as_ref().map(|reason| format!("set by an operator: {reason}"));
        let tested = self.self_test.as_ref().and_then(|result| result.failure.as_ref());
        let tested = tested.map(|failure| format!("self-test: {failure}"));
        drained.into_iter().chain(reported).chain(tested).collect()
    }
}

impl Drain {
    /// Returns a text that describes the state, with the reason.
    pub fn describe(&self) -> String {
        let state = if self.done { "drained" } else { "draining" };
        let reason = if self.reason.is_empty() { String::new() } else { format!(" ({})", self.reason) };
        format!("{state}{reason}")
    }
}

/// The cell's state and the progress of its drain, which tasks can watch.
#[derive(Debug)]
pub struct Cell {
    state: watch::Sender<CellState>,
    progress: watch::Sender<DrainProgress>,
    /// Ensures that only one task at a time carries out the drain.
    pub(crate) draining: SingleWorker,
    changing: Mutex<()>,
}

impl Cell {
    /// Creates the cell with the state of an earlier daemon.
    pub fn new(state: CellState) -> Self {
        Self {
            state: watch::Sender::new(state),
            progress: watch::Sender::new(DrainProgress::default()),
            draining: SingleWorker::default(),
            changing: Mutex::new(()),
        }
    }

    pub fn state(&self) -> CellState {
        self.state.borrow().clone()
    }

    pub fn watch(&self) -> watch::Receiver<CellState> {
        self.state.subscribe()
    }

    pub fn progress(&self) -> DrainProgress {
        self.progress.borrow().clone()
    }

    pub fn watch_progress(&self) -> watch::Receiver<DrainProgress> {
        self.progress.subscribe()
    }

    /// Changes the state, and passes the new state to `keep`. Calls of `keep` have the same order as the changes.
    pub(crate) fn change(&self, change: impl FnOnce(&mut CellState), keep: impl FnOnce(CellState)) {
        let _in_order = locked(&self.changing);
        self.state.send_modify(change);
        keep(self.state());
    }

    pub(crate) fn report(&self, progress: DrainProgress) {
        self.progress.send_if_modified(|before| {
            let is_new = *before != progress;
            *before = progress;
            is_new
        });
    }
}

/// Serializes tasks that do the same work: one task works and at most one waits, regardless of how many are started.
///
/// The waiting task reads the state when its turn starts, so it does the work of all tasks that were rejected in the
/// meantime.
#[derive(Debug, Default)]
pub(crate) struct SingleWorker {
    working: tokio::sync::Mutex<()>,
    is_awaited: AtomicBool,
}

impl SingleWorker {
    /// Waits for the turn. Returns `None` if another task is already waiting.
    pub(crate) async fn next(&self) -> Option<MutexGuard<'_, ()>> {
        if self.is_awaited.swap(true, Ordering::SeqCst) {
            return None;
        }
        let turn = self.working.lock().await;
        self.is_awaited.store(false, Ordering::SeqCst);
        Some(turn)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn single_worker_has_one_waiter() {
        let turns = SingleWorker::default();
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(working)) = pin!(turns.next()).poll(&mut context) else {
            panic!("the first task has the turn")
        };
        let mut waiting = pin!(turns.next());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        for _ in 0..1000 {
            assert!(matches!(pin!(turns.next()).poll(&mut context), Poll::Ready(None)));
        }
        drop(working);
        assert!(matches!(waiting.poll(&mut context), Poll::Ready(Some(_))));
    }
}
