//! Counters of a pod's cgroup, which the kubelet creates. The counters include containers that have exited or were
//! removed.

use std::path::{Component, Path};
use std::time::SystemTime;

use executor_client::v1;
use executor_core::usage::{Pressure, Stall, Usage};
use executor_cri_api::v1::PodSandboxConfig;
use executor_sys::cgroup_usage;

use crate::cgroup::ROOT;

/// Returns true if the kubelet's request names a parent cgroup for the sandbox.
pub(crate) fn has_parent(config: &PodSandboxConfig) -> bool {
    config.linux.as_ref().is_some_and(|linux| !linux.cgroup_parent.is_empty())
}

/// Reads the counters of a sandbox's parent cgroup. Returns `None` if the sandbox has no such cgroup.
pub(crate) fn usage(config: &PodSandboxConfig) -> Option<v1::Usage> {
    let parent = &config.linux.as_ref()?.cgroup_parent;
    read(Path::new(ROOT), Path::new(parent.strip_prefix('/')?))
}

fn read(root: &Path, cgroup: &Path) -> Option<v1::Usage> {
    let is_below = cgroup.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_below || cgroup.as_os_str().is_empty() {
        return None; // the root cgroup counts the whole node
    }
    let usage = match root.join("cgroup.controllers").exists() {
        true => cgroup_usage::of_v2(&root.join(cgroup))?,
        false => cgroup_usage::of_v1(|controller| Some(root.join(controller).join(cgroup)))?,
    };
    Some(message(&usage))
}

fn message(usage: &Usage) -> v1::Usage {
    let Usage { cpu, memory, pids, io, cpu_pressure, memory_pressure, io_pressure, .. } = usage;
    v1::Usage {
        time: Some(SystemTime::now().into()),
        cpu: Some(v1::CpuUsage {
            total_ns: cpu.total,
            user_ns: cpu.user,
            system_ns: cpu.system,
            periods: cpu.periods,
            throttled_periods: cpu.throttled_periods,
            throttled_ns: cpu.throttled,
        }),
        memory: Some(v1::MemoryUsage {
            usage_bytes: memory.usage,
            max_bytes: memory.max,
            rss_bytes: memory.rss,
            cache_bytes: memory.cache,
            swap_bytes: memory.swap,
            kernel_bytes: memory.kernel,
            working_set_bytes: memory.working_set,
            page_faults: memory.faults,
            major_page_faults: memory.major_faults,
            ..v1::MemoryUsage::default()
        }),
        pids: pids.map(|current| v1::PidsUsage { current }),
        io: io.map(|io| v1::IoUsage {
            read_bytes: io.read_bytes,
            written_bytes: io.written_bytes,
            reads: io.reads,
            writes: io.writes,
        }),
        cpu_pressure: cpu_pressure.map(pressure),
        memory_pressure: memory_pressure.map(pressure),
        io_pressure: io_pressure.map(pressure),
        ..v1::Usage::default()
    }
}

fn pressure(Pressure { some, full }: Pressure) -> v1::Pressure {
    let stall = |Stall { total_us, avg10, avg60, avg300 }: Stall| v1::PressureStall { total_us, avg10, avg60, avg300 };
    v1::Pressure { some: Some(stall(some)), full: Some(stall(full)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    /// Rule C41: the counters of cgroup versions 1 and 2 are read.
    #[test]
    fn counters_of_both_versions_are_read() {
        let v1 = tempfile::tempdir().unwrap();
        let pod = Path::new("kubepods/pod1");
        assert_eq!(read(v1.path(), pod), None);
        let memory = [("memory.usage_in_bytes", "100\n"), ("memory.stat", "total_rss 40\ntotal_inactive_file 30\n")];
        write(&v1.path().join("memory").join(pod), &memory);
        write(&v1.path().join("cpuacct").join(pod), &[("cpuacct.usage", "9\n")]);
        let found = read(v1.path(), pod).unwrap();
        let (cpu, memory) = (found.cpu.unwrap(), found.memory.unwrap());
        assert_eq!((cpu.total_ns, memory.rss_bytes, memory.working_set_bytes), (9, 40, 70));

        let v2 = tempfile::tempdir().unwrap();
        write(v2.path(), &[("cgroup.controllers", "memory\n"), ("memory.current", "1\n")]);
        let files = [
            ("memory.current", "100\n"),
            ("cpu.stat", "usage_usec 5\n"),
            ("cpu.pressure", "some avg10=1.50 avg60=0.00 avg300=0.00 total=3\n"),
        ];
        write(&v2.path().join(pod), &files);
        let found = read(v2.path(), pod).unwrap();
        assert_eq!((found.cpu.unwrap().total_ns, found.memory.unwrap().usage_bytes), (5000, 100));
        assert_eq!(found.cpu_pressure.unwrap().some.unwrap().avg10, 150);
        for outside in ["", "../x", "a/../.."] {
            assert_eq!(read(v2.path(), Path::new(outside)), None, "{outside}");
        }
    }
}
