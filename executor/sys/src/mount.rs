//! Mounts by descriptor: file systems that are made, filled and changed before they stand anywhere.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, move_mount, open_tree,
};

/// Attributes of a mount that can be set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// Read-only.
    pub read_only: bool,
    /// Set-user-id bits do nothing.
    pub no_suid: bool,
    /// Devices do nothing.
    pub no_dev: bool,
    /// No program is executed from it.
    pub no_exec: bool,
    /// Mounts below it, too.
    pub recursive: bool,
}

/// A new file system of a kind, mounted nowhere. Options without a value are flags.
///
/// # Errors
/// The kernel does not know the kind or an option (`InvalidInput`).
pub fn detached(
    kind: &str,
    source: &str,
    options: &[(&str, Option<&str>)],
    flags: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", source)?;
    set_options(&context, options)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// Changes options of the file system of a mount, by the root of that mount. What is not named stays as it is.
///
/// # Errors
/// The file system takes no such change.
pub fn reconfigure(root: BorrowedFd<'_>, options: &[(&str, Option<&str>)]) -> io::Result<()> {
    let context = fspick(root, c"", FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC)?;
    set_options(&context, options)?;
    Ok(fsconfig_reconfigure(&context)?)
}

fn set_options(context: &OwnedFd, options: &[(&str, Option<&str>)]) -> io::Result<()> {
    for (name, value) in options {
        match value {
            Some(value) => fsconfig_set_string(context, *name, *value)?,
            None => fsconfig_set_flag(context, *name)?,
        }
    }
    Ok(())
}

/// A second, detached mount of what `path` below `dir` shows; of `dir` itself where `path` is empty.
///
/// # Errors
/// On kernels before 6.15 `InvalidInput` where `dir` is itself detached: attach it first.
pub fn clone_tree(dir: BorrowedFd<'_>, path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    if path.as_os_str().is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(dir, path, flags)?)
}

/// Mounts a detached mount onto what `target` is open on.
///
/// # Errors
/// The target is of the wrong kind, or in another mount namespace.
pub fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, c"", target, c"", flags)?)
}

/// Mounts a detached mount beneath the one whose root `top` is open on: once the upper one goes, the lower one is what
/// shows, and there is no moment at which neither does.
///
/// # Errors
/// `InvalidInput` where the kernel is older than 6.5 (see [`attaches_beneath`]), or `top` is no root of a mount.
pub fn attach_beneath(mount: BorrowedFd<'_>, top: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
        | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH
        | MoveMountFlags::MOVE_MOUNT_BENEATH;
    Ok(move_mount(mount, c"", top, c"", flags)?)
}

/// Returns whether the kernel can mount beneath a mount.
pub fn attaches_beneath() -> bool {
    // The kernel looks at the flags before it looks at the paths, and there is nothing at these.
    let nowhere = c"/proc/self/nowhere";
    let tried = move_mount(rustix::fs::CWD, nowhere, rustix::fs::CWD, nowhere, MoveMountFlags::MOVE_MOUNT_BENEATH);
    tried != Err(rustix::io::Errno::INVAL)
}

/// Sets attributes of a mount.
///
/// # Errors
/// The kernel is older than 5.12, or the caller has no privilege over the mount.
pub fn set_attributes(mount: BorrowedFd<'_>, attributes: Attributes) -> io::Result<()> {
    let mut set = 0;
    for (wanted, bit) in [
        (attributes.read_only, libc::MOUNT_ATTR_RDONLY),
        (attributes.no_suid, libc::MOUNT_ATTR_NOSUID),
        (attributes.no_dev, libc::MOUNT_ATTR_NODEV),
        (attributes.no_exec, libc::MOUNT_ATTR_NOEXEC),
    ] {
        if wanted {
            set |= bit;
        }
    }
    change_attributes(mount, set, 0, attributes.recursive)
}

/// Makes a mount writable again.
///
/// # Errors
/// As [`set_attributes`].
pub fn set_writable(mount: BorrowedFd<'_>) -> io::Result<()> {
    change_attributes(mount, 0, libc::MOUNT_ATTR_RDONLY, false)
}

/// Shows the files of a detached mount with the owners that a user namespace maps theirs to: id 0 on the disk is the
/// namespace's root.
///
/// # Errors
/// `InvalidInput`: the file system cannot do that, or the mount is not detached. `PermissionDenied`: it is mapped
/// already.
pub fn map_ids(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    let namespace = u64::try_from(user_namespace.as_raw_fd()).map_err(io::Error::other)?;
    set_attr(mount, libc::MOUNT_ATTR_IDMAP, 0, namespace, recursive)
}

/// Makes a mount private: what is mounted in it elsewhere does not show in it, nor the other way round.
///
/// # Errors
/// As [`set_attributes`].
pub fn set_private(mount: BorrowedFd<'_>) -> io::Result<()> {
    mount_setattr(
        mount,
        libc::mount_attr { attr_set: 0, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 },
        false,
    )
}

fn change_attributes(mount: BorrowedFd<'_>, set: u64, clear: u64, recursive: bool) -> io::Result<()> {
    set_attr(mount, set, clear, 0, recursive)
}

fn set_attr(mount: BorrowedFd<'_>, set: u64, clear: u64, userns_fd: u64, recursive: bool) -> io::Result<()> {
    mount_setattr(mount, libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd }, recursive)
}

fn mount_setattr(mount: BorrowedFd<'_>, attr: libc::mount_attr, recursive: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    let empty: &CStr = c"";
    // SAFETY: the path is a NUL-terminated empty string, `attr` is a valid structure whose size is told, and both
    // live until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            empty.as_ptr(),
            flags,
            std::ptr::from_ref(&attr),
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Treatment of symbolic links on a path below a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// No symbolic link anywhere on the way, and none at its end.
    NoLinks,
    /// Symbolic links are followed, as if `root` were `/`.
    LinksWithinRoot,
    /// Symbolic links are followed, as if `root` were `/`, but not into another mount.
    LinksWithinMount,
}

/// Opens `path` as if `root` were the root directory: nothing on the way leads out of it, neither `..` nor an
/// absolute link, nor a link of /proc.
///
/// # Errors
/// `ELOOP` where a link is not allowed, `EXDEV` where another mount is not; else as open does.
pub fn open_in_root(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    follow: Follow,
) -> io::Result<OwnedFd> {
    let mut resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match follow {
        Follow::NoLinks => resolve |= ResolveFlags::NO_SYMLINKS,
        Follow::LinksWithinRoot => {}
        Follow::LinksWithinMount => resolve |= ResolveFlags::NO_XDEV,
    }
    let path = path.strip_prefix("/").unwrap_or(path);
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    loop {
        // The kernel asks for another try when a rename raced with the look-up.
        match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Opens a directory below another one: no symbolic link on the way, nothing that leads out, and no other mount.
///
/// # Errors
/// `ELOOP` where a symbolic link is on the way, `EXDEV` where the way leads out or into another mount; else as open does.
pub fn open_dir_beneath(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    open_beneath(root, path, OFlags::DIRECTORY)
}

/// Opens a directory or a regular file below a directory, as [`open_dir_beneath`] does.
///
/// # Errors
/// As [`open_dir_beneath`]; `InvalidInput` for a file of another type.
pub fn open_dir_or_file_beneath(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let opened = open_beneath(root, path, OFlags::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
        FileType::Directory | FileType::RegularFile => Ok(opened),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a directory nor a regular file")),
    }
}

fn open_beneath(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
    loop {
        // The kernel asks for another try when a rename raced with the look-up.
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Opens a directory for use as a root or a mount's target.
///
/// # Errors
/// Does not exist, or no directory.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Detaches whatever is mounted at `path`, lazily.
///
/// # Errors
/// No mount at this place.
pub fn detach(path: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH | rustix::mount::UnmountFlags::NOFOLLOW)?)
}

/// Detaches the uppermost mount on a name of a directory, lazily. By name, because a mount cannot be detached by its
/// descriptor; the directory becomes the caller's working directory, so this is for processes that go on to end.
///
/// # Errors
/// No mount at this place.
pub fn detach_at(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    rustix::process::fchdir(dir)?;
    detach(Path::new(name))
}

/// The mount of a descriptor can be read from but not written to.
pub fn is_read_only(fd: impl AsFd) -> bool {
    rustix::fs::fstatvfs(fd).is_ok_and(|st| st.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests;
