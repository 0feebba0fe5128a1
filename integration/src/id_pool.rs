//! Small pools of host ids (`policy.userns_pool_*`), reserved so that no other running test uses the same ids.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

/// First id of the first pool.
const FIRST: u32 = 0x3000_0000;
/// Number of ids in a pool: 64 ranges of 65,536 ids.
const STEP: u32 = 64 << 16;
/// Number of pools.
const POOLS: u32 = 128;

/// A pool of host ids. Daemons with the same pool share its ranges, as on a host with several launchers.
#[derive(Debug)]
pub struct IdPool {
    start: u32,
    ranges: u32,
    /// Abstract socket with the pool's name. Only one process can bind the name. The kernel releases the name with the
    /// socket, even if the process is killed.
    _reservation: UnixListener,
}

impl IdPool {
    /// Reserves a pool of `ranges` ranges, at most 64.
    ///
    /// # Panics
    /// Panics if other tests have reserved all pools.
    pub fn reserve(ranges: u32) -> Self {
        assert!(ranges <= STEP >> 16, "{ranges} ranges overlap the next pool");
        let reserve = |number: u32| {
            let start = FIRST + number * STEP;
            let address = SocketAddr::from_abstract_name(format!("executor-test-ids-{start}")).expect("a short name");
            Some(Self { start, ranges, _reservation: UnixListener::bind_addr(&address).ok()? })
        };
        (0..POOLS).find_map(reserve).expect("a pool of ids that no other test uses")
    }

    /// Returns the pool's keys of the table `policy` in the daemon's configuration.
    pub fn policy(&self) -> String {
        format!("userns_pool_start = {}\nuserns_pool_ranges = {}\n", self.start, self.ranges)
    }
}
