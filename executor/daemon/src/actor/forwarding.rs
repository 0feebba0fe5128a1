//! Sends container output to the configured log sinks, with one task per container and sink.
//!
//! A task sleeps until the log grows, takes its turn on the sink's connection, then reads and sends a chunk. The task
//! outlives the container until the log is sent. If the daemon stops, the next daemon sends the remaining output,
//! except for deleted containers.

use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::logs::sinks::{ForwardedLog, LogSink};
use crate::logs::watch::Subscription;
use crate::model::container::{Handle, Presence};
use crate::model::status::ContainerStatus;
use crate::node::Node;

/// Interval at which sent positions are saved: a save for each line would cost a write to disk.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of saves between two reports of dropped output.
const REPORT: u32 = 10;
/// Poll interval of a log whose directory cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Starts sending a container's output. `is_over` is true if the container completed under an earlier daemon.
pub(crate) fn start(node: &Arc<Node>, handle: &Arc<Handle>, facts: &ContainerStatus, is_over: bool) {
    if handle.is_pod() || handle.is_self_test() {
        return;
    }
    for target in node.outward.targets() {
        let directory = node.config.paths.kept_container(handle.id());
        if let Some(log) = target.log(&facts.plan, facts.created_at, directory, is_over) {
            node.forwarding.send_modify(|tasks| *tasks += 1);
            let (node, handle, target) = (Arc::clone(node), Arc::clone(handle), Arc::clone(target));
            tokio::spawn(async move {
                forward(&node, &handle, &target, log).await;
                node.forwarding.send_modify(|tasks| *tasks -= 1);
            });
        }
    }
}

/// Connects to the sinks, and saves sent positions, until the daemon stops.
pub(crate) async fn run_log_sinks(node: Arc<Node>) {
    if node.outward.targets().is_empty() {
        return;
    }
    for target in node.outward.targets() {
        let (node, target) = (Arc::clone(&node), Arc::clone(target));
        tokio::spawn(async move {
            let connect = async { target.turn().await.connect().await };
            tokio::select! {
                () = connect => {}
                () = node.until_stopping() => {}
            }
        });
    }
    let mut round = 0;
    loop {
        tokio::select! {
            () = tokio::time::sleep(SAVE_INTERVAL) => {}
            () = node.until_stopping() => return,
        }
        round = (round + 1) % REPORT;
        let last = Arc::clone(&node);
        let saved = tokio::task::spawn_blocking(move || {
            if *last.settled.borrow() {
                last.outward.retain(|id| last.registry.get(id).is_some());
            }
            last.outward.save();
            if round == 0 {
                last.outward.report_drops();
            }
        });
        let _ = saved.await;
    }
}

/// Waits up to `limit` for the tasks when the daemon stops, then saves the sent positions.
pub(crate) async fn stop(node: &Arc<Node>, limit: Duration) {
    if node.outward.targets().is_empty() {
        return;
    }
    let mut tasks = node.forwarding.subscribe();
    if tokio::time::timeout(limit, tasks.wait_for(|tasks| *tasks == 0)).await.is_err() {
        tracing::warn!("timed out waiting for log forwarding to stop");
    }
    let last = Arc::clone(node);
    let saved = tokio::task::spawn_blocking(move || {
        last.outward.save();
        last.outward.report_drops();
    });
    let _ = saved.await;
}

/// Reason why sending a log has paused.
enum Paused {
    /// The whole log was sent, or the log cannot be read.
    Sent,
    /// The container was deleted, or its status changed.
    Changed,
    /// The daemon stops.
    Stopping,
}

async fn forward(node: &Arc<Node>, handle: &Arc<Handle>, target: &Arc<LogSink>, mut log: ForwardedLog) {
    let mut presence = handle.watch();
    let mut changes: Option<Subscription> = None;
    let mut waiting = None;
    loop {
        // Read the state before the file: a completed container has written all of its output.
        let (over, deleted) = match &*presence.borrow_and_update() {
            Presence::Present(facts) => (facts.state == State::Completed, false),
            Presence::Deleted(_) | Presence::Refused(_) => (true, true),
        };
        if deleted && waiting.is_none() {
            waiting = target.wait(log.remaining());
            if waiting.is_none() {
                log = blocking(log, |log| log.give_up(None)).await;
                break;
            }
        }
        // Poll a directory that does not exist yet or cannot be watched.
        if changes.is_none() && !over {
            changes = node.log_watch.subscribe(log.directory()).ok();
        }
        if let Some(changes) = &mut changes {
            changes.mark_seen();
        }
        let paused;
        (log, paused) = drain(node, target, log, &mut presence, (over, deleted)).await;
        match paused {
            Paused::Stopping => {
                if is_gone(&presence) {
                    blocking(log, |log| log.give_up(None)).await;
                }
                return;
            }
            Paused::Changed => continue,
            Paused::Sent if over => break,
            Paused::Sent => {}
        }
        let due = log.due();
        tokio::select! {
            () = changed(&mut changes) => {}
            _ = presence.changed() => {}
            () = async { sleep_until(due.unwrap_or_else(tokio::time::Instant::now)).await }, if due.is_some() => {}
            () = node.until_stopping() => {} // `drain` checks for the stop
        }
    }
    log.finish();
}

/// Returns true if no later daemon will find the container's log.
fn is_gone(presence: &watch::Receiver<Presence>) -> bool {
    !matches!(&*presence.borrow(), Presence::Present(_))
}

/// Sends the pending output, one batch per turn on the connection.
async fn drain(
    node: &Arc<Node>,
    target: &Arc<LogSink>,
    mut log: ForwardedLog,
    presence: &mut watch::Receiver<Presence>,
    (over, deleted): (bool, bool),
) -> (ForwardedLog, Paused) {
    let _behind = target.behind();
    loop {
        let mut turn = tokio::select! {
            biased;
            () = node.until_stopping() => return (log, Paused::Stopping),
            turn = target.turn() => turn,
            // If the container is deleted during the wait, stop waiting: the caller drops the log if too many deleted
            // containers wait.
            _ = presence.changed(), if !deleted => return (log, Paused::Changed),
        };
        let read;
        (log, read) = reading(log, over).await;
        let batch = match read {
            Ok(batch) => batch,
            Err(error) => {
                let path = log.directory().display();
                tracing::warn!(%path, %error, "cannot read the container's log to forward it");
                return (log, Paused::Sent);
            }
        };
        let mut sent = 0;
        let stopped = tokio::select! {
            biased;
            () = node.until_stopping() => true,
            () = turn.send(&batch, &mut sent) => false,
        };
        log.sent(&batch, sent);
        if stopped {
            if is_gone(presence) {
                log = blocking(log, move |log| log.give_up(Some((&batch, sent)))).await;
            }
            return (log, Paused::Stopping);
        }
        if !batch.more {
            return (log, Paused::Sent);
        }
    }
}

async fn reading(log: ForwardedLog, over: bool) -> (ForwardedLog, std::io::Result<crate::logs::sinks::MessageBatch>) {
    let mut log = log;
    let read = tokio::task::spawn_blocking(move || {
        let read = log.read(over);
        (log, read)
    });
    joined(read).await
}

/// Runs `work` with a log on a blocking thread, because the work may block on the disk.
async fn blocking(mut log: ForwardedLog, work: impl FnOnce(&mut ForwardedLog) + Send + 'static) -> ForwardedLog {
    let work = tokio::task::spawn_blocking(move || {
        work(&mut log);
        log
    });
    joined(work).await
}

/// Waits for a blocking task. The task fails only if the runtime shuts down before the task starts, because a panic
/// aborts the process. In that case this function never returns.
async fn joined<T>(task: tokio::task::JoinHandle<T>) -> T {
    match task.await {
        Ok(done) => done,
        Err(_) => std::future::pending().await,
    }
}

async fn changed(changes: &mut Option<Subscription>) {
    match changes {
        Some(changes) => changes.changed().await,
        None => tokio::time::sleep(POLL_INTERVAL).await,
    }
}
