//! Creating, replacing and terminating processes.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use executor_core::record::Exit;
use executor_core::shortage;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, Pid};
use rustix::process::PidfdFlags;

use crate::ready::is_readable;

#[derive(Debug)]
pub enum Fork {
    /// In the new process.
    Child,
    /// In the caller; holds the child's pid.
    Parent(i32),
}

/// Forks the calling process.
///
/// # Errors
/// Fails if processes or memory run out, or if the caller has more than one thread: the child could find a lock held by
/// a thread that it does not have.
pub fn fork() -> io::Result<Fork> {
    OneThread::check()?;
    // SAFETY: there is one thread (checked above), so the copy finds every lock and invariant as that thread left it.
    Ok(match unsafe { nix::unistd::fork() }.map_err(|errno| shortage::from_fork(errno.into()))? {
        ForkResult::Child => Fork::Child,
        ForkResult::Parent { child } => Fork::Parent(child.as_raw()),
    })
}

/// Proof that the calling process has one thread, so that a copy of it finds every lock as that thread left it. Nothing
/// in this crate creates threads.
pub(crate) struct OneThread(());

impl OneThread {
    /// Counts threads in /proc. A process that enters a container must call this first: afterwards /proc is the container's.
    pub(crate) fn check() -> io::Result<Self> {
        match threads()? {
            1 => Ok(Self(())),
            more => {
                Err(io::Error::other(format!("cannot fork: this process has {more} threads, but must have only one")))
            }
        }
    }
}

/// Forks with additional flags of clone(2): new namespaces for the child, or CLONE_PARENT.
///
/// # Errors
/// As [`fork`]; also if the kernel cannot create such a namespace.
pub(crate) fn clone(flags: i32, _: &OneThread) -> io::Result<Fork> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // No library offers this call without a separate stack for the child.
    // SAFETY: without shared memory and a separate stack, the child continues here with a copy of everything, as after
    // a fork; there is one thread (see `OneThread`), so the copy finds every lock and invariant as that thread left it.
    // glibc's fork additionally handles only atfork handlers and threads, and there are none.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(shortage::from_fork(io::Error::last_os_error())),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(i32::try_from(pid).map_err(io::Error::other)?)),
    }
}

/// Returns the number of threads of this process.
pub(crate) fn threads() -> io::Result<usize> {
    // The link count of a process's task directory is its thread count plus two; this avoids reading the entries.
    use std::os::unix::fs::MetadataExt;
    Ok((std::fs::metadata("/proc/self/task")?.nlink() as usize).saturating_sub(2))
}

/// Exits at once, without destructors and without flushing buffers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no precondition.
    unsafe { libc::_exit(code) }
}

/// A list of strings in the form that execve requires.
pub struct StringArray {
    // Owns the strings that `pointers` refers to.
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl StringArray {
    /// Builds the pointer array for the strings.
    pub fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        Self { _strings: strings, pointers }
    }
}

/// Executes another program. Does not allocate. Returns only on error.
pub fn execve(path: &CStr, args: &StringArray, env: &StringArray) -> io::Error {
    // SAFETY: `path` is NUL-terminated; both arrays end with a null pointer and point to NUL-terminated strings that
    // `args` and `env` own.
    unsafe { libc::execve(path.as_ptr(), args.pointers.as_ptr(), env.pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Returns unused stack pages to the kernel, and with them the data of earlier, deeper calls.
///
/// # Errors
/// Fails if /proc cannot be read.
pub fn trim_stack() -> io::Result<()> {
    // Room for this call, for the madvise call and for the red zone of the ABI.
    const KEPT: usize = 4 << 10;
    let marker = 0u8;
    let top = (std::ptr::from_ref(&marker).addr() - KEPT) & !0xfff;
    let maps = crate::kernel_file::read_to_string("/proc/self/maps")?;
    let bottom = maps.lines().find(|line| line.ends_with("[stack]")).and_then(|line| {
        let start = line.split('-').next()?;
        usize::from_str_radix(start, 16).ok()
    });
    if let Some(bottom) = bottom.filter(|bottom| *bottom < top) {
        // SAFETY: the range lies within the main thread's stack and ends well below the stack pointer of this function
        // and of the call it makes; nothing refers to memory there.
        let result =
            unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(bottom), top - bottom, libc::MADV_DONTNEED) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Sets close-on-exec on every descriptor from `first` on.
///
/// # Errors
/// Fails if the kernel is older than 5.11.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: a plain system call on integers; it closes nothing now, so no owned descriptor is invalidated.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor except the standard ones and `kept`, regardless of its owner. Only for a process that is
/// about to execute a program or exit. Close-on-exec is not enough: until execve has looked up the program, a path
/// through /proc/self/fd still leads to open descriptors (CVE-2024-21626).
///
/// # Errors
/// Fails if the kernel is older than 5.9.
pub fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for end in kept.into_iter().chain([u32::MAX]) {
        if first < end {
            let last = if end == u32::MAX { end } else { end - 1 };
            // SAFETY: a plain system call on integers. Owners of the closed descriptors never run again: the caller
            // executes another program or exits without destructors.
            if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = first.max(end.saturating_add(1));
    }
    Ok(())
}

/// Reserves one descriptor until the value is dropped. Call before a fork, so that [`pidfd`] of the child cannot fail
/// for lack of descriptors.
///
/// # Errors
/// Fails if no descriptor is left.
pub fn room_for_one(any: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    any.try_clone_to_owned()
}

/// Returns a pidfd, which becomes readable when the process exits.
///
/// # Errors
/// Fails if no process has this pid.
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns the pid of the pidfd's process.
///
/// # Errors
/// Returns `NotFound` if the process has exited, and `InvalidInput` if the descriptor is not a pidfd.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<i32>().ok());
    match pid {
        Some(pid) if pid > 0 => Ok(pid),
        Some(_) => Err(io::ErrorKind::NotFound.into()),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a pidfd")),
    }
}

/// Sends a signal to the pidfd's process. A process that has exited is not an error.
///
/// # Errors
/// Fails if the number is not a signal or the caller has no permission.
pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a plain system call on integers; with a null siginfo the kernel fills it in as for kill.
    let result = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    match io::Error::last_os_error() {
        _ if result == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        error => Err(error),
    }
}

/// Sends SIGKILL to a process whose pid cannot have been reused: a child that has not been reaped, or a process
/// identified just before. A process that has exited is not an error.
pub fn kill(pid: i32) {
    if let Ok(pidfd) = pidfd(pid) {
        let _ = pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
    }
}

/// Gives the calling process the lowest priority, if it may restore the present one later. Returns the present
/// priority, for [`set_priority`].
///
/// # Errors
/// None in practice.
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
/// Fails if there is no such process, or without CAP_SYS_NICE.
pub fn set_priority(pid: i32, nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(rustix::process::Pid::from_raw(pid), nice)?)
}

/// Raises the calling process's nice value to `nice`; a higher value stays.
///
/// # Errors
/// None in practice: raising needs no privilege.
pub fn raise_nice(nice: i32) -> io::Result<()> {
    let before = rustix::process::getpriority_process(None)?;
    Ok(rustix::process::setpriority_process(None, before.max(nice))?)
}

/// Opens the mount namespace of a process. The namespace and its mounts exist as long as the descriptor is open, even
/// after the process exits. For use with [`enter_namespaces`].
///
/// # Errors
/// Fails if the process has exited or the caller lacks privilege.
pub fn mount_namespace(pid: i32) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/{pid}/ns/mnt"), flags, rustix::fs::Mode::empty())?)
}

/// Enters namespaces of the pidfd's process, or the mount namespace if the descriptor is one.
///
/// # Errors
/// Fails if the process has exited or the caller lacks privilege.
pub fn enter_namespaces(pidfd: BorrowedFd<'_>, mount: bool, network: bool) -> io::Result<()> {
    let mut namespaces = CloneFlags::empty();
    namespaces.set(CloneFlags::CLONE_NEWNS, mount);
    namespaces.set(CloneFlags::CLONE_NEWNET, network);
    Ok(setns(pidfd, namespaces)?)
}

/// Runs `act` in the network namespace of the pidfd's process, then returns to the caller's own.
///
/// # Errors
/// As [`enter_namespaces`], or the error of `act`. If the caller could not return to its namespace, the error is not
/// one of `act`, and the caller must exit.
pub fn within_network<T>(pidfd: BorrowedFd<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let own = rustix::fs::open("/proc/thread-self/ns/net", flags, rustix::fs::Mode::empty())?;
    setns(pidfd, CloneFlags::CLONE_NEWNET)?;
    let done = act();
    setns(own, CloneFlags::CLONE_NEWNET)?;
    done
}

/// Enters the IPC namespace of the pidfd's process.
///
/// # Errors
/// As [`enter_namespaces`].
pub fn enter_ipc(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(setns(pidfd, CloneFlags::CLONE_NEWIPC)?)
}

/// Permanently enters a user namespace, given its descriptor or a pidfd of a process in it, and becomes its root: with
/// all capabilities over the namespace's resources and none over others.
///
/// # Errors
/// Fails if the caller lacks privilege, the namespace has no root, or it is the caller's own.
pub fn become_root_of(user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    setns(user_namespace, CloneFlags::CLONE_NEWUSER)?;
    become_root_within()
}

/// Becomes root of the user namespace that this process has entered.
pub(crate) fn become_root_within() -> io::Result<()> {
    nix::unistd::setgroups(&[])?;
    let (user, group) = (nix::unistd::Uid::from_raw(0), nix::unistd::Gid::from_raw(0));
    nix::unistd::setresgid(group, group, group)?;
    nix::unistd::setresuid(user, user, user)?;
    // The change of user made this process inspectable by other processes of that user.
    forbid_dumps()
}

/// Exit status of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Code(i32),
    /// Number of the signal that terminated it.
    Signal(i32),
}

impl From<Ended> for Exit {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Code(code) => Self::Code(code),
            Ended::Signal(signal) => Self::Signal(signal),
        }
    }
}

/// Waits for a child to exit and reaps it.
///
/// # Errors
/// Fails if the process is not a child of this one.
pub fn wait_for(pid: i32) -> io::Result<Ended> {
    loop {
        match waitpid(Pid::from_raw(pid), None) {
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(status) => {
                if let Some((_, ended)) = ended(status) {
                    return Ok(ended);
                }
            }
        }
    }
}

/// Checks whether a child has exited, without reaping it.
///
/// # Errors
/// Fails if the process is not a child of this one.
pub fn has_ended(pid: i32) -> io::Result<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    Ok(waitid(Id::Pid(Pid::from_raw(pid)), flags)? != WaitStatus::StillAlive)
}

/// Checks whether any process is running. A zombie is not.
///
/// # Errors
/// Fails if descriptors run out.
pub fn is_alive(pid: i32) -> io::Result<bool> {
    let pidfd = match pidfd(pid) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
        pidfd => pidfd?,
    };
    Ok(!is_readable(&pidfd))
}

/// Reaps one exited child, if there is one. If that child is `kept`, it is not reaped, and no later child is checked.
///
/// # Errors
/// None in practice; no children at all is `None`.
pub fn reap_one(kept: impl Fn(i32) -> bool) -> io::Result<Option<(i32, Ended)>> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let pid = match waitid(Id::All, look) {
        Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return Ok(None),
        Ok(status) => status.pid(),
        Err(error) => return Err(error.into()),
    };
    match pid {
        Some(pid) if kept(pid.as_raw()) => Ok(None),
        Some(pid) => Ok(ended(waitpid(pid, Some(WaitPidFlag::WNOHANG))?)),
        None => Ok(None),
    }
}

fn ended(status: WaitStatus) -> Option<(i32, Ended)> {
    match status {
        WaitStatus::Exited(pid, code) => Some((pid.as_raw(), Ended::Code(code))),
        WaitStatus::Signaled(pid, signal, _) => Some((pid.as_raw(), Ended::Signal(signal as i32))),
        _ => None,
    }
}

/// Signals received as events: blocked, and read from a descriptor (signalfd). Create it before starting anything, so
/// that an early exit is not missed.
pub struct SignalEvents(SignalFd);

impl SignalEvents {
    /// Blocks these signals in this process and its future children, and receives them as events.
    ///
    /// # Errors
    /// Fails if descriptors run out.
    pub fn take(signals: &[Signal]) -> io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in signals {
            set.add(*signal);
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&set), None)?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Returns the next pending signal, if there is one.
    ///
    /// # Errors
    /// None in practice.
    pub fn next(&self) -> io::Result<Option<i32>> {
        Ok(self.0.read_signal()?.map(|info| info.ssi_signo as i32))
    }
}

impl AsFd for SignalEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Unblocks all signals that [`SignalEvents`] blocked and resets every action to the default, for a program about to be executed.
///
/// # Errors
/// None in practice.
pub fn reset_signals() -> io::Result<()> {
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // execve keeps ignored signals ignored: SIGPIPE, which Rust ignores in every program, and those ignored by the
    // daemon's parent (nohup). A shell cannot set a trap for a signal that is ignored at its start.
    // The C library's own call rejects two signals that it reserves, and these can be ignored as well.
    const ALL: std::ops::RangeInclusive<i64> = 1..=64;
    let default_action = [0u64; 4]; // SIG_DFL, no flags, no mask: the kernel's own form, the same on all we build for
    for number in ALL.filter(|number| ![i64::from(libc::SIGKILL), i64::from(libc::SIGSTOP)].contains(number)) {
        // SAFETY: the second argument points to a live value that the kernel reads; the action runs no code here.
        let done = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, number, default_action.as_ptr(), std::ptr::null_mut::<u64>(), 8usize)
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes SIGHUP do nothing in this process. An executed program gets the default action.
///
/// # Errors
/// None in practice.
pub fn survive_hangup() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler has no code that a signal could interrupt at a wrong moment.
    unsafe { sigaction(Signal::SIGHUP, &action) }?;
    Ok(())
}

/// Blocks SIGHUP, also across execve, so that it stays pending for [`SignalEvents`].
///
/// # Errors
/// None in practice.
pub fn hold_hangup() -> io::Result<()> {
    let mut hangup = SigSet::empty();
    hangup.add(Signal::SIGHUP);
    Ok(hangup.thread_block()?)
}

/// Blocks every signal, for [`serve_as_init`].
///
/// # Errors
/// None in practice.
pub fn hold_signals() -> io::Result<()> {
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?)
}

/// Runs as PID 1 of a pid namespace: forwards every signal to `child` and reaps processes until `child` has exited.
/// Signals must have been blocked ([`hold_signals`]) before the child was created.
///
/// # Errors
/// Fails if a required system call is not allowed.
pub fn serve_as_init(child: i32) -> io::Result<Ended> {
    serve(Some(child))
}

/// Runs as PID 1 of a pid namespace that has no program: reaps processes until it is killed. Signals must be blocked
/// ([`hold_signals`]).
///
/// # Errors
/// As [`serve_as_init`].
pub fn serve_as_reaper() -> io::Result<Ended> {
    serve(None)
}

fn serve(child: Option<i32>) -> io::Result<Ended> {
    let all = SigSet::all();
    loop {
        while let Some((pid, ended)) = reap_one(|_| false)? {
            if Some(pid) == child {
                return Ok(ended);
            }
        }
        // SAFETY: the set is live, and the null pointer requests no siginfo.
        let signal = unsafe { libc::sigwaitinfo(std::ptr::from_ref(all.as_ref()), std::ptr::null_mut()) };
        match signal {
            -1 => match io::Error::last_os_error() {
                interrupted if interrupted.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
            libc::SIGCHLD => {}
            signal => {
                // SAFETY: a plain system call on integers. The child has not been reaped, so its pid cannot have been
                // reused. It may have exited, which the next wait reports.
                let _ = child.map(|child| unsafe { libc::kill(child, signal) });
            }
        }
    }
}

/// Makes this process the reaper of its orphaned descendants.
///
/// # Errors
/// None in practice.
pub fn become_subreaper() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// Requests SIGKILL for this process when its parent exits. `parent` is the expected pid of the parent.
///
/// # Errors
/// Fails if the parent has already exited.
pub fn die_with(parent: u32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw().cast_unsigned() == parent {
        Ok(())
    } else {
        Err(io::Error::other("the parent has already exited"))
    }
}

/// Makes this process the OOM killer's first choice, in its cgroup and on the machine.
///
/// # Errors
/// Fails if /proc is missing.
pub fn be_expendable() -> io::Result<()> {
    set_oom_score_adj(std::process::id(), 1000)
}

/// Returns the out-of-memory score adjustment of a process, from -1000 (never killed) to 1000.
///
/// # Errors
/// Fails if the process has exited.
pub fn oom_score_adj(pid: u32) -> io::Result<i32> {
    let text = crate::kernel_file::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Sets the out-of-memory score adjustment of a process. A score below the lowest that a privileged process has set
/// requires CAP_SYS_RESOURCE.
///
/// # Errors
/// Fails if the process has exited or the caller lacks privilege.
pub fn set_oom_score_adj(pid: u32, score: i32) -> io::Result<()> {
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string())
}

/// Drops an inherited protection from the OOM killer before executing a foreign program.
///
/// # Errors
/// Fails if /proc is missing.
pub fn forgo_oom_protection() -> io::Result<()> {
    let own = std::process::id();
    if oom_score_adj(own)? < 0 { set_oom_score_adj(own, 0) } else { Ok(()) }
}

/// Disables core files and ptrace by other processes, and makes root the owner of /proc/self.
///
/// # Errors
/// None in practice.
pub fn forbid_dumps() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Returns true if a seccomp filter is in force for this thread and no_new_privs is set.
///
/// The presence of a filter is not enough, because it can be inherited from the parent: this also checks that one call
/// is denied that a container's filter denies. That call is unprivileged and has no effect.
///
/// # Errors
/// None in practice.
pub fn is_confined() -> io::Result<bool> {
    // SAFETY: PR_GET_SECCOMP takes no arguments; it returns 2 in filter mode.
    let mode = unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
    let denied = unshare(CloneFlags::empty()) == Err(nix::errno::Errno::EPERM);
    Ok(mode == 2 && denied && nix::sys::prctl::get_no_new_privs()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_seen_by_descriptor() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let fd = pidfd(child.id() as i32).unwrap();
        assert!(!has_ended(child.id() as i32).unwrap());
        pidfd_signal(fd.as_fd(), 9).unwrap();
        let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut poll, None).unwrap(), 1);
        assert!(has_ended(child.id() as i32).unwrap());
        assert!(!is_alive(child.id() as i32).unwrap(), "it is not waited for yet");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
        pidfd_signal(fd.as_fd(), 9).unwrap();
    }

    /// A fork of a multi-threaded process would copy locks that are never released.
    #[test]
    fn a_threaded_process_does_not_fork() {
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(fork().is_err());
        drop(stop);
        let _ = thread.join();
    }
}
