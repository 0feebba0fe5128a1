//! Sets and updates the limits of a cgroup.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use executor_core::limits::CPU_PERIOD_US_DEFAULT;
use executor_core::plan::{HostOptions, Limits};
use executor_core::validate::page_kilobytes;
use executor_sys::kernel_file;

use super::Hierarchies;
use crate::errors::at;

/// File of the swap limit on cgroup version 2.
pub(super) const SWAP_MAX: &str = "memory.swap.max";

/// Controller, file, and value to write.
type Setting = (&'static str, &'static str, String);

/// Old contents of the files that an update of limits has written, in the order of the writes.
pub(crate) struct Replaced(Vec<(PathBuf, String)>);

impl Replaced {
    /// Restores all files in reverse order.
    ///
    /// # Errors
    /// Returns the first error if a write fails. The other files are still written.
    pub(crate) fn undo(self) -> io::Result<()> {
        let mut result = Ok(());
        for (file, value) in self.0.into_iter().rev() {
            // `fs::write` makes no system call for an empty value. A newline clears a list, such as `cpuset.cpus`.
            let value = if value.trim_end().is_empty() { "\n" } else { value.trim_end() };
            result = result.and(fs::write(&file, value).map_err(|error| at(&file, &error)));
        }
        result
    }
}

impl Hierarchies {
    /// Changes the limits of a container's cgroup and of its workers' cgroup from `old` to `new`. Also writes the
    /// files of the options, and the files in `more`. The host must be able to enforce `new`. Returns the old values.
    ///
    /// # Errors
    /// Returns an error with the path if the kernel rejects a value. The old limits are then restored.
    pub(crate) fn replace_limits(
        &self,
        path: &Path,
        (old, old_options): (&Limits, &HostOptions),
        (new, new_options): (&Limits, &HostOptions),
        more: Vec<(PathBuf, String)>,
    ) -> io::Result<Replaced> {
        let mut files = more;
        for (controller, file, value) in self.changed_settings(path, old, new) {
            files.push((self.controller_dir(controller, path)?.join(file), value));
        }
        // The workers' cgroup exists only while a worker runs.
        if let Ok(workers) = self.workers_dir(path) {
            for (_, file, value) in self.changed_settings(path, &old.processors(), &new.processors()) {
                files.extend(workers.exists().then(|| (workers.join(file), value)));
            }
        }
        let before = self.option_files(path, old_options);
        files.extend(self.option_files(path, new_options).into_iter().filter(|file| !before.contains(file)));
        let mut replaced = Replaced(Vec::new());
        for (file, value) in files {
            match replace(&file, &value) {
                Ok(before) => replaced.0.push((file, before)),
                Err(error) => {
                    let error = at(&file, &error);
                    return Err(match replaced.undo() {
                        Ok(()) => error,
                        Err(more) => io::Error::other(format!("{error}; cannot restore the old limits: {more}")),
                    });
                }
            }
        }
        Ok(replaced)
    }

    /// Returns the settings that differ, in an order that the kernel accepts: in version 1 the memory limit must not
    /// exceed the limit on memory and swap.
    fn changed_settings(&self, path: &Path, old: &Limits, new: &Limits) -> Vec<Setting> {
        let settings = |limits: &Limits| match self {
            Self::V1 { .. } => of_version_1(limits, self.swap_limit(), self.socket_limit()),
            Self::V2 { .. } => {
                let mut settings = of_version_2(limits);
                // A kernel without swap has no such file.
                let has_swap = self.memory_dir(path).join(SWAP_MAX).exists();
                settings.extend(has_swap.then(|| ("memory", SWAP_MAX, swap_limit(limits.swap_bytes))));
                settings
            }
        };
        let mut changed = changes(&settings(old), &settings(new));
        if new.memory_max() > old.memory_max() {
            changed.sort_by_key(|(_, file, _)| *file != "memory.memsw.limit_in_bytes");
        }
        changed
    }

    /// Returns the files to write, with their values: limits on huge pages and, on version 2, the requested files.
    fn option_files(&self, path: &Path, options: &HostOptions) -> Vec<(PathBuf, String)> {
        let mut files = Vec::new();
        let (ending, own) = match self {
            Self::V1 { .. } => ("limit_in_bytes", None),
            Self::V2 { mount } => ("max", Some(mount.join(path))),
        };
        if !options.hugepage_bytes.is_empty()
            && self.controllers().contains("hugetlb")
            && let Ok(dir) = self.controller_dir("hugetlb", path)
        {
            let sizes = options.hugepage_bytes.iter().filter(|(size, _)| page_pool(size).is_some());
            files.extend(sizes.map(|(size, bytes)| (dir.join(format!("hugetlb.{size}.{ending}")), bytes.to_string())));
        }
        if let Some(own) = own {
            files.extend(options.unified.iter().map(|(file, value)| (own.join(file), value.clone())));
        }
        files
    }

    /// Sets the limits on huge pages and, on version 2, writes the requested files.
    ///
    /// # Errors
    /// Returns an error with the path if the kernel rejects a value.
    pub(crate) fn set_option_files(&self, path: &Path, options: &HostOptions) -> io::Result<()> {
        let files = self.option_files(path, options);
        files.into_iter().try_for_each(|(file, value)| fs::write(&file, value).map_err(|error| at(&file, &error)))
    }

    /// Sets limits, which the host must be able to enforce. A limit of 0 is not written. [`Self::limit_swap`] sets
    /// the swap limit of version 2.
    ///
    /// # Errors
    /// Returns an error with the path if the kernel rejects a value.
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

/// Writes a kernel file, and returns its old contents.
fn replace(file: &Path, value: &str) -> io::Result<String> {
    let before = kernel_file::read_to_string(file)?;
    fs::write(file, value)?;
    Ok(before)
}

/// Returns the directory of the host's huge pages of a size. Returns `None` if the host does not support this size.
pub(crate) fn page_pool(size: &str) -> Option<PathBuf> {
    let kilobytes = page_kilobytes(size)?;
    Some(PathBuf::from(format!("/sys/kernel/mm/hugepages/hugepages-{kilobytes}kB"))).filter(|dir| dir.exists())
}

/// Returns the settings that change the limits from `before` to `after`. Version 1 checks each write of a period
/// against the quota in force, so the quota is removed before the period changes.
fn changes(before: &[Setting], after: &[Setting]) -> Vec<Setting> {
    const QUOTA: &str = "cpu.cfs_quota_us";
    let of = |settings: &[Setting], name: &str| settings.iter().find(|(_, file, _)| *file == name).cloned();
    let removed = before.iter().filter(|(_, file, _)| of(after, file).is_none());
    let removed = removed.filter_map(|(controller, file, _)| Some((*controller, *file, unlimited(file)?.to_owned())));
    let mut changed: Vec<Setting> =
        removed.chain(after.iter().filter(|setting| !before.contains(setting)).cloned()).collect();
    if of(&changed, "cpu.cfs_period_us").is_some() {
        changed.retain(|(_, file, _)| *file != QUOTA);
        if of(before, QUOTA).is_some() {
            changed.insert(0, ("cpu", QUOTA, "-1".to_owned()));
        }
        changed.extend(of(after, QUOTA));
    }
    changed
}

/// Returns the value that means "no limit" in a file. Returns `None` if the file cannot be reset.
fn unlimited(file: &str) -> Option<&'static str> {
    Some(match file {
        "memory.max" | "pids.max" => "max",
        "cpu.max" => "max 100000",
        "memory.low" => "0",
        "memory.limit_in_bytes"
        | "memory.memsw.limit_in_bytes"
        | "memory.soft_limit_in_bytes"
        | "memory.kmem.tcp.limit_in_bytes"
        | "cpu.cfs_quota_us" => "-1",
        _ => return None,
    })
}

pub(super) fn swap_limit(bytes: Option<i64>) -> String {
    match bytes {
        Some(-1) => "max".to_owned(),
        bytes => bytes.unwrap_or(0).to_string(),
    }
}

fn of_version_1(limits: &Limits, swap_limit: bool, socket_limit: bool) -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    if limits.memory_bytes > 0 {
        let bytes = limits.memory_bytes.to_string();
        all.push(("memory", "memory.limit_in_bytes", bytes.clone()));
        if swap_limit {
            // The value is never lower than the memory limit, which is set first.
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
    if let Some((quota, period)) = cpu_quota(limits) {
        all.push(("cpu", "cpu.cfs_period_us", period.to_string()));
        all.push(("cpu", "cpu.cfs_quota_us", quota.to_string()));
    }
    if limits.cpu_shares > 0 {
        all.push(("cpu", "cpu.shares", limits.cpu_shares.to_string()));
    } else if limits.cpu_weight > 0 {
        all.push(("cpu", "cpu.shares", shares(limits.cpu_weight).to_string()));
    }
    all
}

fn of_version_2(limits: &Limits) -> Vec<Setting> {
    let quota = cpu_quota(limits).map(|(quota, period)| format!("{quota} {period}"));
    let weight = if limits.cpu_shares > 0 { weight(limits.cpu_shares) } else { limits.cpu_weight };
    let all = [
        (limits.memory_bytes > 0, "memory", "memory.max", limits.memory_bytes.to_string()),
        (limits.memory_reservation_bytes > 0, "memory", "memory.low", limits.memory_reservation_bytes.to_string()),
        (limits.pids > 0, "pids", "pids.max", limits.pids.to_string()),
        (quota.is_some(), "cpu", "cpu.max", quota.unwrap_or_default()),
        (weight > 0, "cpu", "cpu.weight", weight.to_string()),
        (limits.io_weight > 0, "io", "io.weight", limits.io_weight.to_string()),
    ];
    let is_set = all.into_iter().filter(|(is_set, ..)| *is_set);
    is_set.map(|(_, controller, file, value)| (controller, file, value)).collect()
}

/// Returns the CPU time that a container may use in each period, and the length of the period, both in microseconds.
/// Returns `None` if CPU time has no limit.
fn cpu_quota(limits: &Limits) -> Option<(u64, u64)> {
    let period = if limits.cpu_period_us == 0 { CPU_PERIOD_US_DEFAULT } else { limits.cpu_period_us };
    match (limits.cpu_quota_us, limits.cpu_millis) {
        (0, 0) => None,
        (0, millis) => Some((millis.saturating_mul(CPU_PERIOD_US_DEFAULT) / 1000, CPU_PERIOD_US_DEFAULT)),
        (quota, _) => Some((quota, period)),
    }
}

/// Returns the limit on memory and swap together. -1 means no limit.
fn memory_and_swap(memory_bytes: i64, swap_bytes: Option<i64>) -> i64 {
    match swap_bytes {
        Some(-1) => -1,
        swap => memory_bytes.saturating_add(swap.unwrap_or(0)),
    }
}

/// Converts a weight of cgroup v2 (1 to 10000, default 100) to shares of v1 (2 to 262144, default 1024). Returns the
/// largest number of shares that OCI runtimes convert back to this weight. OCI runtimes compute the logarithm of the
/// weight as a quadratic function of the logarithm of the shares.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 2 to 262144
fn shares(weight: u32) -> u64 {
    let exponent = ((15_625.0 + 2448.0 * (f64::from(weight).log10() + 7.0 / 34.0)).sqrt() - 125.0) / 2.0;
    // Compensate for the rounding error if the result is a whole number.
    (exponent.exp2() * (1.0 + 1e-12)) as u64
}

/// Converts shares of v1 to a weight of cgroup v2, with the function of OCI runtimes (see [`shares`]).
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 1 to 10000
fn weight(shares: u32) -> u32 {
    let log = f64::from(shares).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    if shares <= 2 { 1 } else { (10f64.powf(exponent).ceil() as u32).min(10_000) }
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
        cpu_period_us: 0,
        cpu_quota_us: 0,
        cpu_shares: 0,
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
    fn unlimited_resources_are_not_written() {
        assert!(of_version_1(&NONE, true, true).is_empty());
        assert!(of_version_2(&NONE).is_empty());
        let without_memory = Limits { swap_bytes: Some(-1), memory_reservation_bytes: 5, ..NONE };
        assert!(
            of_version_1(&without_memory, true, true).is_empty(),
            "swap and reservation settings need a memory limit"
        );
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
        let reported = shown(&of_version_1(&ALL, true, true));
        assert_eq!(reported[..expected.len()], expected);
        assert_eq!(reported[expected.len()..], [format!("cpu cpu.shares {}", shares(200))]);
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

    #[test]
    fn swap_limit_adds_to_memory_limit() {
        for (swap, both, swappiness) in [(None, 64, false), (Some(0), 64, true), (Some(1 << 20), 65, false)] {
            let reported = shown(&of_version_1(&Limits { swap_bytes: swap, ..ALL }, true, false));
            assert_eq!(reported[1], format!("memory memory.memsw.limit_in_bytes {}", both << 20));
            assert_eq!(reported.contains(&"memory memory.swappiness 0".to_owned()), swappiness, "{reported:?}");
        }
    }

    /// A weight is unchanged after conversion to shares and back by the formula of runc and libcgroups. The default
    /// weight is converted to the default shares.
    #[test]
    fn cpu_weight_round_trips_through_shares() {
        for weight in 1..=10_000 {
            let shares = shares(weight);
            assert!((2..=262_144).contains(&shares));
            assert_eq!(super::weight(u32::try_from(shares).unwrap()), weight, "{shares} shares");
        }
        assert_eq!([1, 100, 10_000].map(shares), [2, 1024, 262_144]);
    }

    /// CRI rule C29, Kubernetes rule P49: shares and a quota with its period are written as given, and as a weight on
    /// version 2.
    #[test]
    fn quota_and_shares_in_both_versions() {
        let limits = Limits { cpu_quota_us: 5000, cpu_period_us: 10_000, cpu_shares: 512, ..NONE };
        let expected = ["cpu cpu.cfs_period_us 10000", "cpu cpu.cfs_quota_us 5000", "cpu cpu.shares 512"];
        assert_eq!(shown(&of_version_1(&limits, true, true)), expected);
        assert_eq!(shown(&of_version_2(&limits)), ["cpu cpu.max 5000 10000", "cpu cpu.weight 59"]);
        let default_period = Limits { cpu_quota_us: 5000, ..NONE };
        assert_eq!(shown(&of_version_2(&default_period)), ["cpu cpu.max 5000 100000"]);
        assert_eq!([102, 256, 512, 1024, 2048, 8192].map(weight), [17, 35, 59, 100, 174, 532]);
    }

    /// CRI rule C29: a removed limit is reset, and a period changes only while no quota is in force.
    #[test]
    fn removed_limits_are_reset() {
        let removed = Limits { memory_bytes: 0, pids: 0, cpu_millis: 0, memory_reservation_bytes: 0, ..ALL };
        let v1 = |limits: &Limits| of_version_1(limits, true, false);
        let expected = [
            "memory memory.limit_in_bytes -1",
            "memory memory.memsw.limit_in_bytes -1",
            "memory memory.soft_limit_in_bytes -1",
            "pids pids.max max",
            "cpu cpu.cfs_quota_us -1",
        ];
        assert_eq!(shown(&changes(&v1(&ALL), &v1(&removed))), expected);
        let expected = ["memory memory.max max", "memory memory.low 0", "pids pids.max max", "cpu cpu.max max 100000"];
        assert_eq!(shown(&changes(&of_version_2(&ALL), &of_version_2(&removed))), expected);
        let shorter = Limits { cpu_millis: 0, cpu_quota_us: 150_000, cpu_period_us: 50_000, ..ALL };
        let expected = ["cpu cpu.cfs_quota_us -1", "cpu cpu.cfs_period_us 50000", "cpu cpu.cfs_quota_us 150000"];
        assert_eq!(shown(&changes(&v1(&ALL), &v1(&shorter))), expected);
    }

    /// CRI rule C29: huge pages are limited on both versions, and other files are written on version 2 only. An update
    /// replaces either all files or none.
    #[test]
    fn option_files_in_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let v1 = Hierarchies::at(&[dir.path().join("memory"), dir.path().join("hugetlb")]);
        let v2 = Hierarchies::V2 { mount: dir.path().join("v2") };
        ["memory/c", "hugetlb/c", "v2/c"].iter().for_each(|one| fs::create_dir_all(dir.path().join(one)).unwrap());
        fs::write(dir.path().join("v2/cgroup.controllers"), "cpu hugetlb memory").unwrap();
        let options = |high: &str| HostOptions {
            hugepage_bytes: [("2MB".to_owned(), 4 << 20)].into(),
            unified: [("memory.high".to_owned(), high.to_owned())].into(),
            ..HostOptions::default()
        };
        let path = Path::new("c");
        v1.set_option_files(path, &options("5")).unwrap();
        v2.set_option_files(path, &options("5")).unwrap();
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!(read("hugetlb/c/hugetlb.2MB.limit_in_bytes") + &read("v2/c/hugetlb.2MB.max"), "41943044194304");
        assert_eq!((read("v2/c/memory.high"), dir.path().join("memory/c/memory.high").exists()), ("5".into(), false));
        let more = HostOptions { unified: [("a.b".to_owned(), "1".to_owned())].into(), ..options("6") };
        assert!(
            v2.replace_limits(path, (&NONE, &options("5")), (&NONE, &more), Vec::new()).is_err(),
            "there is no file a.b"
        );
        let high = HostOptions { unified: options("6").unified, ..more };
        v2.replace_limits(path, (&NONE, &options("5")), (&NONE, &high), Vec::new()).unwrap();
        assert_eq!(read("v2/c/memory.high"), "6");
    }
}
