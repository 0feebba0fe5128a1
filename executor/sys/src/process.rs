//! Making, becoming and ending processes.

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

/// Side of a fork.
#[derive(Debug)]
pub enum Fork {
    /// The new process.
    Child,
    /// The old one, with the new one's pid.
    Parent(i32),
}

/// Makes a process that goes on here with a copy of everything.
///
/// # Errors
/// Out of processes or memory; or the caller has more than one thread, in which case the child could find a
/// lock held by a thread that it does not have.
pub fn fork() -> io::Result<Fork> {
    OneThread::check()?;
    // SAFETY: there is one thread (checked above), so that every lock and every invariant of the copy is as the
    // one thread that goes on left it.
    Ok(match unsafe { nix::unistd::fork() }.map_err(|errno| shortage::from_fork(errno.into()))? {
        ForkResult::Child => Fork::Child,
        ForkResult::Parent { child } => Fork::Parent(child.as_raw()),
    })
}

/// Proof that the calling process has one thread: a copy of it finds every lock as that thread left it. Nothing here makes
/// another thread.
pub(crate) struct OneThread(());

impl OneThread {
    /// Looks at /proc. A process that enters a container looks before: /proc is the container's afterwards.
    pub(crate) fn check() -> io::Result<Self> {
        match threads()? {
            1 => Ok(Self(())),
            more => {
                Err(io::Error::other(format!("this process has {more} threads; only one of a single thread is copied")))
            }
        }
    }
}

/// Forks with further flags of clone(2): new namespaces of the child, or CLONE_PARENT.
///
/// # Errors
/// As [`fork`]; the kernel makes no such namespace.
pub(crate) fn clone(flags: i32, _: &OneThread) -> io::Result<Fork> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // No library has this call without a stack of the child's own.
    // SAFETY: without shared memory and without a stack of its own the child goes on here with a copy of everything, as
    // after a fork; there is one thread (see `OneThread`), so that every lock and every invariant of the copy is as
    // it left it. What glibc's own fork does beyond that concerns its handlers and its threads, of which there are none.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(shortage::from_fork(io::Error::last_os_error())),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(i32::try_from(pid).map_err(io::Error::other)?)),
    }
}

/// Threads of this process.
pub(crate) fn threads() -> io::Result<usize> {
    // The link count of a process' task directory is its threads plus two, without a read of each entry.
    use std::os::unix::fs::MetadataExt;
    Ok((std::fs::metadata("/proc/self/task")?.nlink() as usize).saturating_sub(2))
}

/// Ends this process at once: no destructor, no buffered output.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no precondition.
    unsafe { libc::_exit(code) }
}

/// A list of strings as execve takes it.
pub struct StringArray {
    // Keeps what the pointers point to.
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl StringArray {
    /// Takes over the strings.
    pub fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        Self { _strings: strings, pointers }
    }
}

/// Becomes another program. Allocates nothing, so that a caller who prepared its arguments can call it last.
/// Comes back only with an error.
pub fn execve(path: &CStr, args: &StringArray, env: &StringArray) -> io::Error {
    // SAFETY: `path` is NUL-terminated; both arrays end with a null pointer and point to NUL-terminated strings
    // that `args` and `env` keep.
    unsafe { libc::execve(path.as_ptr(), args.pointers.as_ptr(), env.pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Gives the pages of the stack that are no longer in use back to the kernel, and with them what deeper calls left
/// there.
///
/// # Errors
/// /proc cannot be read.
pub fn trim_stack() -> io::Result<()> {
    // Room for this call, for the call of madvise and for the red zone of the ABI.
    const KEPT: usize = 4 << 10;
    let marker = 0u8;
    let top = (std::ptr::from_ref(&marker).addr() - KEPT) & !0xfff;
    let maps = crate::kernel_file::read_to_string("/proc/self/maps")?;
    let bottom = maps.lines().find(|line| line.ends_with("[stack]")).and_then(|line| {
        let start = line.split('-').next()?;
        usize::from_str_radix(start, 16).ok()
    });
    if let Some(bottom) = bottom.filter(|bottom| *bottom < top) {
        // SAFETY: the range lies within the main thread's stack and ends well below the stack pointer of this
        // function and of the call it makes; nothing refers to memory down there.
        let result =
            unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(bottom), top - bottom, libc::MADV_DONTNEED) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Every descriptor from `first` on is closed when this process executes a program.
///
/// # Errors
/// The kernel is older than 5.11.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: a plain system call on integers; it closes nothing now, so that no owned descriptor is invalidated.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor but the standard ones and those `kept`, whoever owns it: for a process that goes on to execute
/// a program or to end, and to nothing else. Close-on-exec is not enough there: until execve has looked up the program,
/// a path through /proc/self/fd still leads to whatever is open (CVE-2024-21626).
///
/// # Errors
/// The kernel is older than 5.9.
pub fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for end in kept.into_iter().chain([u32::MAX]) {
        if first < end {
            let last = if end == u32::MAX { end } else { end - 1 };
            // SAFETY: a plain system call on integers. Owners of what is closed never run again: the caller becomes
            // another program or ends without destructors.
            if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = first.max(end.saturating_add(1));
    }
    Ok(())
}

/// Keeps room for one more descriptor until it is dropped: before a fork, so that the child's [`pidfd`] is to be had.
///
/// # Errors
/// No descriptor is left.
pub fn room_for_one(any: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    any.try_clone_to_owned()
}

/// A descriptor of a process, readable when it has ended.
///
/// # Errors
/// No process has this pid.
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns the pid of the process of a descriptor.
///
/// # Errors
/// Returns `NotFound` if the process has ended, and `InvalidInput` if it is no descriptor of a process.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<i32>().ok());
    match pid {
        Some(pid) if pid > 0 => Ok(pid),
        Some(_) => Err(io::ErrorKind::NotFound.into()),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "not the descriptor of a process")),
    }
}

/// Sends a signal to the process of a descriptor. One that has ended is no error.
///
/// # Errors
/// The number is no signal; no permission.
pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a plain system call on integers; a null siginfo asks the kernel to make one as kill does.
    let result = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    match io::Error::last_os_error() {
        _ if result == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        error => Err(error),
    }
}

/// Sends SIGKILL to a process whose pid is still its own: a child that is not taken yet, or one that was just identified. One that
/// has ended is no error.
pub fn kill(pid: i32) {
    if let Ok(pidfd) = pidfd(pid) {
        let _ = pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
    }
}

/// Gives the calling process the lowest priority, where it may take back the one that it has. Returns that, for
/// [`set_priority`].
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

/// Gives a process a priority, from -20 for the highest to 19.
///
/// # Errors
/// No such process; no CAP_SYS_NICE.
pub fn set_priority(pid: i32, nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(rustix::process::Pid::from_raw(pid), nice)?)
}

/// Raises the nice value of the calling process to this one. A value that is higher already stays.
///
/// # Errors
/// None in practice: raising needs no privilege.
pub fn raise_nice(nice: i32) -> io::Result<()> {
    let before = rustix::process::getpriority_process(None)?;
    Ok(rustix::process::setpriority_process(None, before.max(nice))?)
}

/// The mount namespace of a process. As long as the descriptor is open, what is mounted there stays, also when the
/// process has ended: [`enter_namespaces`] takes it.
///
/// # Errors
/// The process has ended; no privilege.
pub fn mount_namespace(pid: i32) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/{pid}/ns/mnt"), flags, rustix::fs::Mode::empty())?)
}

/// Enters namespaces of the process of a descriptor, or the mount namespace that the descriptor itself is.
///
/// # Errors
/// The process has ended; no privilege.
pub fn enter_namespaces(pidfd: BorrowedFd<'_>, mount: bool, network: bool) -> io::Result<()> {
    let mut namespaces = CloneFlags::empty();
    namespaces.set(CloneFlags::CLONE_NEWNS, mount);
    namespaces.set(CloneFlags::CLONE_NEWNET, network);
    Ok(setns(pidfd, namespaces)?)
}

/// Does something in the network namespace of the process of a descriptor, and comes back.
///
/// # Errors
/// As [`enter_namespaces`]; what is done. A caller that did not come back is told so by any error but that of what is done,
/// and must end.
pub fn within_network<T>(pidfd: BorrowedFd<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let own = rustix::fs::open("/proc/thread-self/ns/net", flags, rustix::fs::Mode::empty())?;
    setns(pidfd, CloneFlags::CLONE_NEWNET)?;
    let done = act();
    setns(own, CloneFlags::CLONE_NEWNET)?;
    done
}

/// Enters the namespace of IPC of the process of a descriptor.
///
/// # Errors
/// As [`enter_namespaces`].
pub fn enter_ipc(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(setns(pidfd, CloneFlags::CLONE_NEWIPC)?)
}

/// Enters a user namespace, by its own descriptor or that of a process in it, and becomes its root: with every
/// capability over what belongs to the namespace, and none over anything else. For good.
///
/// # Errors
/// No privilege; it has no root; it is the caller's own.
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
    // A change of the user made this process one that others of that user may look into.
    forbid_dumps()
}

/// End of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Status that it called exit with.
    Code(i32),
    /// A signal ended it.
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

/// Waits for a child.
///
/// # Errors
/// Not a child of this process.
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

/// Looks whether a child has ended, and leaves it to be waited for.
///
/// # Errors
/// Not a child of this process.
pub fn has_ended(pid: i32) -> io::Result<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    Ok(waitid(Id::Pid(Pid::from_raw(pid)), flags)? != WaitStatus::StillAlive)
}

/// Looks whether a process runs, whoever's child it is: one that has ended and is not waited for does not.
///
/// # Errors
/// Out of descriptors.
pub fn is_alive(pid: i32) -> io::Result<bool> {
    let pidfd = match pidfd(pid) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
        pidfd => pidfd?,
    };
    Ok(!is_readable(&pidfd))
}

/// Takes one child that has ended, if there is one. One that is `kept` is left to be waited for, and no other is looked for
/// behind it.
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

/// Signals taken as events: blocked, and read from a descriptor. Blocked before anything is started, so that
/// what ends at once is not missed.
pub struct SignalEvents(SignalFd);

impl SignalEvents {
    /// Takes these signals, in this process and in what it forks from now on.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn take(signals: &[Signal]) -> io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in signals {
            set.add(*signal);
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&set), None)?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// The next signal that came, if one did.
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

/// Unblocks all signals that [`SignalEvents`] blocked, and gives each its default action: what a
/// program finds that is about to be executed.
///
/// # Errors
/// None in practice.
pub fn reset_signals() -> io::Result<()> {
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // execve keeps what is ignored: SIGPIPE, which Rust ignores in every program, and what whoever started the daemon
    // ignored (nohup). A shell cannot even set a trap for a signal that it finds ignored.
    // The C library's own call refuses two signals that it keeps for itself, and that can have been ignored as well.
    const ALL: std::ops::RangeInclusive<i64> = 1..=64;
    let default_action = [0u64; 4]; // SIG_DFL, no flags, no mask: the kernel's own form, the same on all we build for
    for number in ALL.filter(|number| ![i64::from(libc::SIGKILL), i64::from(libc::SIGSTOP)].contains(number)) {
        // SAFETY: the kernel reads what the second argument points to, which lives; the action runs no code here.
        let done = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, number, default_action.as_ptr(), std::ptr::null_mut::<u64>(), 8usize)
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes SIGHUP do nothing in this process instead of ending it. A program that it executes has the default action.
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

/// Keeps SIGHUP waiting, also in a program that this process executes, for [`SignalEvents`].
///
/// # Errors
/// None in practice.
pub fn hold_hangup() -> io::Result<()> {
    let mut hangup = SigSet::empty();
    hangup.add(Signal::SIGHUP);
    Ok(hangup.thread_block()?)
}

/// Keeps every signal waiting, for [`serve_as_init`].
///
/// # Errors
/// None in practice.
pub fn hold_signals() -> io::Result<()> {
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?)
}

/// The work of the first process of a pid namespace: every signal that comes goes to `child`, and whatever has ended is
/// taken, until `child` has. Signals must be held ([`hold_signals`]) since before the child was made.
///
/// # Errors
/// The calls that it needs are not allowed.
pub fn serve_as_init(child: i32) -> io::Result<Ended> {
    serve(Some(child))
}

/// The work of the first process of a pid namespace that runs no program: whatever has ended is taken, until it is killed
/// itself. Signals must be held ([`hold_signals`]).
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
        // SAFETY: the set lives, and nothing is to be told of who sent the signal.
        let signal = unsafe { libc::sigwaitinfo(std::ptr::from_ref(all.as_ref()), std::ptr::null_mut()) };
        match signal {
            -1 => match io::Error::last_os_error() {
                interrupted if interrupted.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
            libc::SIGCHLD => {}
            signal => {
                // SAFETY: a plain system call on integers. The child is not taken yet, so that the number is its own. It
                // may have ended, which the next look tells.
                let _ = child.map(|child| unsafe { libc::kill(child, signal) });
            }
        }
    }
}

/// Has this process take on orphans among its descendants.
///
/// # Errors
/// None in practice.
pub fn become_subreaper() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// Has this process killed when its parent ends. `parent` is the pid that the caller takes for its parent's.
///
/// # Errors
/// The parent has ended already.
pub fn die_with(parent: u32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw().cast_unsigned() == parent {
        Ok(())
    } else {
        Err(io::Error::other("the parent has ended"))
    }
}

/// Chosen first when the kernel kills a process of its cgroup, or of the machine, for want of memory.
///
/// # Errors
/// /proc is not there.
pub fn be_expendable() -> io::Result<()> {
    set_oom_score_adj(std::process::id(), 1000)
}

/// Returns the out-of-memory score adjustment of a process, from -1000 for one that is never killed to 1000.
///
/// # Errors
/// The process has ended.
pub fn oom_score_adj(pid: u32) -> io::Result<i32> {
    let text = crate::kernel_file::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Sets it. A score below the lowest one that a privileged process set takes CAP_SYS_RESOURCE.
///
/// # Errors
/// The process has ended; no privilege.
pub fn set_oom_score_adj(pid: u32, score: i32) -> io::Result<()> {
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string())
}

/// Gives up a protection from the OOM killer that this process inherited: what it executes is not the executor's own.
///
/// # Errors
/// /proc is not there.
pub fn forgo_oom_protection() -> io::Result<()> {
    let own = std::process::id();
    if oom_score_adj(own)? < 0 { set_oom_score_adj(own, 0) } else { Ok(()) }
}

/// No core file, no ptrace by others, /proc/self owned by root.
///
/// # Errors
/// None in practice.
pub fn forbid_dumps() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Returns whether a filter on system calls is in force for this thread and new privileges are not to be had.
///
/// Any filter is not enough, for it can be that of the caller's own parent: one call that a container's filter denies
/// must be denied. It is one that everybody may make and that does nothing.
///
/// # Errors
/// None in practice.
pub fn is_confined() -> io::Result<bool> {
    // SAFETY: PR_GET_SECCOMP takes no arguments; it answers 2 in filter mode.
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

    /// A fork of a threaded process would copy locks that nobody ever releases.
    #[test]
    fn a_threaded_process_does_not_fork() {
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(fork().is_err());
        drop(stop);
        let _ = thread.join();
    }
}
