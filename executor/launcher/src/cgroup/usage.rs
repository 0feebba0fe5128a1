//! Reads the usage counters of a container's cgroup.

use std::path::Path;

use executor_core::usage::Usage;
use executor_sys::cgroup_usage;

use super::Hierarchies;

impl Hierarchies {
    /// Reads the counters of a cgroup. Returns `None` if the cgroup does not exist.
    pub(crate) fn usage(&self, path: &Path) -> Option<Usage> {
        let directory = |controller: &str| match controller {
            "memory" => Some(self.memory_dir(path)),
            other => self.controller_dir(other, path).ok(),
        };
        let mut usage = match self {
            Self::V1 { .. } => cgroup_usage::of_v1(directory)?,
            Self::V2 { mount } => cgroup_usage::of_v2(&mount.join(path))?,
        };
        usage.memory.oom_kills = self.oom_kills(path);
        Some(usage)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use executor_core::usage::CpuUsage;

    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    #[test]
    fn counters_of_version_2() {
        let dir = tempfile::tempdir().unwrap();
        let v2 = Hierarchies::V2 { mount: dir.path().into() };
        assert_eq!(v2.usage(Path::new("c")), None, "no such cgroup");
        let files = [
            ("memory.current", "100\n"),
            ("memory.peak", "200\n"),
            ("memory.stat", "anon 40\nfile 50\n"),
            ("memory.events", "oom_kill 2\n"),
            ("cpu.stat", "usage_usec 5\n"),
            ("pids.current", "3\n"),
            ("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4\n"),
            ("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"),
        ];
        write(&dir.path().join("c"), &files);
        let usage = v2.usage(Path::new("c")).unwrap();
        assert_eq!((usage.memory.usage, usage.memory.max, usage.memory.swap), (100, Some(200), None));
        assert_eq!((usage.memory.oom_kills, usage.cpu.total, usage.pids), (2, 5000, Some(3)));
        assert_eq!(usage.io.map(|io| io.writes), Some(4));
        assert_eq!((usage.memory_pressure.map(|one| one.some.total_us), usage.cpu_pressure), (Some(9), None));
    }

    #[test]
    fn v1_usage_is_read_from_all_hierarchies() {
        let dir = tempfile::tempdir().unwrap();
        let mounts: Vec<PathBuf> = ["memory", "cpu,cpuacct", "pids"].iter().map(|name| dir.path().join(name)).collect();
        let v1 = Hierarchies::at(&mounts);
        assert_eq!(v1.usage(Path::new("c")), None, "no such cgroup");
        let cpu = [
            ("cpuacct.usage", "9\n"),
            ("cpuacct.usage_user", "5\n"),
            ("cpuacct.usage_sys", "4\n"),
            ("cpu.stat", "nr_periods 2\nnr_throttled 1\nthrottled_time 7\n"),
        ];
        write(&mounts[1].join("c"), &cpu);
        let memory = [
            ("memory.usage_in_bytes", "100\n"),
            ("memory.max_usage_in_bytes", "200\n"),
            ("memory.stat", "total_rss 40\ntotal_cache 50\n"),
            ("memory.oom_control", "oom_kill 1\n"),
        ];
        write(&mounts[0].join("c"), &memory);
        write(&mounts[2].join("c"), &[("pids.current", "3\n")]);
        let usage = v1.usage(Path::new("c")).unwrap();
        let expected = CpuUsage { total: 9, user: 5, system: 4, periods: 2, throttled_periods: 1, throttled: 7 };
        assert_eq!((usage.cpu, usage.pids, usage.io), (expected, Some(3), None));
        assert_eq!((usage.memory.usage, usage.memory.max, usage.memory.oom_kills), (100, Some(200), 1));
        assert_eq!((usage.memory.rss, usage.memory.kernel), (40, None));
    }
}
