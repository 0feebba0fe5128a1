//! Puts each container into its own Landlock domain.
//!
//! A process in a domain can trace only processes of the same domain or of a nested domain, regardless of its user and
//! capabilities. The same check guards `/proc/PID/root`, `environ`, `mem`, `fd` and `ns`, and `pidfd_getfd`. Signals
//! and the process list are not restricted.
//!
//! The kernel rejects a ruleset that handles no access. In every domain, the kernel forbids moving and linking files
//! between directories, unless the ruleset handles and allows this access (`LANDLOCK_ACCESS_FS_REFER`). Therefore, the
//! ruleset handles only this access and allows it below the root. As in every domain that handles a file access,
//! processes cannot change mounts. Requires Linux 5.19 or newer with Landlock among its security modules.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// First Landlock ABI version with `LANDLOCK_ACCESS_FS_REFER`.
const VERSION_MIN: i64 = 2;
const CREATE_RULESET_VERSION: u32 = 1;
const ACCESS_FS_REFER: u64 = 1 << 13;
const RULE_PATH_BENEATH: u32 = 1;

/// `struct landlock_ruleset_attr`, as in ABI version 2.
#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent: RawFd,
}

/// Returns true if this kernel can create a domain with this ruleset.
pub fn is_supported() -> bool {
    // SAFETY: without attributes, the call reads nothing and returns a version or an error.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttributes>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    version >= VERSION_MIN
}

/// Permanently moves the calling thread and its future children into a new domain. The caller needs `no_new_privs`, or
/// CAP_SYS_ADMIN in its user namespace.
///
/// # Errors
/// Returns an error if the kernel does not support Landlock ([`is_supported`]) or the caller is already in 16 domains.
pub fn enter_own_domain() -> io::Result<()> {
    let attributes = RulesetAttributes { handled_access_fs: ACCESS_FS_REFER };
    // SAFETY: the kernel reads as many bytes of the attributes as the size that is passed.
    let ruleset = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(&attributes),
            size_of::<RulesetAttributes>(),
            0u32,
        )
    };
    let ruleset = RawFd::try_from(ruleset).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    let root = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let rule = PathBeneath { allowed_access: ACCESS_FS_REFER, parent: root.as_raw_fd() };
    // SAFETY: the kernel reads one `struct landlock_path_beneath_attr`; both descriptors are open.
    let added = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            std::ptr::from_ref(&rule),
            0u32,
        )
    };
    if added != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes an open descriptor and flags.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
