//! The event log: events of all containers in one sequence, with increasing numbers.
//!
//! State changes are appended; each subscriber reads events from any position that is still retained. The number of an
//! event (its cursor) never repeats, even across restarts and crashes: numbers are reserved in the ledger in blocks
//! before they are assigned. After a crash, numbering continues without a gap if the ledger has the last assigned event
//! (see the module `last`). Otherwise events are lost, numbering continues after the reserved block, and subscribers
//! see a gap.

mod last;
mod ring;

use std::path::Path;
use std::sync::{Arc, Mutex};

use executor_core::ident::ContainerId;
use executor_core::record::{RestartRecord, StepRecord};
use executor_core::time::Timestamp;
use executor_sys::mutex::locked;
use tokio::sync::watch;

use crate::model::events::{Event, EventKind, KeptEvents};
use crate::model::status::ContainerResult;
use crate::store::ledger::{CURSORS_RESERVED_AT_ONCE, Ledger};
use last::LastCursor;
use ring::Ring;

#[derive(Debug)]
pub struct EventLog {
    inner: Mutex<EventLogState>,
    newest: watch::Sender<u64>,
    ledger: Arc<Ledger>,
}

#[derive(Debug)]
struct EventLogState {
    ring: Ring,
    last: LastCursor,
    next: u64,
    reserved: u64,
    closed: bool,
}

/// Events for one subscriber.
#[derive(Debug)]
pub struct EventBatch {
    /// Events, each with a flag that is true if the subscriber lost events before it.
    pub events: Vec<(Arc<Event>, bool)>,
    /// Position after these events.
    pub position: Position,
}

/// Position of a subscriber in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Last cursor that the subscriber received or skipped.
    after: u64,
    /// True if the subscriber lost events that are not reported yet.
    gap: bool,
    /// True if the subscriber has received no event yet and requested all retained events. In that case no event can be
    /// missing before the first event.
    fresh: bool,
}

/// Data of an event in addition to its kind.
#[derive(Default)]
struct EventDetails {
    end: Option<Arc<ContainerResult>>,
    step: Option<Arc<StepRecord>>,
    restarts: Option<Arc<RestartRecord>>,
}

impl EventLog {
    /// Opens the log with the events of the ledger in `dir`. `start` is the number of daemons that were started on the
    /// ledger, including this one. Keeps at most `most` events.
    pub fn open(dir: &Path, boot_id: &str, start: u64, kept: KeptEvents, ledger: Arc<Ledger>, most: usize) -> Self {
        let KeptEvents { events, next, reserved } = kept;
        // If the ledger cannot reserve cursors, a later daemon cannot determine which numbers the last daemon assigned.
        let start = if ledger.trouble().is_none() { start } else { 0 };
        let (last, next) = LastCursor::open(dir, boot_id, start, events.last().map(|event| event.cursor), next.max(1));
        let newest = watch::Sender::new(next - 1);
        let inner = Mutex::new(EventLogState { ring: Ring::new(events, most), last, next, reserved, closed: false });
        Self { inner, newest, ledger }
    }

    pub fn append(&self, container: &ContainerId, kind: EventKind, end: Option<Arc<ContainerResult>>, time: Timestamp) {
        self.append_with_details(container, kind, EventDetails { end, ..EventDetails::default() }, time);
    }

    /// Appends events of steps of an action tree that have started or completed since `before`, in chronological order.
    pub fn append_steps(&self, container: &ContainerId, before: &[StepRecord], now: &[StepRecord]) {
        let pending = StepRecord::default();
        let mut changed = Vec::new();
        for (index, step) in now.iter().enumerate() {
            let before = before.get(index).unwrap_or(&pending);
            // At equal times, a completion precedes the starts that it causes, and inner steps complete first.
            let (outermost, innermost) = (1 + index as i64, -(1 + index as i64));
            // A new start time means that the step has started again, even if its earlier end was not observed. The
            // start time of a run may be set twice: when the run was ordered, and when its process exists.
            let began_before = before.started_at.is_some() && before.finished_at.is_none() && before.pid == 0;
            let started = step.started_at.filter(|_| step.started_at != before.started_at && !began_before);
            let finished = step.finished_at.filter(|_| step.finished_at != before.finished_at);
            changed.extend(started.map(|at| (at, outermost, step)));
            changed.extend(finished.map(|at| (at, innermost, step)));
        }
        changed.sort_by_key(|(at, order, _)| (*at, *order));
        for (at, order, step) in changed {
            let ended = order < 0;
            let kind = if ended { EventKind::StepEnded } else { EventKind::StepStarted };
            let step = Some(Arc::new(step.clone()));
            self.append_with_details(container, kind, EventDetails { step, ..EventDetails::default() }, at);
        }
    }

    /// Appends a restart event if the last restart in `now` is not in `before`.
    pub fn append_restart(&self, container: &ContainerId, before: Option<&RestartRecord>, now: Option<&RestartRecord>) {
        let Some(last) = now.and_then(|now| now.last.as_ref()) else { return };
        if before.and_then(|before| before.last.as_ref()) != Some(last) {
            let (kind, restarts) = (EventKind::Restarting, now.cloned().map(Arc::new));
            self.append_with_details(
                container,
                kind,
                EventDetails { restarts, ..EventDetails::default() },
                last.finished_at,
            );
        }
    }

    fn append_with_details(&self, container: &ContainerId, kind: EventKind, details: EventDetails, time: Timestamp) {
        let EventDetails { end, step, restarts } = details;
        let mut inner = locked(&self.inner);
        if inner.closed {
            return;
        }
        let cursor = inner.next;
        inner.next += 1;
        inner.last.set(cursor);
        let event = Arc::new(Event { cursor, time, container: container.clone(), kind, end, step, restarts });
        inner.ring.push(Arc::clone(&event));
        // Reserve early, so that the reservation is on disk long before its first number is used.
        if inner.reserved < inner.next + CURSORS_RESERVED_AT_ONCE / 2 {
            inner.reserved += CURSORS_RESERVED_AT_ONCE;
            self.ledger.reserve_cursors(inner.reserved);
        }
        let oldest = inner.ring.oldest().unwrap_or(cursor);
        self.ledger.put_event(event, oldest);
        drop(inner);
        self.newest.send_replace(cursor);
    }

    /// Returns the newest event's cursor.
    pub fn newest(&self) -> u64 {
        locked(&self.inner).next - 1
    }

    /// Returns a receiver that is notified of new events.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Returns at most `most` events after a position. If `only` is set, returns only events of this container.
    pub fn after(&self, position: Position, only: Option<&ContainerId>, most: usize) -> EventBatch {
        let inner = locked(&self.inner);
        let mut position = position;
        let mut events = Vec::new();
        for kept in inner.ring.newer(position.after) {
            position.gap |= !position.fresh && kept.cursor() > position.after + 1;
            position.fresh = false;
            position.after = kept.cursor();
            if let Some(event) = kept.event(only) {
                events.push((event, std::mem::take(&mut position.gap)));
                if events.len() == most {
                    break;
                }
            }
        }
        EventBatch { events, position }
    }

    /// Closes the log. Returns the first cursor that was never assigned.
    pub fn close(&self) -> u64 {
        let mut inner = locked(&self.inner);
        inner.closed = true;
        inner.next
    }
}

impl Position {
    /// Returns the position after the event with this cursor; for 0, the position before the first retained event.
    pub fn behind(cursor: u64) -> Self {
        Self { after: cursor, gap: false, fresh: cursor == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(dir: &Path, most: usize) -> EventLog {
        let (ledger, loaded) = Ledger::open(dir).unwrap();
        EventLog::open(dir, "boot", loaded.starts, loaded.events, Arc::new(ledger), most)
    }

    fn add(log: &EventLog, id: &str) {
        log.append(&id.parse().unwrap(), EventKind::Deleted, None, Timestamp(7));
    }

    fn seen(batch: &EventBatch) -> Vec<(u64, bool)> {
        batch.events.iter().map(|(event, gap)| (event.cursor, *gap)).collect()
    }

    #[test]
    fn event_follower_sees_each_event_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path(), 5);
        for id in ["a", "b", "a", "b", "a", "b", "a"] {
            add(&log, id);
        }
        let all = log.after(Position::behind(0), None, 100);
        assert_eq!(seen(&all), [(3, false), (4, false), (5, false), (6, false), (7, false)]);
        assert_eq!(seen(&log.after(Position::behind(1), None, 2)), [(3, true), (4, false)]);
        assert_eq!(seen(&log.after(Position::behind(2), None, 2)), [(3, false), (4, false)]);
        let b = "b".parse().unwrap();
        let batch = log.after(Position::behind(1), Some(&b), 1);
        assert_eq!(seen(&batch), [(4, true)]);
        let batch = log.after(batch.position, Some(&b), 9);
        assert_eq!(seen(&batch), [(6, false)]);
        assert_eq!(log.after(batch.position, None, 9).events.len(), 0, "events of other containers are skipped");
        assert_eq!(log.newest(), 7);
    }

    /// If the daemon crashes, the next daemon reuses no number, although the ledger lacks the last events. The test
    /// simulates a crash with a copy of the file that is made while the file is open.
    #[test]
    fn cursors_never_go_back() {
        let mut dir = tempfile::tempdir().unwrap();
        let mut last = 0;
        for crash in [true, false, true, false, false] {
            let log = log(dir.path(), 50);
            add(&log, "a");
            let batch = log.after(Position::behind(last), None, 1);
            assert!(batch.events[0].0.cursor > last);
            last = log.newest();
            if crash {
                let other = tempfile::tempdir().unwrap();
                std::fs::copy(dir.path().join("executord.redb"), other.path().join("executord.redb")).unwrap();
                drop(log);
                dir = other;
            } else {
                let next = log.close();
                add(&log, "late");
                assert_eq!(log.newest(), last, "closed");
                log.ledger.close(next);
            }
        }
        let log = log(dir.path(), 50);
        let all = log.after(Position::behind(0), None, 9);
        let cursors: Vec<u64> = all.events.iter().map(|(event, _)| event.cursor).collect();
        assert_eq!(&cursors[cursors.len() - 2..], [last - 1, last], "a clean stop leaves no gap");
    }
}
