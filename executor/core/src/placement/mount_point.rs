//! Describes mount points of secret files, and computes the links to the current generation.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::limits::PATH_MAX;
use crate::plan::Layout;

/// Directory in the container with the generations of its secret files. The directory is in /dev, which is new in every
/// container and cannot contain files of a request.
pub const GENERATIONS_DIR: &str = "/dev/executor-files";
/// Directory in the container for the mounts that hold the secrets of steps in an action tree, or a kept environment.
/// An empty directory is mounted on top and hides the secrets.
pub const STEPS_DIR: &str = "/dev/executor-steps";
/// Link to the current generation, in the directory of a mount point's generations.
pub const IN_FORCE: &str = "..data";
/// Maximum depth of a directory for relative links. From deeper directories, the `../` prefix alone could exceed the
/// maximum path length.
const RELATIVE_DEPTH_MAX: usize = 64;

/// A mount of secret files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPoint {
    /// Absolute path of the mount point in the container.
    pub target: PathBuf,
    /// Files that the mount shows.
    pub content: Content,
    /// True if the target is on a file system that is new in each container (`/tmp`, `/run`, ...), so that the target
    /// can be created only after that file system is mounted.
    pub in_fresh_mount: bool,
}

/// Files of a mount point, as indices into the plan's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A single file, by its index.
    File(usize),
    /// A directory: the index of each file, and its path below the directory.
    Directory(Vec<(usize, PathBuf)>),
}

impl MountPoint {
    /// Returns the link of a file in the directory. The link refers to the file of the same name in the current
    /// generation. The link is relative, so that it is also valid outside of the container. If the relative target
    /// would be too long, the link is absolute.
    pub fn link(&self, number: usize, file: &Path) -> PathBuf {
        let names = |path: &Path| path.components().filter(|part| matches!(part, Component::Normal(_))).count();
        let depth = names(&self.target) + names(file) - 1;
        let below = GENERATIONS_DIR.trim_start_matches('/');
        let from = |root: &Path| -> PathBuf {
            [root, below.as_ref(), number.to_string().as_ref(), IN_FORCE.as_ref(), file].iter().collect()
        };
        let relative = from("../".repeat(depth.min(RELATIVE_DEPTH_MAX)).as_ref());
        let fits = depth <= RELATIVE_DEPTH_MAX && relative.as_os_str().len() < PATH_MAX;
        if fits { relative } else { from(Path::new("/")) }
    }

    /// Returns an error message if the link of this file would be too long.
    pub fn unfit(&self, number: usize, file: &Path) -> Option<String> {
        let length = self.link(number, file).as_os_str().len();
        (length >= PATH_MAX).then(|| {
            let (most, path) = (file.as_os_str().len() + PATH_MAX - 1 - length, file.as_os_str().len());
            format!("is {path} bytes below {}; the maximum is {most}", self.target.display())
        })
    }
}

/// Returns true if [`GENERATIONS_DIR`] is a mount point: for the generations of files in directories, or for the second
/// names of writable files.
pub fn shows_generations_dir(mounts: &[MountPoint], layout: Layout) -> bool {
    layout == Layout::Writable || mounts.iter().any(|mount| matches!(mount.content, Content::Directory(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_links_point_to_current_generation() {
        let link = |target: &str, file: &str| {
            let content = Content::Directory(Vec::new());
            MountPoint { target: target.into(), content, in_fresh_mount: false }.link(3, Path::new(file))
        };
        assert_eq!(link("/srv", "token"), Path::new("../dev/executor-files/3/..data/token"));
        assert_eq!(link("/etc/cf", "db/x/y"), Path::new("../../../../dev/executor-files/3/..data/db/x/y"));
        assert_eq!(link(&"/d".repeat(2000), "db/x"), Path::new("/dev/executor-files/3/..data/db/x"));
        let long = format!("{}/f", "d".repeat(4060));
        assert_eq!(link("/s/x", &long), Path::new("/dev/executor-files/3/..data").join(&long));
    }
}
