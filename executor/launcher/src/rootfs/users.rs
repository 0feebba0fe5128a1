//! Resolves users and groups of a container with the user and group files of its root.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use executor_core::idmap::IdMap;
use executor_core::plan::{Memberships, Plan, PlannedFile, PlannedProcess, Principal, UserRef};
use executor_core::protocol::{Reason, Refused};
use executor_core::users::{self, ResolvedUser};
use executor_core::validate::Violation;
use executor_sys::mount::{Follow, open_in_root};
use executor_sys::open::read_whole;
use rustix::fs::{FileType, Mode, OFlags, fstat};

use super::Tree;
use crate::errors::failed;

/// File with the names and ids of groups.
const GROUP_FILE: &str = "/etc/group";

impl Tree {
    /// Resolves a user of the plan with the tree's own files.
    ///
    /// # Errors
    /// Returns a violation of `field` if the name is unknown or an id is too large.
    pub(crate) fn resolve_user(
        &self,
        user: &UserRef,
        memberships: Memberships,
        field: &str,
    ) -> Result<ResolvedUser, Refused> {
        let read = |path: &str| {
            read_small(self.root.as_fd(), Path::new(path))
                .map_err(|error| failed(&format!("rootfs: cannot read {path}"), &error))
        };
        let violation = |why: String| Refused::from_fields(Reason::Precondition, &[Violation::new(field, why)]);
        let asked = user;
        let user = users::resolve(asked, memberships, &read("/etc/passwd")?, &read(GROUP_FILE)?)
            .map_err(|unknown| violation(unknown.to_string()))?;
        let highest = self.ids.highest();
        match [user.uid, user.gid].iter().chain(&user.groups).find(|id| **id > highest) {
            Some(id) => Err(violation(format!("`{asked}` has id {id}; the maximum in a user namespace is {highest}"))),
            None => Ok(user),
        }
    }

    /// Returns the ids of the plan's supplementary groups. Names are resolved with the tree's own file.
    ///
    /// # Errors
    /// Returns a violation of the entry of `extra_groups` if the name is unknown or the id is too large.
    pub(crate) fn extra_groups(&self, plan: &Plan) -> Result<Vec<u32>, Refused> {
        if plan.extra_groups.is_empty() {
            return Ok(Vec::new());
        }
        let file = read_small(self.root.as_fd(), Path::new(GROUP_FILE))
            .map_err(|error| failed(&format!("rootfs: cannot read {GROUP_FILE}"), &error))?;
        let violation = |index: usize, why: String| {
            Refused::from_fields(Reason::Precondition, &[Violation::new(format!("extra_groups[{index}]"), why)])
        };
        let groups = users::resolve_groups(&plan.extra_groups, &file)
            .map_err(|(index, unknown)| violation(index, unknown.to_string()))?;
        let highest = self.ids.highest();
        match groups.iter().position(|gid| *gid > highest) {
            Some(index) => {
                let (asked, gid) = (&plan.extra_groups[index], groups[index]);
                Err(violation(index, format!("`{asked}` has id {gid}; the maximum in a user namespace is {highest}")))
            }
            None => Ok(groups),
        }
    }

    /// Returns the ids of the groups that the plan's files name. Names are resolved with the tree's own file.
    ///
    /// # Errors
    /// Returns a violation of the file's `group` if the name is unknown.
    pub(crate) fn file_groups(&self, plan: &Plan) -> Result<BTreeMap<String, u32>, Refused> {
        let of_steps = plan.processes.iter().flat_map(|process| &process.files);
        let files: Vec<&PlannedFile> = plan.files.iter().chain(of_steps).collect();
        file_groups(self.root(), files, BTreeMap::new(), self.ids)
    }

    /// Returns the users of the processes in a tree of actions.
    ///
    /// # Errors
    /// Returns a violation if a user does not exist in the tree.
    pub(crate) fn step_users(&self, plan: &Plan) -> Result<Vec<ResolvedUser>, Refused> {
        let of_actions = plan.actions.iter().flat_map(|_| &plan.processes);
        let user = |process: &PlannedProcess| {
            let user = process.user.as_ref().unwrap_or(&plan.user);
            self.resolve_user(user, plan.memberships(), &format!("{}.run.user", process.id))
        };
        of_actions.map(user).collect()
    }
}

/// Adds the groups that `files` name to `known`. Names are resolved with the group file of an untrusted root.
///
/// # Errors
/// Returns a violation for each file's `group` whose name is unknown or whose id is not mapped in the container.
pub(crate) fn file_groups<'a>(
    root: BorrowedFd<'_>,
    files: impl IntoIterator<Item = &'a PlannedFile>,
    mut known: BTreeMap<String, u32>,
    ids: IdMap,
) -> Result<BTreeMap<String, u32>, Refused> {
    let mut violations = Vec::new();
    let mut content = None;
    for file in files {
        let Some(Principal::Name(name)) = &file.group else { continue };
        if known.contains_key(name) {
            continue;
        }
        if content.is_none() {
            let read = read_small(root, Path::new(GROUP_FILE));
            content = Some(read.map_err(|error| failed(&format!("rootfs: cannot read {GROUP_FILE}"), &error))?);
        }
        match users::gid_of(name, content.as_deref().unwrap_or_default()) {
            Ok(gid) if gid <= ids.highest() => drop(known.insert(name.clone(), gid)),
            Ok(gid) => {
                let why = format!("`{name}` has id {gid}; the maximum in a user namespace is {}", ids.highest());
                violations.push(Violation::new(format!("{}.group", file.field), why));
            }
            Err(unknown) => violations.push(Violation::new(format!("{}.group", file.field), unknown.to_string())),
        }
    }
    if violations.is_empty() { Ok(known) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
}

/// Reads a small file below a root. Returns no bytes if the path does not exist or is not a regular file.
///
/// # Errors
/// Returns an error if the file is too large.
pub(crate) fn read_small(root: BorrowedFd<'_>, path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = match open_in_root(root, path, flags, Mode::empty(), Follow::LinksWithinRoot) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)) => {
            return Ok(Vec::new());
        }
        fd => fd?,
    };
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::RegularFile {
        return Ok(Vec::new());
    }
    read_whole(std::fs::File::from(fd), users::FILE_MAX)
}
