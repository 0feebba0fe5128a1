//! Builds a layer's tree beneath an opened root. This module performs all lookups and changes of the tree.
//!
//! A directory is usually opened by a single openat2 that stays beneath the root and follows no symbolic link. If that
//! fails, `walk` goes component by component. Like umoci, `walk` resolves links of the layer or of the layers below as
//! if the layer's root were `/`, never leaves this root, and creates directories that the archive does not mention.
//!
//! The tree is in overlayfs format (the kernel's `filesystems/overlayfs.rst`): a whiteout is a character device 0:0,
//! and a directory with the attribute `trusted.overlay.opaque` hides the directory below it.

mod file;
mod parents;
mod walk;
mod whiteout;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use executor_sys::open::open_resolved;
use executor_sys::tree::remove;
use executor_tar::Xattrs;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, UTIME_OMIT, XattrFlags, fstat, futimens,
    lsetxattr, mkdirat, openat, statat,
};
use rustix::io::Errno;

use crate::UnpackError;
use crate::error::Context;
use crate::error::shown;
pub use parents::Parents;

/// Extended attribute of a directory that hides the directory with the same path in the layers below.
const OPAQUE: &str = "trusted.overlay.opaque";
/// Prefix of attributes that are reserved for overlayfs. An archive must not set them.
pub(crate) const OVERLAY: &[u8] = b"trusted.overlay.";
/// Attributes that are specific to a host. umoci skips them, too.
const HOST_XATTRS: [&[u8]; 2] = [b"security.selinux", b"system.nfs4_acl"];
/// Prefix of attributes that only files and directories can have.
const USER: &[u8] = b"user.";
/// Maximum total size of an inode's attribute names, and maximum size of one value, in bytes. The kernel has the same
/// limits.
const XATTR_MAX: usize = 64 << 10;
/// Permissions of a directory that the archive does not describe.
const DIR_MODE: u32 = 0o755;

/// Owner, mode, extended attributes and time of an entry.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Permissions, set-id and sticky bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Modification time: seconds and nanoseconds.
    pub mtime: (i64, u32),
    pub xattrs: Xattrs,
}

/// Properties of a layer in addition to its tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerProperties {
    /// True if the archive describes the root directory itself.
    pub root: bool,
    /// True if the root hides all layers below.
    pub opaque: bool,
    /// True if the tree depends on the layers below, so that it would differ on top of other layers.
    pub depends: bool,
}

/// The tree of a layer that is being unpacked.
pub struct Tree {
    root: OwnedFd,
    parents: Parents,
    found: LayerProperties,
}

/// Type of the existing entry at a name.
#[derive(Debug)]
enum Existing {
    Nothing,
    Directory,
    Symlink,
    Whiteout,
    Other,
}

impl Tree {
    /// Starts a tree in `root`, an empty directory, on top of the layers below.
    ///
    /// # Errors
    /// Returns an error if `root` cannot be opened.
    pub fn new(root: BorrowedFd<'_>, parents: Parents) -> Result<Self, UnpackError> {
        let root = open_dir(root, b".").context(|| "cannot open the layer's root".to_owned())?;
        rustix::fs::fchmod(&root, Mode::from_raw_mode(DIR_MODE))
            .context(|| "cannot set the mode of the layer's root".to_owned())?;
        Ok(Self { root, parents, found: LayerProperties::default() })
    }

    /// Returns the properties of the layer, as far as it has been unpacked.
    pub fn found(&self) -> LayerProperties {
        self.found
    }

    /// Sets the attributes of the root directory.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn mark_root(&mut self, marks: &Marks) -> Result<(), UnpackError> {
        self.found.root = true;
        mark_fd(&self.root, marks, b"/")
    }

    /// Creates a directory, or sets the attributes of an existing directory.
    ///
    /// # Errors
    /// Returns an error if the name cannot be created, or if an I/O operation fails.
    pub fn directory(&mut self, path: &[&[u8]], marks: &Marks) -> Result<(), UnpackError> {
        let (dir, name) = self.parent(path)?;
        let full = joined(path);
        let failed = || format!("cannot create directory `{}`", shown(&full));
        let there = inspect(dir.as_fd(), name).context(failed)?;
        if !matches!(there, Existing::Directory) {
            make_dir(&dir, name, &there).context(failed)?;
        }
        let made = open_dir(dir.as_fd(), name).context(failed)?;
        mark_fd(&made, marks, &full)
    }

    /// Opens the parent directory of a path, and returns it with the last component. Creates missing directories.
    fn parent<'a>(&mut self, path: &[&'a [u8]]) -> Result<(OwnedFd, &'a [u8]), UnpackError> {
        let replaces_root = || UnpackError::entry(b"/", "would replace the root directory");
        let (name, dirs) = path.split_last().ok_or_else(replaces_root)?;
        if let Ok(dir) = self.straight(dirs) {
            return Ok((dir, name));
        }
        let walked = self.walk(dirs, true)?;
        let dir = walked.dir.ok_or_else(|| UnpackError::entry(&joined(path), "has no parent directory"))?;
        Ok((dir, name))
    }

    /// Opens a directory by a path that has no symbolic links.
    fn straight(&self, dirs: &[&[u8]]) -> Result<OwnedFd, Errno> {
        if dirs.is_empty() {
            return open_dir(self.root.as_fd(), b".");
        }
        open_beneath(self.root.as_fd(), &joined(dirs), OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Removes the entry at a name, so that an entry that is not a directory can be created there.
    fn clear(dir: &OwnedFd, name: &[u8]) -> std::io::Result<()> {
        remove(dir.as_fd(), OsStr::from_bytes(name))
    }
}

/// Opens a path beneath a directory, without `..`, symbolic links and magic links.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    open_resolved(root, path, flags | OFlags::NOFOLLOW, Mode::empty(), resolve)
}

/// Opens a directory by its name in another directory.
fn open_dir(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty())
}

fn inspect(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Existing, Errno> {
    let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(Existing::Nothing),
        stat => stat?,
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Existing::Directory,
        FileType::Symlink => Existing::Symlink,
        FileType::CharacterDevice if stat.st_rdev == 0 => Existing::Whiteout,
        _ => Existing::Other,
    })
}

/// Runs `act` in a directory, and then restores the modification time of the directory, which comes from the archive.
fn keeping_time<T>(dir: &OwnedFd, act: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    let before = fstat(dir)?;
    let result = act()?;
    futimens(dir, &times((before.st_mtime, before.st_mtime_nsec as u32), true))?;
    Ok(result)
}

fn times((seconds, nanoseconds): (i64, u32), modified_only: bool) -> Timestamps {
    let at = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Timestamps { last_access: if modified_only { omitted } else { at }, last_modification: at }
}

/// Sets the attributes of an opened file or directory. The owner is set first, because a change of owner clears set-id
/// bits and capabilities; the time is set last.
fn mark_fd(fd: &OwnedFd, marks: &Marks, path: &[u8]) -> Result<(), UnpackError> {
    let failed = |what: &str| format!("cannot set the {what} of `{}`", shown(path));
    let (uid, gid) = (rustix::fs::Uid::from_raw(marks.uid), rustix::fs::Gid::from_raw(marks.gid));
    rustix::fs::fchown(fd, Some(uid), Some(gid)).context(|| failed("owner"))?;
    rustix::fs::fchmod(fd, Mode::from_raw_mode(marks.mode)).context(|| failed("mode"))?;
    clear_xattrs(fd).context(|| failed("extended attributes"))?;
    for (name, value) in &marks.xattrs {
        if is_kept(name, path)? {
            let set = rustix::fs::fsetxattr(fd, name.as_slice(), value, XattrFlags::empty());
            set.context(|| failed(&format!("extended attribute {}", shown(name))))?;
        }
    }
    futimens(fd, &times(marks.mtime, false)).context(|| failed("time"))
}

/// Sets the attributes of an entry that cannot be opened without side effects, such as a link, pipe or device.
fn mark_at(dir: &OwnedFd, name: &[u8], marks: &Marks, symlink: bool, path: &[u8]) -> Result<(), UnpackError> {
    let failed = |what: &str| format!("cannot set the {what} of `{}`", shown(path));
    let (uid, gid) = (rustix::fs::Uid::from_raw(marks.uid), rustix::fs::Gid::from_raw(marks.gid));
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(dir, name, Some(uid), Some(gid), nofollow).context(|| failed("owner"))?;
    if !symlink {
        // The entry was just created in a directory that no other process can access, so no link can have replaced it.
        let mode = Mode::from_raw_mode(marks.mode);
        rustix::fs::chmodat(dir, name, mode, AtFlags::empty()).context(|| failed("mode"))?;
    }
    for (attribute, value) in &marks.xattrs {
        if !attribute.starts_with(USER) && is_kept(attribute, path)? {
            let proc_path = proc_path(dir, name);
            let set = lsetxattr(proc_path.as_slice(), attribute.as_slice(), value, XattrFlags::empty());
            set.context(|| failed(&format!("extended attribute {}", shown(attribute))))?;
        }
    }
    rustix::fs::utimensat(dir, name, &times(marks.mtime, false), nofollow).context(|| failed("time"))
}

/// Returns true if an extended attribute of an archive must be set, and false if it is skipped.
fn is_kept(name: &[u8], path: &[u8]) -> Result<bool, UnpackError> {
    if name.starts_with(OVERLAY) {
        let why = format!("has the extended attribute {}, which is reserved for overlayfs", shown(name));
        return Err(UnpackError::entry(path, why));
    }
    Ok(!HOST_XATTRS.contains(&name))
}

/// Clears the attributes of a directory, because a second description of a directory replaces the first.
fn clear_xattrs(fd: &OwnedFd) -> Result<(), Errno> {
    for name in xattr_names(|buffer| rustix::fs::flistxattr(fd, buffer))? {
        if !name.starts_with(OVERLAY) && !HOST_XATTRS.contains(&name.as_slice()) {
            rustix::fs::fremovexattr(fd, name.as_slice())?;
        }
    }
    Ok(())
}

fn xattr_names(list: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = vec![0; XATTR_MAX];
    let length = list(&mut names)?;
    Ok(names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

/// Returns a /proc path of an entry in an opened directory, for calls that take no descriptor.
fn proc_path(dir: &OwnedFd, name: &[u8]) -> Vec<u8> {
    let fd = std::os::fd::AsRawFd::as_raw_fd(dir);
    [format!("/proc/self/fd/{fd}/").as_bytes(), name].concat()
}

/// Creates a directory and replaces an existing entry. If an entry existed, the new directory is opaque, because the
/// entry hid the layers below and they must stay hidden.
fn make_dir(dir: &OwnedFd, name: &[u8], there: &Existing) -> std::io::Result<()> {
    keeping_time(dir, || {
        let hides = !matches!(there, Existing::Nothing);
        if hides {
            remove(dir.as_fd(), OsStr::from_bytes(name))?;
        }
        mkdirat(dir, name, Mode::RWXU)?;
        if hides { make_opaque(&open_dir(dir.as_fd(), name)?) } else { Ok(()) }
    })
}

fn make_opaque(dir: &OwnedFd) -> std::io::Result<()> {
    Ok(rustix::fs::fsetxattr(dir, OPAQUE, b"y", XattrFlags::empty())?)
}

fn is_opaque(dir: &OwnedFd) -> Result<bool, Errno> {
    let mut value = [0; 8];
    match rustix::fs::fgetxattr(dir, OPAQUE, &mut value) {
        Ok(length) => Ok(value[..length] == *b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

fn marks_of(stat: &Stat, xattrs: Xattrs) -> Marks {
    Marks {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
        xattrs,
    }
}

fn joined(names: &[&[u8]]) -> Vec<u8> {
    names.join(&b'/')
}
