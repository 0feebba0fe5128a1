//! Handles mounts by descriptor: file systems are created, filled and configured before they are attached.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, move_mount, open_tree,
};

use crate::open::open_resolved;

/// Attributes to set on a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    pub read_only: bool,
    /// True if set-user-id bits of files on the mount are ignored.
    pub no_suid: bool,
    /// True if device nodes on the mount cannot be opened.
    pub no_dev: bool,
    /// True if programs on the mount cannot be executed.
    pub no_exec: bool,
    /// True if the attributes also apply to the mounts below this mount.
    pub recursive: bool,
}

/// Creates a detached file system of type `kind`. Options with the value `None` are flags.
///
/// # Errors
/// Returns `InvalidInput` if the kernel does not support the type or an option.
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

/// Changes options of a mount's file system. `root` is the root of the mount. Other options stay unchanged.
///
/// # Errors
/// Returns an error if the file system does not support the change.
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

/// Creates a detached bind mount of `path` below `dir`, or of `dir` itself if `path` is empty.
///
/// # Errors
/// Returns `InvalidInput` on kernels before 6.15 if `dir` is itself detached; attach it first.
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

/// Attaches a detached mount on top of `target`.
///
/// # Errors
/// Returns an error if the target has the wrong type or is in another mount namespace.
pub fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, c"", target, c"", flags)?)
}

/// Attaches a detached mount beneath the mount whose root is `top`. When the upper mount is detached, the lower mount
/// becomes visible immediately.
///
/// # Errors
/// Returns `InvalidInput` if the kernel is older than 6.5 (see [`attaches_beneath`]) or `top` is not the root of a
/// mount.
pub fn attach_beneath(mount: BorrowedFd<'_>, top: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
        | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH
        | MoveMountFlags::MOVE_MOUNT_BENEATH;
    Ok(move_mount(mount, c"", top, c"", flags)?)
}

/// Returns true if the kernel can attach a mount beneath another mount.
pub fn attaches_beneath() -> bool {
    // The kernel checks the flags before the paths, so paths that do not exist suffice.
    let nowhere = c"/proc/self/nowhere";
    let tried = move_mount(rustix::fs::CWD, nowhere, rustix::fs::CWD, nowhere, MoveMountFlags::MOVE_MOUNT_BENEATH);
    tried != Err(rustix::io::Errno::INVAL)
}

/// Sets attributes of a mount.
///
/// # Errors
/// Returns an error if the kernel is older than 5.12 or the caller has no privilege over the mount.
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
/// Returns the same errors as [`set_attributes`].
pub fn set_writable(mount: BorrowedFd<'_>) -> io::Result<()> {
    change_attributes(mount, 0, libc::MOUNT_ATTR_RDONLY, false)
}

/// Makes a mount, and the mounts below it, honour set-user-id bits and file capabilities.
///
/// # Errors
/// Returns the same errors as [`set_attributes`].
pub fn set_suid(mount: BorrowedFd<'_>) -> io::Result<()> {
    change_attributes(mount, 0, libc::MOUNT_ATTR_NOSUID, true)
}

/// Makes a detached mount idmapped: owners of files are mapped through the user namespace, so that id 0 on disk appears
/// as the namespace's root.
///
/// # Errors
/// Returns `InvalidInput` if the file system does not support id mapping or the mount is not detached. Returns
/// `PermissionDenied` if the mount is already mapped.
pub fn map_ids(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    let namespace = u64::try_from(user_namespace.as_raw_fd()).map_err(io::Error::other)?;
    set_attr(mount, libc::MOUNT_ATTR_IDMAP, 0, namespace, recursive)
}

/// Propagation of mounts between a mount and its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Mounts do not propagate to or from this mount.
    Private,
    /// Mounts propagate from the former peers, and not to them.
    Slave,
    /// Mounts propagate in both directions.
    Shared,
}

/// Makes a mount private, so that mounts do not propagate into or out of it.
///
/// # Errors
/// Returns the same errors as [`set_attributes`].
pub fn set_private(mount: BorrowedFd<'_>) -> io::Result<()> {
    set_propagation(mount, Propagation::Private, false)
}

/// Sets the propagation of a mount, and of the mounts below it if `recursive` is true.
///
/// # Errors
/// Returns the same errors as [`set_attributes`].
pub fn set_propagation(mount: BorrowedFd<'_>, propagation: Propagation, recursive: bool) -> io::Result<()> {
    let propagation = match propagation {
        Propagation::Private => libc::MS_PRIVATE,
        Propagation::Slave => libc::MS_SLAVE,
        Propagation::Shared => libc::MS_SHARED,
    };
    mount_setattr(mount, libc::mount_attr { attr_set: 0, attr_clr: 0, propagation, userns_fd: 0 }, recursive)
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
    // SAFETY: the path is a NUL-terminated empty string, and `attr` is a valid structure whose size is passed. Both
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

/// Handling of symbolic links in a path below a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Refuse symbolic links in every component, including the last.
    NoLinks,
    /// Follow symbolic links as if `root` were `/`.
    LinksWithinRoot,
    /// Follow symbolic links as if `root` were `/`, but not into another mount.
    LinksWithinMount,
}

/// Opens `path` as if `root` were the root directory. No `..`, absolute link or link of /proc can escape `root`.
///
/// # Errors
/// Returns `ELOOP` if a link is not allowed, `EXDEV` if another mount is not allowed, and otherwise the errors of open.
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
    Ok(open_resolved(root, path, flags, mode, resolve)?)
}

/// Opens a directory below another directory, without following symbolic links, leaving `root` or crossing mounts.
///
/// # Errors
/// Returns `ELOOP` if the path has a symbolic link, `EXDEV` if it escapes `root` or enters another mount, and
/// otherwise the errors of open.
pub fn open_dir_beneath(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    open_without_links(root, path, OFlags::DIRECTORY, false)
}

/// Opens a directory or a regular file, as [`open_dir_beneath`] does.
///
/// # Errors
/// Returns the same errors as [`open_dir_beneath`], and `InvalidInput` for a file of another type.
pub fn open_dir_or_file_beneath(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let opened = open_any_beneath(root, path, false)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
        FileType::Directory | FileType::RegularFile => Ok(opened),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is neither a directory nor a regular file")),
    }
}

/// Opens an entry of any type, as [`open_dir_beneath`] does. Enters other mounts if `enter_mounts` is true.
///
/// # Errors
/// Returns the same errors as [`open_dir_beneath`].
pub fn open_any_beneath(root: BorrowedFd<'_>, path: &Path, enter_mounts: bool) -> io::Result<OwnedFd> {
    open_without_links(root, path, OFlags::empty(), enter_mounts)
}

fn open_without_links(root: BorrowedFd<'_>, path: &Path, flags: OFlags, enter_mounts: bool) -> io::Result<OwnedFd> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    resolve.set(ResolveFlags::NO_XDEV, !enter_mounts);
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    Ok(open_resolved(root, path, OFlags::PATH | flags, Mode::empty(), resolve)?)
}

/// Opens a directory, to use it as a root or as a mount target.
///
/// # Errors
/// Returns an error if the path does not exist or is not a directory.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Lazily detaches the mount at `path`.
///
/// # Errors
/// Returns an error if nothing is mounted at `path`.
pub fn detach(path: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH | rustix::mount::UnmountFlags::NOFOLLOW)?)
}

/// Lazily detaches the topmost mount at `name` in `dir`. The name is needed because a mount cannot be detached by
/// descriptor. `dir` becomes the caller's working directory, so only processes that are about to exit may call this.
///
/// # Errors
/// Returns an error if nothing is mounted at `name`.
pub fn detach_at(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    rustix::process::fchdir(dir)?;
    detach(Path::new(name))
}

/// Returns true if the descriptor is on a read-only mount.
pub fn is_read_only(fd: impl AsFd) -> bool {
    rustix::fs::fstatvfs(fd).is_ok_and(|st| st.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests;
