//! Checks the paths of an archive's entries, which must stay below the target directory.

use crate::job::Failure;

/// Checks the path of an entry.
pub(crate) fn check_path(path: &[u8]) -> Result<(), Failure> {
    match leads_out(path) {
        true => Err(Failure::last(format!("`{}` escapes the directory", path.escape_ascii()))),
        false => Ok(()),
    }
}

/// Returns true if a path is absolute or contains `..`.
pub(crate) fn leads_out(path: &[u8]) -> bool {
    path.starts_with(b"/") || path.split(|byte| *byte == b'/').any(|name| name == b"..")
}
