//! Assembles the root file system of a pod: an empty tmpfs with mount points. A pod runs no program.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::lchown;
use std::path::Path;

use executor_core::plan::POD_VOLUMES;
use executor_sys::mount::{attach, detached, open_dir};
use rustix::mount::MountAttrFlags;

use crate::ids::Ids;

/// Assembles the root at `at`.
pub(super) fn assemble(at: &Path, ids: &Ids) -> io::Result<()> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let options = [("mode", Some("0755")), ("size", Some("64k")), ("nr_inodes", Some("256"))];
    let tree = detached("tmpfs", "executor-pod", &options, flags)?;
    attach(tree.as_fd(), open_dir(at)?.as_fd())?;
    let volumes = POD_VOLUMES.trim_start_matches('/');
    for path in [at.to_owned(), at.join("dev"), at.join("proc"), at.join("sys"), at.join(volumes)] {
        if path != at {
            fs::create_dir(&path)?;
        }
        lchown(&path, Some(ids.map().to_host(0)), Some(ids.map().to_host(0)))?;
    }
    Ok(())
}
