//! Sets project quotas, which limit the total of all files below a directory. Project quotas require ext4 or XFS,
//! mounted with project quotas.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const PROJECT: u32 = 2;
const Q_XSETQLIM: u32 = (0x58 << 8) + 4;
const Q_XGETQSTATV: u32 = (0x58 << 8) + 8;
/// Flag: the kernel enforces project limits; otherwise it only accounts usage.
const PROJECTS_ENFORCED: u16 = 1 << 5;
/// Flags of the fields to set: hard and soft limits of inodes and of blocks.
const LIMITS: u16 = 0b1111;
/// Size of a block in these calls, in bytes.
const BLOCK: u64 = 512;
const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
const FS_IOC_FSSETXATTR: libc::c_ulong = 0x401c_5820;
/// Directory flag: new entries inherit the project of the directory.
const INHERIT: u32 = 0x200;

/// `struct fs_quota_statv` of linux/dqblk_xfs.h.
#[repr(C)]
#[derive(Default)]
struct State {
    version: i8,
    pad1: u8,
    flags: u16,
    in_core: u32,
    files: [[u64; 3]; 3],
    time_limits: [i32; 3],
    warn_limits: [u16; 4],
    pad2: u32,
    pad3: [u64; 7],
}

/// `struct fs_disk_quota` of linux/dqblk_xfs.h.
#[repr(C)]
#[derive(Default)]
struct DiskQuota {
    version: i8,
    flags: i8,
    fields: u16,
    id: u32,
    blocks_hard: u64,
    blocks_soft: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    blocks: u64,
    inodes: u64,
    timers: [i32; 2],
    warns: [u16; 2],
    timers_high: [i8; 4],
    realtime: [u64; 3],
    realtime_timer: i32,
    realtime_warns: u16,
    pad1: i16,
    pad2: [u8; 8],
}

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ProjectAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    pad: [u8; 8],
}

/// Returns true if the file system of `file` enforces project limits.
pub fn enforces_projects(file: BorrowedFd<'_>) -> bool {
    let mut state = State { version: 1, ..State::default() };
    quotactl(file, Q_XGETQSTATV, 0, &mut state).is_ok() && state.flags & PROJECTS_ENFORCED != 0
}

/// Limits a project to `bytes` bytes and `inodes` files and directories; 0 = no limit.
///
/// # Errors
/// Returns an error if the file system has no project quotas.
pub fn limit_project(file: BorrowedFd<'_>, project: u32, bytes: u64, inodes: u64) -> io::Result<()> {
    let mut quota = DiskQuota {
        version: 1,
        flags: 2,
        fields: LIMITS,
        id: project,
        blocks_hard: bytes.div_ceil(BLOCK),
        inodes_hard: inodes,
        ..DiskQuota::default()
    };
    quotactl(file, Q_XSETQLIM, project, &mut quota)
}

fn quotactl<T>(file: BorrowedFd<'_>, call: u32, id: u32, argument: &mut T) -> io::Result<()> {
    let call = (call << 8) | PROJECT;
    // SAFETY: both calls of this module take a structure of the type that is passed, by a reference that outlives them.
    let result =
        unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), call, id, std::ptr::from_mut(argument)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Assigns a directory and its future entries to a project. The directory must be empty and open for reading.
///
/// # Errors
/// Returns an error if the file system does not support projects.
pub fn set_project(dir: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let mut attributes = read(dir)?;
    attributes.project = project;
    attributes.flags |= INHERIT;
    // SAFETY: the kernel reads a structure of this type from a valid reference that outlives the call.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), FS_IOC_FSSETXATTR, std::ptr::from_ref(&attributes)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the project that [`set_project`] assigned to a directory.
pub fn project_of(dir: BorrowedFd<'_>) -> Option<u32> {
    read(dir).ok().filter(|attributes| attributes.flags & INHERIT != 0).map(|attributes| attributes.project)
}

fn read(dir: BorrowedFd<'_>) -> io::Result<ProjectAttributes> {
    let mut attributes = ProjectAttributes::default();
    // SAFETY: the kernel fills a structure of this type through a valid reference that outlives the call.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), FS_IOC_FSGETXATTR, std::ptr::from_mut(&mut attributes)) };
    if result == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// The kernel structures have the right sizes, and a file system without limits is recognized. (Tests of limits
    /// need kernel support: see the virtual-machine tests.)
    #[test]
    fn a_file_system_without_limits_enforces_none() {
        assert_eq!([size_of::<State>(), size_of::<DiskQuota>(), size_of::<ProjectAttributes>()], [160, 112, 28]);
        let proc = std::fs::File::open("/proc").unwrap();
        assert!(!enforces_projects(proc.as_fd()));
        assert!(limit_project(proc.as_fd(), 70_000, 1 << 20, 1 << 8).is_err() && project_of(proc.as_fd()).is_none());
    }
}
