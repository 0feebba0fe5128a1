//! Counts the system calls of one of the executor's processes on entry, and stops the process at one of them.
//!
//! The tracer is a thread, because the kernel accepts ptrace calls and waits only from the attached thread. The tracer
//! attaches with PTRACE_SEIZE, which does not stop a process. The tracer detaches by exiting. Its exit releases every
//! remaining tracee. A shim and its helpers are traced from their fork on. A container's init is never traced, because
//! the process that clones it is traced without options that follow forks.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::calls;

/// The process whose calls are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TraceTarget {
    /// A running process with all its threads.
    Living(i32),
    /// The next child of a launcher, which is a shim.
    Shim {
        /// Pid of the launcher.
        launcher: i32,
    },
    /// Helpers that the shim of an activated warm container forks.
    OfWarmContainer {
        /// Pid of the warm container's shim.
        shim: i32,
    },
    /// Helpers that the next shim forks.
    Helpers {
        /// Pid of the launcher.
        launcher: i32,
        which: Helper,
    },
}

/// Kinds of helpers, in the order in which a shim forks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    /// First child, from which the user namespace is created.
    Namespace,
    /// Second child: libcontainer's own process, which clones init.
    Cloner,
    /// Further children, which write and mount secret files.
    Inject,
}

impl Helper {
    /// Returns the kind of the shim's child number `fork`.
    fn from_fork(fork: u32) -> Self {
        match fork {
            1 => Self::Namespace,
            2 => Self::Cloner,
            _ => Self::Inject,
        }
    }
}

/// System calls that a trace counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Every call.
    All,
    /// Calls with effects that outlive the process. A kill before any other call has the same result.
    Changes,
}

/// Action on a process at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopAction {
    /// Kill the process with SIGKILL before the call is executed.
    Kill,
    /// Let the process continue untraced.
    Release,
}

/// The call at which a process was stopped.
#[derive(Clone, Debug)]
pub(crate) struct StoppedCall {
    /// Number of counted system calls that the process had entered by then, including this call.
    pub(crate) call: u64,
    /// System call number of the kernel.
    pub(crate) number: i64,
}

#[derive(Debug, Default)]
pub(crate) struct TraceResult {
    /// Number of calls that were entered.
    pub(crate) calls: u64,
    /// The chosen call, if the process reached it.
    pub(crate) shot: Option<StoppedCall>,
}

/// A running trace of system calls.
pub(crate) struct Trace {
    thread: JoinHandle<Result<TraceResult, Errno>>,
    stop: Arc<AtomicBool>,
    /// The tracees, which are signalled to wake the tracer.
    held: Held,
}

/// Ids of the threads that a tracer is attached to.
type Held = Arc<Mutex<BTreeSet<i32>>>;

impl Trace {
    /// Starts counting. At call `at` of the target, `act` is called while the process is stopped. The result of `act`
    /// determines how the process continues.
    pub(crate) fn start(
        target: TraceTarget,
        (counted, at): (Counted, u64),
        act: impl FnOnce(&StoppedCall) -> StopAction + Send + 'static,
    ) -> Result<Self, Errno> {
        let stop = Arc::new(AtomicBool::new(false));
        let held = Held::default();
        let (ready, begun) = mpsc::channel();
        let mut tracer = Tracer {
            target,
            counted,
            at,
            stop: Arc::clone(&stop),
            held: Arc::clone(&held),
            tracees: HashMap::new(),
            early: Vec::new(),
            forks: 0,
            seen: TraceResult::default(),
        };
        let thread = std::thread::spawn(move || {
            let attached = tracer.attach();
            let _ = ready.send(attached);
            attached?;
            tracer.follow(act)?;
            Ok(tracer.seen)
        });
        match begun.recv().map_err(|_| Errno::ECHILD)? {
            Ok(()) => Ok(Self { thread, stop, held }),
            Err(error) => Err(error),
        }
    }

    /// Ends the trace at the end of a cycle. Releases the remaining tracees and returns the result.
    pub(crate) fn end(self) -> Result<TraceResult, Errno> {
        self.stop.store(true, Ordering::SeqCst);
        while !self.thread.is_finished() {
            // SIGURG is ignored by default, but a tracee still stops for it, which wakes the tracer.
            for pid in locked(&self.held).iter() {
                let _ = signal::kill(Pid::from_raw(*pid), Signal::SIGURG); // sent to the process, which may have exited
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.thread.join().unwrap_or(Err(Errno::ECHILD))
    }
}

/// Events to trace in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceMode {
    /// Forks only.
    Forks,
    /// System calls.
    Calls,
}

struct Tracer {
    target: TraceTarget,
    counted: Counted,
    at: u64,
    stop: Arc<AtomicBool>,
    held: Held,
    tracees: HashMap<i32, TraceMode>,
    /// Children that stopped before their parent's fork event.
    early: Vec<i32>,
    /// Number of the shim's children so far.
    forks: u32,
    seen: TraceResult,
}

impl Tracer {
    fn attach(&mut self) -> Result<(), Errno> {
        match self.target {
            TraceTarget::Living(pid) => self.attach_threads(pid),
            TraceTarget::Shim { launcher: parent }
            | TraceTarget::Helpers { launcher: parent, .. }
            | TraceTarget::OfWarmContainer { shim: parent } => {
                seize(parent, follow_forks())?;
                self.tracees.insert(parent, TraceMode::Forks);
                locked(&self.held).insert(parent);
                Ok(())
            }
        }
    }

    /// Attaches to all threads, including threads that start during this call.
    fn attach_threads(&mut self, pid: i32) -> Result<(), Errno> {
        locked(&self.held).insert(pid);
        loop {
            let before = self.tracees.len();
            for thread in threads(pid) {
                let Entry::Vacant(place) = self.tracees.entry(thread) else { continue };
                match seize(thread, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE) {
                    Ok(()) => {
                        place.insert(TraceMode::Calls);
                        ptrace::interrupt(Pid::from_raw(thread))?;
                    }
                    Err(Errno::ESRCH) => {}
                    Err(error) => return Err(error),
                }
            }
            if self.tracees.len() == before {
                return Ok(());
            }
        }
    }

    fn follow(&mut self, act: impl FnOnce(&StoppedCall) -> StopAction) -> Result<(), Errno> {
        let mut act = Some(act);
        loop {
            let status = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
                Err(Errno::ECHILD) => return Ok(()), // no tracee is left
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            if self.stop.load(Ordering::SeqCst) {
                return Ok(());
            }
            match status {
                WaitStatus::PtraceSyscall(pid) => {
                    if self.is_counted_entry(pid) {
                        self.seen.calls += 1;
                        if self.seen.calls == self.at
                            && let Some(act) = act.take()
                        {
                            let shot =
                                StoppedCall { call: self.at, number: call(pid).map_or(-1, |(number, _)| number) };
                            let action = act(&shot);
                            self.seen.shot = Some(shot);
                            if action == StopAction::Release {
                                return Ok(());
                            }
                            signal::kill(Pid::from_raw(process_of(pid.as_raw())), Signal::SIGKILL)?;
                            continue;
                        }
                    }
                    self.resume(pid, None);
                }
                WaitStatus::PtraceEvent(pid, _, event) => self.event(pid, event),
                WaitStatus::Stopped(pid, signal) => self.resume(pid, Some(signal)),
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) => {
                    self.tracees.remove(&pid.as_raw());
                    locked(&self.held).remove(&pid.as_raw());
                }
                _ => {}
            }
        }
    }

    fn event(&mut self, pid: Pid, event: i32) {
        let forks = [Event::PTRACE_EVENT_FORK, Event::PTRACE_EVENT_VFORK, Event::PTRACE_EVENT_CLONE];
        if forks.iter().any(|fork| *fork as i32 == event) {
            if let Ok(child) = ptrace::getevent(pid) {
                self.forked(pid, child as i32);
            }
        } else if !self.tracees.contains_key(&pid.as_raw()) {
            self.early.push(pid.as_raw());
            return;
        }
        if self.tracees.contains_key(&pid.as_raw()) {
            self.resume(pid, None);
        }
    }

    /// Handles a tracee's new child or thread.
    fn forked(&mut self, parent: Pid, child: i32) {
        let how = match self.target {
            TraceTarget::Living(_) | TraceTarget::OfWarmContainer { .. } => Some(TraceMode::Calls),
            TraceTarget::Shim { launcher } if parent.as_raw() == launcher => Some(TraceMode::Calls),
            TraceTarget::Helpers { launcher, .. } if parent.as_raw() == launcher => Some(TraceMode::Forks),
            TraceTarget::Helpers { which, .. } => {
                self.forks += 1;
                (Helper::from_fork(self.forks) == which).then_some(TraceMode::Calls)
            }
            TraceTarget::Shim { .. } => None,
        };
        let is_shim = matches!(self.target, TraceTarget::Shim { launcher } | TraceTarget::Helpers { launcher, .. } if parent.as_raw() == launcher);
        if let Some(how) = how {
            self.tracees.insert(child, how);
            if !matches!(self.target, TraceTarget::Living(_)) {
                locked(&self.held).insert(child);
            }
        }
        // The first stop of the child was already seen, or is its next event.
        let stopped = match self.early.iter().position(|early| *early == child) {
            Some(index) => {
                self.early.swap_remove(index);
                true
            }
            None => waitpid(Pid::from_raw(child), Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)).is_ok(),
        };
        if stopped {
            let child = Pid::from_raw(child);
            match how {
                Some(TraceMode::Calls) => {
                    let more = if matches!(self.target, TraceTarget::Living(_)) {
                        Options::PTRACE_O_TRACECLONE
                    } else {
                        Options::empty()
                    };
                    let _ = ptrace::setoptions(child, Options::PTRACE_O_TRACESYSGOOD | more);
                    self.resume(child, None);
                }
                Some(TraceMode::Forks) => self.resume(child, None),
                None => drop(ptrace::detach(child, None)),
            }
        }
        if is_shim {
            // The launcher is no longer needed.
            self.tracees.remove(&parent.as_raw());
            locked(&self.held).remove(&parent.as_raw());
            let _ = ptrace::detach(parent, None);
        }
    }

    /// Returns true if this stop is at the entry of a counted call, not at its return.
    fn is_counted_entry(&self, pid: Pid) -> bool {
        let begins = ptrace::syscall_info(pid).is_ok_and(|info| info.op == libc::PTRACE_SYSCALL_INFO_ENTRY);
        let counts = || call(pid).is_ok_and(|(number, arguments)| calls::changes(number, arguments));
        begins && (self.counted == Counted::All || counts())
    }

    fn resume(&self, pid: Pid, signal: Option<Signal>) {
        // A process that was killed in the meantime is handled when its exit is reported.
        let _ = match self.tracees.get(&pid.as_raw()) {
            Some(TraceMode::Calls) => ptrace::syscall(pid, signal),
            _ => ptrace::cont(pid, signal),
        };
    }
}

fn locked(held: &Held) -> MutexGuard<'_, BTreeSet<i32>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow_forks() -> Options {
    Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK | Options::PTRACE_O_TRACECLONE
}

/// Attaches to a process. An earlier tracer may still be attached, because a thread can be joined just before it
/// releases its tracees.
fn seize(pid: i32, options: Options) -> Result<(), Errno> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match ptrace::seize(Pid::from_raw(pid), options) {
            Err(Errno::EPERM) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(100)),
            result => return result,
        }
    }
}

fn threads(pid: i32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the pid of a thread's process.
fn process_of(thread: i32) -> i32 {
    let leader = integration::host::status(thread, "Tgid").and_then(|pid| pid.parse().ok());
    leader.filter(|_| Path::new(&format!("/proc/{thread}")).exists()).unwrap_or(thread)
}

/// Returns the number and first three arguments of the call at which a thread is stopped.
#[cfg(target_arch = "x86_64")]
fn call(pid: Pid) -> Result<(i64, [u64; 3]), Errno> {
    ptrace::getregs(pid).map(|regs| (regs.orig_rax as i64, [regs.rdi, regs.rsi, regs.rdx]))
}

/// Returns the number and first three arguments of the call at which a thread is stopped.
#[cfg(target_arch = "aarch64")]
fn call(pid: Pid) -> Result<(i64, [u64; 3]), Errno> {
    ptrace::getregs(pid).map(|regs| (regs.regs[8] as i64, [regs.regs[0], regs.regs[1], regs.regs[2]]))
}
