//! Computes the mount points of secret files in the container, and the size of their file system.
//!
//! A mount hides as little of the container as possible, so that a program can write next to a secret file. The mount
//! points are
//!
//! - a directory that is declared to hold only secret files: the directory for files with relative paths, and the
//!   directories that the request declares. If such a directory exists in the rootfs, its missing direct entries are
//!   mounted instead, each by itself (for example one mount per service binding);
//! - a directory that is missing in the rootfs and contains a secret file, so that all files in it change in one step.
//!   This does not apply to directories in which programs expect to write: a home, a directory directly below the root
//!   directory (`/root`, `/home/app`, `/srv`), and a path that has a name with a leading dot (`.kube`);
//! - otherwise the single file.
//!
//! Other directories that are missing in the rootfs are created in the container's own layer. The input is a view of
//! the rootfs, the output is mount points with their contents. A path with a symbolic link is refused, because the link
//! could redirect the mount.

mod conflicts;
mod mount_point;
mod size;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use conflicts::ConflictSearch;
pub use mount_point::{Content, GENERATIONS_DIR, IN_FORCE, MountPoint, STEPS_DIR, shows_generations_dir};
pub use size::{VolumeSize, content_size, steps_size, volume_size};
pub use steps::{StepMount, for_step};

use crate::plan::{Layout, PlannedFile};
use crate::violation::Violation;
use crate::violation::ViolationReason::{TooLong, Unsuitable};

/// Type of a path in the rootfs, without following symbolic links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootfsEntry {
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

/// Access to a rootfs. A path is passed only after all of its parents were found to be directories.
pub trait RootfsView {
    /// Error of a lookup in the rootfs.
    type Error;
    /// Looks up `path` (absolute within the rootfs).
    ///
    /// # Errors
    /// Returns an error if the lookup failed.
    fn entry(&self, path: &Path) -> Result<RootfsEntry, Self::Error>;
}

/// Error from placing secret files.
#[derive(Debug, PartialEq, Eq)]
pub enum PlacementError<E> {
    /// The rootfs does not fit the request; holds every violation.
    Violations(Vec<Violation>),
    /// A lookup in the rootfs failed.
    View(PathBuf, E),
}

/// Secret files to be placed in a rootfs.
#[derive(Clone, Copy, Debug)]
pub struct PlacementRequest<'a> {
    /// Secret files of the plan.
    pub files: &'a [PlannedFile],
    /// Directories that the request declares to hold only secret files.
    pub directories: &'a [PathBuf],
    /// Directory of files with relative paths. This directory is treated like `directories` if a file is below it.
    pub files_root: &'a Path,
    /// Mount points of the pod's volumes. All members share the content of a volume, so the content must not be hidden:
    /// a directory in a volume becomes a mount point only if it is one of `directories`.
    pub shared: &'a [PathBuf],
    /// Home of the process's user.
    pub home: &'a Path,
    /// Layout of the files in their file system.
    pub layout: Layout,
}

impl PlacementRequest<'_> {
    /// Returns true if programs expect to write in the directory or below it. A dotted name counts only if the secret
    /// files are read-only: with writable secret files, programs can also write in the mounted directory.
    fn must_stay_writable(&self, directory: &Path) -> bool {
        let parent = directory.parent().unwrap_or(directory);
        let dotted = self.layout == Layout::Generations
            && directory.iter().any(|name| name.as_encoded_bytes().starts_with(b"."));
        parent.parent().is_none() || parent == Path::new("/home") || self.home.starts_with(directory) || dotted
    }
}

/// Computes the mount points of all files. `fresh` holds the mount points of file systems that are empty in a new
/// container.
///
/// # Errors
/// Returns a [`PlacementError`] if a file cannot be placed.
pub fn place<V: RootfsView>(
    request: PlacementRequest<'_>,
    fresh: &[PathBuf],
    view: &V,
) -> Result<Vec<MountPoint>, PlacementError<V::Error>> {
    let PlacementRequest { files, directories, files_root, shared, home: _, layout } = request;
    let fresh = &[fresh, shared].concat();
    let search = ConflictSearch::new(fresh, view);
    let mut violations = Vec::new();
    // Directories that may become mount points. If directories are nested, the outermost is used.
    let mut own: BTreeSet<PathBuf> = BTreeSet::new();
    for (index, directory) in directories.iter().enumerate() {
        match search.first_missing(directory, directory)? {
            Ok(missing) => own.extend(missing.map(|_| directory.clone())),
            Err(why) => violations.push(Violation::new(format!("file_directories[{index}]"), Unsuitable.because(why))),
        }
    }
    let mut missing_parents = Vec::with_capacity(files.len());
    for file in files {
        match search.first_missing_parent(&file.path)? {
            Err(why) => violations.push(Violation::new(file.path_field(), Unsuitable.because(why))),
            Ok(missing) => missing_parents.push(missing),
        }
    }
    if !violations.is_empty() {
        return Err(PlacementError::Violations(violations));
    }
    for (file, missing) in files.iter().zip(&missing_parents) {
        let (Some(missing), Some(parent)) = (missing, file.path.parent()) else { continue };
        let mut roots = directories.iter().map(PathBuf::as_path).chain([files_root]);
        match roots.find(|root| parent.starts_with(root)) {
            // Either the root itself is missing, or a directory below it.
            Some(root) => drop(own.insert(if root.starts_with(missing) { root } else { missing }.to_owned())),
            None if request.must_stay_writable(parent) || is_in(shared, parent) => {}
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
    for (index, (file, missing)) in files.iter().zip(&missing_parents).enumerate() {
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
    // In the layout of writable files, files are not links.
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

/// Returns the mount point of a file that is always mounted by itself, even if its parent is missing. The inner error
/// is the reason why the file cannot be mounted.
///
/// # Errors
/// Returns an error if a lookup in the rootfs failed.
pub fn place_file<V: RootfsView>(
    path: &Path,
    fresh: &[PathBuf],
    view: &V,
) -> Result<Result<MountPoint, String>, (PathBuf, V::Error)> {
    let in_dev = path.starts_with("/dev"); // fresh in every container
    let missing = if in_dev { Ok(Ok(None)) } else { ConflictSearch::new(fresh, view).first_missing_parent(path) };
    match missing {
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(Vec<(&'static str, RootfsEntry)>);

    impl RootfsView for Tree {
        type Error = ();
        fn entry(&self, path: &Path) -> Result<RootfsEntry, ()> {
            Ok(self.0.iter().find(|(p, _)| Path::new(p) == path).map_or(RootfsEntry::Missing, |(_, entry)| *entry))
        }
    }

    /// A view that counts the lookups of each path.
    struct Counted(Tree, std::cell::RefCell<BTreeMap<PathBuf, usize>>);

    impl RootfsView for Counted {
        type Error = ();
        fn entry(&self, path: &Path) -> Result<RootfsEntry, ()> {
            *self.1.borrow_mut().entry(path.to_owned()).or_default() += 1;
            self.0.entry(path)
        }
    }

    #[test]
    fn each_path_is_looked_up_once() {
        let view = Counted(tree(), std::cell::RefCell::default());
        let paths = ["/etc/cf/a", "/etc/cf/b", "/etc/x/c", "/opt/d", "/opt/e"];
        place(asked(&planned(&paths), &[]), &fresh(), &view).unwrap();
        let lookups = view.1.into_inner();
        assert!(lookups.contains_key(Path::new("/etc/cf")) && lookups.values().all(|count| *count == 1), "{lookups:?}");
    }

    fn planned(paths: &[&str]) -> Vec<PlannedFile> {
        let file = |(i, path): (usize, &&str)| PlannedFile::private(path, 1, format!("f[{i}]"));
        paths.iter().enumerate().map(file).collect()
    }

    fn tree() -> Tree {
        use RootfsEntry::{Directory, File, Special, Symlink};
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
    fn volume_of_pod_shows_declared_paths() {
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
    fn files_are_mounted_without_hiding_other_paths() {
        type PlacementRow<'a> = (&'a [&'a str], &'a [&'a str], &'a [(&'a str, &'a [&'a str])]);
        let table: [PlacementRow<'_>; 11] = [
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
            // Declared directories are mounted as a whole, even without files. If directories are nested, only the
            // outermost is mounted.
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

    /// If the files are writable, a dotted directory is mounted as a whole, but a home is not.
    #[test]
    fn writable_files_mount_whole_dotted_directory() {
        let files =
            planned(&["/root/.kube/config", "/root/.token", "/home/u/.aws/x", "/var/lib/me/.netrc", "/etc/cf/a"]);
        let points =
            place(PlacementRequest { layout: Layout::Writable, ..asked(&files, &[]) }, &fresh(), &tree()).unwrap();
        let targets: Vec<_> = points.iter().map(|point| point.target.to_str().unwrap()).collect();
        assert_eq!(targets, ["/etc/cf", "/home/u/.aws", "/root/.kube", "/root/.token", "/var/lib/me/.netrc"]);
        // Writable files are not links, so no link can be too long.
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
    fn too_long_link_is_reported() {
        let path = format!("/etc/cf/{}f", "d/".repeat(2035));
        let Err(PlacementError::Violations(violations)) = place(asked(&planned(&[&path]), &[]), &fresh(), &tree())
        else {
            panic!("placed");
        };
        assert!(violations[0].description.contains("below /etc/cf; the maximum is 4066"), "{}", violations[0]);
    }

    /// No path to a mount point may contain a symbolic link; the error names the link.
    #[test]
    fn links_and_obstructing_files_are_refused_together() {
        let paths = ["/bin/x", "/etc/mtab", "/etc/passwd/x", "/opt", "/opt/pipe", "/opt/pipe/x", "/tmp"];
        let directories = ["/bin/x".into()];
        let placed = place(asked(&planned(&paths), &directories), &fresh(), &tree());
        let Err(PlacementError::Violations(violations)) = placed else { panic!("placed") };
        assert_eq!(violations.len(), 1 + paths.len());
        assert!(violations[1].description.contains("/bin is a symbolic link"), "{}", violations[1]);
        assert_eq!((&*violations[0].field, &*violations[1].field), ("file_directories[0]", "f[0].path"));
    }
}
