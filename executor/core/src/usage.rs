//! Defines the resource counters of a container, as in a shim's reply and in an exit record.
//!
//! The kernel keeps the counters in the container's cgroup and its network namespace. Counters that the host's kernel
//! does not keep are unset.

use prost::Message;
use serde::{Deserialize, Serialize};

/// Counters of a container.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct Usage {
    /// Time of the reading, in nanoseconds since the epoch.
    #[prost(uint64, tag = "1")]
    pub at: u64,
    /// CPU time, and throttling by the CPU limit.
    #[prost(message, required, tag = "2")]
    pub cpu: CpuUsage,
    /// Memory usage.
    #[prost(message, required, tag = "3")]
    pub memory: MemoryUsage,
    /// Number of processes and threads.
    #[prost(uint64, optional, tag = "4")]
    pub pids: Option<u64>,
    /// Transfers from and to disks.
    #[prost(message, optional, tag = "5")]
    pub io: Option<IoUsage>,
    /// Traffic of the container's own network; unset if the container has none.
    #[prost(message, optional, tag = "6")]
    pub network: Option<NetworkUsage>,
    /// Counters of the log; unset if they were not read.
    #[prost(message, optional, tag = "7")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogUsage>,
    /// Stalls of processes that waited for CPUs; unset if the kernel does not measure stalls.
    #[prost(message, optional, tag = "441")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pressure: Option<Pressure>,
    /// Stalls of processes that waited for memory.
    #[prost(message, optional, tag = "442")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<Pressure>,
    /// Stalls of processes that waited for disks.
    #[prost(message, optional, tag = "443")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_pressure: Option<Pressure>,
    /// Size of the writable layer; unset if it is unknown, or if there is no such layer.
    #[prost(message, optional, tag = "471")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerUsage>,
}

/// Size of a container's writable layer.
#[derive(Clone, Copy, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct LayerUsage {
    /// Time of the reading, in nanoseconds since the epoch.
    #[prost(uint64, tag = "1")]
    pub at: u64,
    /// Bytes of the layer on the disk.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// Number of inodes of the layer.
    #[prost(uint64, tag = "3")]
    pub inodes: u64,
}

/// Pressure stall information of a cgroup.
#[derive(Clone, Copy, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct Pressure {
    /// Stalls in which at least one process waited.
    #[prost(message, required, tag = "1")]
    pub some: Stall,
    /// Stalls in which all non-idle processes waited.
    #[prost(message, required, tag = "2")]
    pub full: Stall,
}

/// Time for which processes waited for a resource.
#[derive(Clone, Copy, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct Stall {
    /// Total waiting time in microseconds.
    #[prost(uint64, tag = "1")]
    pub total_us: u64,
    /// Share of the last 10 seconds for which processes waited, in hundredths of a percent.
    #[prost(uint32, tag = "2")]
    pub avg10: u32,
    /// Share of the last minute for which processes waited, in hundredths of a percent.
    #[prost(uint32, tag = "3")]
    pub avg60: u32,
    /// Share of the last 5 minutes for which processes waited, in hundredths of a percent.
    #[prost(uint32, tag = "4")]
    pub avg300: u32,
}

/// Output that was written to a container's log or dropped. The executor's own lines are not counted.
#[derive(Clone, Copy, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct LogUsage {
    /// Bytes of output that were kept.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// Number of kept lines or parts of lines.
    #[prost(uint64, tag = "2")]
    pub lines: u64,
    /// Bytes that were dropped because they exceeded the limits.
    #[prost(uint64, tag = "3")]
    pub limited_bytes: u64,
    /// Number of times that output began to exceed the limits.
    #[prost(uint64, tag = "4")]
    pub overages: u64,
    /// Bytes that were lost because the log could not be written.
    #[prost(uint64, tag = "5")]
    pub lost_bytes: u64,
    /// Bytes that were lost because the log file of the request could not be written.
    #[prost(uint64, tag = "450")]
    pub file_lost_bytes: u64,
}

/// CPU time, and throttling by the CPU limit.
#[derive(Clone, Copy, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct CpuUsage {
    /// Total CPU time in nanoseconds.
    #[prost(uint64, tag = "1")]
    pub total: u64,
    /// CPU time in user mode, in nanoseconds.
    #[prost(uint64, tag = "2")]
    pub user: u64,
    /// CPU time in the kernel, in nanoseconds.
    #[prost(uint64, tag = "3")]
    pub system: u64,
    /// Number of periods of the CPU limit in which the container ran.
    #[prost(uint64, tag = "4")]
    pub periods: u64,
    /// Number of periods in which the CPU limit was reached.
    #[prost(uint64, tag = "5")]
    pub throttled_periods: u64,
    /// Time for which the container was throttled, in nanoseconds.
    #[prost(uint64, tag = "6")]
    pub throttled: u64,
}

/// Memory usage of a container.
#[derive(Clone, Copy, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// Bytes of memory in use, page cache included.
    #[prost(uint64, tag = "1")]
    pub usage: u64,
    /// Highest value of `usage` so far.
    #[prost(uint64, optional, tag = "2")]
    pub max: Option<u64>,
    /// Bytes of anonymous memory.
    #[prost(uint64, tag = "3")]
    pub rss: u64,
    /// Bytes of page cache, including files in memory (tmpfs).
    #[prost(uint64, tag = "4")]
    pub cache: u64,
    /// Bytes of memory that are swapped out.
    #[prost(uint64, optional, tag = "5")]
    pub swap: Option<u64>,
    /// Bytes of kernel memory used for the container.
    #[prost(uint64, optional, tag = "6")]
    pub kernel: Option<u64>,
    /// Highest value of `kernel` so far.
    #[prost(uint64, optional, tag = "7")]
    pub kernel_max: Option<u64>,
    /// `usage` without page cache that is not in active use.
    #[prost(uint64, tag = "8")]
    pub working_set: u64,
    /// Number of processes that the kernel killed because the memory limit was reached.
    #[prost(uint64, tag = "9")]
    pub oom_kills: u64,
    /// Number of page faults, including major faults.
    #[prost(uint64, optional, tag = "440")]
    #[serde(default)]
    pub faults: Option<u64>,
    /// Number of page faults that read from a disk.
    #[prost(uint64, optional, tag = "441")]
    #[serde(default)]
    pub major_faults: Option<u64>,
}

/// Transfers from and to disks.
#[derive(Clone, Copy, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct IoUsage {
    /// Number of bytes read from disks.
    #[prost(uint64, tag = "1")]
    pub read_bytes: u64,
    /// Number of bytes written to disks.
    #[prost(uint64, tag = "2")]
    pub written_bytes: u64,
    /// Number of read operations on disks.
    #[prost(uint64, tag = "3")]
    pub reads: u64,
    /// Number of write operations on disks.
    #[prost(uint64, tag = "4")]
    pub writes: u64,
}

/// Traffic in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct Traffic {
    /// Number of transferred bytes.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// Number of transferred packets.
    #[prost(uint64, tag = "2")]
    pub packets: u64,
    /// Number of packets with an error.
    #[prost(uint64, tag = "3")]
    pub errors: u64,
    /// Number of dropped packets.
    #[prost(uint64, tag = "4")]
    pub dropped: u64,
}

/// Traffic of a network, without loopback.
#[derive(Clone, Copy, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct NetworkUsage {
    /// Traffic that the container received.
    #[prost(message, required, tag = "1")]
    pub received: Traffic,
    /// Traffic that the container sent.
    #[prost(message, required, tag = "2")]
    pub sent: Traffic,
}

/// Returns the number that follows a name, in lines with the format `NAME NUMBER`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok())
}

impl CpuUsage {
    /// Parses cgroup v2's cpu.stat.
    pub fn from_v2(stat: &str) -> Self {
        const MICROSECOND: u64 = 1000;
        let number = |name: &str| field(stat, name).unwrap_or(0);
        let time = |name: &str| number(name).saturating_mul(MICROSECOND);
        Self {
            total: time("usage_usec"),
            user: time("user_usec"),
            system: time("system_usec"),
            periods: number("nr_periods"),
            throttled_periods: number("nr_throttled"),
            throttled: time("throttled_usec"),
        }
    }

    /// Adds the throttling counters of cgroup v1's cpu.stat, whose times are nanoseconds.
    pub fn with_limit_of_v1(self, stat: &str) -> Self {
        let number = |name: &str| field(stat, name).unwrap_or(0);
        Self {
            periods: number("nr_periods"),
            throttled_periods: number("nr_throttled"),
            throttled: number("throttled_time"),
            ..self
        }
    }
}

impl MemoryUsage {
    /// Parses cgroup v2's memory.stat, for a cgroup that uses this many bytes.
    pub fn from_v2(usage: u64, stat: &str) -> Self {
        let number = |name: &str| field(stat, name);
        Self {
            usage,
            rss: number("anon").unwrap_or(0),
            cache: number("file").unwrap_or(0),
            kernel: number("kernel"),
            working_set: usage.saturating_sub(number("inactive_file").unwrap_or(0)),
            faults: number("pgfault"),
            major_faults: number("pgmajfault"),
            ..Self::default()
        }
    }

    /// Parses cgroup v1's memory.stat, for a cgroup that uses this many bytes.
    pub fn from_v1(usage: u64, stat: &str) -> Self {
        let number = |name: &str| field(stat, name);
        Self {
            usage,
            rss: number("total_rss").unwrap_or(0),
            cache: number("total_cache").unwrap_or(0),
            swap: number("total_swap"),
            working_set: usage.saturating_sub(number("total_inactive_file").unwrap_or(0)),
            faults: number("total_pgfault"),
            major_faults: number("total_pgmajfault"),
            ..Self::default()
        }
    }
}

impl Pressure {
    /// Parses a pressure file of cgroup v2. Returns `None` if the file has no line `some`.
    pub fn from_v2(text: &str) -> Option<Self> {
        let stall = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            let value = |name: &str| line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            // The kernel writes two decimals.
            let average = |name: &str| value(name).and_then(|text| text.replace('.', "").parse().ok()).unwrap_or(0);
            let total_us = value("total").and_then(|text| text.parse().ok()).unwrap_or(0);
            Some(Stall { total_us, avg10: average("avg10"), avg60: average("avg60"), avg300: average("avg300") })
        };
        Some(Self { some: stall("some")?, full: stall("full").unwrap_or_default() })
    }
}

impl IoUsage {
    /// Parses cgroup v2's io.stat: the sum over all devices.
    pub fn from_v2(stat: &str) -> Self {
        let sum = |name: &str| {
            let values = stat.split_whitespace().filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            values.filter_map(|number| number.parse::<u64>().ok()).fold(0, u64::saturating_add)
        };
        Self { read_bytes: sum("rbytes"), written_bytes: sum("wbytes"), reads: sum("rios"), writes: sum("wios") }
    }
}

impl NetworkUsage {
    /// Parses /proc/PID/net/dev: the sum over all interfaces except loopback.
    pub fn from_devices(table: &str) -> Self {
        let mut all = Self::default();
        for (name, counters) in table.lines().filter_map(|line| line.split_once(':')) {
            if name.trim() == "lo" {
                continue;
            }
            let numbers: Vec<u64> = counters.split_whitespace().map_while(|number| number.parse().ok()).collect();
            let [bytes, packets, errors, dropped, _, _, _, _, sent @ ..] = &numbers[..] else { continue };
            all.received.add([bytes, packets, errors, dropped]);
            if let [bytes, packets, errors, dropped, ..] = sent {
                all.sent.add([bytes, packets, errors, dropped]);
            }
        }
        all
    }
}

impl Traffic {
    fn add(&mut self, [bytes, packets, errors, dropped]: [&u64; 4]) {
        self.bytes = self.bytes.saturating_add(*bytes);
        self.packets = self.packets.saturating_add(*packets);
        self.errors = self.errors.saturating_add(*errors);
        self.dropped = self.dropped.saturating_add(*dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_nanoseconds_in_both_versions() {
        let v2 = "usage_usec 5000\nuser_usec 3000\nsystem_usec 2000\nnr_periods 9\nnr_throttled 4\nthrottled_usec 7\n";
        let expected = CpuUsage {
            total: 5_000_000,
            user: 3_000_000,
            system: 2_000_000,
            periods: 9,
            throttled_periods: 4,
            throttled: 7000,
        };
        assert_eq!(CpuUsage::from_v2(v2), expected);
        assert_eq!(CpuUsage::from_v2("usage_usec x\n"), CpuUsage::default());
        assert_eq!(CpuUsage::from_v2("usage_usec 18446744073709551615\n").total, u64::MAX);
        let v1 = CpuUsage { total: 5, ..CpuUsage::default() };
        let v1 = v1.with_limit_of_v1("nr_periods 9\nnr_throttled 4\nthrottled_time 7000\n");
        assert_eq!(v1, CpuUsage { total: 5, periods: 9, throttled_periods: 4, throttled: 7000, ..CpuUsage::default() });
    }

    #[test]
    fn memory_usage_is_parsed_in_both_versions() {
        let v2 = MemoryUsage::from_v2(100, "anon 40\nfile 50\nkernel 10\ninactive_file 30\nfile_mapped 5\n");
        let expected =
            MemoryUsage { usage: 100, rss: 40, cache: 50, kernel: Some(10), working_set: 70, ..MemoryUsage::default() };
        assert_eq!(v2, expected);
        let v1 = "cache 1\nrss 2\ntotal_cache 50\ntotal_rss 40\ntotal_swap 3\ntotal_inactive_file 300\n";
        let expected =
            MemoryUsage { usage: 100, rss: 40, cache: 50, swap: Some(3), working_set: 0, ..MemoryUsage::default() };
        assert_eq!(MemoryUsage::from_v1(100, v1), expected);
    }

    /// CRI rule C41: page faults of both versions, and pressure in hundredths of a percent.
    #[test]
    fn faults_and_pressure_are_parsed() {
        let v1 = MemoryUsage::from_v1(1, "pgfault 1\ntotal_pgfault 70\ntotal_pgmajfault 2\n");
        let v2 = MemoryUsage::from_v2(1, "pgfault 70\npgmajfault 2\n");
        assert_eq!([v1, v2].map(|memory| (memory.faults, memory.major_faults)), [(Some(70), Some(2)); 2]);
        let text =
            "some avg10=1.50 avg60=0.02 avg300=100.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        let pressure = Pressure::from_v2(text).unwrap();
        assert_eq!(pressure.some, Stall { total_us: 77, avg10: 150, avg60: 2, avg300: 10_000 });
        assert_eq!((pressure.full.total_us, Pressure::from_v2("")), (5, None));
    }

    #[test]
    fn disks_and_networks_are_summed() {
        let io = "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=9 dios=9\n8:16 rbytes=10 wbytes=20 rios=30 wios=40\nx\n";
        assert_eq!(IoUsage::from_v2(io), IoUsage { read_bytes: 11, written_bytes: 22, reads: 33, writes: 44 });
        let table = "Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
             lo:  900      9    0    0    0     0          0         0      900       9    0    0    0     0       0          0\n  \
             eth0:  100      2    1    3    0     0          0         0      200       4    5    6    0     0       0          0\n  \
             eth1:1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  bad: 1 2\n";
        let traffic = |bytes, packets, errors, dropped| Traffic { bytes, packets, errors, dropped };
        let expected = NetworkUsage { received: traffic(101, 3, 1, 3), sent: traffic(201, 5, 5, 6) };
        assert_eq!(NetworkUsage::from_devices(table), expected);
    }

    #[test]
    fn counters_come_back_from_messages_and_records() {
        let usage = Usage { at: 1, pids: Some(2), io: Some(IoUsage::default()), ..Usage::default() };
        assert_eq!(Usage::decode(&*usage.encode_to_vec()).unwrap(), usage);
        assert_eq!(serde_json::from_str::<Usage>(&serde_json::to_string(&usage).unwrap()).unwrap(), usage);
    }
}
