//! Limits of a cgroup that is there already: that of a shell, when it becomes a container.
//!
//! The files and values are those that libcontainer writes into a new cgroup for the same plan.

use std::fs;
use std::io;
use std::path::Path;

use executor_core::plan::Limits;
use executor_core::spec::{CPU_PERIOD_US, cpu_quota, memory_and_swap, shares};

use super::Hierarchies;
use crate::errors::at;

/// A controller of version 1, a file, and what is written into it.
type Setting = (&'static str, &'static str, String);

impl Hierarchies {
    /// Sets these limits, which the host can hold; what is 0 stays as it is. Swap on version 2 is apart: see
    /// [`Self::limit_swap`].
    ///
    /// # Errors
    /// The file, and why the kernel refused.
    pub(crate) fn limit(&self, path: &Path, limits: &Limits) -> io::Result<()> {
        let settings = match self {
            Self::V1 { .. } => of_version_1(limits, self.swap_limit(), self.socket_limit()),
            Self::V2 { .. } => of_version_2(limits),
        };
        settings.into_iter().try_for_each(|(controller, file, value)| {
            let file = self.controller_dir(controller, path)?.join(file);
            fs::write(&file, value).map_err(|error| at(&file, &error))
        })
    }
}

fn of_version_1(limits: &Limits, swap_limit: bool, socket_limit: bool) -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    if limits.memory_bytes > 0 {
        let bytes = limits.memory_bytes.to_string();
        all.push(("memory", "memory.limit_in_bytes", bytes.clone()));
        if swap_limit {
            // Never below the limit on memory alone, which comes first.
            let both = i64::try_from(limits.memory_bytes).unwrap_or(i64::MAX);
            let both = memory_and_swap(both, limits.swap_bytes).to_string();
            all.push(("memory", "memory.memsw.limit_in_bytes", both));
            if limits.swap_bytes == Some(0) {
                all.push(("memory", "memory.swappiness", "0".to_owned()));
            }
        }
        if limits.memory_reservation_bytes > 0 {
            all.push(("memory", "memory.soft_limit_in_bytes", limits.memory_reservation_bytes.to_string()));
        }
        if socket_limit {
            all.push(("memory", "memory.kmem.tcp.limit_in_bytes", bytes));
        }
    }
    if limits.pids > 0 {
        all.push(("pids", "pids.max", limits.pids.to_string()));
    }
    if limits.cpu_millis > 0 {
        all.push(("cpu", "cpu.cfs_period_us", CPU_PERIOD_US.to_string()));
        all.push(("cpu", "cpu.cfs_quota_us", cpu_quota(limits.cpu_millis).to_string()));
    }
    if limits.cpu_weight > 0 {
        all.push(("cpu", "cpu.shares", shares(limits.cpu_weight).to_string()));
    }
    all
}

fn of_version_2(limits: &Limits) -> Vec<Setting> {
    let quota = || format!("{} {CPU_PERIOD_US}", cpu_quota(limits.cpu_millis));
    let all = [
        (limits.memory_bytes > 0, "memory", "memory.max", limits.memory_bytes.to_string()),
        (limits.memory_reservation_bytes > 0, "memory", "memory.low", limits.memory_reservation_bytes.to_string()),
        (limits.pids > 0, "pids", "pids.max", limits.pids.to_string()),
        (limits.cpu_millis > 0, "cpu", "cpu.max", quota()),
        (limits.cpu_weight > 0, "cpu", "cpu.weight", limits.cpu_weight.to_string()),
        (limits.io_weight > 0, "io", "io.weight", limits.io_weight.to_string()),
    ];
    let is_set = all.into_iter().filter(|(is_set, ..)| *is_set);
    is_set.map(|(_, controller, file, value)| (controller, file, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Limits = Limits {
        memory_bytes: 0,
        pids: 0,
        cpu_millis: 0,
        nofile: 1024,
        disk_bytes: 0,
        cpu_weight: 0,
        io_weight: 0,
        swap_bytes: None,
        memory_reservation_bytes: 0,
    };
    const ALL: Limits = Limits {
        memory_bytes: 64 << 20,
        pids: 7,
        cpu_millis: 1500,
        cpu_weight: 200,
        io_weight: 300,
        swap_bytes: Some(0),
        memory_reservation_bytes: 32 << 20,
        ..NONE
    };

    fn shown(settings: &[Setting]) -> Vec<String> {
        settings.iter().map(|(controller, file, value)| format!("{controller} {file} {value}")).collect()
    }

    #[test]
    fn what_is_not_limited_is_not_written() {
        assert!(of_version_1(&NONE, true, true).is_empty());
        assert!(of_version_2(&NONE).is_empty());
        let without_memory = Limits { swap_bytes: Some(-1), memory_reservation_bytes: 5, ..NONE };
        assert!(of_version_1(&without_memory, true, true).is_empty(), "swap and reservation are of a limit on memory");
    }

    #[test]
    fn every_limit_of_version_1() {
        let expected = [
            "memory memory.limit_in_bytes 67108864",
            "memory memory.memsw.limit_in_bytes 67108864",
            "memory memory.swappiness 0",
            "memory memory.soft_limit_in_bytes 33554432",
            "memory memory.kmem.tcp.limit_in_bytes 67108864",
            "pids pids.max 7",
            "cpu cpu.cfs_period_us 100000",
            "cpu cpu.cfs_quota_us 150000",
        ];
        let told = shown(&of_version_1(&ALL, true, true));
        assert_eq!(told[..expected.len()], expected);
        assert_eq!(told[expected.len()..], [format!("cpu cpu.shares {}", shares(200))]);
        let unlimited = Limits { swap_bytes: Some(-1), ..ALL };
        assert_eq!(shown(&of_version_1(&unlimited, true, false))[1], "memory memory.memsw.limit_in_bytes -1");
        assert!(
            !shown(&of_version_1(&ALL, false, false)).iter().any(|one| one.contains("memsw") || one.contains("tcp"))
        );
    }

    #[test]
    fn every_limit_of_version_2() {
        let expected = [
            "memory memory.max 67108864",
            "memory memory.low 33554432",
            "pids pids.max 7",
            "cpu cpu.max 150000 100000",
            "cpu cpu.weight 200",
            "io io.weight 300",
        ];
        assert_eq!(shown(&of_version_2(&ALL)), expected);
    }
}
