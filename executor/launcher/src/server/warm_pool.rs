//! Manages the warm pool: creates warm containers ahead of launches, sends launches to them, and stops them.
//!
//! A warm container does not count against any capacity, and is stopped as soon as a container needs its id range. A
//! used warm container is replaced after a short delay, so that a burst of launches does not wait for new warm
//! containers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use executor_core::protocol::{self, Launch};
use executor_sys::heartbeat::Heartbeat;
use executor_sys::kernel_file;
use executor_sys::process::{self, Fork};
use executor_sys::ready::{is_readable, readable_by};
use executor_sys::seqpacket::Seqpacket;
use nix::unistd::{SysconfVar, sysconf};
use prost::Message;

use super::{EXIT_TIMEOUT, Server};
use crate::log::{self, Level};
use crate::shim::{self, WARM_READY, WarmInput};
use crate::warm::WarmPaths;

/// Delay before the next warm container is created: after a warm container was used or created, and between checks for
/// an idle processor.
const REFILL_DELAY: Duration = Duration::from_millis(10);
/// Maximum delay between the first launch of a burst and the creation of the next warm container.
const REFILL_DELAY_MAX: Duration = Duration::from_millis(40);
/// Maximum additional delay while all processors are busy. Creating a warm container on a busy host costs more
/// processor time than it saves.
const BUSY_DELAY_MAX: Duration = Duration::from_millis(250);
/// Delay after a warm container failed or could not be created. The delay doubles with each further failure, up to a
/// maximum.
const RETRY_DELAY: Duration = Duration::from_millis(500);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// Maximum age of a warm container.
const AGE_MAX: Duration = Duration::from_secs(3600);
/// Minimum available memory of the host, in percent of its total memory. Below this minimum, no warm containers are
/// kept.
const MEMORY_PERCENT: u64 = 5;

/// A warm container that is ready or being created.
pub(super) struct PooledContainer {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) lifeline: Seqpacket,
    pub(super) place: WarmPaths,
    pub(super) id_range: u32,
    pub(super) heartbeat: Heartbeat,
    pub(super) on_network: bool,
    made_at: Instant,
    ready: bool,
}

#[derive(Default)]
pub(super) struct WarmPool {
    all: Vec<PooledContainer>,
    /// Time at which the next warm container is created.
    next_at: Option<Instant>,
    /// Latest value for `next_at` while warm containers are being used.
    refill_by: Option<Instant>,
    /// Time after which the next warm container is created even if all processors are busy.
    busy_until: Option<Instant>,
    /// Number of consecutive failures of warm containers.
    failed: u32,
    /// Number of warm containers created. The names of warm containers contain this number.
    made: u64,
    /// Number of launches that used a warm container.
    used: u64,
    /// Number of launches for which no warm container was ready.
    missed: u64,
}

impl WarmPool {
    /// Returns the descriptors that become readable when a warm container sends a message or exits.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().flat_map(|warm| [warm.pidfd.as_fd(), warm.lifeline.as_fd()])
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.all.iter().map(|warm| warm.pid)
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = u32> + '_ {
        self.all.iter().map(|warm| warm.id_range)
    }

    /// Sends a launch to a warm container and returns the container. Returns `None` if none is available. A warm
    /// container that cannot receive the launch is killed, and stays in the pool until its exit is handled and its
    /// files on the host are removed.
    ///
    /// If `on_network` is true, a warm container on the pool's network is preferred. If false, only warm containers
    /// without a network are used.
    pub(super) fn send_launch(
        &mut self,
        launch: &Launch,
        fds: &[BorrowedFd<'_>],
        on_network: bool,
    ) -> Option<PooledContainer> {
        while let Some(index) = self.find(on_network) {
            let warm = &mut self.all[index];
            if warm.lifeline.send(&launch.encode_to_vec(), fds).is_ok() {
                self.refill_later();
                (self.used, self.failed) = (self.used + 1, 0);
                return Some(self.all.remove(index));
            }
            warm.ready = false;
            let _ = process::pidfd_signal(warm.pidfd.as_fd(), libc::SIGKILL); // the process may have just exited
        }
        self.missed += 1;
        None
    }

    fn find(&self, on_network: bool) -> Option<usize> {
        let position = |wanted: bool| {
            let fits = |warm: &PooledContainer| warm.ready && warm.on_network == wanted && !is_readable(&warm.pidfd);
            self.all.iter().position(fits)
        };
        on_network.then(|| position(true)).flatten().or_else(|| position(false))
    }

    fn count(&self, on_network: bool) -> usize {
        self.all.iter().filter(|warm| warm.on_network == on_network).count()
    }

    /// Delays the next warm container after a failure.
    fn retry_later(&mut self) {
        let pause = RETRY_DELAY.saturating_mul(1 << self.failed.min(16)).min(RETRY_DELAY_MAX);
        self.failed += 1;
        self.next_at = Some(Instant::now() + pause);
    }

    /// Delays the next warm container, unless a failure already delays it.
    fn refill_later(&mut self) {
        let now = Instant::now();
        let by = *self.refill_by.get_or_insert(now + REFILL_DELAY_MAX);
        if self.next_at.is_none_or(|at| at <= by) {
            self.next_at = Some(by.min(now + REFILL_DELAY));
        }
    }
}

impl Server {
    /// Returns the target number of warm containers: the configured number, doubled if there is a network for them. At
    /// least half of the id ranges are reserved for containers.
    fn warm_pool_size(&self) -> usize {
        let half = self.host.policy.userns_pool_ranges as usize / 2;
        let kinds = if self.host.warm_pool_network.is_empty() { 1 } else { 2 };
        (self.host.warm_pool_size * kinds).min(half.saturating_sub(self.shims.len() + self.ranges_left.len()))
    }

    /// Returns true if the next warm container must be on the network. Warm containers with and without a network are
    /// created in turn, up to the configured number of each.
    fn next_is_on_network(&self) -> bool {
        let (size, on, off) = (self.host.warm_pool_size, self.warm_pool.count(true), self.warm_pool.count(false));
        !self.host.warm_pool_network.is_empty() && on < size && (on < off || off >= size)
    }

    pub(super) fn warm_pool_due(&self) -> impl Iterator<Item = Instant> {
        let lacks = self.warm_pool.all.len() < self.warm_pool_size();
        let next = self.warm_pool.next_at.filter(|_| lacks);
        next.into_iter().chain(self.warm_pool.all.first().map(|warm| warm.made_at + AGE_MAX))
    }

    pub(super) fn count_warm_pool(&self) -> protocol::WarmPool {
        let WarmPool { all, used, missed, .. } = &self.warm_pool;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let ready = all.iter().filter(|warm| warm.ready).count();
        let configured = number(self.warm_pool_size());
        protocol::WarmPool { configured, ready: number(ready), used: *used, missed: *missed }
    }

    /// Reads messages of warm containers, and reaps warm containers that have exited.
    pub(super) fn check_warm_pool(&mut self) {
        let mut ended = Vec::new();
        for (index, warm) in self.warm_pool.all.iter_mut().enumerate() {
            let mut word = [0; 16];
            warm.ready |=
                matches!(warm.lifeline.recv(&mut word), Ok(Some((length, _))) if &word[..length] == WARM_READY);
            if is_readable(&warm.pidfd) {
                ended.push(index);
            }
        }
        for index in ended.into_iter().rev() {
            let warm = self.warm_pool.all.remove(index);
            let _ = process::wait_for(warm.pid);
            self.unreaped = true;
            self.clear(&warm.place);
            self.warm_pool.retry_later();
        }
    }

    /// Cleans up after a warm container that has exited: kills its processes and removes its directories. If a launched
    /// container has taken over the directories, only detaches a leftover network attachment.
    pub(super) fn clear(&self, place: &WarmPaths) {
        if place.is_there() {
            crate::orphans::kill_all(&self.host.run_dir, &self.children().collect());
            place.clear(&self.host);
        } else {
            crate::network::detach_warm(&self.host, &place.name());
        }
    }

    /// Creates the next warm container if it is due. Stops the oldest warm container if it is too old, or all warm
    /// containers if memory is short.
    pub(super) fn fill_warm_pool(&mut self) {
        if self.warm_pool.all.first().is_some_and(|oldest| oldest.made_at.elapsed() >= AGE_MAX) {
            self.stop_one_warm();
        }
        let now = Instant::now();
        if self.warm_pool.all.len() >= self.warm_pool_size() {
            self.warm_pool.busy_until = None;
            return;
        }
        if *self.warm_pool.next_at.get_or_insert(now) > now {
            return;
        }
        (self.warm_pool.next_at, self.warm_pool.refill_by) = (None, None);
        if *self.warm_pool.busy_until.get_or_insert(now + BUSY_DELAY_MAX) > now && are_processors_busy() {
            self.warm_pool.next_at = Some(now + REFILL_DELAY);
            return;
        }
        self.warm_pool.busy_until = None;
        if is_memory_short() {
            while self.stop_one_warm() {}
            self.warm_pool.retry_later();
            return;
        }
        let mut on_network = self.next_is_on_network();
        if on_network && !crate::network::has_room_for_warm(&self.host) {
            self.stop_all_on_network();
            on_network = false;
            if self.warm_pool.count(false) >= self.host.warm_pool_size {
                return self.warm_pool.retry_later();
            }
        }
        match self.start_warm(on_network) {
            Ok(true) => self.warm_pool.next_at = Some(Instant::now() + REFILL_DELAY),
            Ok(false) => self.warm_pool.retry_later(),
            Err(error) => {
                log::line(Level::Warning, "", format_args!("a warm container was not created: {error}"));
                self.warm_pool.retry_later();
            }
        }
    }

    /// Forks a warm container. Returns false if there is no free range of ids.
    fn start_warm(&mut self, on_network: bool) -> io::Result<bool> {
        let Some(id_range) = self.free_range() else { return Ok(false) };
        let heartbeat = Heartbeat::create()?;
        let (lifeline, theirs) = Seqpacket::pair()?;
        lifeline.set_nonblocking(true);
        self.warm_pool.made += 1;
        let place = WarmPaths::from_name(&self.host, &format!("{}-{}", std::process::id(), self.warm_pool.made));
        place.make()?;
        let launcher = std::process::id();
        let forked = {
            let room = process::room_for_one(lifeline.as_fd());
            room.and_then(|room| Ok((process::fork()?, room)))
        };
        let (forked, room) = forked.inspect_err(|_| place.clear(&self.host))?;
        let pid = match forked {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                drop((lifeline, room));
                self.abandon();
                let input = WarmInput { place, id_range, launcher, heartbeat, on_network };
                process::exit_now(shim::run_warm(&self.host, &self.filter, input, theirs))
            }
        };
        drop(room);
        let pidfd = process::pidfd(pid)?;
        let made_at = Instant::now();
        self.warm_pool.all.push(PooledContainer {
            pid,
            pidfd,
            lifeline,
            place,
            id_range,
            heartbeat,
            on_network,
            made_at,
            ready: false,
        });
        Ok(true)
    }

    /// Stops one warm container and waits for its exit, so that its ids are free. Returns false if the pool is empty.
    pub(super) fn stop_one_warm(&mut self) -> bool {
        if self.warm_pool.all.is_empty() {
            return false;
        }
        self.stop_warm(0);
        true
    }

    /// Stops the warm containers that have addresses of a network.
    fn stop_all_on_network(&mut self) {
        while let Some(index) = self.warm_pool.all.iter().position(|warm| warm.on_network) {
            self.stop_warm(index);
        }
    }

    fn stop_warm(&mut self, index: usize) {
        let PooledContainer { pid, pidfd, lifeline, place, .. } = self.warm_pool.all.remove(index);
        drop(lifeline); // the warm container exits and cleans up
        if !readable_by(&pidfd, Instant::now() + EXIT_TIMEOUT).unwrap_or(false) {
            process::kill(pid);
        }
        let _ = process::wait_for(pid);
        self.unreaped = true;
        self.clear(&place);
    }
}

/// Returns true if the host has more running tasks than online processors. This process counts as one task.
fn are_processors_busy() -> bool {
    let running = running_tasks(&kernel_file::read_to_string("/proc/loadavg").unwrap_or_default());
    let processors = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten().unwrap_or(1);
    running.is_some_and(|running| running > processors)
}

/// Returns the number of running tasks from the content of `/proc/loadavg` (proc(5)).
fn running_tasks(loadavg: &str) -> Option<i64> {
    loadavg.split(' ').nth(3)?.split_once('/')?.0.parse().ok()
}

/// Returns true if too little memory is available to keep warm containers.
fn is_memory_short() -> bool {
    let text = kernel_file::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().split(' ').next()?.parse::<u64>().ok()
    };
    matches!((of("MemAvailable"), of("MemTotal")), (Some(available), Some(total)) if available * 100 < total * MEMORY_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_tasks_are_read_from_loadavg() {
        assert_eq!(running_tasks("1.80 1.46 2.75 13/82 29035\n"), Some(13));
        for malformed in ["", "1.80 1.46 2.75", "1.80 1.46 2.75 13 29035", "1.80 1.46 2.75 x/82 29035"] {
            assert_eq!(running_tasks(malformed), None, "{malformed:?}");
        }
        let current = kernel_file::read_to_string("/proc/loadavg").unwrap();
        assert!(running_tasks(&current).is_some_and(|running| running >= 1), "{current}");
    }

    /// A warm container that exits while it receives a launch stays tracked, so that its files on the host are removed.
    #[test]
    fn warm_container_failing_launch_stays_tracked() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let (lifeline, theirs) = Seqpacket::pair().unwrap();
        drop(theirs);
        let place = WarmPaths { cgroup: "x".into(), dir: "x".into(), state: "x".into() };
        let (pidfd, heartbeat) = (process::pidfd(pid).unwrap(), Heartbeat::create().unwrap());
        let warm = PooledContainer {
            pid,
            pidfd,
            lifeline,
            place,
            id_range: 0,
            heartbeat,
            on_network: false,
            made_at: Instant::now(),
            ready: true,
        };
        let mut warm_pool = WarmPool { all: vec![warm], ..WarmPool::default() };
        assert!(warm_pool.send_launch(&Launch::default(), &[], false).is_none());
        assert_eq!((warm_pool.used, warm_pool.missed), (0, 1));
        assert_eq!(warm_pool.pids().collect::<Vec<_>>(), [pid]);
        assert!(!child.wait().unwrap().success(), "the process was killed");
        assert!(warm_pool.send_launch(&Launch::default(), &[], false).is_none());
        assert_eq!(warm_pool.pids().count(), 1, "the entry stays until its exit is handled");
    }
}
