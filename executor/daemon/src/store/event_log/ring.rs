//! Holds the retained events, oldest first. The newest events are stored as values. Older events, which are rarely read
//! again, are stored as JSON in a few large chunks of memory: ten thousand events in separate allocations, between the
//! allocations of requests, took three times as much memory.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use executor_core::ident::ContainerId;

use crate::model::events::Event;

/// Number of events that are packed into a chunk.
const PIECE: usize = 64;
/// Maximum number of events that are stored as values.
const UNPACKED_MAX: usize = 2 * PIECE;

/// The retained events, up to a maximum number.
#[derive(Debug)]
pub(super) struct Ring {
    pieces: VecDeque<EventSegment>,
    unpacked: VecDeque<Arc<Event>>,
    /// Number of retained events.
    kept: usize,
    most: usize,
}

pub(super) enum RetainedEvent<'a> {
    /// An event that is stored as JSON.
    Packed(&'a Packed, &'a [u8]),
    /// An event that is stored as a value.
    Unpacked(&'a Arc<Event>),
}

/// Events, concatenated as JSON.
#[derive(Debug)]
struct EventSegment {
    json: Box<[u8]>,
    events: Box<[Packed]>,
    /// Number of leading events that are no longer retained.
    dropped: usize,
}

/// Index entry of an event that is stored as JSON: fields that are searched without parsing, and the end of the JSON.
#[derive(Debug)]
pub(super) struct Packed {
    cursor: u64,
    /// Hash of the container's id.
    container: u64,
    /// Offset in the chunk at which the JSON ends, in bytes. The next event starts there.
    end: usize,
}

impl Ring {
    /// Creates a ring from sorted events. The ring always retains only the last `most` events.
    pub(super) fn new(events: Vec<Event>, most: usize) -> Self {
        let mut ring = Self { pieces: VecDeque::new(), unpacked: VecDeque::new(), kept: 0, most };
        for event in events {
            ring.push(Arc::new(event));
        }
        ring
    }

    /// Adds an event, which is newer than all others.
    pub(super) fn push(&mut self, event: Arc<Event>) {
        self.unpacked.push_back(event);
        self.kept += 1;
        if self.unpacked.len() >= UNPACKED_MAX {
            // If an event cannot be packed, it stays a value, and so do all later events.
            if let Ok(piece) = EventSegment::from_events(self.unpacked.range(..PIECE)) {
                self.pieces.push_back(piece);
                self.unpacked.drain(..PIECE);
            }
        }
        if self.kept > self.most {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        self.kept -= 1;
        match self.pieces.front_mut() {
            Some(piece) => {
                piece.dropped += 1;
                if piece.kept().is_empty() {
                    self.pieces.pop_front();
                }
            }
            None => drop(self.unpacked.pop_front()),
        }
    }

    /// Returns the cursor of the oldest retained event.
    pub(super) fn oldest(&self) -> Option<u64> {
        let packed = self.pieces.front().and_then(|piece| piece.kept().first()).map(|packed| packed.cursor);
        packed.or_else(|| self.unpacked.front().map(|event| event.cursor))
    }

    /// Returns the retained events with a higher cursor, in order. Older events are not visited, because most
    /// subscribers are at the end of the log.
    pub(super) fn newer(&self, than: u64) -> impl Iterator<Item = RetainedEvent<'_>> {
        let first = self.pieces.partition_point(|piece| piece.events.last().is_none_or(|last| last.cursor <= than));
        let packed = self.pieces.range(first..).flat_map(move |piece| {
            let seen = piece.kept().partition_point(|packed| packed.cursor <= than);
            (piece.dropped + seen..piece.events.len()).map(|index| piece.get(index))
        });
        let seen = self.unpacked.partition_point(|event| event.cursor <= than);
        packed.chain(self.unpacked.range(seen..).map(RetainedEvent::Unpacked))
    }
}

impl EventSegment {
    fn from_events<'a>(events: impl Iterator<Item = &'a Arc<Event>>) -> serde_json::Result<Self> {
        let (mut json, mut packed) = (Vec::new(), Vec::with_capacity(PIECE));
        for event in events {
            serde_json::to_writer(&mut json, &**event)?;
            packed.push(Packed { cursor: event.cursor, container: hash(&event.container), end: json.len() });
        }
        Ok(Self { json: json.into(), events: packed.into(), dropped: 0 })
    }

    fn kept(&self) -> &[Packed] {
        &self.events[self.dropped..]
    }

    fn get(&self, index: usize) -> RetainedEvent<'_> {
        let start = index.checked_sub(1).map_or(0, |before| self.events[before].end);
        let packed = &self.events[index];
        RetainedEvent::Packed(packed, &self.json[start..packed.end])
    }
}

impl RetainedEvent<'_> {
    pub(super) fn cursor(&self) -> u64 {
        match self {
            Self::Packed(packed, _) => packed.cursor,
            Self::Unpacked(event) => event.cursor,
        }
    }

    /// Returns the event if it belongs to the container `only`, or if `only` is unset.
    pub(super) fn event(&self, only: Option<&ContainerId>) -> Option<Arc<Event>> {
        let event = match self {
            Self::Packed(packed, _) if only.is_some_and(|id| hash(id) != packed.container) => return None,
            // Parsing cannot fail, because the JSON was written from an event.
            Self::Packed(_, json) => Arc::new(serde_json::from_slice(json).ok()?),
            Self::Unpacked(event) => Arc::clone(event),
        };
        only.is_none_or(|id| *id == event.container).then_some(event)
    }
}

fn hash(id: &ContainerId) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use executor_core::time::Timestamp;

    use super::*;
    use crate::model::events::EventKind;

    fn event(cursor: u64) -> Event {
        let container = format!("c{}", cursor % 3).parse().unwrap();
        let (time, kind) = (Timestamp(cursor * 10), EventKind::FilesUpdated(cursor));
        Event { cursor, time, container, kind, end: None, step: None, restarts: None }
    }

    fn cursors(ring: &Ring, than: u64, only: Option<&ContainerId>) -> Vec<u64> {
        ring.newer(than).filter_map(|kept| kept.event(only)).map(|event| event.cursor).collect()
    }

    /// The last events are retained unchanged, regardless of how many are packed. The cursors are odd numbers, to test
    /// gaps.
    #[test]
    fn event_ring_retains_latest_events_unchanged() {
        for most in [1, PIECE - 1, UNPACKED_MAX, 5 * PIECE + 7] {
            for (begun, added) in [(0, 7 * PIECE as u64), (300, 200), (2 * UNPACKED_MAX as u64, 1)] {
                let all: Vec<Event> = (0..begun + added).map(|index| event(2 * index + 1)).collect();
                let (first, then) = all.split_at(begun as usize);
                let mut ring = Ring::new(first.to_vec(), most);
                then.iter().cloned().for_each(|event| ring.push(Arc::new(event)));
                let kept = &all[all.len().saturating_sub(most)..];
                let found: Vec<Event> = ring.newer(0).map(|kept| (*kept.event(None).unwrap()).clone()).collect();
                assert_eq!(found, kept, "{most} of {begun} and {added}");
                assert_eq!(ring.oldest(), Some(kept[0].cursor));
                assert!(ring.unpacked.len() < UNPACKED_MAX, "the other events are packed");
                let id = "c1".parse().unwrap();
                for than in (0..=2 * all.len() as u64).step_by(61) {
                    let newer = || kept.iter().filter(|event| event.cursor > than);
                    assert_eq!(cursors(&ring, than, None), newer().map(|event| event.cursor).collect::<Vec<_>>());
                    let of_one = newer().filter(|event| event.container == id).map(|event| event.cursor);
                    assert_eq!(cursors(&ring, than, Some(&id)), of_one.collect::<Vec<_>>());
                }
            }
        }
    }
}
