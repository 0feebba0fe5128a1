//! Computes the mount points for one process's files in an action tree.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Content, MountPoint};
use crate::plan::PlannedFile;

/// Mount point of secret files of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepMount {
    /// Mount point, whose content refers to the process's own files by index.
    pub point: MountPoint,
    /// Symbolic links to the container's files that this mount would hide. Each entry is the link's path, relative to
    /// the mount point, and the path that it points to.
    pub links: Vec<(PathBuf, PathBuf)>,
}

/// Returns the mount points that one process of an action tree needs for its own files. `own` holds the container's
/// files. `beside` holds the mount points computed for the list of the container's files followed by the process's
/// files. Mount points without a file of the process are dropped. A mount that would hide files of the container gets
/// links to those files.
///
/// # Errors
/// Returns the path of a file of the container if no link can reach the file.
pub fn for_step(
    own: &[PlannedFile],
    own_mounts: &[MountPoint],
    beside: Vec<MountPoint>,
) -> Result<Vec<StepMount>, PathBuf> {
    let mut mounts = Vec::new();
    for MountPoint { target, content, in_fresh_mount } in beside {
        let (content, links) = match content {
            Content::File(index) if index < own.len() => continue,
            Content::File(index) => (Content::File(index - own.len()), Vec::new()),
            Content::Directory(files) => {
                let (hidden, shown): (Vec<_>, Vec<_>) = files.into_iter().partition(|(index, _)| *index < own.len());
                if shown.is_empty() {
                    continue;
                }
                let link = |(index, path): (usize, PathBuf)| {
                    let text = link_to(index, own_mounts).ok_or_else(|| own[index].path.clone())?;
                    Ok((path, text))
                };
                let links = hidden.into_iter().map(link).collect::<Result<_, PathBuf>>()?;
                (Content::Directory(shown.into_iter().map(|(index, path)| (index - own.len(), path)).collect()), links)
            }
        };
        mounts.push(StepMount { point: MountPoint { target, content, in_fresh_mount }, links });
    }
    Ok(mounts)
}

/// Returns the target of a link to a file in a mounted directory of the container; `None` if the file is mounted by
/// itself.
fn link_to(file: usize, mounts: &[MountPoint]) -> Option<PathBuf> {
    mounts.iter().enumerate().find_map(|(number, mount)| match &mount.content {
        Content::File(_) => None,
        Content::Directory(files) => {
            let (_, path) = files.iter().find(|(index, _)| *index == file)?;
            Some(mount.link(number, path))
        }
    })
}
