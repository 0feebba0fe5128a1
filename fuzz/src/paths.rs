//! Target: file paths that can conflict with one another and with a hostile root file system.
//!
//! Input format: one byte, then parts separated by `|`. Bit 0 of the byte selects whether the container gets fresh file
//! systems, bit 1 whether its process may change its files. A part that begins with `d`, `f`, `l` or `s` creates a
//! directory, file, link or special file at the path that follows. A part that begins with `+` requests a file at its
//! path. After all files are placed, the container is running; parts that begin with `=` then replace or add a file,
//! and parts that begin with `-` remove a file.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};

use executor_core::placement::{MountPoint, PlacementError, PlacementRequest, RootfsEntry, RootfsView, place};
use executor_core::plan::{Layout, Plan};
use executor_core::update::{FileUpdate, NextContent};
use executor_core::validate::{Draft, Policy, UpdateDraft, recheck, validate, validate_update};

use crate::rules;

/// Runs the target of this module.
pub fn run(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(text);
    let fresh = if choice & 1 == 0 { vec!["/tmp".into(), "/run".into()] } else { Vec::new() };
    let mut tree = Tree { fresh: &fresh, entries: HashMap::new() };
    let mut files = Vec::new();
    let mut update = UpdateDraft::default();
    for (number, part) in text.split('|').enumerate() {
        let Some((kind, path)) = part.split_at_checked(1) else { continue };
        let entry = match kind {
            "d" => RootfsEntry::Directory,
            "f" => RootfsEntry::File,
            "l" => RootfsEntry::Symlink,
            "s" => RootfsEntry::Special,
            "+" => {
                files.push((format!("f[{number}]"), path, number as u64).into());
                continue;
            }
            "=" => {
                update.files.push((format!("f[{number}]"), path, number as u64 + 1).into());
                continue;
            }
            "-" => {
                update.removed.push(path);
                continue;
            }
            _ => continue,
        };
        tree.entries.insert(path.into(), entry);
    }
    let policy = Policy::default();
    let writable_files = (choice & 2 != 0).then_some(0);
    let draft = Draft { id: "x", path: "/x", files, writable_files, ..Draft::default() };
    let asked = draft.files.len();
    match validate(&draft, &policy) {
        Err(violations) => assert!(!violations.is_empty() && violations.iter().all(|v| v.field.contains("f"))),
        Ok(plan) => {
            assert_eq!(plan.files.len(), asked);
            rules::plan(&plan, &policy);
            recheck(&plan, &policy).expect("the launcher agrees");
            against(&plan, &tree, &update, &policy);
        }
    }
}

/// Places the plan's files in the tree and checks their mount points.
fn against(plan: &Plan, tree: &Tree<'_>, update: &UpdateDraft<'_>, policy: &Policy) {
    let (directories, home) = (&plan.file_directories[..], Path::new("/root"));
    let (files, files_root, layout) = (&plan.files[..], &*policy.files_root, plan.layout());
    match place(PlacementRequest { files, directories, files_root, shared: &[], home, layout }, tree.fresh, tree) {
        Err(PlacementError::View(_, never)) => match never {},
        Err(PlacementError::Violations(violations)) => {
            assert!(!violations.is_empty() && violations.len() <= plan.files.len());
        }
        Ok(mounts) => {
            rules::placed(plan, &mounts);
            if layout == Layout::Generations {
                updated(plan, &mounts, update, policy);
            }
            for mount in &mounts {
                // The resolved path is the literal path: every existing parent is a directory. Missing parents are
                // created.
                let mut way: Vec<&Path> = mount.target.ancestors().skip(1).collect();
                way.reverse();
                let made = |path: &Path| {
                    tree.fresh.iter().any(|fresh| path.starts_with(fresh) && path != fresh)
                        || (path != Path::new("/") && !tree.is_directory(path) && tree.at(path) == RootfsEntry::Missing)
                };
                let real = way.iter().take_while(|path| !made(path)).count();
                for parent in way[..real].iter().skip(1) {
                    assert!(
                        tree.is_directory(parent),
                        "{parent:?}, a parent of {:?}, is not a directory",
                        mount.target
                    );
                }
                let is_made = real < way.len();
                let in_fresh = tree.fresh.iter().any(|fresh| mount.target.starts_with(fresh));
                assert_eq!(mount.in_fresh_mount, in_fresh);
                assert!(!tree.fresh.contains(&mount.target), "{:?}", mount.target);
                if !in_fresh && !is_made {
                    assert!(
                        matches!(tree.at(&mount.target), RootfsEntry::Missing | RootfsEntry::File),
                        "{:?}",
                        mount.target
                    );
                }
            }
        }
    }
}

/// Replaces, adds and removes files. Checks that the shim accepts every update that validation accepts, and that no
/// mount point moves.
fn updated(plan: &Plan, mounts: &[MountPoint], draft: &UpdateDraft<'_>, policy: &Policy) {
    let Ok(planned) = validate_update(draft, plan, policy) else { return };
    let sources = planned.sources.iter().zip(&planned.changed);
    for (source, changed) in sources {
        assert_eq!(draft.files[*source].size, planned.files[*changed].size);
    }
    assert_eq!(planned.changed.len(), draft.files.len(), "the update lacks files of the call");
    let update = FileUpdate { base_generation: 1, files: planned.files, changed: planned.changed };
    update.check(plan).expect("the shim accepts what validation accepted");
    let next = Plan { files: update.files.clone(), ..plan.clone() };
    recheck(&next, policy).expect("the updated plan is valid");
    match update.place(plan, mounts) {
        Err(violations) => assert!(!violations.is_empty()),
        Ok(placed) => {
            rules::placed(&next, &placed.mounts);
            let targets = placed.mounts.iter().map(|mount| (&mount.target, mount.in_fresh_mount));
            assert!(targets.eq(mounts.iter().map(|mount| (&mount.target, mount.in_fresh_mount))));
            let contents = placed.changes.iter().map(|change| match &change.next {
                NextContent::File(_) => 1,
                NextContent::Directory { new, .. } => new.len(),
            });
            assert_eq!(contents.sum::<usize>(), update.changed.len(), "the placed changes lack a new file");
        }
    }
}

/// A root file system with the contents that the input describes.
struct Tree<'a> {
    fresh: &'a [PathBuf],
    entries: HashMap<PathBuf, RootfsEntry>,
}

impl Tree<'_> {
    fn at(&self, path: &Path) -> RootfsEntry {
        self.entries.get(path).copied().unwrap_or(RootfsEntry::Missing)
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.fresh.iter().any(|fresh| path == fresh) || self.at(path) == RootfsEntry::Directory
    }
}

impl RootfsView for Tree<'_> {
    type Error = Infallible;

    fn entry(&self, path: &Path) -> Result<RootfsEntry, Infallible> {
        rules::is_plain(path);
        for parent in path.ancestors().skip(1).filter(|parent| *parent != Path::new("/")) {
            assert!(self.is_directory(parent), "inspected {path:?} before {parent:?} was known to be a directory");
        }
        Ok(self.at(path))
    }
}
