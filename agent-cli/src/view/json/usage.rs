//! Counters of a container, and its limits.

use std::collections::BTreeMap;

use executor_cli_kit::view::json::time;
use executor_client::v1;
use serde::Serialize;

use crate::view::human::state;

/// A document of `stats`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ContainerStats {
    id: String,
    state: String,
    usage: Option<Usage>,
    limits: Option<Limits>,
    ready: Option<bool>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Limits {
    memory_bytes: u64,
    pids: u64,
    cpu_millis: u64,
    disk_bytes: u64,
    cpu_weight: u32,
    io_weight: u32,
    cpuset_cpus: String,
    cpuset_mems: String,
    swap_bytes: Option<i64>,
    memory_reservation_bytes: u64,
    unlimited_memory: bool,
    unlimited_pids: bool,
    cpu_period_us: u64,
    cpu_quota_us: i64,
    cpu_shares: u32,
    hugepage_bytes: BTreeMap<String, u64>,
    unified: BTreeMap<String, String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Usage {
    time: Option<String>,
    cpu: Option<CpuUsage>,
    memory: Option<MemoryUsage>,
    pids: Option<PidsUsage>,
    io: Option<IoUsage>,
    network: Option<NetworkUsage>,
    cpu_pressure: Option<Pressure>,
    memory_pressure: Option<Pressure>,
    io_pressure: Option<Pressure>,
    writable_layer: Option<LayerUsage>,
}

/// Size of the writable layer.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LayerUsage {
    time: Option<String>,
    used_bytes: u64,
    used_inodes: u64,
}

/// Time for which processes waited. Averages are in hundredths of a percent.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Pressure {
    some: PressureStall,
    full: PressureStall,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PressureStall {
    total_us: u64,
    avg10: u32,
    avg60: u32,
    avg300: u32,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CpuUsage {
    total_ns: u64,
    user_ns: u64,
    system_ns: u64,
    periods: u64,
    throttled_periods: u64,
    throttled_ns: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct MemoryUsage {
    usage_bytes: u64,
    max_bytes: Option<u64>,
    rss_bytes: u64,
    cache_bytes: u64,
    swap_bytes: Option<u64>,
    kernel_bytes: Option<u64>,
    kernel_max_bytes: Option<u64>,
    working_set_bytes: u64,
    oom_kills: u64,
    page_faults: Option<u64>,
    major_page_faults: Option<u64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PidsUsage {
    current: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct IoUsage {
    read_bytes: u64,
    written_bytes: u64,
    reads: u64,
    writes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct NetworkUsage {
    received_bytes: u64,
    received_packets: u64,
    received_errors: u64,
    received_dropped: u64,
    sent_bytes: u64,
    sent_packets: u64,
    sent_errors: u64,
    sent_dropped: u64,
}

impl From<&v1::ContainerStats> for ContainerStats {
    fn from(stats: &v1::ContainerStats) -> Self {
        Self {
            id: stats.id.clone(),
            state: state(stats.state),
            usage: stats.usage.as_ref().map(Usage::from),
            limits: stats.limits.clone().map(Limits::from),
            ready: stats.ready,
        }
    }
}

impl From<&v1::Usage> for Usage {
    fn from(usage: &v1::Usage) -> Self {
        Self {
            time: time(usage.time.as_ref()),
            cpu: usage.cpu.map(CpuUsage::from),
            memory: usage.memory.map(MemoryUsage::from),
            pids: usage.pids.map(|pids| PidsUsage { current: pids.current }),
            io: usage.io.map(IoUsage::from),
            network: usage.network.map(NetworkUsage::from),
            cpu_pressure: usage.cpu_pressure.map(Pressure::from),
            memory_pressure: usage.memory_pressure.map(Pressure::from),
            io_pressure: usage.io_pressure.map(Pressure::from),
            writable_layer: usage.writable_layer.map(|layer| LayerUsage {
                time: time(layer.time.as_ref()),
                used_bytes: layer.used_bytes,
                used_inodes: layer.used_inodes,
            }),
        }
    }
}

impl From<v1::Limits> for Limits {
    fn from(limits: v1::Limits) -> Self {
        let v1::Limits {
            memory_bytes,
            pids,
            cpu_millis,
            disk_bytes,
            cpu_weight,
            io_weight,
            cpuset_cpus,
            cpuset_mems,
            swap_bytes,
            memory_reservation_bytes,
            unlimited_memory,
            unlimited_pids,
            cpu_period_us,
            cpu_quota_us,
            cpu_shares,
            hugepage_bytes,
            unified,
        } = limits;
        Self {
            memory_bytes,
            pids,
            cpu_millis,
            disk_bytes,
            cpu_weight,
            io_weight,
            cpuset_cpus,
            cpuset_mems,
            swap_bytes,
            memory_reservation_bytes,
            unlimited_memory,
            unlimited_pids,
            cpu_period_us,
            cpu_quota_us,
            cpu_shares,
            hugepage_bytes: hugepage_bytes.into_iter().collect(),
            unified: unified.into_iter().collect(),
        }
    }
}

impl From<v1::CpuUsage> for CpuUsage {
    fn from(cpu: v1::CpuUsage) -> Self {
        let v1::CpuUsage { total_ns, user_ns, system_ns, periods, throttled_periods, throttled_ns } = cpu;
        Self { total_ns, user_ns, system_ns, periods, throttled_periods, throttled_ns }
    }
}

impl From<v1::MemoryUsage> for MemoryUsage {
    fn from(memory: v1::MemoryUsage) -> Self {
        Self {
            usage_bytes: memory.usage_bytes,
            max_bytes: memory.max_bytes,
            rss_bytes: memory.rss_bytes,
            cache_bytes: memory.cache_bytes,
            swap_bytes: memory.swap_bytes,
            kernel_bytes: memory.kernel_bytes,
            kernel_max_bytes: memory.kernel_max_bytes,
            working_set_bytes: memory.working_set_bytes,
            oom_kills: memory.oom_kills,
            page_faults: memory.page_faults,
            major_page_faults: memory.major_page_faults,
        }
    }
}

impl From<v1::Pressure> for Pressure {
    fn from(pressure: v1::Pressure) -> Self {
        let stall = |stall: Option<v1::PressureStall>| {
            let v1::PressureStall { total_us, avg10, avg60, avg300 } = stall.unwrap_or_default();
            PressureStall { total_us, avg10, avg60, avg300 }
        };
        Self { some: stall(pressure.some), full: stall(pressure.full) }
    }
}

impl From<v1::IoUsage> for IoUsage {
    fn from(io: v1::IoUsage) -> Self {
        let v1::IoUsage { read_bytes, written_bytes, reads, writes } = io;
        Self { read_bytes, written_bytes, reads, writes }
    }
}

impl From<v1::NetworkUsage> for NetworkUsage {
    fn from(network: v1::NetworkUsage) -> Self {
        Self {
            received_bytes: network.received_bytes,
            received_packets: network.received_packets,
            received_errors: network.received_errors,
            received_dropped: network.received_dropped,
            sent_bytes: network.sent_bytes,
            sent_packets: network.sent_packets,
            sent_errors: network.sent_errors,
            sent_dropped: network.sent_dropped,
        }
    }
}
