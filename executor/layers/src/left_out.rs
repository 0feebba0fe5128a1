//! Devices of a layer that are left out: those in `/dev`, which every container has of its own, so that no container could see
//! them. Images that debootstrap and its like make have a few.

use std::collections::BTreeSet;

use crate::error::shown;

/// Directory whose devices are left out.
const COVERED: &[u8] = b"dev";
/// Maximum number of paths that are remembered, for hard links to them.
const REMEMBERED_MAX: usize = 1000;
/// Maximum number of paths that a warning names, and most bytes of each.
const NAMED_MAX: usize = 8;
const NAME_MAX: usize = 64;

/// Entries that were left out of a layer.
#[derive(Debug, Default)]
pub struct LeftOut {
    paths: BTreeSet<Vec<u8>>,
    count: u64,
}

impl LeftOut {
    /// The path, by its names from the root, lies where a container has a file system of its own.
    pub(crate) fn covers(path: &[&[u8]]) -> bool {
        path.len() > 1 && path[0] == COVERED
    }

    /// A device at this path is left out.
    pub(crate) fn add(&mut self, path: &[&[u8]]) {
        self.count += 1;
        if self.paths.len() < REMEMBERED_MAX {
            self.paths.insert(path.join(&b'/'));
        }
    }

    /// A device at this path was left out.
    pub(crate) fn has(&self, path: &[&[u8]]) -> bool {
        !self.paths.is_empty() && Self::covers(path) && self.paths.contains(&path.join(&b'/'))
    }

    /// Returns the warning for users of the layer, of less than a kilobyte; `None` if nothing was left out.
    pub fn warning(&self) -> Option<String> {
        let (word, rest) = match self.count {
            0 => return None,
            1 => ("device", ""),
            count if count > NAMED_MAX as u64 => ("devices", ", ..."),
            _ => ("devices", ""),
        };
        let names: Vec<String> =
            self.paths.iter().take(NAMED_MAX).map(|path| shown(&path[..path.len().min(NAME_MAX)])).collect();
        let (count, names) = (self.count, names.join(", "));
        Some(format!("{count} {word} below /dev left out, where each container has its own: {names}{rest}"))
    }
}
