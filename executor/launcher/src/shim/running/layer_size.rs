//! Measures the size of a container's writable layer.
//!
//! The container controls the content of the layer, which can have any size. Each reading of the counters therefore
//! continues the walk for at most [`READ_TIME_MAX`], and a new walk starts 10 s after the last walk ended. Until the
//! first walk completes, the size is unknown.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use executor_core::usage::LayerUsage;
use executor_sys::tree_size::TreeWalk;

use crate::finish::now;

/// Time from the end of a walk through the layer to the start of the next walk.
const WALK_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time that a reading spends on a walk.
const READ_TIME_MAX: Duration = Duration::from_millis(10);
/// Number of entries between two checks of the time.
const BATCH: usize = 64;

/// The latest size, and the walk that determines the next size.
#[derive(Debug, Default)]
pub(crate) struct LayerSize {
    latest: Option<LayerUsage>,
    ended: Option<Instant>,
    walk: Option<TreeWalk>,
}

impl LayerSize {
    /// Continues or starts a walk through `upper` if one is due, and returns the latest size.
    pub(crate) fn read(&mut self, upper: &Path) -> Option<LayerUsage> {
        let until = Instant::now() + READ_TIME_MAX;
        if self.walk.is_none() && self.ended.is_none_or(|ended| ended.elapsed() >= WALK_INTERVAL) {
            self.walk = open(upper);
        }
        while let Some(walk) = &mut self.walk {
            let ended = (0..BATCH).find_map(|_| match walk.step() {
                Ok(false) => None,
                Ok(true) => Some(true),
                Err(_) => Some(false), // a later reading tries again
            });
            if let Some(is_whole) = ended {
                let size = walk.size();
                if is_whole {
                    self.latest = Some(LayerUsage { at: now().0, bytes: size.bytes, inodes: size.inodes });
                }
                (self.walk, self.ended) = (None, Some(Instant::now()));
            } else if Instant::now() >= until {
                break;
            }
        }
        self.latest
    }
}

fn open(upper: &Path) -> Option<TreeWalk> {
    TreeWalk::start(File::open(upper).ok()?.into()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn walks_are_rare_and_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let mut size = LayerSize::default();
        assert_eq!(size.read(&dir.path().join("missing")), None);
        fs::write(dir.path().join("a"), vec![1; 1 << 16]).unwrap();
        let first = size.read(dir.path()).unwrap();
        assert!(first.inodes == 2 && first.bytes >= 1 << 16, "{first:?}");
        fs::write(dir.path().join("b"), "").unwrap();
        assert_eq!(size.read(dir.path()), Some(first), "less than 10 s later");
        size.ended = Instant::now().checked_sub(WALK_INTERVAL);
        assert_eq!(size.read(dir.path()).map(|size| size.inodes), Some(3));
        // An incomplete walk is continued, and the last size stays.
        size.walk = open(dir.path());
        size.walk.as_mut().unwrap().step().unwrap();
        (0..1000).for_each(|index| fs::write(dir.path().join(index.to_string()), "").unwrap());
        assert!(size.read(dir.path()).unwrap().inodes >= 3);
    }
}
