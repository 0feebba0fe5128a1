//! Converts the counters of containers to API messages.

use executor_core::time::Timestamp;
use executor_core::usage::{CpuUsage, IoUsage, LayerUsage, MemoryUsage, NetworkUsage, Pressure, Stall, Traffic, Usage};
use executor_proto::v1;

use super::timestamp;

/// Converts a container's counters to their API message.
pub(super) fn message(usage: &Usage) -> v1::Usage {
    let Usage { at, cpu, memory, pids, io, network, log: _, cpu_pressure, memory_pressure, io_pressure, layer } = usage;
    v1::Usage {
        time: Some(timestamp(Timestamp(*at))),
        cpu: Some(of_cpu(cpu)),
        memory: Some(of_memory(memory)),
        pids: pids.map(|current| v1::PidsUsage { current }),
        io: io.map(|IoUsage { read_bytes, written_bytes, reads, writes }| v1::IoUsage {
            read_bytes,
            written_bytes,
            reads,
            writes,
        }),
        network: network.map(of_network),
        cpu_pressure: cpu_pressure.map(of_pressure),
        memory_pressure: memory_pressure.map(of_pressure),
        io_pressure: io_pressure.map(of_pressure),
        writable_layer: layer.map(|LayerUsage { at, bytes, inodes }| v1::LayerUsage {
            time: Some(timestamp(Timestamp(at))),
            used_bytes: bytes,
            used_inodes: inodes,
        }),
    }
}

fn of_cpu(cpu: &CpuUsage) -> v1::CpuUsage {
    let CpuUsage { total, user, system, periods, throttled_periods, throttled } = *cpu;
    v1::CpuUsage {
        total_ns: total,
        user_ns: user,
        system_ns: system,
        periods,
        throttled_periods,
        throttled_ns: throttled,
    }
}

fn of_memory(memory: &MemoryUsage) -> v1::MemoryUsage {
    let MemoryUsage { usage, max, rss, cache, swap, kernel, kernel_max, working_set, oom_kills, faults, major_faults } =
        *memory;
    v1::MemoryUsage {
        usage_bytes: usage,
        max_bytes: max,
        rss_bytes: rss,
        cache_bytes: cache,
        swap_bytes: swap,
        kernel_bytes: kernel,
        kernel_max_bytes: kernel_max,
        working_set_bytes: working_set,
        oom_kills,
        page_faults: faults,
        major_page_faults: major_faults,
    }
}

fn of_pressure(Pressure { some, full }: Pressure) -> v1::Pressure {
    let stall = |Stall { total_us, avg10, avg60, avg300 }: Stall| v1::PressureStall { total_us, avg10, avg60, avg300 };
    v1::Pressure { some: Some(stall(some)), full: Some(stall(full)) }
}

fn of_network(NetworkUsage { received, sent }: NetworkUsage) -> v1::NetworkUsage {
    let Traffic { bytes, packets, errors, dropped } = received;
    v1::NetworkUsage {
        received_bytes: bytes,
        received_packets: packets,
        received_errors: errors,
        received_dropped: dropped,
        sent_bytes: sent.bytes,
        sent_packets: sent.packets,
        sent_errors: sent.errors,
        sent_dropped: sent.dropped,
    }
}
