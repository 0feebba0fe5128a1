//! The root file system of a container, assembled in its shim's own mount namespace.
//!
//! The input is a reference; the output is a tree at RUN_DIR/root that libcontainer binds and pivots into. The mounts
//! are not visible on the host and disappear with the shim's namespace. The tree is untrusted, so that every path in it
//! is opened as if the tree were `/` (openat2).

pub(crate) mod etc;
mod host;
mod image;
mod overlay;
mod pod;
mod volumes;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::idmap::IdMap;
use executor_core::placement::{
    Content, Entry, MountPoint, PlacementError, PlacementRequest, RootfsView, for_step, place, place_file,
};
use executor_core::plan::{Plan, PlannedFile, PlannedProcess, Principal, Rootfs, UserRef};
use executor_core::protocol::{Reason, Refused};
use executor_core::record::PreparedStep;
use executor_core::spec;
use executor_core::users::{self, ResolvedUser};
use executor_core::validate::Violation;
use executor_sys::mount::{Attributes, Follow, attach, clone_tree, open_dir, open_in_root, set_attributes};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, mkdirat};

use crate::dirs::Dirs;
use crate::errors::{failed, plain};
use crate::host::Host;
use crate::ids::Ids;

/// Directories that must be real: libcontainer follows a symbolic link there before it has pivoted, and creates and
/// deletes its target on the host.
const REAL: [&str; 3] = ["dev", "proc", "sys"];
/// Names and numbers of groups.
const GROUP_FILE: &str = "/etc/group";

/// An assembled root file system.
///
/// A prepared directory may change while it is in use. An overlay name keeps its resolved inode as long as that is
/// open: keep the tree until libcontainer has mounted on the directories in it.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// Open descriptors of [`REAL`] and of the mount points of in-memory file systems.
    real: Vec<OwnedFd>,
    /// Maps owners of files to the host's.
    ids: IdMap,
    /// Parts of the image that the root file system lacks.
    warnings: Vec<String>,
    /// Views of the layers below the root.
    views: Vec<OwnedFd>,
    /// True if the files of [`etc`] are written.
    has_names: bool,
}

/// A mounted overlay.
struct Overlay {
    /// Views of the lower layers.
    views: Vec<OwnedFd>,
    /// True if the files of [`etc`] are written.
    has_names: bool,
}

impl Tree {
    /// Returns the omitted parts of the image, as warnings.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Takes the views of the layers, which the mounted root does not need any more, to be closed later.
    pub(crate) fn take_views(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.views)
    }

    /// Returns true if the files of [`etc`] are written.
    pub(crate) fn has_names(&self) -> bool {
        self.has_names
    }

    /// Assembles the root at the shims' stage, an empty directory. A `dir:` must lie below one of the policy's
    /// `rootfs_dirs`, if there are any. The files of [`etc`] are written now if they are known and this is possible
    /// before the mount.
    ///
    /// # Errors
    /// Returns a violation of `rootfs` if the reference does not fit the host, and an error if the disk of the state
    /// directory is full.
    pub(crate) fn assemble(
        of: &Host,
        plan: &Plan,
        names: Option<&etc::Contents>,
        dirs: &Dirs,
        ids: &Ids,
    ) -> Result<Self, Refused> {
        let (rootfs, at) = (&plan.rootfs, &dirs.stage);
        let (mut warnings, mut mounted) = (Vec::new(), Overlay { views: Vec::new(), has_names: false });
        match rootfs {
            Rootfs::Host => host::assemble(at, ids).map_err(|error| failed("rootfs `host`", &error))?,
            Rootfs::Dir(lower) => mounted = assemble_dir(lower, &of.policy.rootfs_dirs, names, dirs, ids)?,
            Rootfs::Pod => pod::assemble(at, ids).map_err(|error| failed("root of the pod", &error))?,
            Rootfs::Image(image) => (warnings, mounted) = image::assemble(image, &of.layers(), names, dirs, ids)?,
        }
        let root = open_dir(at).map_err(|error| failed("rootfs", &error))?;
        let Overlay { views, has_names } = mounted;
        let mut tree = Self { root, real: Vec::new(), ids: ids.map(), warnings, views, has_names };
        tree.require_real_directories(rootfs)?;
        if let Rootfs::Image(image) = rootfs {
            tree.make_volumes(image, plan.isolation.read_only_rootfs)?;
        }
        if spec::shows_hosts_sys(plan) {
            tree.show_hosts_sys().map_err(|error| failed("/sys", &error))?;
        }
        Ok(tree)
    }

    fn require_real_directories(&mut self, rootfs: &Rootfs) -> Result<(), Refused> {
        let mut violations = Vec::new();
        for name in REAL {
            match self.entry(Path::new(name)) {
                Ok(Entry::Directory) => {}
                Ok(Entry::Missing) => self
                    .make_dir(&Path::new("/").join(name))
                    .map_err(|error| failed(&format!("rootfs `{rootfs}`: /{name}"), &error))?,
                Ok(kind) => {
                    let what = no_directory(kind);
                    violations.push(Violation::new(
                        "rootfs",
                        format!("`{rootfs}`: /{name} is {what}; it must be a directory"),
                    ));
                }
                Err(error) => return Err(failed(&format!("rootfs `{rootfs}`: /{name}"), &error)),
            }
            // A directory that was replaced by a link meanwhile is not opened, and is reported.
            if violations.is_empty() {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let dir = open_in_root(self.root.as_fd(), Path::new(name), flags, Mode::empty(), Follow::NoLinks);
                self.real.push(dir.map_err(|error| failed(&format!("rootfs `{rootfs}`: /{name}"), &error))?);
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
    }

    /// Makes the mount points of the plan's in-memory file systems, except those inside another fresh one, and keeps
    /// them open, so that they stay unchanged until libcontainer has mounted there.
    ///
    /// # Errors
    /// Returns a violation for each entry if the tree has another entry in its path.
    pub(crate) fn make_room_for_tmpfs(&mut self, plan: &Plan) -> Result<(), Refused> {
        let fresh = spec::fresh_mounts(plan);
        let mut violations = Vec::new();
        for (index, tmpfs) in plan.surroundings.tmpfs.iter().enumerate() {
            let path = &tmpfs.path;
            if fresh.iter().any(|mount| path != mount && path.starts_with(mount)) {
                continue;
            }
            if let Err(why) = self.make_way(path, true)? {
                violations.push(Violation::new(format!("tmpfs[{index}].path"), format!("`{}`: {why}", path.display())));
                continue;
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let dir = open_in_root(self.root.as_fd(), path, flags, Mode::empty(), Follow::NoLinks);
            self.real.push(dir.map_err(|error| failed(&format!("rootfs: {}", path.display()), &error))?);
        }
        if violations.is_empty() { Ok(()) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
    }

    /// Makes a directory and its missing parents, if permitted. Returns the obstacle otherwise.
    fn make_way(&self, path: &Path, may_make: bool) -> Result<Result<(), String>, Refused> {
        let mut above: Vec<&Path> = path.ancestors().filter(|path| path.parent().is_some()).collect();
        above.reverse();
        for path in above {
            let about = || format!("rootfs: {}", path.display());
            match self.entry(path).map_err(|error| failed(&about(), &error))? {
                Entry::Directory => {}
                Entry::Missing if !may_make => {
                    return Ok(Err(format!("{} does not exist in the enclosing volume", path.display())));
                }
                Entry::Missing => match self.make_dir(path) {
                    Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                        return Ok(Err(format!("{} cannot be made: the rootfs is read-only there", path.display())));
                    }
                    made => made.map_err(|error| failed(&about(), &error))?,
                },
                kind => return Ok(Err(format!("{} is {} in the rootfs", path.display(), no_directory(kind)))),
            }
        }
        Ok(Ok(()))
    }

    /// Makes an empty file and its missing parents, if permitted. Returns the obstacle otherwise.
    fn make_way_to_file(&self, path: &Path, may_make: bool) -> Result<Result<(), String>, Refused> {
        if let Some(parent) = path.parent()
            && let Err(why) = self.make_way(parent, may_make)?
        {
            return Ok(Err(why));
        }
        let about = |error| failed(&format!("rootfs: {}", path.display()), &error);
        match self.entry(path).map_err(about)? {
            Entry::File => Ok(Ok(())),
            Entry::Missing if !may_make => {
                Ok(Err(format!("{} does not exist in the enclosing volume", path.display())))
            }
            Entry::Missing => match make(self.root.as_fd(), path, false, Some((self.ids.host(0), self.ids.host(0)))) {
                Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                    Ok(Err(format!("{} cannot be made: the rootfs is read-only there", path.display())))
                }
                made => made.map(Ok).map_err(about),
            },
            _ => Ok(Err(format!("{} is not a regular file in the rootfs, but the volume is one", path.display()))),
        }
    }

    /// Resolves the plan's user by the tree's own files.
    ///
    /// # Errors
    /// Returns a violation of `action.run.user` if the name is unknown.
    pub(crate) fn resolve_user(&self, user: &UserRef, field: &str) -> Result<ResolvedUser, Refused> {
        let read = |path: &str| {
            read_small(self.root.as_fd(), Path::new(path)).map_err(|error| failed(&format!("rootfs: {path}"), &error))
        };
        let violation = |why: String| Refused::from_fields(Reason::Precondition, &[Violation::new(field, why)]);
        let asked = user;
        let user = users::resolve(asked, &read("/etc/passwd")?, &read(GROUP_FILE)?)
            .map_err(|unknown| violation(unknown.to_string()))?;
        let highest = self.ids.highest();
        match [user.uid, user.gid].iter().chain(&user.groups).find(|id| **id > highest) {
            Some(id) => Err(violation(format!("`{asked}` has id {id}; {highest} is the highest in a user namespace"))),
            None => Ok(user),
        }
    }

    /// Returns the numbers of the plan's supplementary groups, by the tree's own file.
    ///
    /// # Errors
    /// Returns a violation of the entry of `extra_groups` if the name is unknown.
    pub(crate) fn extra_groups(&self, plan: &Plan) -> Result<Vec<u32>, Refused> {
        if plan.extra_groups.is_empty() {
            return Ok(Vec::new());
        }
        let file = read_small(self.root.as_fd(), Path::new(GROUP_FILE))
            .map_err(|error| failed(&format!("rootfs: {GROUP_FILE}"), &error))?;
        let violation = |index: usize, why: String| {
            Refused::from_fields(Reason::Precondition, &[Violation::new(format!("extra_groups[{index}]"), why)])
        };
        let groups = users::resolve_groups(&plan.extra_groups, &file)
            .map_err(|(index, unknown)| violation(index, unknown.to_string()))?;
        let highest = self.ids.highest();
        match groups.iter().position(|gid| *gid > highest) {
            Some(index) => {
                let (asked, gid) = (&plan.extra_groups[index], groups[index]);
                Err(violation(index, format!("`{asked}` has id {gid}; {highest} is the highest in a user namespace")))
            }
            None => Ok(groups),
        }
    }

    /// Returns the numbers of the groups that the plan's files name, by the tree's own file.
    ///
    /// # Errors
    /// Returns a violation of the file's `group` if the name is unknown.
    pub(crate) fn file_groups(&self, plan: &Plan) -> Result<BTreeMap<String, u32>, Refused> {
        let of_steps = plan.processes.iter().flat_map(|process| &process.files);
        let files: Vec<&PlannedFile> = plan.files.iter().chain(of_steps).collect();
        file_groups(self.root(), files, BTreeMap::new(), self.ids)
    }

    /// Returns the users of the processes of a tree of actions.
    ///
    /// # Errors
    /// Returns a violation if the tree does not have a user.
    pub(crate) fn step_users(&self, plan: &Plan) -> Result<Vec<ResolvedUser>, Refused> {
        let of_actions = plan.actions.iter().flat_map(|_| &plan.processes);
        let user = |process: &PlannedProcess| {
            self.resolve_user(process.user.as_ref().unwrap_or(&plan.user), &format!("{}.run.user", process.id))
        };
        of_actions.map(user).collect()
    }

    /// Determines the mount points of the processes of a tree of actions; `mounts` are those of the container's own
    /// files.
    ///
    /// # Errors
    /// Returns a violation for each path that does not fit the tree.
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
    /// Returns a violation for each path that does not fit the tree.
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
            PlacementError::View(path, error) => failed(&format!("rootfs: {}", path.display()), &error),
        })
    }

    /// Determines the mount point of the termination message file and makes it; `mounts` are those of the container's
    /// secret files.
    ///
    /// # Errors
    /// Returns a violation of `termination_message.path` if the path does not fit the tree.
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
        let about = |path: &Path| format!("rootfs: {}", path.display());
        let holds = |mount: &&MountPoint| {
            matches!(mount.content, Content::Directory(_)) && message.path.starts_with(&mount.target)
        };
        if let Some(directory) = mounts.iter().find(holds) {
            let (path, directory) = (message.path.display(), directory.target.display());
            return Err(violation(format!("`{path}` is in {directory}, which holds only secret files")));
        }
        let point = place_file(&message.path, &spec::fresh_mounts(plan), self)
            .map_err(|(path, error)| failed(&about(&path), &error))?
            .map_err(violation)?;
        let owner = (self.ids.host(user.uid), self.ids.host(user.gid));
        if !point.in_fresh_mount {
            make_target(self.root.as_fd(), &point, Some(owner)).map_err(|error| match error.kind() {
                io::ErrorKind::ReadOnlyFilesystem => {
                    let path = message.path.display();
                    violation(format!("`{path}` cannot be made: the rootfs is read-only there"))
                }
                _ => failed(&about(&message.path), &error),
            })?;
        }
        Ok(Some(point))
    }

    /// Makes the mount points of files. All mount points are determined before any is made, so that new ones are not
    /// mistaken for entries of the tree.
    ///
    /// # Errors
    /// Returns a violation for each file if the tree is read-only there.
    pub(crate) fn make_targets<'a>(
        &self,
        mounts: impl Iterator<Item = &'a MountPoint>,
        files: &[PlannedFile],
        user: &ResolvedUser,
    ) -> Result<(), Refused> {
        let owner = (self.ids.host(user.uid), self.ids.host(user.gid));
        let mut violations = Vec::new();
        for mount in mounts.filter(|mount| !mount.in_fresh_mount) {
            if let Err(error) = make_target(self.root.as_fd(), mount, Some(owner)) {
                match error.kind() {
                    io::ErrorKind::ReadOnlyFilesystem => {
                        let field = field_of(files, mount);
                        let why = format!("`{}` cannot be made: the rootfs is read-only there", mount.target.display());
                        violations.push(Violation::new(field, why));
                    }
                    _ => return Err(failed(&format!("rootfs: {}", mount.target.display()), &error)),
                }
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
    }
}

impl Tree {
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Makes a directory if the path does not exist. Returns the kind of any other entry in the words of a violation:
    /// `a symbolic link`.
    ///
    /// # Errors
    /// Returns a refusal if the tree cannot be read or written.
    pub(crate) fn require_dir(&self, path: &Path) -> Result<Option<&'static str>, Refused> {
        let about = || format!("rootfs: {}", path.display());
        match self.entry(path).map_err(|error| failed(&about(), &error))? {
            Entry::Directory => {}
            Entry::Missing => self.make_dir(path).map_err(|error| failed(&about(), &error))?,
            kind => return Ok(Some(no_directory(kind))),
        }
        Ok(None)
    }

    /// Makes a directory in an existing directory.
    pub(crate) fn make_dir(&self, path: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = open_in_root(self.root.as_fd(), parent, flags, Mode::empty(), Follow::NoLinks)?;
        mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
        own(parent.as_fd(), Path::new(name), (self.ids.host(0), self.ids.host(0)))
    }

    /// Mounts the host's /sys read-only, without the mounts below it.
    fn show_hosts_sys(&self) -> io::Result<()> {
        let view = clone_tree(open_dir(Path::new("/sys"))?.as_fd(), Path::new(""), false)?;
        let shown = Attributes { read_only: true, no_suid: true, no_dev: true, no_exec: true, recursive: false };
        set_attributes(view.as_fd(), shown)?;
        let sys = self.real.get(REAL.len() - 1).ok_or(io::ErrorKind::NotFound)?;
        attach(view.as_fd(), sys.as_fd())
    }
}

impl RootfsView for Tree {
    type Error = io::Error;

    fn entry(&self, path: &Path) -> io::Result<Entry> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let fd = match open_in_root(self.root.as_fd(), path, flags, Mode::empty(), Follow::NoLinks) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Entry::Missing),
            fd => fd?,
        };
        Ok(match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::Directory => Entry::Directory,
            FileType::RegularFile => Entry::File,
            FileType::Symlink => Entry::Symlink,
            _ => Entry::Special,
        })
    }
}

/// Mounts the root of a `dir:/absolute/path`: an overlay of a prepared directory that the operator allows, which is
/// never written to.
fn assemble_dir(
    lower: &Path,
    allowed: &[PathBuf],
    names: Option<&etc::Contents>,
    dirs: &Dirs,
    ids: &Ids,
) -> Result<Overlay, Refused> {
    let violation = |why: String| Refused::from_fields(Reason::Precondition, &[Violation::new("rootfs", why)]);
    let opened = open_dir(lower).map_err(|error| violation(format!("`dir:{}`: {}", lower.display(), plain(&error))))?;
    // The resolved path decides whether the operator allows it. From here on the opened directory is used: replacing it
    // or a parent by a link has no effect any more.
    let held = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let lower = &std::fs::read_link(&held).map_err(|error| failed("rootfs", &error))?;
    if !allowed.is_empty() && !allowed.iter().any(|root| lower.starts_with(root)) {
        let why = format!("`{}` is not below one of the configured rootfs_dirs", lower.display());
        return Err(violation(why));
    }
    let model = std::fs::metadata(&held).map_err(|error| failed("rootfs", &error))?;
    overlay::assemble(&format!("dir:{}", lower.display()), &[opened.as_fd()], Some(&model), names, dirs, ids)
}

/// Adds the groups that files name to `known`, by the group file of an untrusted root.
///
/// # Errors
/// Returns a violation of each file's `group` if the name is unknown or the number is not mapped in the container.
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
            content = Some(read.map_err(|error| failed(&format!("rootfs: {GROUP_FILE}"), &error))?);
        }
        match users::gid_of(name, content.as_deref().unwrap_or_default()) {
            Ok(gid) if gid <= ids.highest() => drop(known.insert(name.clone(), gid)),
            Ok(gid) => {
                let why = format!("`{name}` has id {gid}; {} is the highest in a user namespace", ids.highest());
                violations.push(Violation::new(format!("{}.group", file.field), why));
            }
            Err(unknown) => violations.push(Violation::new(format!("{}.group", file.field), unknown.to_string())),
        }
    }
    if violations.is_empty() { Ok(known) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
}

/// Returns the mount points of the pod's volumes.
pub(crate) fn shared_mounts(plan: &Plan) -> impl Iterator<Item = &Path> {
    plan.volumes.iter().filter(|volume| volume.is_of_pod()).map(|volume| volume.path.as_path())
}

/// Makes the directory or the empty file for a mount, and its missing parents. They belong to the process's user
/// (0755): the surroundings of a secret file are the program's. Without an `owner` they keep the calling process's ids:
/// in a volume of the pod another member could replace the new entry, whose owner must then not change.
///
/// # Errors
/// Returns an error if the tree is read-only or changed meanwhile.
pub(crate) fn make_target(root: BorrowedFd<'_>, mount: &MountPoint, owner: Option<(u32, u32)>) -> io::Result<()> {
    let mut parents: Vec<&Path> = mount.target.ancestors().skip(1).filter(|path| path.parent().is_some()).collect();
    parents.reverse();
    parents.into_iter().try_for_each(|parent| make(root, parent, true, owner))?;
    make(root, &mount.target, matches!(mount.content, Content::Directory(_)), owner)
}

/// Moves a view of secret files to its mount point, with the calling process's root as `/`. A mount point in a fresh
/// empty file system or in a volume of the pod is made ([`make_target`]); `owner` is in ids as the calling process sees
/// them.
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

fn make(root: BorrowedFd<'_>, path: &Path, directory: bool, owner: Option<(u32, u32)>) -> io::Result<()> {
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

/// Changes owner and group of a new entry.
fn own(parent: BorrowedFd<'_>, name: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    Ok(chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Reads a small file below a root; empty if it does not exist.
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
    let mut bytes = Vec::new();
    std::fs::File::from(fd).take(users::FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > users::FILE_MAX {
        return Err(io::Error::other(format!("has more than {} bytes", users::FILE_MAX)));
    }
    Ok(bytes)
}

/// Returns the request's field of the first file that a mount shows.
fn field_of(files: &[PlannedFile], mount: &MountPoint) -> String {
    let index = match &mount.content {
        Content::File(index) => *index,
        Content::Directory(files) => files.first().map_or(0, |(index, _)| *index),
    };
    files.get(index).map_or_else(|| "volume_mounted_files".to_owned(), PlannedFile::path_field)
}

/// Names an entry that exists instead of a directory.
fn no_directory(kind: Entry) -> &'static str {
    if kind == Entry::Symlink { "a symbolic link" } else { "not a directory" }
}
