//! Counts the system calls of one process of ours as they begin, and stops it at one of them.
//!
//! A tracer is a thread: the kernel lets only the thread that attached ask and wait. It attaches with PTRACE_SEIZE,
//! which stops nothing by itself, and leaves by ending, which lets everything go that it still holds. A shim and its
//! helpers are reached through their fork; a container's init is never traced, because no option that follows forks
//! is set where it is cloned.

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

/// Which process is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prey {
    /// A process that lives, with all its threads.
    Living(i32),
    /// The next child of a launcher: a shim.
    Shim {
        /// The launcher.
        launcher: i32,
    },
    /// Helpers that the next shim forks.
    Helpers {
        /// The launcher.
        launcher: i32,
        /// The one that libcontainer clones init with, or those that come after it.
        which: Helper,
    },
}

/// Children of a shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    /// The first, which the user namespace is made with.
    Namespace,
    /// The second: libcontainer's own, which clones init.
    Cloner,
    /// All others, which write and mount secret files.
    Inject,
}

impl Helper {
    /// By the order in which a shim forks them.
    fn of(fork: u32) -> Self {
        match fork {
            1 => Self::Namespace,
            2 => Self::Cloner,
            _ => Self::Inject,
        }
    }
}

/// What happens to a process at the call that was aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// SIGKILL, before the call is carried out.
    Kill,
    /// Nothing more: it goes on, untraced.
    LetGo,
}

/// The call at which a process was stopped.
#[derive(Clone, Debug)]
pub(crate) struct Shot {
    /// Which of its life, from 1.
    pub(crate) call: u64,
    /// The system call's number.
    pub(crate) number: i64,
}

/// What a hunt saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Calls that began.
    pub(crate) calls: u64,
    /// The one that was aimed at, if there was such a one.
    pub(crate) shot: Option<Shot>,
}

/// A hunt that is under way.
pub(crate) struct Hunt {
    thread: JoinHandle<Result<Seen, Errno>>,
    stop: Arc<AtomicBool>,
    /// Who is signalled so that the tracer wakes up.
    held: Held,
}

/// Whom a tracer holds.
type Held = Arc<Mutex<BTreeSet<i32>>>;

impl Hunt {
    /// Begins to count. At call `at` of the prey, while it stands still, `act` is called and says how it goes on.
    pub(crate) fn begin(prey: Prey, at: u64, act: impl FnOnce(&Shot) -> Blow + Send + 'static) -> Result<Self, Errno> {
        let stop = Arc::new(AtomicBool::new(false));
        let held = Held::default();
        let (ready, begun) = mpsc::channel();
        let mut tracer = Tracer {
            prey,
            at,
            stop: Arc::clone(&stop),
            held: Arc::clone(&held),
            tracees: HashMap::new(),
            early: Vec::new(),
            forks: 0,
            seen: Seen::default(),
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

    /// The life is over: lets go whom it still holds, and tells what was seen.
    pub(crate) fn end(self) -> Result<Seen, Errno> {
        self.stop.store(true, Ordering::SeqCst);
        while !self.thread.is_finished() {
            // A signal that everybody ignores. A tracee stops on its way all the same, and that wakes the tracer.
            for pid in locked(&self.held).iter() {
                let _ = signal::kill(Pid::from_raw(*pid), Signal::SIGURG); // to the process; one may be gone
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.thread.join().unwrap_or(Err(Errno::ECHILD))
    }
}

/// How a process is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// For its forks only.
    Forks,
    /// For its system calls.
    Calls,
}

struct Tracer {
    prey: Prey,
    at: u64,
    stop: Arc<AtomicBool>,
    held: Held,
    tracees: HashMap<i32, How>,
    /// Children that stopped before their parent's fork was told.
    early: Vec<i32>,
    /// Children of the shim so far.
    forks: u32,
    seen: Seen,
}

impl Tracer {
    fn attach(&mut self) -> Result<(), Errno> {
        match self.prey {
            Prey::Living(pid) => self.attach_threads(pid),
            Prey::Shim { launcher } | Prey::Helpers { launcher, .. } => {
                seize(launcher, follow_forks())?;
                self.tracees.insert(launcher, How::Forks);
                locked(&self.held).insert(launcher);
                Ok(())
            }
        }
    }

    /// All threads, also those that begin meanwhile.
    fn attach_threads(&mut self, pid: i32) -> Result<(), Errno> {
        locked(&self.held).insert(pid);
        loop {
            let before = self.tracees.len();
            for thread in threads(pid) {
                let Entry::Vacant(place) = self.tracees.entry(thread) else { continue };
                match seize(thread, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE) {
                    Ok(()) => {
                        place.insert(How::Calls);
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

    fn follow(&mut self, act: impl FnOnce(&Shot) -> Blow) -> Result<(), Errno> {
        let mut act = Some(act);
        loop {
            let status = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
                Err(Errno::ECHILD) => return Ok(()), // nobody is left
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            if self.stop.load(Ordering::SeqCst) {
                return Ok(());
            }
            match status {
                WaitStatus::PtraceSyscall(pid) => {
                    if self.begins(pid) {
                        self.seen.calls += 1;
                        if self.seen.calls == self.at
                            && let Some(act) = act.take()
                        {
                            let shot = Shot { call: self.at, number: number(pid).unwrap_or(-1) };
                            let blow = act(&shot);
                            self.seen.shot = Some(shot);
                            if blow == Blow::LetGo {
                                return Ok(());
                            }
                            signal::kill(Pid::from_raw(process_of(pid.as_raw())), Signal::SIGKILL)?;
                            continue;
                        }
                    }
                    self.go_on(pid, None);
                }
                WaitStatus::PtraceEvent(pid, _, event) => self.event(pid, event),
                WaitStatus::Stopped(pid, signal) => self.go_on(pid, Some(signal)),
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
            self.go_on(pid, None);
        }
    }

    /// A tracee has a child, or a new thread.
    fn forked(&mut self, parent: Pid, child: i32) {
        let how = match self.prey {
            Prey::Living(_) => Some(How::Calls),
            Prey::Shim { launcher } if parent.as_raw() == launcher => Some(How::Calls),
            Prey::Helpers { launcher, .. } if parent.as_raw() == launcher => Some(How::Forks),
            Prey::Helpers { which, .. } => {
                self.forks += 1;
                (Helper::of(self.forks) == which).then_some(How::Calls)
            }
            Prey::Shim { .. } => None,
        };
        let is_shim = matches!(self.prey, Prey::Shim { launcher } | Prey::Helpers { launcher, .. } if parent.as_raw() == launcher);
        if let Some(how) = how {
            self.tracees.insert(child, how);
            if !matches!(self.prey, Prey::Living(_)) {
                locked(&self.held).insert(child);
            }
        }
        // Its first stop: already seen, or seen now.
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
                Some(How::Calls) => {
                    let more = if matches!(self.prey, Prey::Living(_)) {
                        Options::PTRACE_O_TRACECLONE
                    } else {
                        Options::empty()
                    };
                    let _ = ptrace::setoptions(child, Options::PTRACE_O_TRACESYSGOOD | more);
                    self.go_on(child, None);
                }
                Some(How::Forks) => self.go_on(child, None),
                None => drop(ptrace::detach(child, None)),
            }
        }
        if is_shim {
            // The launcher has done its part.
            self.tracees.remove(&parent.as_raw());
            locked(&self.held).remove(&parent.as_raw());
            let _ = ptrace::detach(parent, None);
        }
    }

    /// Whether this stop is at the beginning of a call, not at its end.
    fn begins(&self, pid: Pid) -> bool {
        ptrace::syscall_info(pid).is_ok_and(|info| info.op == libc::PTRACE_SYSCALL_INFO_ENTRY)
    }

    fn go_on(&self, pid: Pid, signal: Option<Signal>) {
        // One that was killed meanwhile tells by its end.
        let _ = match self.tracees.get(&pid.as_raw()) {
            Some(How::Calls) => ptrace::syscall(pid, signal),
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

/// Attaches. A tracer before this one may be on its way out still: a thread is joined a moment before it lets go.
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

/// The process of a thread.
fn process_of(thread: i32) -> i32 {
    let leader = integration::host::status(thread, "Tgid").and_then(|pid| pid.parse().ok());
    leader.filter(|_| Path::new(&format!("/proc/{thread}")).exists()).unwrap_or(thread)
}

#[cfg(target_arch = "x86_64")]
fn number(pid: Pid) -> Result<i64, Errno> {
    ptrace::getregs(pid).map(|registers| registers.orig_rax as i64)
}

#[cfg(target_arch = "aarch64")]
fn number(pid: Pid) -> Result<i64, Errno> {
    ptrace::getregs(pid).map(|registers| registers.regs[8] as i64)
}
