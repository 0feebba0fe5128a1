//! Detects pseudo file systems of the kernel. Their files are not content of a container, so they are neither captured
//! nor copied.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::fstatfs;

/// Magic numbers of the pseudo file systems.
const PSEUDO_FILE_SYSTEMS: [i64; 13] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x1cd1,      // devpts
    0x1980_0202, // mqueue
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0xcafe_4a11, // bpf
    0x6e73_6673, // nsfs
    0xde5e_81e4, // efivarfs
];

/// Returns true if an open file or path descriptor is on a pseudo file system.
pub(crate) fn is_of_the_kernel(place: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(PSEUDO_FILE_SYSTEMS.contains(&fstatfs(place)?.f_type))
}
