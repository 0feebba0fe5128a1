//! Creates and fills the file system of a container's secret files.
//!
//! Each container has one tmpfs, which is created detached: it has no path on the host. The tmpfs is filled before any
//! process can see it, and the container gets read-only views of it, one per mount point. The shim keeps a writable
//! handle, because secrets must be overwritten in place when the container exits; the launcher has a second handle.
//!
//! ```text
//! /0/                       mount point 0, a directory (0700, the process's user)
//!    db/user -> ../../../dev/executor-files/0/..data/db/user
//!                           path that the process opens: swapping `..data` changes all files in one step
//! /1                        mount point 1, a single file
//! /files/0/..gen1/db/user   the files (0600) of mount point 0; `files` shows at /dev/executor-files
//! /files/0/..data -> ..gen1
//! /inputs/values            variables and arguments, if the container may request them again (0600, root)
//! ```
//! This is the layout of Kubernetes' AtomicWriter, so one rename replaces a generation with a later generation (see the
//! module `generation`). Unlike AtomicWriter, generations are stored outside the visible directory, which has only the
//! container's files. A directory gets the least permissions with which the files below it are accessible. The two
//! directories above the generations, which all users pass through, can be searched but not listed (0711).
//!
//! Files that the process may change have no generations, and no links lead to them:
//! ```text
//! /0/db/user                the file, in a directory that the process may write to
//! /1                        mount point 1, a single file
//! /files/0, /files/1        second names (0700, root) of the same files, so that files that the process deletes
//!                           are wiped, too; numbered as in the plan
//! /inputs/0                 original content from the request, if the container may request it again
//! ```
//! The size of the file system bounds the data that the process may write; all of that data is wiped too.
//!
//! The files belong to the container user, who may take leases on them (fcntl(2), F_SETLEASE), and a lease blocks every
//! open of a file for 45 s. A file that is open for writing cannot be leased, so the shim holds each file open from its
//! creation.

mod generation;
mod inputs;
mod shown;
mod steps;
mod wipe;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::placement::{self, Content, IN_FORCE, MountPoint, VolumeSize};
use executor_core::plan::Layout;
use executor_core::record::VolumeKind;
use executor_sys::mount::{Attributes, clone_tree, detached, set_attributes};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::mount::MountAttrFlags;

pub use generation::{Replaced, Rotation};
pub use inputs::Stored;
pub use steps::StepSecrets;
pub use wipe::Receipt;

/// Mount source, as shown in /proc/PID/mountinfo.
pub const SOURCE: &str = "executor-secrets";
/// Permission bits of a directory of private files.
const DIRECTORY: u32 = 0o700;
/// Mode of a directory that other users may pass through but not list.
const PASSAGE: u32 = 0o711;
/// Mode of a file while it is being written.
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Mount attributes in the container for read-only files.
const READ_ONLY: Attributes =
    Attributes { read_only: true, no_suid: true, no_dev: true, no_exec: true, recursive: false };
/// Mount attributes in the container for writable files.
const WRITABLE: Attributes = Attributes { read_only: false, ..READ_ONLY };
/// Directory of the generations, with a subdirectory for each mount point that has generations. For writable files,
/// this directory holds their second names.
const FILES: &str = "files";
/// User and group id of the host's root. No container user maps to it.
const ROOT: u32 = 0;
/// Directory of the first generation.
const GENERATION: &str = "..gen1";

/// A writable handle of a container's secret file system.
#[derive(Debug)]
pub struct Volume {
    root: OwnedFd,
    kind: VolumeKind,
    /// The files, kept open for writing so that no process can lease them.
    held: RefCell<Vec<OwnedFd>>,
}

/// Callback that receives each file, open for writing. A short-lived helper writes the files, and passes their
/// descriptors to a process that keeps the files open.
pub type Pass<'a> = dyn FnMut(OwnedFd) -> io::Result<()> + 'a;

/// Owner and default group of secret files.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// User id on the host.
    pub uid: u32,
    /// Group id on the host.
    pub gid: u32,
}

/// Permissions of a file for users other than its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: u32,
    /// Group id on the host. The group gets the permissions for groups in the mode.
    pub gid: u32,
}

impl Volume {
    /// Creates an empty volume: tmpfs with `noswap`, or ramfs if the kernel's tmpfs has no such option.
    ///
    /// # Errors
    /// Returns an error if the process lacks privilege or the kernel lacks memory.
    pub fn create(size: VolumeSize) -> io::Result<Self> {
        let flags =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let (bytes, inodes) = (size.bytes.to_string(), size.inodes.to_string());
        let options =
            [("mode", Some("0700")), ("size", Some(&*bytes)), ("nr_inodes", Some(&*inodes)), ("noswap", None)];
        match detached("tmpfs", SOURCE, &options, flags) {
            Ok(root) => Ok(Self::from_handle(root, VolumeKind::TmpfsNoswap)),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let root = detached("ramfs", SOURCE, &[("mode", Some("0700"))], flags)?;
                Ok(Self::from_handle(root, VolumeKind::Ramfs))
            }
            Err(error) => Err(error),
        }
    }

    /// Wraps a handle that another executor process passed.
    pub fn from_handle(root: OwnedFd, kind: VolumeKind) -> Self {
        Self { root, kind, held: RefCell::default() }
    }

    /// Returns the writable handle, to pass it to another process.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns the type of file system.
    pub fn kind(&self) -> VolumeKind {
        self.kind
    }

    /// Holds a passed file open until it is removed.
    pub fn hold(&self, file: OwnedFd) {
        self.held.borrow_mut().push(file);
    }

    /// Closes held files that were removed.
    fn release(&self) {
        let is_there = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0);
        self.held.borrow_mut().retain(is_there);
    }

    /// Writes every file and passes it to `pass`. The pages are charged to the cgroup of the calling process.
    ///
    /// # Errors
    /// Returns an error if the volume is full or the cgroup's memory limit is reached.
    ///
    /// # Panics
    /// Panics if `contents` or `access` is shorter than the indices in `mounts` require; the caller checks the lengths
    /// first.
    pub fn fill(
        &self,
        mounts: &[MountPoint],
        contents: &[&[u8]],
        access: &[Access],
        owner: Owner,
        layout: Layout,
        pass: &mut Pass<'_>,
    ) -> io::Result<()> {
        if layout == Layout::Writable {
            return self.fill_writable(mounts, contents, access, owner, pass);
        }
        let passage = Access { mode: PASSAGE, gid: owner.gid };
        if placement::shows_generations_dir(mounts, layout) {
            make_dir(self.handle(), FILES.as_ref(), owner.uid, passage)?;
        }
        for (number, mount) in mounts.iter().enumerate() {
            let name = number.to_string();
            match &mount.content {
                Content::File(index) => {
                    let file = write_file(self.handle(), name.as_ref(), contents[*index], owner.uid, access[*index])?;
                    pass(file.into())?;
                }
                Content::Directory(files) => {
                    let top = make_dir(self.handle(), generations(number).as_os_str(), owner.uid, passage)?;
                    let generation = make_generation(top.as_fd(), GENERATION, &mount.content, access, owner)?;
                    for (index, path) in files {
                        let file = write_file(generation.as_fd(), path, contents[*index], owner.uid, access[*index])?;
                        pass(file.into())?;
                    }
                    make_link(Path::new(GENERATION), top.as_fd(), IN_FORCE.as_ref(), owner)?;
                    let private = Access { mode: DIRECTORY, gid: owner.gid };
                    let shown = make_dir(self.handle(), name.as_ref(), owner.uid, private)?;
                    let shown = shown.as_fd();
                    shown::copy_access(generation.as_fd(), shown, Path::new(""))?;
                    shown::add(generation.as_fd(), None, shown, &|path| mount.link(number, path))?;
                }
            }
        }
        Ok(())
    }

    /// Writes every file at its visible path, and creates a second name for each.
    fn fill_writable(
        &self,
        mounts: &[MountPoint],
        contents: &[&[u8]],
        access: &[Access],
        owner: Owner,
        pass: &mut Pass<'_>,
    ) -> io::Result<()> {
        let names = make_dir(self.handle(), FILES.as_ref(), ROOT, Access { mode: DIRECTORY, gid: ROOT })?;
        let mut write = |dir: BorrowedFd<'_>, path: &Path, index: usize| {
            let file = write_file(dir, path, contents[index], owner.uid, access[index])?;
            rustix::fs::linkat(dir, path, &names, index.to_string(), AtFlags::empty())?;
            pass(file.into())
        };
        for (number, mount) in mounts.iter().enumerate() {
            let name = number.to_string();
            match &mount.content {
                Content::File(index) => write(self.handle(), name.as_ref(), *index)?,
                Content::Directory(files) => {
                    let dir = make_generation(self.handle(), &name, &mount.content, access, owner)?;
                    files.iter().try_for_each(|(index, path)| write(dir.as_fd(), path, *index))?;
                }
            }
        }
        Ok(())
    }

    /// Creates detached views, one per mount point, in the same order. The views are read-only, or writable if the
    /// process may change its files.
    ///
    /// # Errors
    /// Returns `InvalidInput` on kernels before 6.15 if the volume is not attached: see [`Volume::attach`].
    pub fn views(&self, mounts: &[MountPoint], layout: Layout) -> io::Result<Vec<OwnedFd>> {
        let attributes = if layout == Layout::Writable { WRITABLE } else { READ_ONLY };
        (0..mounts.len()).map(|number| self.view_with(Path::new(&number.to_string()), attributes)).collect()
    }

    /// Creates a read-only view of all generations, if the mount points have any. For writable files, this is a view of
    /// their second names.
    ///
    /// # Errors
    /// Returns the same errors as [`Volume::views`].
    pub fn generations_view(&self, mounts: &[MountPoint], layout: Layout) -> io::Result<Option<OwnedFd>> {
        placement::shows_generations_dir(mounts, layout).then(|| self.view(FILES.as_ref())).transpose()
    }

    /// Creates a detached read-only view of a path in the volume.
    ///
    /// # Errors
    /// Returns the same errors as [`Volume::views`].
    pub fn view(&self, path: &Path) -> io::Result<OwnedFd> {
        self.view_with(path, READ_ONLY)
    }

    fn view_with(&self, path: &Path, attributes: Attributes) -> io::Result<OwnedFd> {
        let view = clone_tree(self.handle(), path, false)?;
        set_attributes(view.as_fd(), attributes)?;
        Ok(view)
    }

    /// Attaches the volume at a directory of the calling process's private mount namespace. Kernels that cannot clone
    /// a detached mount require this.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist.
    pub fn attach(&self, target: BorrowedFd<'_>) -> io::Result<()> {
        executor_sys::mount::attach(self.handle(), target)
    }
}

/// Returns true if the kernel has tmpfs with `noswap`.
///
/// # Errors
/// Returns an error if the caller lacks the privilege to create a file system.
pub fn noswap_supported() -> io::Result<bool> {
    Ok(Volume::create(VolumeSize { bytes: 4096, inodes: 4 })?.kind == VolumeKind::TmpfsNoswap)
}

/// Returns the directory of a mount point's generations in the volume.
fn generations(mount: usize) -> PathBuf {
    Path::new(FILES).join(mount.to_string())
}

/// Creates the directory of a generation with its subdirectories.
fn make_generation(
    top: BorrowedFd<'_>,
    name: &str,
    content: &Content,
    access: &[Access],
    owner: Owner,
) -> io::Result<OwnedFd> {
    let files = match content {
        Content::Directory(files) => files,
        Content::File(_) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let mut directories = BTreeMap::from([(Path::new(""), Sharing::default())]);
    for (index, path) in files {
        for directory in path.ancestors().skip(1) {
            directories.entry(directory).or_default().add(access[*index]);
        }
    }
    let generation = make_dir(top, name.as_ref(), owner.uid, directories[Path::new("")].access(owner))?;
    for (path, sharing) in directories.iter().filter(|(path, _)| !path.as_os_str().is_empty()) {
        make_dir(generation.as_fd(), path.as_os_str(), owner.uid, sharing.access(owner))?;
    }
    Ok(generation)
}

/// Collects the access that users other than the owner need to a directory.
#[derive(Default)]
struct Sharing {
    /// Group of the first file below the directory that users other than the owner can access.
    group: Option<u32>,
    /// True if all users can access a file below the directory, or if files of several groups are below the directory.
    all_users: bool,
}

impl Sharing {
    fn add(&mut self, file: Access) {
        if file.mode & 0o077 != 0 {
            self.all_users |= file.mode & 0o007 != 0 || self.group.is_some_and(|group| group != file.gid);
            self.group.get_or_insert(file.gid);
        }
    }

    fn access(&self, owner: Owner) -> Access {
        match self {
            Self { all_users: true, .. } => Access { mode: 0o755, gid: owner.gid },
            Self { group: Some(group), .. } => Access { mode: 0o750, gid: *group },
            Self { group: None, .. } => Access { mode: DIRECTORY, gid: owner.gid },
        }
    }
}

fn make_dir(parent: BorrowedFd<'_>, name: &OsStr, uid: u32, access: Access) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    let dir = open_dir(parent, name)?;
    own(dir.as_fd(), uid, access)?;
    Ok(dir)
}

fn open_dir(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn write_file(dir: BorrowedFd<'_>, name: &Path, content: &[u8], uid: u32, access: Access) -> io::Result<std::fs::File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, FILE)?;
    own(file.as_fd(), uid, access)?;
    let mut file = std::fs::File::from(file);
    file.write_all(content)?;
    Ok(file)
}

/// Creates a link owned by the owner of the files, because the host's root is unmapped in a user namespace.
fn make_link(target: &Path, dir: BorrowedFd<'_>, name: &Path, owner: Owner) -> io::Result<()> {
    rustix::fs::symlinkat(target, dir, name)?;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    Ok(rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn ignore_not_found<E: Into<io::Error>>(result: Result<(), E>) -> io::Result<()> {
    match result.map_err(Into::into) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Sets owner and mode, regardless of the umask.
fn own(fd: BorrowedFd<'_>, uid: u32, Access { mode, gid }: Access) -> io::Result<()> {
    rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    Ok(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?)
}

#[cfg(test)]
mod tests;
