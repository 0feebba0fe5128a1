//! Placement of secret files: mount points in the container, and the size of their file system.
//!
//! A mount hides as little of the container as possible, so that a program can write next to a secret file. The mount
//! points are
//!
//! - a directory that is declared to hold only secret files: the directory of files with relative paths, and those of
//!   the request. If the directory exists in the rootfs, the missing entries directly below it are mounted instead
//!   (each binding by itself);
//! - a directory that is missing in the rootfs and contains a file, so that its files change in one step. Exceptions,
//!   because programs expect to write there: a home, a directory directly below the root directory (`/root`,
//!   `/home/app`, `/srv`), and a path that has a name with a leading dot (`.kube`);
//! - otherwise the single file.
//!
//! Other directories that are missing in the rootfs are created in the container's own layer. The input is a view of
//! the rootfs, the output is mount points with their contents. A path with a symbolic link is refused, because the link
//! could redirect the mount.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::limits::PATH_MAX;
use crate::plan::{Layout, PlannedFile, PlannedProcess, PlannedTransfer};
use crate::violation::Violation;
use crate::violation::ViolationReason::{TooLong, Unsuitable};

/// Type of a path in the rootfs, without following symbolic links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The path does not exist.
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

/// Directory in the container with the generations of its secret files. It is in /dev, which is fresh in every
/// container and cannot contain files of a request.
pub const GENERATIONS_DIR: &str = "/dev/executor-files";
/// Directory in the container, below an empty directory, for the mounts of the secrets of steps in a tree of actions,
/// and for an environment that is kept.
pub const STEPS_DIR: &str = "/dev/executor-steps";
/// Link to the current generation, in the directory of a mount point's generations.
pub const IN_FORCE: &str = "..data";
/// Maximum depth of a directory for relative links. From deeper directories the `../` prefix alone could exceed the
/// longest path.
const RELATIVE_DEPTH_MAX: usize = 64;

/// Access to a rootfs. A path is passed only after all of its parents were found to be directories.
pub trait RootfsView {
    /// Error of a lookup.
    type Error;
    /// Looks up `path` (absolute within the rootfs).
    ///
    /// # Errors
    /// Returns an error if the lookup failed.
    fn entry(&self, path: &Path) -> Result<Entry, Self::Error>;
}

/// A mount of secret files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPoint {
    /// Absolute path in the container.
    pub target: PathBuf,
    /// Files that the mount shows.
    pub content: Content,
    /// True if the target is on a file system that is new in each container (`/tmp`, `/run`, ...), so that the target
    /// can be created only after that file system is mounted.
    pub in_fresh_mount: bool,
}

/// Mount point of secret files of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepMount {
    /// Target, with the indices of the process's own files.
    pub point: MountPoint,
    /// Links to files of the container that the mount would hide: paths below the target, and link targets.
    pub links: Vec<(PathBuf, PathBuf)>,
}

/// Files of a mount point, as indices into the plan's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A single file, by its index.
    File(usize),
    /// A directory: each file with its path below it.
    Directory(Vec<(usize, PathBuf)>),
}

impl MountPoint {
    /// Returns the link of a file in the directory: to the file of the same name in the current generation. The link is
    /// relative, so that it is also valid outside of the container; it is absolute if the relative target would be too
    /// long.
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

    /// Returns an error text if the link of this file would be too long.
    pub fn unfit(&self, number: usize, file: &Path) -> Option<String> {
        let length = self.link(number, file).as_os_str().len();
        (length >= PATH_MAX).then(|| {
            let (most, path) = (file.as_os_str().len() + PATH_MAX - 1 - length, file.as_os_str().len());
            format!("has {path} bytes below {}; at most {most}", self.target.display())
        })
    }
}

/// Returns the mount points that one process of a tree of actions needs for its own files. `own` are the container's
/// files. `beside` are the mount points of the container's files followed by the process's files; of these, the mount
/// points with a file of the process are returned. Files of the container that a mount would hide become links to their
/// original place.
///
/// # Errors
/// Returns the path of a file of the container that no link can reach.
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

/// Returns the target of the link to a file in a directory of the container.
fn link_to(file: usize, mounts: &[MountPoint]) -> Option<PathBuf> {
    mounts.iter().enumerate().find_map(|(number, mount)| match &mount.content {
        Content::File(_) => None,
        Content::Directory(files) => {
            let (_, path) = files.iter().find(|(index, _)| *index == file)?;
            Some(mount.link(number, path))
        }
    })
}

/// Returns true if [`GENERATIONS_DIR`] is a mount: of the generations of files in directories, or of the second names of
/// writable files.
pub fn shows_generations_dir(mounts: &[MountPoint], layout: Layout) -> bool {
    layout == Layout::Writable || mounts.iter().any(|mount| matches!(mount.content, Content::Directory(_)))
}

/// Error of files that cannot be placed.
#[derive(Debug, PartialEq, Eq)]
pub enum PlacementError<E> {
    /// The rootfs does not fit the request; holds every violation.
    Violations(Vec<Violation>),
    /// A lookup in the rootfs failed.
    View(PathBuf, E),
}

/// Files to be placed.
#[derive(Clone, Copy, Debug)]
pub struct PlacementRequest<'a> {
    /// Files of the plan.
    pub files: &'a [PlannedFile],
    /// Directories that the request declares to hold only such files.
    pub directories: &'a [PathBuf],
    /// Directory of files with relative paths. It is treated like `directories` if a file is below it.
    pub files_root: &'a Path,
    /// Mount points of the pod's volumes. Their content is shared by the members and must not be hidden: a directory in
    /// them becomes a mount point only if it is one of `directories`.
    pub shared: &'a [PathBuf],
    /// Home of the process's user.
    pub home: &'a Path,
    /// Layout of the files in their file system.
    pub layout: Layout,
}

impl PlacementRequest<'_> {
    /// Returns true if programs expect to write in the directory, or in one below it. With writable files, programs can
    /// write in a directory with a dotted name anyway.
    fn must_stay_writable(&self, directory: &Path) -> bool {
        let parent = directory.parent().unwrap_or(directory);
        let dotted = self.layout == Layout::Generations
            && directory.iter().any(|name| name.as_encoded_bytes().starts_with(b"."));
        parent.parent().is_none() || parent == Path::new("/home") || self.home.starts_with(directory) || dotted
    }
}

/// Places every file. `fresh` are the mount points of file systems that are empty in a new container.
///
/// # Errors
/// Returns a [`PlacementError`].
pub fn place<V: RootfsView>(
    asked: PlacementRequest<'_>,
    fresh: &[PathBuf],
    view: &V,
) -> Result<Vec<MountPoint>, PlacementError<V::Error>> {
    let PlacementRequest { files, directories, files_root, shared, home: _, layout } = asked;
    let fresh = &[fresh, shared].concat();
    let look = ConflictSearch { fresh, view };
    let mut violations = Vec::new();
    // Directories that may become mount points. If directories are nested, the outermost is used.
    let mut own: BTreeSet<PathBuf> = BTreeSet::new();
    for (index, directory) in directories.iter().enumerate() {
        match look.first_missing(directory, directory)? {
            Ok(missing) => own.extend(missing.map(|_| directory.clone())),
            Err(why) => violations.push(Violation::new(format!("file_directories[{index}]"), Unsuitable.because(why))),
        }
    }
    let mut ways = Vec::with_capacity(files.len());
    for file in files {
        match look.way(&file.path)? {
            Err(why) => violations.push(Violation::new(file.path_field(), Unsuitable.because(why))),
            Ok(missing) => ways.push(missing),
        }
    }
    if !violations.is_empty() {
        return Err(PlacementError::Violations(violations));
    }
    for (file, missing) in files.iter().zip(&ways) {
        let (Some(missing), Some(parent)) = (missing, file.path.parent()) else { continue };
        let mut roots = directories.iter().map(PathBuf::as_path).chain([files_root]);
        match roots.find(|root| parent.starts_with(root)) {
            // The directory is missing, or the missing part is below it.
            Some(root) => drop(own.insert(if root.starts_with(missing) { root } else { missing }.to_owned())),
            None if asked.must_stay_writable(parent) || is_in(shared, parent) => {}
            None => drop(own.insert(parent.to_owned())),
        }
    }

    let outermost = |path: &Path| path.ancestors().filter(|above| own.contains(*above)).last().map(Path::to_owned);
    let point = |target: PathBuf, content| {
        let in_fresh_mount = is_in(fresh, &target);
        MountPoint { target, content, in_fresh_mount }
    };
    let mut points: BTreeMap<PathBuf, MountPoint> = BTreeMap::new();
    for target in directories.iter().filter_map(|directory| outermost(directory)) {
        points.entry(target.clone()).or_insert_with(|| point(target, Content::Directory(Vec::new())));
    }
    for (index, (file, missing)) in files.iter().zip(&ways).enumerate() {
        let target = missing.as_ref().and_then(|_| outermost(&file.path));
        let Some(target) = target else {
            points.insert(file.path.clone(), point(file.path.clone(), Content::File(index)));
            continue;
        };
        let below = file.path.strip_prefix(&target).unwrap_or(&file.path).to_owned();
        let point = points.entry(target.clone()).or_insert_with(|| point(target, Content::Directory(Vec::new())));
        if let Content::Directory(list) = &mut point.content {
            list.push((index, below));
        }
    }
    let points: Vec<MountPoint> = points.into_values().collect();
    // Files of a writable directory are not links.
    for (number, point) in points.iter().enumerate().filter(|_| layout == Layout::Generations) {
        if let Content::Directory(list) = &point.content {
            let unfit = list.iter().filter_map(|(index, below)| Some((*index, point.unfit(number, below)?)));
            violations
                .extend(unfit.map(|(index, why)| Violation::new(files[index].path_field(), TooLong.because(why))));
        }
    }
    if violations.is_empty() { Ok(points) } else { Err(PlacementError::Violations(violations)) }
}

fn is_in(mounts: &[PathBuf], path: &Path) -> bool {
    mounts.iter().any(|mount| path.starts_with(mount))
}

/// Returns the mount point of a file that is mounted by itself, regardless of missing parents; or the reason why it
/// cannot be there.
///
/// # Errors
/// Returns an error if a lookup in the rootfs failed.
pub fn place_file<V: RootfsView>(
    path: &Path,
    fresh: &[PathBuf],
    view: &V,
) -> Result<Result<MountPoint, String>, (PathBuf, V::Error)> {
    let in_dev = path.starts_with("/dev"); // fresh in every container
    let way = if in_dev { Ok(Ok(None)) } else { ConflictSearch { fresh, view }.way(path) };
    match way {
        Ok(Err(why)) => Ok(Err(why)),
        Ok(Ok(_)) => {
            let in_fresh_mount = in_dev || fresh.iter().any(|mount| path.starts_with(mount));
            Ok(Ok(MountPoint { target: path.to_owned(), content: Content::File(0), in_fresh_mount }))
        }
        Err(PlacementError::View(path, error)) => Err((path, error)),
        Err(PlacementError::Violations(violations)) => {
            Ok(Err(violations.first().map(|violation| violation.description.clone()).unwrap_or_default()))
        }
    }
}

/// Searches the future tree of a container for conflicts.
struct ConflictSearch<'a, V> {
    fresh: &'a [PathBuf],
    view: &'a V,
}

impl<V: RootfsView> ConflictSearch<'_, V> {
    fn entry(&self, at: &Path) -> Result<Entry, PlacementError<V::Error>> {
        self.view.entry(at).map_err(|error| PlacementError::View(at.to_owned(), error))
    }

    fn is_fresh(&self, path: &Path) -> bool {
        self.fresh.iter().any(|mount| mount == path)
    }

    /// Returns the first missing directory of the path `directory`, itself included; `None` if all exist. The
    /// inner error says why `path`, which is below it, cannot be there.
    fn first_missing(
        &self,
        directory: &Path,
        path: &Path,
    ) -> Result<Result<Option<PathBuf>, String>, PlacementError<V::Error>> {
        let mut prefixes: Vec<&Path> = directory.ancestors().filter(|prefix| prefix.parent().is_some()).collect();
        prefixes.reverse();
        for prefix in prefixes {
            if self.is_fresh(prefix) {
                continue; // always a directory, regardless of the rootfs
            }
            if self.fresh.iter().any(|mount| prefix.starts_with(mount)) {
                return Ok(Ok(Some(prefix.to_owned())));
            }
            match self.entry(prefix)? {
                Entry::Directory => {}
                Entry::Missing => return Ok(Ok(Some(prefix.to_owned()))),
                Entry::Symlink => {
                    let why = format!("`{}`: {} is a symbolic link in the rootfs", path.display(), prefix.display());
                    return Ok(Err(why));
                }
                Entry::File | Entry::Special => {
                    let why = format!("`{}`: {} is not a directory in the rootfs", path.display(), prefix.display());
                    return Ok(Err(why));
                }
            }
        }
        Ok(Ok(None))
    }

    /// Returns the first missing directory above a file; `None` if the file is mounted by itself.
    fn way(&self, path: &Path) -> Result<Result<Option<PathBuf>, String>, PlacementError<V::Error>> {
        let Some(parent) = path.parent() else { return Ok(Err(format!("`{}` is the root directory", path.display()))) };
        match self.first_missing(parent, path)? {
            Ok(None) => {}
            missing => return Ok(missing),
        }
        if self.is_fresh(path) {
            return Ok(Err(format!("`{}` is a directory of the container", path.display())));
        }
        if self.fresh.iter().any(|mount| path.starts_with(mount)) {
            return Ok(Ok(None));
        }
        let shown = path.display();
        Ok(match self.entry(path)? {
            Entry::Missing | Entry::File => Ok(None),
            Entry::Symlink => Err(format!("`{shown}`: {shown} is a symbolic link in the rootfs")),
            Entry::Directory => Err(format!("`{shown}` is a directory in the rootfs")),
            Entry::Special => Err(format!("`{shown}` is a device, a socket or a pipe in the rootfs")),
        })
    }
}

/// Size of the secret file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSize {
    /// Size in bytes, a multiple of the page size.
    pub bytes: u64,
    /// Number of files, directories and links.
    pub inodes: u64,
}

impl VolumeSize {
    /// Adds room for one more file of this size, in a separate directory.
    #[must_use]
    pub fn and_a_file_of(self, bytes: u64, page: u64) -> Self {
        Self { bytes: self.bytes + bytes.div_ceil(page).max(1) * page, inodes: self.inodes + 2 }
    }
}

/// Returns the size for all contents twice (an old and a new generation during a rotation; or the current and the
/// original content of writable files) plus slack. The size is counted in pages: 90,000 files of one byte are within a
/// byte limit of 1 MB, but need 355 MiB. The links to a generation have the same structure as the generation.
pub fn volume_size(files: &[PlannedFile], page: u64) -> VolumeSize {
    let VolumeSize { bytes, inodes } = content_size(files, page);
    // A long link target needs a page. Each file may have one long link, and a second one while the link is replaced.
    VolumeSize { bytes: 2 * bytes + (16 + 2 * files.len() as u64) * page, inodes: 4 * inodes + 64 }
}

/// Returns the size that the steps of a tree of actions need: files, payloads, URLs, and links to the container's own
/// files.
pub fn steps_size(
    (processes, transfers): (&[PlannedProcess], &[PlannedTransfer]),
    payloads: u64,
    own_files: usize,
    page: u64,
) -> VolumeSize {
    // Each transfer has a directory with its URL.
    let urls = transfers.len() as u64;
    let mut size = VolumeSize { bytes: payloads + (4 + 2 * urls) * page, inodes: 8 + 4 * urls };
    for process in processes {
        let VolumeSize { bytes, inodes } = content_size(&process.files, page);
        let links = if process.files.is_empty() { 0 } else { own_files as u64 };
        size.bytes += bytes + (4 + links) * page;
        // Each link may need separate directories.
        size.inodes += inodes + 8 + 4 * links;
    }
    size
}

/// Returns the size of one generation: pages, files and directories, without the links to it.
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
        let file = |(i, path): (usize, &&str)| PlannedFile::private(path, 1, format!("f[{i}]"));
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

    fn placed(paths: &[&str], directories: &[&str]) -> Vec<(String, Vec<String>)> {
        let directories: Vec<PathBuf> = directories.iter().map(PathBuf::from).collect();
        let points = place(asked(&planned(paths), &directories), &fresh(), &tree()).unwrap();
        let name = |index: usize, below: &Path| format!("{} = {}", below.display(), paths[index]);
        let files = |content: &Content| match content {
            Content::File(index) => vec![paths[*index].to_owned()],
            Content::Directory(files) => files.iter().map(|(index, below)| name(*index, below)).collect(),
        };
        points.iter().map(|point| (point.target.display().to_string(), files(&point.content))).collect()
    }

    fn asked<'a>(files: &'a [PlannedFile], directories: &'a [PathBuf]) -> PlacementRequest<'a> {
        let (files_root, home) = (Path::new("/etc/cf"), Path::new("/var/lib/me"));
        PlacementRequest { files, directories, files_root, shared: &[], home, layout: Layout::Generations }
    }

    #[test]
    fn volume_of_pod_shows_declared_directories_and_files() {
        let files = planned(&["/data/conf/a", "/data/conf/b", "/data/x/key", "/data/key"]);
        let (directories, shared) = (["/data/conf".into()], ["/data".into()]);
        let asked = PlacementRequest { shared: &shared, ..asked(&files, &directories) };
        let points = place(asked, &fresh(), &tree()).unwrap();
        let shown: Vec<_> = points
            .iter()
            .map(|point| {
                (point.target.to_str().unwrap(), matches!(point.content, Content::Directory(_)), point.in_fresh_mount)
            })
            .collect();
        assert_eq!(shown, [("/data/conf", true, true), ("/data/key", false, true), ("/data/x/key", false, true)]);
    }

    #[test]
    fn what_lies_around_a_file_is_the_containers_own() {
        type Row<'a> = (&'a [&'a str], &'a [&'a str], &'a [(&'a str, &'a [&'a str])]);
        let table: [Row<'_>; 11] = [
            // The root of relative paths is one mount, even with few files.
            (&["/etc/cf/a/user"], &[], &[("/etc/cf", &["a/user = /etc/cf/a/user"])]),
            // The file is mounted by itself: no directory above it exists, and none is hidden.
            (&["/root/.kube/config"], &[], &[("/root/.kube/config", &["/root/.kube/config"])]),
            (&["/etc/passwd", "/etc/new"], &[], &[("/etc/new", &["/etc/new"]), ("/etc/passwd", &["/etc/passwd"])]),
            // Files of one missing directory change together.
            (
                &["/srv/db/user", "/srv/db/pw", "/srv/db/tls/key", "/srv/key"],
                &[],
                &[
                    ("/srv/db", &["user = /srv/db/user", "pw = /srv/db/pw", "tls/key = /srv/db/tls/key"]),
                    ("/srv/key", &["/srv/key"]),
                ],
            ),
            (&["/srv/a/x", "/srv/b/x"], &[], &[("/srv/a", &["x = /srv/a/x"]), ("/srv/b", &["x = /srv/b/x"])]),
            (&["/run/c/a/x/y", "/run/c/m"], &[], &[("/run/c", &["a/x/y = /run/c/a/x/y", "m = /run/c/m"])]),
            // A home is never a mount.
            (
                &["/root/.a", "/root/.k/c", "/home/u/.a", "/home/u/.b"],
                &[],
                &[
                    ("/home/u/.a", &["/home/u/.a"]),
                    ("/home/u/.b", &["/home/u/.b"]),
                    ("/root/.a", &["/root/.a"]),
                    ("/root/.k/c", &["/root/.k/c"]),
                ],
            ),
            (
                &["/var/lib/me/a", "/var/lib/me/b"],
                &[],
                &[("/var/lib/me/a", &["/var/lib/me/a"]), ("/var/lib/me/b", &["/var/lib/me/b"])],
            ),
            // Declared directories are mounted as they are: the outermost of nested ones, and also an empty one.
            (
                &["/srv/b/db/type"],
                &["/srv/b", "/srv/b/db", "/srv/none"],
                &[("/srv/b", &["db/type = /srv/b/db/type"]), ("/srv/none", &[])],
            ),
            // The declared directory exists: the missing entries directly below it are mounted.
            (&["/opt/db/type", "/opt/x"], &["/opt"], &[("/opt/db", &["type = /opt/db/type"]), ("/opt/x", &["/opt/x"])]),
            (&["/run/b/type"], &["/run"], &[("/run/b", &["type = /run/b/type"])]),
        ];
        for (paths, directories, expected) in table {
            let expected: Vec<(String, Vec<String>)> = expected
                .iter()
                .map(|(target, files)| ((*target).to_owned(), files.iter().map(|file| (*file).to_owned()).collect()))
                .collect();
            assert_eq!(placed(paths, directories), expected, "{paths:?} {directories:?}");
        }
    }

    /// Mounting a whole directory is harmless if the process may write to it, but a home holds more than files.
    #[test]
    fn writable_files_of_a_dotted_directory_are_mounted_with_it() {
        let files =
            planned(&["/root/.kube/config", "/root/.token", "/home/u/.aws/x", "/var/lib/me/.netrc", "/etc/cf/a"]);
        let points =
            place(PlacementRequest { layout: Layout::Writable, ..asked(&files, &[]) }, &fresh(), &tree()).unwrap();
        let targets: Vec<_> = points.iter().map(|point| point.target.to_str().unwrap()).collect();
        assert_eq!(targets, ["/etc/cf", "/home/u/.aws", "/root/.kube", "/root/.token", "/var/lib/me/.netrc"]);
        // The file is reached without a link, so no link can be too long.
        let path = format!("/etc/cf/{}f", "d/".repeat(2035));
        let files = planned(&[&path]);
        place(PlacementRequest { layout: Layout::Writable, ..asked(&files, &[]) }, &fresh(), &tree()).unwrap();
    }

    #[test]
    fn fresh_mounts_are_empty_directories() {
        let files = planned(&["/run/secrets/a", "/run/secrets/b", "/tmp/f"]);
        let points = place(asked(&files, &[]), &fresh(), &tree()).unwrap();
        assert_eq!(points[0].target, Path::new("/run/secrets"));
        assert!(points.iter().all(|p| p.in_fresh_mount));
        assert_eq!(points[1].content, Content::File(2));
    }

    #[test]
    fn a_link_that_would_be_too_long_is_reported() {
        let path = format!("/etc/cf/{}f", "d/".repeat(2035));
        let Err(PlacementError::Violations(violations)) = place(asked(&planned(&[&path]), &[]), &fresh(), &tree())
        else {
            panic!("placed");
        };
        assert!(violations[0].description.contains("below /etc/cf; at most 4066"), "{}", violations[0]);
    }

    /// No path to a mount point may contain a symbolic link; the error names the link.
    #[test]
    fn links_and_things_in_the_way_are_refused_all_at_once() {
        let paths = ["/bin/x", "/etc/mtab", "/etc/passwd/x", "/opt", "/opt/pipe", "/opt/pipe/x", "/tmp"];
        let directories = ["/bin/x".into()];
        let placed = place(asked(&planned(&paths), &directories), &fresh(), &tree());
        let Err(PlacementError::Violations(violations)) = placed else { panic!("placed") };
        assert_eq!(violations.len(), 1 + paths.len());
        assert!(violations[1].description.contains("/bin is a symbolic link"), "{}", violations[1]);
        assert_eq!((&*violations[0].field, &*violations[1].field), ("file_directories[0]", "f[0].path"));
    }

    #[test]
    fn files_lead_to_the_generation_in_force_wherever_they_are() {
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

    #[test]
    fn size_counts_pages() {
        let many: Vec<_> = (0..90_000).map(|i| PlannedFile::private(format!("/s/{i}"), 1, "")).collect();
        assert!(volume_size(&many, 4096).bytes >= 355 << 20);
        assert!(volume_size(&many, 4096).inodes > 180_000);
        let one = [PlannedFile::private("/s/a", 4097, "")];
        assert_eq!(volume_size(&one, 4096).bytes, (2 * 2 + 16 + 2) * 4096);
    }
}
