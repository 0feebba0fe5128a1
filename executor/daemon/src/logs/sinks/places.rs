//! Stores the position up to which each container's log was sent, across restarts of executord.
//!
//! Each target has a small file in the ledger's directory, written about once a second and on exit. The positions are
//! not in the ledger's database, because a lost position only causes duplicate lines, and a sync per second of output
//! is expensive.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use executor_core::ident::ContainerId;
use executor_core::logline::LogPosition;
use executor_core::time::Timestamp;
use executor_sys::mutex::locked;
use serde::{Deserialize, Serialize};

/// Maximum size of the file in bytes, enough for several hundred thousand containers.
const FILE_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct SinkPositions {
    path: PathBuf,
    state: Mutex<PositionsState>,
}

#[derive(Debug)]
struct PositionsState {
    /// True if there was no file, because no earlier daemon had this target.
    is_new: bool,
    is_changed: bool,
    containers: BTreeMap<ContainerId, KeptPosition>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct KeptPosition {
    created_at: u64,
    bytes: u64,
    entries: u64,
    /// True if nothing of the container's log remains to be sent.
    done: bool,
}

impl SinkPositions {
    /// Loads the positions from the file; starts empty if the file is missing or unreadable.
    pub(super) fn open(path: PathBuf) -> Self {
        let (is_new, containers) = match read(&path) {
            Ok(containers) => (false, containers),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (true, BTreeMap::new()),
            Err(error) => {
                let why = executor_core::errors::plain(&error);
                tracing::warn!(path = %path.display(), why, "cannot read the positions of sent logs: logs are sent again");
                (false, BTreeMap::new())
            }
        };
        // Write the file even if it is empty, because it shows that an earlier daemon had this target.
        Self { path, state: Mutex::new(PositionsState { is_new, is_changed: is_new, containers }) }
    }

    /// Returns the start position for a container; `None` if nothing remains to be sent. `is_over` is true if the
    /// container completed under an earlier daemon. The log of such a container is not sent to a new target.
    pub(super) fn start(&self, id: &ContainerId, created_at: Timestamp, is_over: bool) -> Option<LogPosition> {
        let mut state = locked(&self.state);
        let known = state.containers.get(id).filter(|kept| kept.created_at == created_at.0).copied();
        let kept = known.unwrap_or_else(|| {
            let done = state.is_new && is_over;
            let kept = KeptPosition { created_at: created_at.0, bytes: 0, entries: 0, done };
            state.containers.insert(id.clone(), kept);
            state.is_changed = true;
            kept
        });
        (!kept.done).then_some(LogPosition { bytes: kept.bytes, entries: kept.entries })
    }

    /// Records the position up to which a container's log was sent.
    pub(super) fn reached(&self, id: &ContainerId, created_at: Timestamp, place: LogPosition, done: bool) {
        let mut state = locked(&self.state);
        // The id may belong to a later container by now.
        let kept = state.containers.get_mut(id).filter(|kept| kept.created_at == created_at.0);
        if let Some(kept) = kept {
            *kept = KeptPosition { bytes: place.bytes, entries: place.entries, done, ..*kept };
            state.is_changed = true;
        }
    }

    /// Deletes the positions of containers that no longer exist.
    pub(super) fn retain(&self, is_there: impl Fn(&ContainerId) -> bool) {
        let mut state = locked(&self.state);
        let before = state.containers.len();
        state.containers.retain(|id, _| is_there(id));
        state.is_changed |= state.containers.len() != before;
    }

    /// Writes the file if positions have changed.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written; the next call retries.
    pub(super) fn save(&self) -> io::Result<()> {
        let text = {
            let mut state = locked(&self.state);
            if !std::mem::take(&mut state.is_changed) {
                return Ok(());
            }
            serde_json::to_vec(&state.containers)?
        };
        let new = self.path.with_extension("new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.path));
        if written.is_err() {
            locked(&self.state).is_changed = true;
        }
        written
    }
}

fn read(path: &Path) -> io::Result<BTreeMap<ContainerId, KeptPosition>> {
    let length = path.metadata()?.len();
    if length > FILE_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("is {length} bytes; the maximum is {FILE_MAX}"),
        ));
    }
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sink_positions_persist_per_container() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs-syslog.json");
        let (a, b): (ContainerId, ContainerId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let place = LogPosition { bytes: 5, entries: 1 };
        let places = SinkPositions::open(path.clone());
        assert_eq!(places.start(&b, Timestamp(1), true), None, "the container completed under an earlier daemon");
        assert_eq!(places.start(&a, Timestamp(1), false), Some(LogPosition::default()));
        places.reached(&a, Timestamp(2), LogPosition::default(), true);
        places.reached(&a, Timestamp(1), place, false);
        places.save().unwrap();

        let places = SinkPositions::open(path.clone());
        assert_eq!(places.start(&a, Timestamp(1), true), Some(place));
        assert_eq!(places.start(&a, Timestamp(2), false), Some(LogPosition::default()), "the id's next container");
        assert_eq!(places.start(&b, Timestamp(1), true), None);
        assert_eq!(places.start(&"c".parse().unwrap(), Timestamp(1), true), Some(LogPosition::default()));
        places.retain(|id| *id == a);
        places.save().unwrap();
        std::fs::write(&path, "{").unwrap();
        assert_eq!(
            SinkPositions::open(path).start(&b, Timestamp(1), true),
            Some(LogPosition::default()),
            "nothing is lost silently"
        );
    }
}
