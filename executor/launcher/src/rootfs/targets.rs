//! Determines and creates the mount points of secret files and of the termination message.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use executor_core::placement::{Content, MountPoint, PlacementError, PlacementRequest, for_step, place, place_file};
use executor_core::plan::{Plan, PlannedFile};
use executor_core::protocol::{Reason, Refused};
use executor_core::record::PreparedStep;
use executor_core::spec;
use executor_core::users::ResolvedUser;
use executor_core::validate::Violation;
use executor_sys::mount::{Follow, attach, open_dir, open_in_root};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chownat, mkdirat};

use super::Tree;
use crate::errors::failed;

impl Tree {
    /// Determines the mount points for the processes of a tree of actions. `mounts` contains the mount points of the
    /// container's own files.
    ///
    /// # Errors
    /// Returns a violation for each path that cannot be used in the tree.
    pub(crate) fn steps(
        &self,
        plan: &Plan,
        users: Vec<ResolvedUser>,
        mounts: &[MountPoint],
        (files_root, nofile_max): (&Path, u64),
    ) -> Result<Vec<PreparedStep>, Refused> {
        let of_actions = plan.processes.iter().zip(users);
        of_actions
            .map(|(process, user)| {
                let field = format!("{}.run", process.id);
                let mounts = if process.files.is_empty() {
                    Vec::new()
                } else {
                    let beside: Vec<PlannedFile> = plan.files.iter().chain(&process.files).cloned().collect();
                    let beside = self.place(plan, &beside, files_root, &user)?;
                    for_step(&plan.files, mounts, beside).map_err(|hidden| {
                        let why = format!("would hide `{}`; choose another directory", hidden.display());
                        let field = format!("{field}.volume_mounted_files");
                        Refused::from_fields(Reason::Precondition, &[Violation::new(field, why)])
                    })?
                };
                Ok(PreparedStep { user, nofile: process.nofile.unwrap_or(plan.limits.nofile).min(nofile_max), mounts })
            })
            .collect()
    }

    /// Determines the mount points of files.
    ///
    /// # Errors
    /// Returns a violation for each path that cannot be used in the tree.
    pub(crate) fn place(
        &self,
        plan: &Plan,
        files: &[PlannedFile],
        files_root: &Path,
        user: &ResolvedUser,
    ) -> Result<Vec<MountPoint>, Refused> {
        let asked = PlacementRequest {
            files,
            directories: &plan.file_directories,
            files_root,
            shared: &shared_mounts(plan).map(Path::to_owned).collect::<Vec<_>>(),
            home: &user.home,
            layout: plan.layout(),
        };
        place(asked, &spec::fresh_mounts(plan), self).map_err(|error| match error {
            PlacementError::Violations(violations) => Refused::from_fields(Reason::Precondition, &violations),
            PlacementError::View(path, error) => failed(&format!("rootfs: cannot inspect {}", path.display()), &error),
        })
    }

    /// Determines the mount point of the termination message file and creates it. `mounts` contains the mount points of
    /// the container's secret files.
    ///
    /// # Errors
    /// Returns a violation of `termination_message.path` if the path cannot be used in the tree.
    pub(crate) fn termination_message(
        &self,
        plan: &Plan,
        mounts: &[MountPoint],
        user: &ResolvedUser,
    ) -> Result<Option<MountPoint>, Refused> {
        let Some(message) = &plan.termination_message else { return Ok(None) };
        let violation = |why: String| {
            Refused::from_fields(Reason::Precondition, &[Violation::new("termination_message.path", why)])
        };
        let about = |path: &Path| format!("rootfs: cannot create {}", path.display());
        let holds = |mount: &&MountPoint| {
            matches!(mount.content, Content::Directory(_)) && message.path.starts_with(&mount.target)
        };
        if let Some(directory) = mounts.iter().find(holds) {
            let (path, directory) = (message.path.display(), directory.target.display());
            return Err(violation(format!("`{path}` is in {directory}, which contains only secret files")));
        }
        let point = place_file(&message.path, &spec::fresh_mounts(plan), self)
            .map_err(|(path, error)| failed(&about(&path), &error))?
            .map_err(violation)?;
        let owner = (self.ids.to_host(user.uid), self.ids.to_host(user.gid));
        if !point.in_fresh_mount {
            make_target(self.root.as_fd(), &point, Some(owner)).map_err(|error| match error.kind() {
                io::ErrorKind::ReadOnlyFilesystem => {
                    let path = message.path.display();
                    violation(format!("`{path}` cannot be created: the rootfs is read-only there"))
                }
                _ => failed(&about(&message.path), &error),
            })?;
        }
        Ok(Some(point))
    }

    /// Creates the mount points of files. All mount points are determined before the first is created, so that new
    /// mount points are not mistaken for entries of the tree.
    ///
    /// # Errors
    /// Returns a violation for each mount point in a read-only part of the tree.
    pub(crate) fn make_targets<'a>(
        &self,
        mounts: impl Iterator<Item = &'a MountPoint>,
        files: &[PlannedFile],
        user: &ResolvedUser,
    ) -> Result<(), Refused> {
        let owner = (self.ids.to_host(user.uid), self.ids.to_host(user.gid));
        let mut violations = Vec::new();
        for mount in mounts.filter(|mount| !mount.in_fresh_mount) {
            if let Err(error) = make_target(self.root.as_fd(), mount, Some(owner)) {
                match error.kind() {
                    io::ErrorKind::ReadOnlyFilesystem => {
                        let field = field_of(files, mount);
                        let why =
                            format!("`{}` cannot be created: the rootfs is read-only there", mount.target.display());
                        violations.push(Violation::new(field, why));
                    }
                    _ => return Err(failed(&format!("rootfs: cannot create {}", mount.target.display()), &error)),
                }
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
    }
}

/// Returns the mount points of the pod's volumes.
pub(crate) fn shared_mounts(plan: &Plan) -> impl Iterator<Item = &Path> {
    plan.volumes.iter().filter(|volume| volume.is_of_pod()).map(|volume| volume.path.as_path())
}

/// Creates the directory or empty file for a mount, and its missing parents (mode 0755). The mount points belong to the
/// process's user `owner`. Without `owner` they keep the calling process's ids: in a pod's volume another member could
/// replace the new entry before its owner is changed.
///
/// # Errors
/// Returns an error if the tree is read-only or was changed during the call.
fn make_target(root: BorrowedFd<'_>, mount: &MountPoint, owner: Option<(u32, u32)>) -> io::Result<()> {
    let mut parents: Vec<&Path> = mount.target.ancestors().skip(1).filter(|path| path.parent().is_some()).collect();
    parents.reverse();
    parents.into_iter().try_for_each(|parent| make(root, parent, true, owner))?;
    make(root, &mount.target, matches!(mount.content, Content::Directory(_)), owner)
}

/// Attaches a view of secret files to its mount point. Paths are resolved in the calling process's root directory.
/// Creates the mount point if it is in a fresh empty file system or in a pod's volume. `owner` contains ids as the
/// calling process sees them.
///
/// # Errors
/// Returns an error if the mount point does not exist or has another type.
pub(crate) fn place_view(point: &MountPoint, view: BorrowedFd<'_>, owner: Option<(u32, u32)>) -> io::Result<()> {
    let root = open_dir(Path::new("/"))?;
    if point.in_fresh_mount {
        make_target(root.as_fd(), point, owner)?;
    }
    let kind = if matches!(point.content, Content::Directory(_)) { OFlags::DIRECTORY } else { OFlags::empty() };
    let target = open_in_root(root.as_fd(), &point.target, OFlags::PATH | kind, Mode::empty(), Follow::NoLinks)?;
    attach(view, target.as_fd())
}

pub(super) fn make(root: BorrowedFd<'_>, path: &Path, directory: bool, owner: Option<(u32, u32)>) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let parent = open_in_root(root, parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), Follow::NoLinks)?;
    let made = if directory {
        mkdirat(&parent, name, Mode::from_raw_mode(0o755))
    } else {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o444)).map(drop)
    };
    match made {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => owner.map_or(Ok(()), |owner| own(parent.as_fd(), Path::new(name), owner)),
    }
}

/// Changes the owner and group of a new entry.
pub(super) fn own(parent: BorrowedFd<'_>, name: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    Ok(chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Returns the request field for the path of the first file that a mount contains.
fn field_of(files: &[PlannedFile], mount: &MountPoint) -> String {
    let index = match &mount.content {
        Content::File(index) => *index,
        Content::Directory(files) => files.first().map_or(0, |(index, _)| *index),
    };
    files.get(index).map_or_else(|| "volume_mounted_files".to_owned(), PlannedFile::path_field)
}
