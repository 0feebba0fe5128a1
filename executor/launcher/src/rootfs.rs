//! Assembles the root file system of a container, in its shim's mount namespace.
//!
//! The input is a reference, and the output is a tree at RUN_DIR/root, which libcontainer binds and pivots into. The
//! mounts are not visible on the host and disappear with the shim's mount namespace. The tree is untrusted, so every
//! path in it is opened as if the tree were `/` (openat2).

pub(crate) mod etc;
mod host;
mod image;
mod overlay;
mod pod;
mod targets;
mod users;
mod volumes;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::idmap::IdMap;
use executor_core::placement::{RootfsEntry, RootfsView};
use executor_core::plan::{Plan, Rootfs};
use executor_core::protocol::{Reason, Refused};
use executor_core::spec;
use executor_core::validate::Violation;
use executor_sys::mount::{Attributes, Follow, attach, clone_tree, open_dir, open_in_root, set_attributes, set_suid};
use rustix::fs::{FileType, Mode, OFlags, fstat, mkdirat};
use targets::{make, own};
pub(crate) use targets::{place_view, shared_mounts};
pub(crate) use users::{file_groups, read_small};
pub(crate) use volumes::LateMount;
pub(crate) use volumes::MountedVolumes;

use crate::dirs::Dirs;
use crate::errors::{failed, plain};
use crate::host::Host;
use crate::ids::Ids;

/// Names that must be directories. libcontainer would follow a symbolic link with such a name before the pivot, and
/// would create and delete the link's target on the host.
const REAL: [&str; 3] = ["dev", "proc", "sys"];

/// An assembled root file system.
///
/// A prepared directory may change while it is in use. Overlayfs does not resolve a name again while its inode is open.
/// Therefore keep this value until libcontainer has mounted on the directories in it.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// Open descriptors: the directories in [`REAL`], and the mount points of in-memory file systems.
    real: Vec<OwnedFd>,
    ids: IdMap,
    /// Warnings about parts of the image that the root file system omits.
    warnings: Vec<String>,
    /// Mounts of the root's layers with the container's ids.
    views: Vec<OwnedFd>,
    /// True if the files of [`etc`] have been written.
    has_names: bool,
}

struct Overlay {
    /// Mounts of the lower layers with the container's ids.
    views: Vec<OwnedFd>,
    /// True if the files of [`etc`] have been written.
    has_names: bool,
}

impl Tree {
    /// Returns the omitted parts of the image, as warnings.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Removes and returns the views of the layers, to be closed later. The mounted root no longer needs them.
    pub(crate) fn take_views(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.views)
    }

    /// Returns true if the files of [`etc`] have been written.
    pub(crate) fn has_names(&self) -> bool {
        self.has_names
    }

    /// Assembles the root file system in the shim's staging directory, which is empty. A `dir:` reference must be below
    /// one of the policy's `rootfs_dirs`, unless that list is empty. The files of [`etc`] are written if their contents
    /// are known and they can be written before the mount.
    ///
    /// # Errors
    /// Returns a violation of `rootfs` if the reference cannot be used on this host. Returns an error if the disk of
    /// the state directory is full.
    pub(crate) fn assemble(
        host: &Host,
        plan: &Plan,
        names: Option<&etc::Contents>,
        dirs: &Dirs,
        ids: &Ids,
    ) -> Result<Self, Refused> {
        let (rootfs, at) = (&plan.rootfs, &dirs.stage);
        let (mut warnings, mut mounted) = (Vec::new(), Overlay { views: Vec::new(), has_names: false });
        match rootfs {
            Rootfs::Host => host::assemble(at, ids).map_err(|error| failed("rootfs `host`: cannot mount", &error))?,
            Rootfs::Dir(lower) => mounted = assemble_dir(lower, &host.policy.rootfs_dirs, names, dirs, ids)?,
            Rootfs::Pod => pod::assemble(at, ids).map_err(|error| failed("rootfs of the pod: cannot mount", &error))?,
            Rootfs::Image(image) => (warnings, mounted) = image::assemble(image, &host.layers(), names, dirs, ids)?,
        }
        let root = open_dir(at).map_err(|error| failed("cannot open the rootfs", &error))?;
        if plan.isolation.allow_new_privileges {
            set_suid(root.as_fd()).map_err(|error| failed("rootfs: cannot allow set-user-id programs", &error))?;
        }
        let Overlay { views, has_names } = mounted;
        let mut tree = Self { root, real: Vec::new(), ids: ids.map(), warnings, views, has_names };
        tree.require_real_directories(rootfs)?;
        if let Rootfs::Image(image) = rootfs {
            tree.make_volumes(image, plan.isolation.read_only_rootfs)?;
        }
        if spec::shows_hosts_sys(plan) {
            tree.show_hosts_sys().map_err(|error| failed("cannot show the host's /sys", &error))?;
        }
        Ok(tree)
    }

    fn require_real_directories(&mut self, rootfs: &Rootfs) -> Result<(), Refused> {
        let mut violations = Vec::new();
        for name in REAL {
            match self.entry(Path::new(name)) {
                Ok(RootfsEntry::Directory) => {}
                Ok(RootfsEntry::Missing) => self
                    .make_dir(&Path::new("/").join(name))
                    .map_err(|error| failed(&format!("rootfs `{rootfs}`: cannot create /{name}"), &error))?,
                Ok(kind) => {
                    let what = no_directory(kind);
                    violations.push(Violation::new(
                        "rootfs",
                        format!("`{rootfs}`: /{name} is {what}; it must be a directory"),
                    ));
                }
                Err(error) => return Err(failed(&format!("rootfs `{rootfs}`: cannot inspect /{name}"), &error)),
            }
            // If the directory was replaced by a link meanwhile, opening it fails.
            if violations.is_empty() {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let dir = open_in_root(self.root.as_fd(), Path::new(name), flags, Mode::empty(), Follow::NoLinks);
                self.real
                    .push(dir.map_err(|error| failed(&format!("rootfs `{rootfs}`: cannot open /{name}"), &error))?);
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
    }

    /// Creates the mount points of the plan's in-memory file systems, except mount points inside of another fresh
    /// mount. Keeps them open so that they do not change until libcontainer has mounted there.
    ///
    /// # Errors
    /// Returns a violation for each file system whose path contains something other than directories.
    pub(crate) fn make_room_for_tmpfs(&mut self, plan: &Plan) -> Result<(), Refused> {
        let fresh = spec::fresh_mounts(plan);
        let mut violations = Vec::new();
        for (index, tmpfs) in plan.surroundings.tmpfs.iter().enumerate() {
            let path = &tmpfs.path;
            if fresh.iter().any(|mount| path != mount && path.starts_with(mount)) {
                continue;
            }
            if let Err(why) = self.ensure_dir_all(path, true)? {
                violations.push(Violation::new(format!("tmpfs[{index}].path"), format!("`{}`: {why}", path.display())));
                continue;
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let dir = open_in_root(self.root.as_fd(), path, flags, Mode::empty(), Follow::NoLinks);
            self.real.push(dir.map_err(|error| failed(&format!("rootfs: cannot open {}", path.display()), &error))?);
        }
        if violations.is_empty() { Ok(()) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
    }

    /// Checks that a directory exists. If `may_make` is true, creates the directory and its missing parents. Returns an
    /// explanation if the directory does not exist and cannot be created.
    fn ensure_dir_all(&self, path: &Path, may_make: bool) -> Result<Result<(), String>, Refused> {
        let mut above: Vec<&Path> = path.ancestors().filter(|path| path.parent().is_some()).collect();
        above.reverse();
        for path in above {
            let about = || format!("rootfs: cannot create {}", path.display());
            match self.entry(path).map_err(|error| failed(&about(), &error))? {
                RootfsEntry::Directory => {}
                RootfsEntry::Missing if !may_make => {
                    return Ok(Err(format!("{} does not exist in the enclosing volume", path.display())));
                }
                RootfsEntry::Missing => match self.make_dir(path) {
                    Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                        return Ok(Err(format!("{} cannot be created: the rootfs is read-only there", path.display())));
                    }
                    made => made.map_err(|error| failed(&about(), &error))?,
                },
                kind => return Ok(Err(format!("{} is {} in the rootfs", path.display(), no_directory(kind)))),
            }
        }
        Ok(Ok(()))
    }

    /// Checks that a regular file exists. If `may_make` is true, creates an empty file and its missing parents. Returns
    /// an explanation if the file does not exist and cannot be created.
    fn ensure_file(&self, path: &Path, may_make: bool) -> Result<Result<(), String>, Refused> {
        if let Some(parent) = path.parent()
            && let Err(why) = self.ensure_dir_all(parent, may_make)?
        {
            return Ok(Err(why));
        }
        let about = |error| failed(&format!("rootfs: cannot create {}", path.display()), &error);
        match self.entry(path).map_err(about)? {
            RootfsEntry::File => Ok(Ok(())),
            RootfsEntry::Missing if !may_make => {
                Ok(Err(format!("{} does not exist in the enclosing volume", path.display())))
            }
            RootfsEntry::Missing => {
                match make(self.root.as_fd(), path, false, Some((self.ids.to_host(0), self.ids.to_host(0)))) {
                    Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                        Ok(Err(format!("{} cannot be created: the rootfs is read-only there", path.display())))
                    }
                    made => made.map(Ok).map_err(about),
                }
            }
            _ => Ok(Err(format!(
                "{} is not a regular file in the rootfs, but the volume is a regular file",
                path.display()
            ))),
        }
    }
}

impl Tree {
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Creates a directory if the path does not exist. If the path exists and is not a directory, returns a description
    /// for a violation, such as `a symbolic link`.
    ///
    /// # Errors
    /// Returns a refusal if the tree cannot be read or written.
    pub(crate) fn require_dir(&self, path: &Path) -> Result<Option<&'static str>, Refused> {
        let about = || format!("rootfs: cannot create {}", path.display());
        match self.entry(path).map_err(|error| failed(&about(), &error))? {
            RootfsEntry::Directory => {}
            RootfsEntry::Missing => self.make_dir(path).map_err(|error| failed(&about(), &error))?,
            kind => return Ok(Some(no_directory(kind))),
        }
        Ok(None)
    }

    /// Creates a directory in an existing directory.
    pub(crate) fn make_dir(&self, path: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = open_in_root(self.root.as_fd(), parent, flags, Mode::empty(), Follow::NoLinks)?;
        mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
        own(parent.as_fd(), Path::new(name), (self.ids.to_host(0), self.ids.to_host(0)))
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

    fn entry(&self, path: &Path) -> io::Result<RootfsEntry> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let fd = match open_in_root(self.root.as_fd(), path, flags, Mode::empty(), Follow::NoLinks) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RootfsEntry::Missing),
            fd => fd?,
        };
        Ok(match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::Directory => RootfsEntry::Directory,
            FileType::RegularFile => RootfsEntry::File,
            FileType::Symlink => RootfsEntry::Symlink,
            _ => RootfsEntry::Special,
        })
    }
}

/// Mounts the root of a `dir:/absolute/path`: an overlay of a prepared directory that the operator allows. The prepared
/// directory is never written to.
fn assemble_dir(
    lower: &Path,
    allowed: &[PathBuf],
    names: Option<&etc::Contents>,
    dirs: &Dirs,
    ids: &Ids,
) -> Result<Overlay, Refused> {
    let violation = |why: String| Refused::from_fields(Reason::Precondition, &[Violation::new("rootfs", why)]);
    let opened = open_dir(lower).map_err(|error| violation(format!("`dir:{}`: {}", lower.display(), plain(&error))))?;
    // Check the resolved path against the policy. From here on only the opened directory is used, so replacing it or a
    // parent by a link has no effect.
    let held = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let lower = &std::fs::read_link(&held).map_err(|error| failed("cannot resolve the rootfs", &error))?;
    if !allowed.is_empty() && !allowed.iter().any(|root| lower.starts_with(root)) {
        let why = format!("`{}` is not below one of the configured rootfs_dirs", lower.display());
        return Err(violation(why));
    }
    let model = std::fs::metadata(&held).map_err(|error| failed("cannot inspect the rootfs", &error))?;
    overlay::assemble(&format!("dir:{}", lower.display()), &[opened.as_fd()], Some(&model), names, dirs, ids)
}

/// Describes an entry that is not a directory.
fn no_directory(kind: RootfsEntry) -> &'static str {
    if kind == RootfsEntry::Symlink { "a symbolic link" } else { "not a directory" }
}
