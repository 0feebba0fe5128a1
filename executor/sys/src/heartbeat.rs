//! Provides a process's heartbeat, in memory that the process shares with its watchdog.
//!
//! Each iteration of the process's loop costs two memory writes and no system call. The watchdog reads the values
//! without waking the process. The memory is an unnamed file, so that a later process can take over monitoring.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use rustix::time::{ClockId, clock_gettime};

use crate::memfile::MemFile;

/// Layout of the shared memory.
#[repr(C)]
struct HeartbeatMemory {
    /// Number of iterations of the process's loop.
    turns: AtomicU64,
    /// Deadline of the next iteration in nanoseconds of the monotonic clock, or 0 while the process is idle.
    until: AtomicU64,
}

const LENGTH: NonZeroUsize = NonZeroUsize::MIN.saturating_add(size_of::<HeartbeatMemory>() - 1);

/// Heartbeat of a process, in shared memory.
#[derive(Debug)]
pub struct Heartbeat {
    file: OwnedFd,
    memory: NonNull<HeartbeatMemory>,
}

impl Heartbeat {
    /// Creates the heartbeat of a process before the process is forked, so that parent and child share it.
    ///
    /// # Errors
    /// Returns an error if descriptors or memory run out.
    pub fn create() -> io::Result<Self> {
        Self::map(MemFile::create("executor-heartbeat", LENGTH.get())?)
    }

    /// Maps the heartbeat that another process passed.
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a memory file of this size.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let file = MemFile::from_fd_to_wipe(fd, LENGTH.get() as u64)?;
        if file.len() < LENGTH.get() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::map(file)
    }

    fn map(file: MemFile) -> io::Result<Self> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing. The file's size is sealed, so
        // the mapping stays valid.
        let at = unsafe { mmap(None, LENGTH, protection, MapFlags::MAP_SHARED, file.as_fd(), 0) }?;
        Ok(Self { file: file.into(), memory: at.cast() })
    }

    fn memory(&self) -> &HeartbeatMemory {
        // SAFETY: the mapping is as large as `HeartbeatMemory`, page-aligned, and lives as long as `self`. Any bytes
        // are valid numbers, and other processes also access them atomically.
        unsafe { self.memory.as_ref() }
    }

    /// Records a loop iteration. The next iteration must follow within this time.
    pub fn turn(&self, within: Duration) {
        self.memory().turns.fetch_add(1, Ordering::Relaxed);
        self.memory().until.store(now().saturating_add(nanos(within)).max(1), Ordering::Relaxed);
    }

    /// Marks the process as idle. The next iteration has no deadline.
    pub fn rest(&self) {
        self.memory().until.store(0, Ordering::Relaxed);
    }

    /// Returns the number of iterations of the process's loop.
    pub fn turns(&self) -> u64 {
        self.memory().turns.load(Ordering::Relaxed)
    }

    /// Returns true if the process is busy.
    pub fn is_at_work(&self) -> bool {
        self.memory().until.load(Ordering::Relaxed) != 0
    }

    /// Returns the time since the deadline of the next iteration, if that iteration is overdue.
    pub fn overdue(&self) -> Option<Duration> {
        let until = self.memory().until.load(Ordering::Relaxed);
        now().checked_sub(until).filter(|late| until != 0 && *late > 0).map(Duration::from_nanos)
    }
}

impl AsFd for Heartbeat {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.memory.cast(), LENGTH.get()) };
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    nanos(Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_sees_turns_and_lateness() {
        let heartbeat = Heartbeat::create().unwrap();
        let watcher = Heartbeat::from_fd(heartbeat.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((watcher.turns(), watcher.is_at_work(), watcher.overdue()), (0, false, None));
        heartbeat.turn(Duration::from_secs(3600));
        assert_eq!((watcher.turns(), watcher.is_at_work(), watcher.overdue()), (1, true, None));
        heartbeat.turn(Duration::ZERO);
        while now() < watcher.memory().until.load(Ordering::Relaxed) + 1 {}
        assert!(watcher.overdue().is_some());
        heartbeat.rest();
        assert_eq!((watcher.turns(), watcher.is_at_work(), watcher.overdue()), (2, false, None));
    }

    #[test]
    fn heartbeat_small_file_fails() {
        let small = MemFile::create("x", 8).unwrap();
        assert_eq!(Heartbeat::from_fd(small.into()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
