//! Creates the parent cgroups that requests name, and removes the parent cgroups that this launcher created.
//!
//! ```text
//! HIERARCHY/PARENT/executor-HASH-ID     cgroup of a container; HASH is the hash of the run directory
//! RUN_DIR/parents/                      0700; locked while cgroups of containers below such parents are created
//! RUN_DIR/parents/made                  directories to remove once they are empty, one on each line
//! ```
//! A directory is listed before it is created, so that it is removed even if the process is killed in between. The
//! container's cgroup is created under the same lock, so that its parent is not removed in between. Cgroups that
//! another program created are never listed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_sys::replace::Replacement;

use super::Hierarchies;
use crate::errors::at;
use crate::files::{self, ignore_not_found};

/// File name of the list of created parent cgroups.
const MADE: &str = "made";
/// Time limit for acquiring the lock. A process that blocks in the kernel while it holds the lock must not block other
/// processes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The list of created parents, locked until it is dropped.
struct MadeParents {
    file: PathBuf,
    paths: BTreeSet<PathBuf>,
    _lock: File,
}

impl MadeParents {
    fn lock(dir: &Path) -> io::Result<Self> {
        let lock = File::open(dir).map_err(|error| at(dir, &error))?;
        files::lock(&lock, LOCK_TIMEOUT).map_err(|error| at(dir, &error.into()))?;
        let file = dir.join(MADE);
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| at(&file, &error))?,
        };
        Ok(Self { file, paths: text.lines().map(PathBuf::from).collect(), _lock: lock })
    }

    fn write(&self) -> io::Result<()> {
        if self.paths.is_empty() {
            return ignore_not_found(fs::remove_file(&self.file));
        }
        // The paths consist of printable characters.
        let text: String = self.paths.iter().map(|path| format!("{}\n", path.display())).collect();
        Replacement::from_path(&self.file).write(text.as_bytes()).map(drop)
    }

    /// Removes the listed directories that `is_removed` selects, innermost first, unless they are in use.
    fn remove(&mut self, is_removed: impl Fn(&Path) -> bool) -> io::Result<()> {
        let before = self.paths.len();
        let mut kept = BTreeSet::new();
        for path in std::mem::take(&mut self.paths).into_iter().rev() {
            let gone = is_removed(&path) && ignore_not_found(fs::remove_dir(&path)).is_ok();
            kept.extend((!gone).then_some(path));
        }
        self.paths = kept;
        if self.paths.len() == before { Ok(()) } else { self.write() }
    }
}

/// Enables all available version 2 controllers for child cgroups, from the root to the parent. Without enabled
/// controllers, the container's cgroup has no limit files. An error is ignored here: setting a limit of a controller
/// that is not enabled fails later.
pub(super) fn enable_controllers(mount: &Path, parent: &Path) {
    let mut above: Vec<&Path> = parent.ancestors().collect();
    above.reverse();
    for cgroup in above {
        let file = |name: &str| mount.join(cgroup).join(name);
        let read = |name: &str| fs::read_to_string(file(name)).unwrap_or_default();
        let enabled = read("cgroup.subtree_control");
        for controller in read("cgroup.controllers").split_whitespace() {
            if !enabled.split_whitespace().any(|name| name == controller) {
                let _ = fs::write(file("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
    }
}

impl Hierarchies {
    /// Adds the missing parents of a container's cgroup to the list of created parents in `dir`, creates the parents,
    /// and then calls `make`, which creates the cgroup below `parent`. `of` contains the mount points of the
    /// hierarchies. If `listed_only` is true, this function only updates the list, and `make` creates the parents as
    /// well.
    ///
    /// # Errors
    /// Returns an error if the list cannot be locked, read or written, if a parent cannot be created, or if `make`
    /// fails.
    fn below(
        dir: &Path,
        parent: &Path,
        of: &[PathBuf],
        listed_only: bool,
        make: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut made = MadeParents::lock(dir)?;
        let above: Vec<&Path> = parent.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        let all = of.iter().flat_map(|mount| above.iter().rev().map(|path| mount.join(path)));
        let missing: Vec<PathBuf> = all.filter(|path| !path.exists()).collect();
        if !missing.is_empty() {
            made.paths.extend(missing.iter().cloned());
            made.write()?;
        }
        for path in missing.iter().filter(|_| !listed_only) {
            match fs::create_dir(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(path, &error)),
                _ => {}
            }
        }
        make()
    }

    /// Creates the parents of a container's cgroup in the hierarchies in use, and then the cgroup with `make`.
    ///
    /// # Errors
    /// Returns an error if the list cannot be locked, read or written, if a parent cannot be created, or if `make`
    /// fails.
    pub(crate) fn make_below(
        &self,
        dir: &Path,
        cgroup: &Path,
        make: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let parent = cgroup.parent().unwrap_or(Path::new(""));
        let of: Vec<PathBuf> = self.dirs(Path::new("")).collect();
        Self::below(dir, parent, &of, false, make)
    }

    /// Lists the missing parents of a container's cgroup in the version 1 cpuset hierarchy, so that they are removed
    /// later, then runs `make`, which creates the parents and the cgroup.
    ///
    /// # Errors
    /// Returns an error if the list cannot be locked, read or written, or if `make` fails.
    pub(crate) fn make_cpuset_below(
        &self,
        dir: &Path,
        cgroup: &Path,
        make: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let of: Vec<PathBuf> = match self {
            Self::V1 { cpuset, .. } => cpuset.iter().cloned().collect(),
            Self::V2 { .. } => Vec::new(),
        };
        Self::below(dir, cgroup.parent().unwrap_or(Path::new("")), &of, true, make)
    }

    /// Removes the parents of a container's cgroup that this launcher created and that are empty.
    ///
    /// # Errors
    /// Returns an error if the list cannot be locked, read or written.
    pub(crate) fn remove_made_parents(&self, dir: &Path, cgroup: &Path) -> io::Result<()> {
        let cpuset = match self {
            Self::V1 { cpuset, .. } => cpuset.clone(),
            Self::V2 { .. } => None,
        };
        let of: Vec<PathBuf> = self.dirs(Path::new("")).chain(cpuset).collect();
        let is_above = |path: &Path| of.iter().any(|mount| mount.join(cgroup).starts_with(path));
        MadeParents::lock(dir)?.remove(is_above)
    }

    /// Removes all listed parents that are empty: leftovers of a killed process.
    ///
    /// # Errors
    /// Returns an error if the list cannot be locked, read or written.
    pub(crate) fn sweep_made_parents(dir: &Path) -> io::Result<()> {
        MadeParents::lock(dir)?.remove(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Devices;
    use super::*;

    /// Uses ordinary directories as hierarchies.
    fn hierarchies(home: &Path) -> (Hierarchies, PathBuf) {
        let mounts = ["memory", "pids"].map(|name| home.join(name));
        mounts.iter().for_each(|mount| fs::create_dir(mount).unwrap());
        let list = home.join("parents");
        fs::create_dir(&list).unwrap();
        (Hierarchies::at(&mounts), list)
    }

    /// CRI rule C20: existing parents are kept; created parents are removed with the last container below them.
    #[test]
    fn only_created_parents_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let (v1, list) = hierarchies(home.path());
        let at = |path: &str| home.path().join(path);
        fs::create_dir_all(at("memory/kubepods")).unwrap();
        let made = |id: &str| {
            let cgroup = Path::new("kubepods/pod").join(id);
            v1.make_below(&list, &cgroup, || v1.dirs(&cgroup).try_for_each(fs::create_dir)).unwrap();
            cgroup
        };
        let [one, two] = ["one", "two"].map(made);
        assert!(at("memory/kubepods/pod/one").exists() && at("pids/kubepods/pod/two").exists());
        let end = |cgroup: &Path| {
            v1.dirs(cgroup).for_each(|dir| fs::remove_dir(dir).unwrap());
            v1.remove_made_parents(&list, cgroup).unwrap();
        };
        end(&one);
        assert!(at("pids/kubepods/pod").exists(), "in use by the second container");
        end(&two);
        assert!(at("memory/kubepods").exists() && !at("memory/kubepods/pod").exists() && !at("pids/kubepods").exists());
        assert!(!list.join(MADE).exists());
    }

    /// A process that is killed after it wrote the list leaves directories that the next launcher removes.
    #[test]
    fn sweep_removes_parents_of_killed_process() {
        let home = tempfile::tempdir().unwrap();
        let (v1, list) = hierarchies(home.path());
        let error = v1.make_below(&list, Path::new("a/b/c"), || Err(io::ErrorKind::Other.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other);
        assert!(home.path().join("pids/a/b").exists() && list.join(MADE).exists());
        Hierarchies::sweep_made_parents(&list).unwrap();
        assert!(!home.path().join("pids/a").exists() && !home.path().join("memory/a").exists());
        assert!(!list.join(MADE).exists());
    }

    #[test]
    fn version_2_cgroup_exists_with_parent() {
        let home = tempfile::tempdir().unwrap();
        let v2 = Hierarchies::V2 { mount: home.path().join("v2") };
        fs::create_dir(home.path().join("v2")).unwrap();
        let controls = |name: &str| home.path().join("v2").join(name);
        fs::write(controls("cgroup.controllers"), "memory pids\n").unwrap();
        fs::write(controls("cgroup.subtree_control"), "pids\n").unwrap();
        let list = home.path().join("parents");
        fs::create_dir(&list).unwrap();
        v2.make_below(&list, Path::new("a/c"), || v2.make(Path::new("a/c"), &Devices::All)).unwrap();
        assert!(home.path().join("v2/a/c").exists());
        assert_eq!(fs::read_to_string(controls("cgroup.subtree_control")).unwrap(), "+memory");
        fs::remove_dir(home.path().join("v2/a/c")).unwrap();
        v2.remove_made_parents(&list, Path::new("a/c")).unwrap();
        assert!(!home.path().join("v2/a").exists());
    }
}
