//! The floor: the minimum work of any runtime for a container. It consists of one clone3 into new pid, mount, network,
//! ipc, uts and cgroup namespaces, pivot_root into the rootfs, exec and wait.
//!
//! The floor has no cgroup, limits, inner mounts, filter or protocol. No runtime can be faster on this kernel, and a
//! complete runtime must be slower. This file contains the benchmark's only unsafe code.

use std::ffi::CStr;
use std::ptr::null;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::rootfs::Rootfs;

const NAMESPACES: i32 = libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Runs `/bin/true` once. Returns the time from before clone3 until the child has been reaped.
pub(crate) fn run(rootfs: &Rootfs) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let child = clone(&rootfs.c_path).context("cannot clone a process")?;
    let status = waitpid(child, None)?;
    let took = start.elapsed();
    ensure!(status == WaitStatus::Exited(child, 0), "the process of the floor exited with {status:?}, expected 0");
    Ok(took)
}

/// Clones a child and returns its pid. The child executes the program or exits with the number of the failed step.
fn clone(rootfs: &CStr) -> nix::Result<Pid> {
    let arguments = libc::clone_args {
        flags: NAMESPACES.unsigned_abs().into(),
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD.unsigned_abs().into(),
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    // SAFETY: the arguments are complete and outlive the call. The arguments request no shared memory, so the child has
    // its own copy of everything, as after fork(2).
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) };
    if result == 0 {
        // SAFETY: this is the child of the clone above.
        unsafe { become_true(rootfs) }
    }
    // A negative result is an error; errno has the error number.
    i32::try_from(result).ok().filter(|pid| *pid > 0).map(Pid::from_raw).ok_or_else(nix::Error::last)
}

/// Enters the root file system and executes `/bin/true`. Exits with the number of the failed step if a system call
/// fails.
///
/// # Safety
///
/// Call this only in a fresh child that shares no memory with its parent: this changes the root directory of the
/// process and never returns. The function only makes system calls, and does not allocate or lock.
unsafe fn become_true(rootfs: &CStr) -> ! {
    let arguments = [c"/bin/true".as_ptr(), null()];
    let environment = [null()];
    // SAFETY: every pointer is a NUL-terminated string or null if the call allows it, the two arrays end with a null
    // pointer, and all of them outlive the calls.
    unsafe {
        let none = null();
        if libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, null()) != 0 {
            libc::_exit(91);
        }
        if libc::mount(rootfs.as_ptr(), rootfs.as_ptr(), none, libc::MS_BIND, null()) != 0 {
            libc::_exit(92);
        }
        if libc::chdir(rootfs.as_ptr()) != 0 {
            libc::_exit(93);
        }
        // The old root is mounted over the new root and then unmounted: see pivot_root(2), `pivot_root(".", ".")`.
        if libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) != 0 {
            libc::_exit(94);
        }
        if libc::umount2(c".".as_ptr(), libc::MNT_DETACH) != 0 || libc::chdir(c"/".as_ptr()) != 0 {
            libc::_exit(95);
        }
        libc::execve(arguments[0], arguments.as_ptr(), environment.as_ptr());
        libc::_exit(96);
    }
}
