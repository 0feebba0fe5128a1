//! Counters of a pod's cgroup, which the kubelet creates: containers that have ended or were removed are counted, too.

use std::path::{Component, Path, PathBuf};

use executor_client::v1;
use executor_core::usage::{CpuUsage, IoUsage, MemoryUsage, Pressure, Stall};
use executor_cri_api::v1::PodSandboxConfig;
use executor_sys::kernel_file;

use crate::cgroup::ROOT;

/// Returns true if a sandbox has a parent cgroup.
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
        return None; // the counters of the root cgroup are those of the node
    }
    match root.join("cgroup.controllers").exists() {
        true => usage_of_v2(&Files(root.join(cgroup))),
        false => usage_of_v1(|controller| Files(root.join(controller).join(cgroup))),
    }
}

fn usage_of_v1(controller: impl Fn(&str) -> Files) -> Option<v1::Usage> {
    let (memory, cpu, cpuacct) = (controller("memory"), controller("cpu"), controller("cpuacct"));
    let used = memory.number("memory.usage_in_bytes")?;
    let total = cpuacct.number("cpuacct.usage")?;
    Some(v1::Usage {
        time: Some(std::time::SystemTime::now().into()),
        cpu: Some(cpu_usage(
            CpuUsage {
                total,
                user: cpuacct.number("cpuacct.usage_user").unwrap_or(0),
                system: cpuacct.number("cpuacct.usage_sys").unwrap_or(0),
                ..CpuUsage::default()
            }
            .with_limit_of_v1(&cpu.text("cpu.stat")),
        )),
        memory: Some(memory_usage(MemoryUsage {
            max: memory.number("memory.max_usage_in_bytes"),
            kernel: memory.number("memory.kmem.usage_in_bytes"),
            ..MemoryUsage::from_v1(used, &memory.text("memory.stat"))
        })),
        pids: controller("pids").number("pids.current").map(|current| v1::PidsUsage { current }),
        ..v1::Usage::default()
    })
}

fn usage_of_v2(files: &Files) -> Option<v1::Usage> {
    let used = files.number("memory.current")?;
    let pressure = |name: &str| Pressure::from_v2(&files.text(name)).map(pressure);
    let io = kernel_file::read_to_string(files.0.join("io.stat")).ok().map(|stat| IoUsage::from_v2(&stat));
    Some(v1::Usage {
        time: Some(std::time::SystemTime::now().into()),
        cpu: Some(cpu_usage(CpuUsage::from_v2(&files.text("cpu.stat")))),
        memory: Some(memory_usage(MemoryUsage {
            max: files.number("memory.peak"),
            swap: files.number("memory.swap.current"),
            ..MemoryUsage::from_v2(used, &files.text("memory.stat"))
        })),
        pids: files.number("pids.current").map(|current| v1::PidsUsage { current }),
        io: io.map(|io| v1::IoUsage {
            read_bytes: io.read_bytes,
            written_bytes: io.written_bytes,
            reads: io.reads,
            writes: io.writes,
        }),
        cpu_pressure: pressure("cpu.pressure"),
        memory_pressure: pressure("memory.pressure"),
        io_pressure: pressure("io.pressure"),
        ..v1::Usage::default()
    })
}

fn cpu_usage(cpu: CpuUsage) -> v1::CpuUsage {
    v1::CpuUsage {
        total_ns: cpu.total,
        user_ns: cpu.user,
        system_ns: cpu.system,
        periods: cpu.periods,
        throttled_periods: cpu.throttled_periods,
        throttled_ns: cpu.throttled,
    }
}

fn memory_usage(memory: MemoryUsage) -> v1::MemoryUsage {
    v1::MemoryUsage {
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
    }
}

fn pressure(Pressure { some, full }: Pressure) -> v1::Pressure {
    let stall = |Stall { total_us, avg10, avg60, avg300 }: Stall| v1::PressureStall { total_us, avg10, avg60, avg300 };
    v1::Pressure { some: Some(stall(some)), full: Some(stall(full)) }
}

/// The files of a cgroup's directory.
struct Files(PathBuf);

impl Files {
    fn text(&self, name: &str) -> String {
        kernel_file::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name).trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    /// Rule C41.
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
