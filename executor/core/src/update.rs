//! Defines updates of a running container.
//!
//! To update the secret files (rotation), the daemon sends the whole list of files after the update, and the indices of
//! the files with new content. The shim validates the list like the original list, compares the generation, and swaps
//! the contents. Mount points do not change: a file can be added below a mounted directory, and a file that is mounted
//! by itself can only be replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::placement::{Content, MountPoint};
use crate::plan::{EgressRule, Plan, PlannedFile};
use crate::violation::Violation;
use crate::violation::ViolationReason::{TooLong, Unsuitable};

/// Update of the secret files of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileUpdate {
    /// Generation that this list is based on. If it is not the current generation, the update is refused as stale.
    pub base_generation: u64,
    /// All files after the update; the runtime token's file is the last.
    pub files: Vec<PlannedFile>,
    /// Files with new content, as ascending indices into `files`, in the order of the contents' payload.
    pub changed: Vec<usize>,
}

/// Update of the egress of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressUpdate {
    /// True if connections to destinations outside of the container's network are allowed.
    pub egress: bool,
    /// Allowed destinations of these connections; every destination if empty.
    pub rules: Vec<EgressRule>,
}

/// An update, applied to the mount points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedUpdate {
    /// Mount points with their new contents, in the original order.
    pub mounts: Vec<MountPoint>,
    /// Changes of the mount points whose content changes.
    pub changes: Vec<MountChange>,
}

/// Change of the content of one mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountChange {
    /// Index of the mount point in [`PlacedUpdate::mounts`].
    pub mount: usize,
    /// New content of the mount point.
    pub next: NextContent,
}

/// New content of a mount point, as indices into the contents' payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextContent {
    /// A single file that is mounted by itself.
    File(usize),
    /// Files in a directory, by their paths below the directory.
    Directory {
        /// Files whose content is unchanged.
        kept: Vec<PathBuf>,
        /// Files with new content.
        new: Vec<(usize, PathBuf)>,
    },
}

/// Returns the reason why a container's files can never be updated, if there is one.
pub fn forbidden(plan: &Plan) -> Option<String> {
    plan.writable_files.map(|_| {
        format!(
            "the files of container {} are writable (writable_files): an update would overwrite the process's changes",
            plan.id
        )
    })
}

impl FileUpdate {
    /// Checks the consistency of an update that was received over a socket. executord never sends an inconsistent
    /// update.
    ///
    /// # Errors
    /// Returns a description of the error if the update is inconsistent.
    pub fn check(&self, plan: &Plan) -> Result<(), &'static str> {
        if !self.changed.windows(2).all(|pair| pair[0] < pair[1]) {
            return Err("the changed files are not in ascending order");
        }
        if self.changed.last().is_some_and(|last| *last >= self.files.len()) {
            return Err("the index of a changed file is out of range");
        }
        if self.files.last().filter(|file| file.token) != plan.token_file() {
            return Err("the runtime token's file has changed");
        }
        let there: BTreeMap<&Path, &PlannedFile> = plan.files.iter().map(|file| (&*file.path, file)).collect();
        for (index, file) in self.files.iter().enumerate() {
            let changed = self.changed.binary_search(&index).is_ok();
            if changed && file.token {
                return Err("the runtime token's file must not be listed as changed");
            }
            let same = |old: &&PlannedFile| PlannedFile { field: file.field.clone(), ..(**old).clone() } == *file;
            if !changed && there.get(&*file.path).filter(|old| same(old)).is_none() {
                return Err("a file listed as unchanged differs from the container's file");
            }
        }
        Ok(())
    }

    /// Returns the size of the old content to wipe after the update, in bytes of whole pages.
    pub fn replaced_bytes(&self, plan: &Plan, page: u64) -> u64 {
        let kept: BTreeSet<&Path> = (0..self.files.len())
            .filter(|index| self.changed.binary_search(index).is_err())
            .map(|index| &*self.files[index].path)
            .collect();
        let gone = plan.files.iter().filter(|file| !kept.contains(&*file.path));
        gone.map(|file| file.size.div_ceil(page).max(1) * page).sum()
    }

    /// Finds the mount point of every file. `mounts` are the mount points of `plan`, to which the update is applied.
    ///
    /// # Errors
    /// Returns a violation for each path without a mount point.
    pub fn place(&self, plan: &Plan, mounts: &[MountPoint]) -> Result<PlacedUpdate, Vec<Violation>> {
        let mut violations = Vec::new();
        let mounts_by_path = mounts_by_path(plan, mounts);
        let mut lists: Vec<Vec<usize>> = vec![Vec::new(); mounts.len()];
        let directories: BTreeMap<&Path, usize> = (0..mounts.len())
            .filter(|mount| matches!(mounts[*mount].content, Content::Directory(_)))
            .map(|mount| (&*mounts[mount].target, mount))
            .collect();
        for (index, file) in self.files.iter().enumerate() {
            let above = || file.path.ancestors().skip(1).find_map(|parent| directories.get(parent));
            match mounts_by_path.get(&*file.path).or_else(above).copied() {
                Some(mount) => lists[mount].push(index),
                None => violations.push(Violation::new(
                    format!("{}.path", file.field),
                    Unsuitable.because(outside_directories(&file.path, mounts)),
                )),
            }
            let below = above().and_then(|mount| Some((*mount, file.path.strip_prefix(&mounts[*mount].target).ok()?)));
            let unfit = below.and_then(|(mount, below)| mounts[mount].unfit(mount, below));
            violations.extend(unfit.map(|why| Violation::new(format!("{}.path", file.field), TooLong.because(why))));
        }
        let mut placed = PlacedUpdate { mounts: Vec::with_capacity(mounts.len()), changes: Vec::new() };
        for (mount, (point, list)) in mounts.iter().zip(lists).enumerate() {
            let payload = |index: &usize| self.changed.binary_search(index).ok();
            let (content, next) = match (&point.content, &list[..]) {
                (Content::File(_), [index]) => (Content::File(*index), payload(index).map(NextContent::File)),
                (Content::File(old), _) => {
                    violations
                        .push(Violation::new("removed_paths", Unsuitable.because(alone(plan, *old, &point.target))));
                    continue;
                }
                (Content::Directory(old), _) => {
                    let below = |index: &usize| {
                        let path = &self.files[*index].path;
                        path.strip_prefix(&point.target).unwrap_or(path).to_owned()
                    };
                    let (mut kept, mut new) = (Vec::new(), Vec::new());
                    for index in &list {
                        match payload(index) {
                            None => kept.push(below(index)),
                            Some(payload) => new.push((payload, below(index))),
                        }
                    }
                    let changes = !new.is_empty() || kept.len() != old.len();
                    let next = changes.then_some(NextContent::Directory { kept, new });
                    (Content::Directory(list.iter().map(|index| (*index, below(index))).collect()), next)
                }
            };
            placed.mounts.push(MountPoint { content, ..point.clone() });
            placed.changes.extend(next.map(|next| MountChange { mount, next }));
        }
        if violations.is_empty() { Ok(placed) } else { Err(violations) }
    }
}

/// Returns the index of the mount point of each existing file.
fn mounts_by_path<'a>(plan: &'a Plan, mounts: &[MountPoint]) -> BTreeMap<&'a Path, usize> {
    let mut mounts_by_path = BTreeMap::new();
    for (mount, point) in mounts.iter().enumerate() {
        let indices: &mut dyn Iterator<Item = usize> = match &point.content {
            Content::File(index) => &mut std::iter::once(*index),
            Content::Directory(files) => &mut files.iter().map(|(index, _)| *index),
        };
        for file in indices.filter_map(|index| plan.files.get(index)) {
            mounts_by_path.insert(&*file.path, mount);
        }
    }
    mounts_by_path
}

fn outside_directories(path: &Path, mounts: &[MountPoint]) -> String {
    const REPORTED: usize = 10;
    let directories = mounts.iter().filter(|mount| matches!(mount.content, Content::Directory(_)));
    let names: Vec<String> = directories.map(|mount| mount.target.display().to_string()).collect();
    let path = path.display();
    match names.len() {
        0 => format!(
            "`{path}` cannot be added: this container has no directory of secret files; declare one in \
             file_directories when you run the container"
        ),
        count => format!(
            "`{path}` is not below a directory of secret files; this container's directories are {}{}",
            names[..count.min(REPORTED)].join(", "),
            if count > REPORTED { ", ..." } else { "" }
        ),
    }
}

fn alone(plan: &Plan, index: usize, target: &Path) -> String {
    let path = plan.files.get(index).map_or(target, |file| &file.path);
    format!(
        "`{}` is mounted as a single file and cannot be removed; replace it with an empty file instead",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Draft, Policy, UpdateDraft, validate, validate_update};

    const ROOT: &str = "/etc/cf-service-bindings";

    fn plan() -> Plan {
        let files = ["db/user", "db/password", "token", "/etc/key"].map(|path| ("f".to_owned(), path, 5000).into());
        let draft = Draft { id: "c1", path: "/bin/true", files: files.into(), ..Draft::default() };
        validate(&draft, &Policy::default()).unwrap()
    }

    fn mounts() -> Vec<MountPoint> {
        let directory = vec![(0, "db/user".into()), (1, "db/password".into()), (2, "token".into())];
        let point = |target: &str, content| MountPoint { target: target.into(), content, in_fresh_mount: false };
        vec![point(ROOT, Content::Directory(directory)), point("/etc/key", Content::File(3))]
    }

    fn asked(files: &[&str], removed: &[&str]) -> FileUpdate {
        let draft = UpdateDraft {
            files: files.iter().enumerate().map(|(i, path)| (format!("files[{i}]"), *path, 1).into()).collect(),
            removed: removed.to_vec(),
            signal: 0,
        };
        let planned = validate_update(&draft, &plan(), &Policy::default()).unwrap();
        FileUpdate { base_generation: 1, files: planned.files, changed: planned.changed }
    }

    #[test]
    fn only_changed_mount_points_are_updated() {
        let update = asked(&["db/password", "new/x"], &["db/user"]);
        update.check(&plan()).unwrap();
        let placed = update.place(&plan(), &mounts()).unwrap();
        let next = NextContent::Directory {
            kept: vec!["token".into()],
            new: vec![(0, "db/password".into()), (1, "new/x".into())],
        };
        assert_eq!(placed.changes, [MountChange { mount: 0, next }]);
        let directory = vec![(0, "db/password".into()), (1, "token".into()), (3, "new/x".into())];
        assert_eq!(placed.mounts[0].content, Content::Directory(directory));
        assert_eq!(placed.mounts[1].content, Content::File(2));
        assert_eq!(update.replaced_bytes(&plan(), 4096), 4 * 4096);

        let single = asked(&["/etc/key"], &[]);
        let placed = single.place(&plan(), &mounts()).unwrap();
        assert_eq!(placed.changes, [MountChange { mount: 1, next: NextContent::File(0) }]);
        assert_eq!(placed.mounts, mounts());

        let all = asked(&[], &["db/user", "db/password", "token"]);
        let placed = all.place(&plan(), &mounts()).unwrap();
        assert_eq!(placed.mounts[0].content, Content::Directory(Vec::new()), "the mount point stays");
    }

    #[test]
    fn files_outside_mount_points_are_refused() {
        let violations = asked(&["/srv/x", "/etc/other", "ok"], &["/etc/key"]).place(&plan(), &mounts()).unwrap_err();
        let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
        assert_eq!(fields, ["files[0].path", "files[1].path", "removed_paths"]);
        assert!(violations[0].description.ends_with(&format!("directories are {ROOT}")), "{}", violations[0]);
        assert!(violations[2].description.contains("`/etc/key` is mounted as a single file"), "{}", violations[2]);
        let none = asked(&["ok"], &[]).place(&plan(), &[]).unwrap_err();
        assert!(none[0].description.contains("no directory"), "{}", none[0]);
    }

    /// Updates that only a compromised daemon could send are refused.
    #[test]
    fn a_forged_update_is_refused() {
        let good = asked(&["db/password"], &[]);
        let forged = |change: fn(&mut FileUpdate)| {
            let mut update = good.clone();
            change(&mut update);
            update.check(&plan())
        };
        assert!(forged(|_| {}).is_ok());
        assert!(forged(|update| update.changed = vec![1, 1]).is_err());
        assert!(forged(|update| update.changed = vec![4]).is_err());
        assert!(forged(|update| update.changed.clear()).is_err(), "a size that changes without content");
        assert!(forged(|update| update.files[0].size = 6000).is_err());
        assert!(forged(|update| update.files[0].public = true).is_err(), "unmasked without new content");
        assert!(forged(|update| update.files[0].path = "/etc/cf-service-bindings/nope".into()).is_err());
        assert!(forged(|update| update.files[3].token = true).is_err());
    }
}
