//! Creates, executes and terminates processes, and sets their attributes: priority, OOM score, dumps.

mod exec;
mod fork;
mod namespaces;
mod pidfd;
mod signals;
mod wait;

use std::io;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;

pub(crate) use exec::require_restored;
pub use exec::{StringArray, close_all_but, close_on_exec_from, execve, exit_now, trim_stack};
pub use fork::{Fork, fork};
pub(crate) use fork::{OneThread, clone, threads};
pub(crate) use namespaces::become_root_within;
pub use namespaces::{become_root_of, enter_ipc, enter_namespaces, mount_namespace, within_mounts, within_network};
pub use pidfd::{kill, kill_group, pid_of, pidfd, pidfd_signal, room_for_one};
pub use signals::{SignalEvents, hold_hangup, hold_signals, reset_signals, survive_hangup};
pub use wait::{ChildExit, has_ended, is_alive, reap_one, serve_as_init, serve_as_reaper, wait_for};

/// Sets the lowest priority for the calling process, and returns the previous priority for [`set_priority`]. Does
/// nothing and returns `None` if the process may not restore its priority later.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn lower_priority() -> io::Result<Option<i32>> {
    const LOWEST: i32 = 19;
    if !crate::capabilities::is_effective(caps::Capability::CAP_SYS_NICE)? {
        return Ok(None);
    }
    let before = rustix::process::getpriority_process(None)?;
    rustix::process::setpriority_process(None, LOWEST)?;
    Ok(Some(before))
}

/// Sets the nice value of a process, from -20 (highest priority) to 19.
///
/// # Errors
/// Returns an error if the process does not exist or the caller lacks CAP_SYS_NICE.
pub fn set_priority(pid: i32, nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(rustix::process::Pid::from_raw(pid), nice)?)
}

/// Raises the calling process's nice value to `nice`. A higher value stays unchanged.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected: raising needs no privilege.
pub fn raise_nice(nice: i32) -> io::Result<()> {
    let before = rustix::process::getpriority_process(None)?;
    Ok(rustix::process::setpriority_process(None, before.max(nice))?)
}

/// Makes this process the reaper of its orphaned descendants (PR_SET_CHILD_SUBREAPER).
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn become_subreaper() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// Requests SIGKILL for this process when its parent exits. `parent` is the expected pid of the parent.
///
/// # Errors
/// Returns an error if the parent has already exited.
pub fn die_with(parent: u32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw().cast_unsigned() == parent {
        Ok(())
    } else {
        Err(io::Error::other("the parent has already exited"))
    }
}

/// Makes the OOM killer select this process first, in its cgroup and on the machine.
///
/// # Errors
/// Returns an error if /proc is missing.
pub fn be_expendable() -> io::Result<()> {
    set_oom_score_adj(std::process::id(), 1000)
}

/// Returns the out-of-memory score adjustment of a process, from -1000 (never killed) to 1000.
///
/// # Errors
/// Returns an error if the process has exited.
pub fn oom_score_adj(pid: u32) -> io::Result<i32> {
    let text = crate::kernel_file::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Sets the out-of-memory score adjustment of a process. CAP_SYS_RESOURCE is required for a value below the lowest
/// value that a privileged process has set.
///
/// # Errors
/// Returns an error if the process has exited or the caller lacks privilege.
pub fn set_oom_score_adj(pid: u32, score: i32) -> io::Result<()> {
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string())
}

/// Drops inherited protection from the OOM killer. Call this before executing a foreign program.
///
/// # Errors
/// Returns an error if /proc is missing.
pub fn forgo_oom_protection() -> io::Result<()> {
    let own = std::process::id();
    if oom_score_adj(own)? < 0 { set_oom_score_adj(own, 0) } else { Ok(()) }
}

/// Disables core files and ptrace by other processes, and makes root the owner of /proc/self.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn forbid_dumps() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Returns true if a seccomp filter is in force for this thread and, unless `new_privileges` is true, no_new_privs is
/// set.
///
/// The presence of a filter is not enough, because the filter can be inherited from the parent. Therefore this function
/// also makes a call that a container's filter denies, and checks that the call is denied. The call is unprivileged and
/// has no effect.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn is_confined(new_privileges: bool) -> io::Result<bool> {
    // SAFETY: PR_GET_SECCOMP takes no arguments; it returns 2 in filter mode.
    let mode = unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
    let denied = unshare(CloneFlags::empty()) == Err(nix::errno::Errno::EPERM);
    Ok(mode == 2 && denied && (new_privileges || nix::sys::prctl::get_no_new_privs()?))
}

/// Installs a seccomp program for the calling thread, without setting no_new_privs.
///
/// # Errors
/// Returns `PermissionDenied` without CAP_SYS_ADMIN in the thread's user namespace, and `InvalidInput` if the kernel
/// rejects the program.
pub fn install_filter(program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: `program` points to `len` instructions that live until the call returns. The kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
