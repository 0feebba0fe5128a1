//! Records the devices in `/dev` that are skipped when a layer is unpacked. Every container mounts its own `/dev` over
//! that directory. Images that debootstrap and similar tools have created contain a few such devices.

use std::collections::BTreeSet;

use crate::error::shown;

/// Directory whose devices are skipped.
const COVERED: &[u8] = b"dev";
/// Maximum number of skipped paths that are recorded. Hard links to recorded paths are skipped, too.
const REMEMBERED_MAX: usize = 1000;
/// Maximum number of paths in a warning.
const NAMED_MAX: usize = 8;
/// Maximum length of a path in a warning, in bytes.
const NAME_MAX: usize = 64;

/// Entries of a layer that were skipped.
#[derive(Debug, Default)]
pub struct SkippedDevices {
    paths: BTreeSet<Vec<u8>>,
    count: u64,
}

impl SkippedDevices {
    /// Returns true if the path is below a directory that containers mount over. The path is given as components from
    /// the root.
    pub(crate) fn covers(path: &[&[u8]]) -> bool {
        path.len() > 1 && path[0] == COVERED
    }

    /// Records a skipped device.
    pub(crate) fn add(&mut self, path: &[&[u8]]) {
        self.count += 1;
        if self.paths.len() < REMEMBERED_MAX {
            self.paths.insert(path.join(&b'/'));
        }
    }

    /// Returns true if a device at this path was skipped.
    pub(crate) fn has(&self, path: &[&[u8]]) -> bool {
        !self.paths.is_empty() && Self::covers(path) && self.paths.contains(&path.join(&b'/'))
    }

    /// Returns the warning for users of the layer. The warning is shorter than a kilobyte. Returns `None` if nothing
    /// was skipped.
    pub fn warning(&self) -> Option<String> {
        let (word, rest) = match self.count {
            0 => return None,
            1 => ("device below /dev was", ""),
            count if count > NAMED_MAX as u64 => ("devices below /dev were", ", ..."),
            _ => ("devices below /dev were", ""),
        };
        let names: Vec<String> =
            self.paths.iter().take(NAMED_MAX).map(|path| shown(&path[..path.len().min(NAME_MAX)])).collect();
        let (count, names) = (self.count, names.join(", "));
        Some(format!("{count} {word} skipped, because each container has its own /dev: {names}{rest}"))
    }
}
