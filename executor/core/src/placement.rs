//! Where in a container the secret files are mounted, and how large their file system is.
//!
//! The rule (DESIGN 4): the mount point is the shallowest directory on the path that the rootfs lacks; where
//! all parents exist, the one file is mounted. In goes a view of the rootfs, out come mount points and what
//! lies in each; a symbolic link anywhere on the way is refused, because it could lead the mount elsewhere.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::PlannedFile;
use crate::validate::Violation;

/// What stands at a path of the rootfs, symbolic links not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    Missing,
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Special,
}

/// Where the directories of a container's secret files have their generations, in the container. It lies in /dev, which
/// every container gets fresh, whatever its rootfs has, and where no file of a request may be.
pub const GENERATIONS_DIR: &str = "/dev/executor-files";
/// The link, in the directory of a mount point's generations, to the one in force.
pub const IN_FORCE: &str = "..data";
/// A link's text is made relative up to here; the way up from deeper directories alone could be longer than a path.
const RELATIVE_DEPTH_MAX: usize = 64;

/// Looks at a rootfs. Asked for a path only after all its parents were said to be directories.
pub trait RootfsView {
    /// The error of a look.
    type Error;
    /// What stands at `path` (absolute within the rootfs).
    ///
    /// # Errors
    /// The look itself failed.
    fn entry(&self, path: &Path) -> Result<Entry, Self::Error>;
}

/// One mount of secret files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPoint {
    /// Absolute, in the container.
    pub target: PathBuf,
    /// What is mounted there.
    pub content: Content,
    /// The target lies on a file system that the container gets fresh (`/tmp`, `/run`, ...), so that it can be
    /// made only once that is mounted.
    pub in_fresh_mount: bool,
}

/// What a mount point shows. Numbers are indices into the plan's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A single file.
    File(usize),
    /// A directory: each file with its path below it.
    Directory(Vec<(usize, PathBuf)>),
}

impl MountPoint {
    /// What an entry of the directory leads to: its namesake in the generation in force. Relative, so that it means the same
    /// to whoever looks at the container from outside.
    pub fn link(&self, number: usize, entry: &Path) -> PathBuf {
        let depth = self.target.components().filter(|part| matches!(part, Component::Normal(_))).count();
        let root = if depth > RELATIVE_DEPTH_MAX { PathBuf::from("/") } else { "../".repeat(depth).into() };
        let below = GENERATIONS_DIR.trim_start_matches('/');
        [root.as_path(), below.as_ref(), number.to_string().as_ref(), IN_FORCE.as_ref(), entry].iter().collect()
    }
}

/// Whether files lie in directories, which have generations.
pub fn has_generations(mounts: &[MountPoint]) -> bool {
    mounts.iter().any(|mount| matches!(mount.content, Content::Directory(_)))
}

/// Why files cannot be placed.
#[derive(Debug, PartialEq, Eq)]
pub enum PlacementError<E> {
    /// The rootfs does not fit the request: every violation.
    Violations(Vec<Violation>),
    /// A look at the rootfs failed.
    View(PathBuf, E),
}

/// Places every file. `fresh` are the mount points of file systems that the container gets empty.
///
/// # Errors
/// See [`PlacementError`].
pub fn place<V: RootfsView>(
    files: &[PlannedFile],
    fresh: &[PathBuf],
    view: &V,
) -> Result<Vec<MountPoint>, PlacementError<V::Error>> {
    let mut violations = Vec::new();
    let mut points: BTreeMap<PathBuf, MountPoint> = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        match target(&file.path, fresh, view)? {
            Ok((target, in_fresh_mount)) => {
                let below = file.path.strip_prefix(&target).ok().filter(|rest| !rest.as_os_str().is_empty());
                let empty = || match below {
                    None => Content::File(index),
                    Some(_) => Content::Directory(Vec::new()),
                };
                let point = points.entry(target.clone()).or_insert_with(|| MountPoint {
                    target,
                    content: empty(),
                    in_fresh_mount,
                });
                if let (Content::Directory(list), Some(below)) = (&mut point.content, below) {
                    list.push((index, below.to_owned()));
                }
            }
            Err(why) => violations.push(Violation::new(file.path_field(), why)),
        }
    }
    if violations.is_empty() { Ok(points.into_values().collect()) } else { Err(PlacementError::Violations(violations)) }
}

type Target = Result<(PathBuf, bool), String>;

/// The mount point for one path, and whether it lies on a fresh file system.
fn target<V: RootfsView>(path: &Path, fresh: &[PathBuf], view: &V) -> Result<Target, PlacementError<V::Error>> {
    let look = |at: &Path| view.entry(at).map_err(|error| PlacementError::View(at.to_owned(), error));
    let mut prefixes: Vec<&Path> = path.ancestors().collect();
    prefixes.pop(); // the root itself
    prefixes.reverse();
    for prefix in &prefixes {
        let last = *prefix == path;
        if fresh.iter().any(|mount| mount == prefix) {
            if last {
                return Ok(Err(format!("`{}` is a directory of the container", path.display())));
            }
            continue; // a directory, whatever the rootfs has there
        }
        if fresh.iter().any(|mount| prefix.starts_with(mount)) {
            return Ok(Ok((prefix.to_path_buf(), true)));
        }
        match (look(prefix)?, last) {
            (Entry::Directory, false) => {}
            (Entry::Missing, _) | (Entry::File, true) => return Ok(Ok((prefix.to_path_buf(), false))),
            (Entry::Symlink, _) => {
                return Ok(Err(format!("`{}`: {} is a symbolic link in the rootfs", path.display(), prefix.display())));
            }
            (Entry::Directory, true) => return Ok(Err(format!("`{}` is a directory in the rootfs", path.display()))),
            (Entry::Special, true) => {
                return Ok(Err(format!("`{}` is neither a file nor absent in the rootfs", path.display())));
            }
            (Entry::File | Entry::Special, false) => {
                return Ok(Err(format!("`{}`: {} is no directory in the rootfs", path.display(), prefix.display())));
            }
        }
    }
    Ok(Err(format!("`{}` is the root directory", path.display())))
}

/// How large the secret file system is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSize {
    /// Bytes, a multiple of the page size.
    pub bytes: u64,
    /// Files, directories, links.
    pub inodes: u64,
}

impl VolumeSize {
    /// The same with room for one more file of so many bytes, in a directory of its own.
    #[must_use]
    pub fn and_a_file_of(self, bytes: u64, page: u64) -> Self {
        Self { bytes: self.bytes + bytes.div_ceil(page).max(1) * page, inodes: self.inodes + 2 }
    }
}

/// Content twice over (an old and a new generation during a rotation) plus slack, counted in pages: 90,000
/// files of one byte fit a byte limit of 1 MB and need 355 MiB.
pub fn volume_size(files: &[PlannedFile], page: u64) -> VolumeSize {
    let VolumeSize { bytes, inodes } = content_size(files, page);
    // A link with a long text takes a page, and each file may have one.
    VolumeSize { bytes: 2 * bytes + (16 + files.len() as u64) * page, inodes: 2 * inodes + 3 * files.len() as u64 + 64 }
}

/// One generation of files: pages, files and directories, without the links that lead to it.
pub fn content_size(files: &[PlannedFile], page: u64) -> VolumeSize {
    let pages: u64 = files.iter().map(|file| file.size.div_ceil(page).max(1)).sum();
    let directories: u64 = files.iter().map(|file| file.path.components().count() as u64).sum();
    VolumeSize { bytes: pages * page, inodes: files.len() as u64 + directories }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(Vec<(&'static str, Entry)>);

    impl RootfsView for Tree {
        type Error = ();
        fn entry(&self, path: &Path) -> Result<Entry, ()> {
            Ok(self.0.iter().find(|(p, _)| Path::new(p) == path).map_or(Entry::Missing, |(_, entry)| *entry))
        }
    }

    fn planned(paths: &[&str]) -> Vec<PlannedFile> {
        let file = |(i, path): (usize, &&str)| PlannedFile {
            path: path.into(),
            size: 1,
            field: format!("f[{i}]"),
            public: false,
            token: false,
        };
        paths.iter().enumerate().map(file).collect()
    }

    fn tree() -> Tree {
        use Entry::{Directory, File, Special, Symlink};
        Tree(vec![
            ("/etc", Directory),
            ("/etc/passwd", File),
            ("/etc/mtab", Symlink),
            ("/bin", Symlink),
            ("/opt", Directory),
            ("/opt/pipe", Special),
        ])
    }

    fn fresh() -> Vec<PathBuf> {
        vec!["/tmp".into(), "/run".into()]
    }

    #[test]
    fn the_shallowest_missing_directory_is_the_mount_point() {
        let points = place(&planned(&["/etc/cf/a/user", "/etc/cf/b", "/srv/x/y"]), &fresh(), &tree()).unwrap();
        assert_eq!(points.len(), 2);
        assert_eq!(points[0].target, Path::new("/etc/cf"));
        assert_eq!(points[0].content, Content::Directory(vec![(0, "a/user".into()), (1, "b".into())]));
        assert_eq!(points[1].target, Path::new("/srv"));
    }

    #[test]
    fn where_all_parents_exist_the_one_file_is_mounted() {
        let points = place(&planned(&["/etc/passwd", "/etc/new", "/x"]), &fresh(), &tree()).unwrap();
        let contents: Vec<_> = points.iter().map(|p| (p.target.to_str().unwrap(), &p.content)).collect();
        assert_eq!(
            contents,
            [("/etc/new", &Content::File(1)), ("/etc/passwd", &Content::File(0)), ("/x", &Content::File(2))]
        );
    }

    #[test]
    fn fresh_mounts_are_empty_directories() {
        let points = place(&planned(&["/run/secrets/a", "/tmp/f"]), &fresh(), &tree()).unwrap();
        assert_eq!(points[0].target, Path::new("/run/secrets"));
        assert!(points.iter().all(|p| p.in_fresh_mount));
        assert_eq!(points[1].content, Content::File(1));
    }

    /// DESIGN 4: the way to a mount point has no symbolic link; a path through one is refused, by name.
    #[test]
    fn links_and_things_in_the_way_are_refused_all_at_once() {
        let paths = ["/bin/x", "/etc/mtab", "/etc/passwd/x", "/opt", "/opt/pipe", "/opt/pipe/x", "/tmp"];
        let Err(PlacementError::Violations(violations)) = place(&planned(&paths), &fresh(), &tree()) else {
            panic!("placed");
        };
        assert_eq!(violations.len(), paths.len());
        assert!(violations[0].description.contains("/bin is a symbolic link"), "{}", violations[0]);
        assert_eq!(violations[0].field, "f[0].path");
    }

    #[test]
    fn entries_lead_to_the_generation_in_force_wherever_they_are() {
        let link = |target: &str| {
            let content = Content::Directory(Vec::new());
            MountPoint { target: target.into(), content, in_fresh_mount: false }.link(3, Path::new("db"))
        };
        assert_eq!(link("/srv"), Path::new("../dev/executor-files/3/..data/db"));
        assert_eq!(link("/etc/cf/x"), Path::new("../../../dev/executor-files/3/..data/db"));
        assert_eq!(link(&"/d".repeat(2000)), Path::new("/dev/executor-files/3/..data/db"));
    }

    #[test]
    fn size_counts_pages() {
        let many: Vec<_> = (0..90_000)
            .map(|i| PlannedFile {
                path: format!("/s/{i}").into(),
                size: 1,
                field: String::new(),
                public: false,
                token: false,
            })
            .collect();
        assert!(volume_size(&many, 4096).bytes >= 355 << 20);
        assert!(volume_size(&many, 4096).inodes > 180_000);
        let one = [PlannedFile { path: "/s/a".into(), size: 4097, field: String::new(), public: false, token: false }];
        assert_eq!(volume_size(&one, 4096).bytes, (2 * 2 + 16 + 1) * 4096);
    }
}
