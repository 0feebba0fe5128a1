//! Reads the usage counters of a cgroup, for both cgroup versions.
//!
//! If a file is missing or malformed, its counter is unset or 0. The other counters are still reported. The caller
//! sets the time, and the number of processes that the kernel killed.

use std::path::{Path, PathBuf};

use executor_core::usage::{CpuUsage, IoUsage, MemoryUsage, Pressure, Usage};

use crate::kernel_file;

/// Reads the counters of a cgroup of version 1. `directory` returns the cgroup's directory in a controller's hierarchy.
/// Returns `None` if the cgroup does not exist.
pub fn of_v1(directory: impl Fn(&str) -> Option<PathBuf>) -> Option<Usage> {
    let files = |controller: &str| directory(controller).map(UsageFiles);
    let memory = files("memory")?;
    let used = memory.number("memory.usage_in_bytes")?;
    let memory = MemoryUsage {
        max: memory.number("memory.max_usage_in_bytes"),
        kernel: memory.number("memory.kmem.usage_in_bytes"),
        kernel_max: memory.number("memory.kmem.max_usage_in_bytes"),
        ..MemoryUsage::from_v1(used, &memory.text("memory.stat"))
    };
    let cpu = files("cpuacct").map_or_else(CpuUsage::default, |files| CpuUsage {
        total: files.number("cpuacct.usage").unwrap_or(0),
        user: files.number("cpuacct.usage_user").unwrap_or(0),
        system: files.number("cpuacct.usage_sys").unwrap_or(0),
        ..CpuUsage::default()
    });
    let cpu = match files("cpu") {
        Some(files) => cpu.with_limit_of_v1(&files.text("cpu.stat")),
        None => cpu,
    };
    let pids = files("pids").and_then(|files| files.number("pids.current"));
    Some(Usage { cpu, memory, pids, ..Usage::default() })
}

/// Reads the counters of a cgroup of version 2. Returns `None` if the cgroup does not exist.
pub fn of_v2(directory: &Path) -> Option<Usage> {
    let files = UsageFiles(directory.to_owned());
    let used = files.number("memory.current")?;
    let memory = MemoryUsage {
        max: files.number("memory.peak"),
        swap: files.number("memory.swap.current"),
        ..MemoryUsage::from_v2(used, &files.text("memory.stat"))
    };
    let io = kernel_file::read_to_string(directory.join("io.stat")).ok();
    let pressure = |file: &str| Pressure::from_v2(&files.text(file));
    Some(Usage {
        cpu: CpuUsage::from_v2(&files.text("cpu.stat")),
        memory,
        pids: files.number("pids.current"),
        io: io.map(|stat| IoUsage::from_v2(&stat)),
        cpu_pressure: pressure("cpu.pressure"),
        memory_pressure: pressure("memory.pressure"),
        io_pressure: pressure("io.pressure"),
        ..Usage::default()
    })
}

/// Reader of the files in a cgroup's directory.
struct UsageFiles(PathBuf);

impl UsageFiles {
    fn text(&self, name: &str) -> String {
        kernel_file::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name).trim().parse().ok()
    }
}
