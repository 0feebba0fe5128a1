//! Checks paths of nodes and mounts in a container's /dev.

use std::path::{Component, Path, PathBuf};

use super::ViolationReason::{InvalidFormat, NotUtf8, Reserved, TooMany};
use super::{FieldFault, check_path, shorten};
use crate::limits::DEVICE_DEPTH_MAX;
use crate::placement::{GENERATIONS_DIR, STEPS_DIR};

/// Entries in the /dev of every container.
const OF_DEV: [&str; 16] = [
    "console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
    "tty", "urandom", "zero",
];

/// Checks the path of a device node in a container.
///
/// # Errors
/// Returns an error if the path is not below /dev, is nested too deeply, or exists in the /dev of every container.
pub fn check_device_path(path: &Path) -> Result<(), FieldFault> {
    let below = below_dev(path)?;
    let shown = shorten(&path.display().to_string());
    let first = below.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let first = first.unwrap_or_default();
    let own = [GENERATIONS_DIR, STEPS_DIR].iter().any(|own| path.starts_with(own));
    if own || OF_DEV.contains(&&*first) {
        return Err(Reserved.because(format!("`{shown}` is already in the /dev of every container")));
    }
    if below.components().count() > DEVICE_DEPTH_MAX {
        let why = format!("`{shown}` has too many directories: at most {DEVICE_DEPTH_MAX} names below /dev");
        return Err(TooMany.because(why));
    }
    Ok(())
}

/// Returns the part of a path below /dev.
pub(super) fn below_dev(path: &Path) -> Result<&Path, FieldFault> {
    let text = path.to_str().ok_or_else(|| NotUtf8.because("is not UTF-8"))?;
    check_path(text)?;
    let shown = shorten(text);
    let below = path.strip_prefix("/dev").ok().filter(|below| !below.as_os_str().is_empty());
    let below = below.ok_or_else(|| InvalidFormat.because(format!("`{shown}` is not below /dev")))?;
    let normal: PathBuf = below.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    if Path::new("/dev").join(normal).as_os_str() != path.as_os_str() {
        let why = format!("`{shown}` is not valid: it must not contain `.` or `//`, or end with `/`");
        return Err(InvalidFormat.because(why));
    }
    Ok(below)
}
