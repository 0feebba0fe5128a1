//! `dir:/absolute/path`: overlayfs over a prepared directory that is never written to.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use executor_core::protocol::{Reason, Refused};
use executor_core::validate::Violation;
use executor_sys::mount::open_dir;

use super::{failed, overlay};
use crate::dirs::{Dirs, plain};
use crate::ids::Ids;

/// Mounts the overlay, where the directory is one that the operator allows.
pub(super) fn assemble(lower: &Path, allowed: &[PathBuf], dirs: &Dirs, ids: &Ids) -> Result<(), Refused> {
    let violation = |why: String| Refused::of_fields(Reason::Precondition, &[Violation::new("rootfs", why)]);
    let opened = open_dir(lower).map_err(|error| violation(format!("`dir:{}`: {}", lower.display(), plain(&error))))?;
    // Where links lead is what the operator allowed, or not. From here on the directory is what was opened: whoever
    // exchanges it for a link, or a directory above it, is too late.
    let held = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let lower = &std::fs::read_link(&held).map_err(|error| failed("rootfs", &error))?;
    if !allowed.is_empty() && !allowed.iter().any(|root| lower.starts_with(root)) {
        let why =
            format!("it leads to {}, which is below none of this daemon's configured rootfs_dirs", lower.display());
        return Err(violation(why));
    }
    let model = std::fs::metadata(&held).map_err(|error| failed("rootfs", &error))?;
    overlay::assemble(&format!("dir:{}", lower.display()), &[opened.as_fd()], Some(&model), dirs, ids)
}
