//! Lowers resources: rule C29. A resource without a limit in the CRI is unlimited: defaults of executord do not apply.

use executor_client::v1::Limits;
use executor_cri_api::v1::LinuxContainerResources;

use crate::failure::Violations;

/// File of cgroup version 2 with the swap limit, for which executord's request has a field.
const SWAP_MAX: &str = "memory.swap.max";

/// Lowers the resources of a new container.
pub(crate) fn lower(resources: &LinuxContainerResources, violations: &mut Violations) -> Limits {
    let mut limits = change(resources, violations);
    limits.unlimited_memory = limits.memory_bytes == 0;
    limits.unlimited_pids = true;
    limits
}

/// Lowers a change of resources. Resources that are 0 or empty do not change.
pub(crate) fn change(resources: &LinuxContainerResources, violations: &mut Violations) -> Limits {
    let mut limits = Limits {
        cpuset_cpus: resources.cpuset_cpus.clone(),
        cpuset_mems: resources.cpuset_mems.clone(),
        unified: resources.unified.clone().into_iter().collect(),
        ..Limits::default()
    };
    let mut positive = |name: &str, value: i64| {
        u64::try_from(value).unwrap_or_else(|_| {
            violations.add(&format!("resources.{name}"), "must not be negative");
            0
        })
    };
    limits.cpu_period_us = positive("cpu_period", resources.cpu_period);
    limits.cpu_shares = positive("cpu_shares", resources.cpu_shares).try_into().unwrap_or(u32::MAX);
    limits.memory_bytes = positive("memory_limit_in_bytes", resources.memory_limit_in_bytes);
    limits.cpu_quota_us = match resources.cpu_quota {
        ..=-1 => -1,
        quota => quota,
    };
    limits.swap_bytes = match resources.memory_swap_limit_in_bytes {
        0 => None,
        _ if limits.memory_bytes == 0 => None, // the swap limit requires a memory limit
        -1 => Some(-1),
        total => match total.checked_sub(resources.memory_limit_in_bytes) {
            Some(swap @ 0..) => Some(swap),
            _ => {
                let why = "must be at least memory_limit_in_bytes, because it is the limit on memory and swap together";
                violations.add("resources.memory_swap_limit_in_bytes", why);
                None
            }
        },
    };
    // With cgroup version 2, the kubelet sets the swap limit in this file.
    if let Some(swap) = limits.unified.remove(SWAP_MAX) {
        limits.swap_bytes = match swap.as_str() {
            _ if limits.memory_bytes == 0 => None,
            "max" => Some(-1),
            bytes => bytes.parse().ok().filter(|&bytes: &i64| bytes >= 0).or_else(|| {
                violations.add(&format!("resources.unified[{SWAP_MAX}]"), "must be a number of bytes or max");
                None
            }),
        };
    }
    for limit in &resources.hugepage_limits {
        limits.hugepage_bytes.insert(limit.page_size.clone(), limit.limit);
    }
    limits
}

/// Returns the resources in force after a change.
pub(crate) fn merged(old: &LinuxContainerResources, new: &LinuxContainerResources) -> LinuxContainerResources {
    let number = |old: i64, new: i64| if new == 0 { old } else { new };
    let text = |old: &String, new: &String| if new.is_empty() { old.clone() } else { new.clone() };
    let mut unified = old.unified.clone();
    unified.extend(new.unified.clone());
    let mut hugepage_limits = old.hugepage_limits.clone();
    hugepage_limits.retain(|limit| new.hugepage_limits.iter().all(|other| other.page_size != limit.page_size));
    hugepage_limits.extend(new.hugepage_limits.iter().cloned());
    LinuxContainerResources {
        cpu_period: number(old.cpu_period, new.cpu_period),
        cpu_quota: number(old.cpu_quota, new.cpu_quota),
        cpu_shares: number(old.cpu_shares, new.cpu_shares),
        memory_limit_in_bytes: number(old.memory_limit_in_bytes, new.memory_limit_in_bytes),
        oom_score_adj: old.oom_score_adj, // the score of running processes does not change
        cpuset_cpus: text(&old.cpuset_cpus, &new.cpuset_cpus),
        cpuset_mems: text(&old.cpuset_mems, &new.cpuset_mems),
        hugepage_limits,
        unified,
        memory_swap_limit_in_bytes: number(old.memory_swap_limit_in_bytes, new.memory_swap_limit_in_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule C29: the swap limit of the CRI is the sum of memory and swap.
    #[test]
    fn limits_are_lowered() {
        let resources = LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: 50_000,
            cpu_shares: 512,
            memory_limit_in_bytes: 64 << 20,
            memory_swap_limit_in_bytes: 96 << 20,
            ..LinuxContainerResources::default()
        };
        let mut violations = Violations::default();
        let limits = lower(&resources, &mut violations);
        violations.check().unwrap();
        assert_eq!((limits.cpu_period_us, limits.cpu_quota_us, limits.cpu_shares), (100_000, 50_000, 512));
        assert_eq!((limits.memory_bytes, limits.swap_bytes), (64 << 20, Some(32 << 20)));
        assert!(!limits.unlimited_memory && limits.unlimited_pids);
    }

    /// Rule C29: files of cgroup version 2 are passed on, except the swap limit, for which executord's request has a
    /// field.
    #[test]
    fn swap_has_a_field() {
        let lowered = |swap: &str, memory_limit_in_bytes| {
            let files = [(SWAP_MAX, swap), ("memory.oom.group", "1")];
            let unified = files.map(|(file, value)| (file.to_owned(), value.to_owned())).into();
            let resources = LinuxContainerResources { memory_limit_in_bytes, unified, ..Default::default() };
            let mut violations = Violations::default();
            let limits = lower(&resources, &mut violations);
            assert_eq!(limits.unified, [("memory.oom.group".to_owned(), "1".to_owned())].into());
            violations.check().map(|()| limits.swap_bytes).map_err(|status| status.message().to_owned())
        };
        for (swap, expected) in [("0", Some(0)), ("4096", Some(4096)), ("max", Some(-1))] {
            assert_eq!(lowered(swap, 64 << 20), Ok(expected));
        }
        assert_eq!(lowered("0", 0), Ok(None), "a limit on swap requires a limit on memory");
        for swap in ["", "-1", "1M"] {
            assert!(lowered(swap, 64 << 20).unwrap_err().contains("resources.unified[memory.swap.max]"));
        }
    }

    /// Rule C29: a resource without a limit is unlimited.
    #[test]
    fn nothing_is_limited_by_default() {
        let limits = lower(&LinuxContainerResources::default(), &mut Violations::default());
        let expected = Limits { unlimited_memory: true, unlimited_pids: true, ..Limits::default() };
        assert_eq!(limits, expected);
    }

    #[test]
    fn negative_limits_are_violations() {
        let resources = LinuxContainerResources {
            cpu_shares: -1,
            memory_limit_in_bytes: 64 << 20,
            memory_swap_limit_in_bytes: 1,
            ..LinuxContainerResources::default()
        };
        let mut violations = Violations::default();
        lower(&resources, &mut violations);
        let message = violations.check().unwrap_err().message().to_owned();
        assert!(message.contains("cpu_shares") && message.contains("memory_swap_limit_in_bytes"), "{message}");
    }

    /// Rule C15: a change leaves other resources as they are.
    #[test]
    fn changes_are_merged() {
        let old = LinuxContainerResources { cpu_shares: 2, memory_limit_in_bytes: 5, ..Default::default() };
        let new = LinuxContainerResources { cpu_shares: 4, ..Default::default() };
        let merged = merged(&old, &new);
        assert_eq!((merged.cpu_shares, merged.memory_limit_in_bytes), (4, 5));
    }
}
