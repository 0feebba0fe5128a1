//! The file system of a container's secret files.
//!
//! One tmpfs a container, made detached: it has no path on the host. It is filled before anyone can see it; the
//! container gets read-only views of it, one for each mount point; the writable side stays with the shim (and a
//! second handle with the launcher), because the end of a secret is to be overwritten where it stands.
//!
//! ```text
//! /0/                       mount point 0, a directory (0700, the process's user)
//!    db -> ../../dev/executor-files/0/..data/db
//!                           what the process opens: swapping `..data` changes all files at once
//! /1                        mount point 1, a single file
//! /files/0/..gen1/db/user   the files (0600) of mount point 0; `files` shows at /dev/executor-files
//! /files/0/..data -> ..gen1
//! /inputs/values            variables and arguments, where the container may ask for them again (0600, root)
//! ```
//! This is the layout of Kubernetes' AtomicWriter, so that a later generation replaces an earlier one by one
//! rename (see the module `generation`); but generations lie beside what the process sees, where there is nothing but its
//! files.
//!
//! The files belong to the container's user, who may take leases on them (fcntl(2), F_SETLEASE), and a lease keeps
//! whoever opens a file waiting for 45 s. Nobody can lease a file that is open for writing: so the shim holds each file
//! open, from the moment that it was made.

mod generation;
mod inputs;
mod wipe;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use executor_core::placement::{self, Content, IN_FORCE, MountPoint, VolumeSize};
use executor_core::record::VolumeKind;
use executor_sys::mount::{Attributes, clone_tree, detached, set_attributes};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::mount::MountAttrFlags;

pub use generation::{Replaced, Rotation};
pub use inputs::Stored;
pub use wipe::Receipt;

/// How the source of the mount shows in /proc/PID/mountinfo.
pub const SOURCE: &str = "executor-secrets";
/// Directories of secret files.
const DIRECTORY: Mode = Mode::RWXU;
/// Secret files.
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// How a container sees them.
const READ_ONLY: Attributes =
    Attributes { read_only: true, no_suid: true, no_dev: true, no_exec: true, recursive: false };
/// The directory of the generations, one directory in it for each mount point that has any.
const FILES: &str = "files";
/// The first generation's directory.
const GENERATION: &str = "..gen1";

/// A container's secret file system, by its writable side.
#[derive(Debug)]
pub struct Volume {
    root: OwnedFd,
    kind: VolumeKind,
    /// The files, open for writing, so that nobody can take a lease on one.
    held: RefCell<Vec<OwnedFd>>,
}

/// Takes each file while it is open for writing: who writes the files is a helper, and does not live on to hold them.
pub type Pass<'a> = dyn FnMut(BorrowedFd<'_>) -> io::Result<()> + 'a;

/// Whose the files are.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// User id on the host.
    pub uid: u32,
    /// Group id on the host.
    pub gid: u32,
}

impl Volume {
    /// Makes an empty volume: tmpfs with `noswap`, or ramfs where the kernel's tmpfs has no such option.
    ///
    /// # Errors
    /// No privilege, or out of memory.
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

    /// Takes a handle that another process of ours passed.
    pub fn from_handle(root: OwnedFd, kind: VolumeKind) -> Self {
        Self { root, kind, held: RefCell::default() }
    }

    /// The writable side, to be passed on.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// On which file system it is.
    pub fn kind(&self) -> VolumeKind {
        self.kind
    }

    /// Holds a file that was passed, for as long as it has a name.
    pub fn hold(&self, file: OwnedFd) {
        self.held.borrow_mut().push(file);
    }

    /// Lets go of files that were removed.
    fn release(&self) {
        let is_there = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0);
        self.held.borrow_mut().retain(is_there);
    }

    /// Writes every file, and passes it on. The pages are charged to the cgroup of the calling process.
    ///
    /// # Errors
    /// No room: in the volume, or in the cgroup's memory limit.
    ///
    /// # Panics
    /// Where `contents` is shorter than the indices in `mounts` say: the caller counts them first.
    pub fn fill(&self, mounts: &[MountPoint], contents: &[&[u8]], owner: Owner, pass: &mut Pass<'_>) -> io::Result<()> {
        if placement::has_generations(mounts) {
            make_dir(self.handle(), FILES.as_ref(), owner)?;
        }
        for (number, mount) in mounts.iter().enumerate() {
            let name = number.to_string();
            match &mount.content {
                Content::File(index) => {
                    pass(write_file(self.handle(), name.as_ref(), contents[*index], owner)?.as_fd())?;
                }
                Content::Directory(files) => {
                    let shown = make_dir(self.handle(), name.as_ref(), owner)?;
                    let top = make_dir(self.handle(), generations(number).as_os_str(), owner)?;
                    let generation = make_dir(top.as_fd(), GENERATION.as_ref(), owner)?;
                    let mut entries: Vec<&OsStr> = Vec::new();
                    for (index, path) in files {
                        write_below(generation.as_fd(), path, contents[*index], owner, pass)?;
                        entries.extend(path.components().next().map(Component::as_os_str));
                    }
                    make_link(Path::new(GENERATION), &top, IN_FORCE.as_ref())?;
                    entries.sort_unstable();
                    entries.dedup();
                    for entry in entries {
                        make_link(&mount.link(number, entry.as_ref()), &shown, entry)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Detached read-only views, one for each mount point, in their order.
    ///
    /// # Errors
    /// On kernels before 6.15 `InvalidInput` while the volume is attached nowhere: see [`Volume::attach`].
    pub fn views(&self, mounts: &[MountPoint]) -> io::Result<Vec<OwnedFd>> {
        (0..mounts.len()).map(|number| self.view(Path::new(&number.to_string()))).collect()
    }

    /// The same of all generations, if the mount points have any.
    ///
    /// # Errors
    /// As [`Volume::views`].
    pub fn generations_view(&self, mounts: &[MountPoint]) -> io::Result<Option<OwnedFd>> {
        placement::has_generations(mounts).then(|| self.view(FILES.as_ref())).transpose()
    }

    /// A detached read-only view of what lies at a path in the volume.
    ///
    /// # Errors
    /// As [`Volume::views`].
    pub fn view(&self, path: &Path) -> io::Result<OwnedFd> {
        let view = clone_tree(self.handle(), path, false)?;
        set_attributes(view.as_fd(), READ_ONLY)?;
        Ok(view)
    }

    /// Attaches the writable side at a directory of the calling process's own, private mount namespace, for
    /// kernels that cannot clone a mount that is detached.
    ///
    /// # Errors
    /// The directory is not there.
    pub fn attach(&self, target: BorrowedFd<'_>) -> io::Result<()> {
        executor_sys::mount::attach(self.handle(), target)
    }
}

/// Whether the kernel has tmpfs with `noswap`.
///
/// # Errors
/// No privilege to make a file system.
pub fn noswap_supported() -> io::Result<bool> {
    Ok(Volume::create(VolumeSize { bytes: 4096, inodes: 4 })?.kind == VolumeKind::TmpfsNoswap)
}

/// Where a mount point's generations are, in the volume.
fn generations(mount: usize) -> PathBuf {
    Path::new(FILES).join(mount.to_string())
}

fn make_dir(parent: BorrowedFd<'_>, name: &OsStr, owner: Owner) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(parent, name, DIRECTORY)?;
    let dir = open_dir(parent, name)?;
    rustix::fs::fchmod(&dir, DIRECTORY)?; // whatever the umask is
    own(&dir, owner)?;
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

/// Writes a file, and the directories above it that are not there yet; passes it on.
fn write_below(root: BorrowedFd<'_>, path: &Path, content: &[u8], owner: Owner, pass: &mut Pass<'_>) -> io::Result<()> {
    let (dir, name) = make_parents(root, path, owner)?;
    pass(write_file(dir.as_fd(), Path::new(name), content, owner)?.as_fd())
}

/// Makes the directories above a path that are not there yet: the last of them, and the path's name in it.
fn make_parents<'a>(root: BorrowedFd<'_>, path: &'a Path, owner: Owner) -> io::Result<(OwnedFd, &'a OsStr)> {
    let mut dir = root.try_clone_to_owned()?;
    for parent in path.parent().into_iter().flat_map(Path::components) {
        dir = match make_dir(dir.as_fd(), parent.as_os_str(), owner) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_dir(dir.as_fd(), parent.as_os_str())?,
            made => made?,
        };
    }
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok((dir, name))
}

fn write_file(dir: BorrowedFd<'_>, name: &Path, content: &[u8], owner: Owner) -> io::Result<std::fs::File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, FILE)?;
    rustix::fs::fchmod(&file, FILE)?;
    own(&file, owner)?;
    let mut file = std::fs::File::from(file);
    file.write_all(content)?;
    Ok(file)
}

/// Makes a link, which belongs to whom its directory belongs to: the host's root is nobody in a user namespace.
fn make_link(target: &Path, dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    rustix::fs::symlinkat(target, dir, name)?;
    let above = rustix::fs::fstat(dir)?;
    let (uid, gid) = (Uid::from_raw(above.st_uid), Gid::from_raw(above.st_gid));
    Ok(rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn own(fd: &OwnedFd, owner: Owner) -> io::Result<()> {
    Ok(rustix::fs::fchown(fd, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?)
}

#[cfg(test)]
mod tests;
