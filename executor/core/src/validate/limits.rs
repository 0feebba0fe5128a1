//! Validates the limits of a request, and new limits of a running container.

use super::{Draft, Policy, Report, Unlimited, Violation, cgroups, host_options};
use crate::limits::{
    CPU_PERIOD_US, CPU_PERIOD_US_DEFAULT, CPU_QUOTA_US_MIN, CPU_SHARES, CPUS_MAX, DISK_MIN, MEMORY_MIN, NOFILE_MIN,
    PIDS_MAX, PIDS_MIN, SIZE_MAX,
};
use crate::plan::{HostOptions, Limits, Plan, SidecarLimits};
use crate::protocol::UpdateLimits;
use crate::violation::ViolationReason::{Conflict, NotAllowed, OutOfRange, Required, Unsuitable};

/// Fills in defaults, and checks the limits of a request.
pub(super) fn limits(draft: &Draft<'_>, policy: &Policy, report: &mut Report) -> Limits {
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    let or_none = |is_none: bool, value: u64| if is_none { 0 } else { value };
    let Unlimited { memory, pids } = draft.unlimited;
    let limits = Limits {
        memory_bytes: or_none(memory, or(draft.memory_bytes, policy.default_memory_bytes)),
        pids: or_none(pids, or(draft.pids, policy.default_pids)),
        cpu_millis: draft.cpu_millis,
        nofile: draft.nofile.unwrap_or(policy.default_nofile),
        disk_bytes: or(draft.disk_bytes, policy.default_disk_bytes),
        cpu_weight: draft.cpu_weight,
        io_weight: draft.io_weight,
        swap_bytes: draft.swap_bytes,
        memory_reservation_bytes: draft.memory_reservation_bytes,
        cpu_period_us: draft.cpu_period_us,
        cpu_quota_us: u64::try_from(draft.cpu_quota_us).unwrap_or(0), // -1 is no limit
        cpu_shares: draft.cpu_shares,
    };
    exclusive(
        [memory && draft.memory_bytes != 0, pids && draft.pids != 0],
        [
            draft.cpu_millis != 0 && (draft.cpu_quota_us != 0 || draft.cpu_period_us != 0),
            draft.cpu_weight != 0 && draft.cpu_shares != 0,
        ],
        draft.cpu_quota_us,
        report,
    );
    check(&limits, draft.unlimited, policy, report);
    if draft.actions.is_none() {
        nofile("action.run", limits.nofile, report);
    }
    limits
}

/// Validates new limits of a running container, and returns the plan with the new limits.
///
/// # Errors
/// Returns all violations if the update is invalid.
pub fn validate_limits(update: &UpdateLimits, plan: &Plan, policy: &Policy) -> Result<Plan, Vec<Violation>> {
    let mut report = Report::default();
    if *update == UpdateLimits::default() {
        report.add("limits", Required.because("is empty: set at least one limit to change"));
    }
    let or = |new: u64, old: u64| if new == 0 { old } else { new };
    let weight = |new: u32, old: u32| if new == 0 { old } else { new };
    let or_none = |is_none: bool, value: u64| if is_none { 0 } else { value };
    let old = &plan.limits;
    let (in_millis, in_shares) = (update.cpu_millis != 0, update.cpu_shares != 0);
    let in_periods = update.cpu_quota_us != 0 || update.cpu_period_us != 0;
    let without = update.unlimited_memory; // swap and reservation are parts of the limit on memory
    let limits = Limits {
        memory_bytes: or_none(without, or(update.memory_bytes, old.memory_bytes)),
        pids: or_none(update.unlimited_pids, or(update.pids, old.pids)),
        cpu_millis: or_none(in_periods, or(update.cpu_millis, old.cpu_millis)),
        cpu_weight: if in_shares { 0 } else { weight(update.cpu_weight, old.cpu_weight) },
        io_weight: weight(update.io_weight, old.io_weight),
        swap_bytes: update.swap_bytes.or(old.swap_bytes.filter(|_| !without)),
        memory_reservation_bytes: or(update.memory_reservation_bytes, or_none(without, old.memory_reservation_bytes)),
        cpu_period_us: or_none(in_millis, or(update.cpu_period_us, old.cpu_period_us)),
        cpu_quota_us: match update.cpu_quota_us {
            0 => or_none(in_millis, old.cpu_quota_us),
            quota => u64::try_from(quota).unwrap_or(0),
        },
        cpu_shares: if update.cpu_weight != 0 { 0 } else { weight(update.cpu_shares, old.cpu_shares) },
        ..*old
    };
    exclusive(
        [without && update.memory_bytes != 0, update.unlimited_pids && update.pids != 0],
        [in_millis && in_periods, in_shares && update.cpu_weight != 0],
        update.cpu_quota_us,
        &mut report,
    );
    let unlimited = Unlimited { memory: limits.memory_bytes == 0, pids: limits.pids == 0 };
    check(&limits, unlimited, policy, &mut report);
    let mut host_options = plan.host_options.clone();
    host_options.hugepage_bytes.extend(update.hugepage_bytes.clone());
    host_options.unified.extend(update.unified.clone());
    replace_cpusets(&mut host_options, update, &mut report);
    cgroups::hugepages(&host_options.hugepage_bytes, &mut report);
    cgroups::unified(&host_options.unified, policy, &mut report);
    if let Some(actions) = &plan.actions {
        for (index, limited) in &actions.sidecar_limits {
            sidecar_limits(*index, limited, actions.sidecars.len(), &limits, &mut report);
        }
    }
    if let Some(size) = plan.writable_files.map(|files| files.bytes_max).filter(|size| *size > limits.memory_max()) {
        let why = format!("is {}; at least {size} (the size of writable_files) is required", limits.memory_bytes);
        report.add("limits.memory_bytes", Conflict.because(why));
    }
    if report.0.is_empty() { Ok(Plan { limits, host_options, ..plan.clone() }) } else { Err(report.0) }
}

/// Replaces lists of CPUs and memory nodes. A container that was started without such lists has no cpuset cgroup of its
/// own, so its lists cannot be changed.
fn replace_cpusets(options: &mut HostOptions, update: &UpdateLimits, report: &mut Report) {
    let lists = host_options::cpusets([&update.cpus, &update.memory_nodes], report);
    let has_cpuset = options.has_cpuset();
    let fields = [("limits.cpuset_cpus", &mut options.cpus), ("limits.cpuset_mems", &mut options.memory_nodes)];
    for ((field, old), new) in fields.into_iter().zip(lists).filter(|(_, new)| !new.is_empty()) {
        if !has_cpuset {
            let why = "cannot be changed: the container was started without cpuset_cpus and cpuset_mems";
            report.add(field, Unsuitable.because(why));
        }
        *old = new;
    }
}

/// Reports limits that a request sets by two fields, and a quota below -1. A flag is true if both fields are set:
/// `unlimited` for memory and processes, `cpu` for the CPU limit and the CPU weight.
fn exclusive(unlimited: [bool; 2], cpu: [bool; 2], quota_us: i64, report: &mut Report) {
    let pairs = [
        ("limits.unlimited_memory", "limits.memory_bytes", unlimited[0]),
        ("limits.unlimited_pids", "limits.pids", unlimited[1]),
        ("limits.cpu_quota_us", "limits.cpu_millis", cpu[0]),
        ("limits.cpu_shares", "limits.cpu_weight", cpu[1]),
    ];
    for (field, other, _) in pairs.into_iter().filter(|(.., both)| *both) {
        report.add(field, Conflict.because(format!("cannot be set together with {other}")));
    }
    if quota_us < -1 {
        report.add("limits.cpu_quota_us", OutOfRange.because(format!("is {quota_us}; use -1 for no limit")));
    }
}

/// Checks every limit except the limit on open files.
fn check(limits: &Limits, unlimited: Unlimited, policy: &Policy, report: &mut Report) {
    let mut range = |field: &str, value: u64, least: u64, most: u64| {
        if value < least || value > most {
            report.add(field, OutOfRange.because(format!("is {value}; {least} to {most} is allowed")));
        }
    };
    if !unlimited.memory {
        range("limits.memory_bytes", limits.memory_bytes, MEMORY_MIN, SIZE_MAX);
    }
    if !unlimited.pids {
        range("limits.pids", limits.pids, PIDS_MIN, PIDS_MAX);
    }
    if limits.cpu_millis != 0 {
        range("limits.cpu_millis", limits.cpu_millis, 10, 4_096_000);
    }
    if limits.cpu_period_us != 0 {
        range("limits.cpu_period_us", limits.cpu_period_us, CPU_PERIOD_US.0, CPU_PERIOD_US.1);
    }
    if limits.cpu_quota_us != 0 {
        let period = if limits.cpu_period_us == 0 { CPU_PERIOD_US_DEFAULT } else { limits.cpu_period_us };
        let most = period.saturating_mul(CPUS_MAX);
        range("limits.cpu_quota_us", limits.cpu_quota_us, CPU_QUOTA_US_MIN, most);
    }
    if limits.disk_bytes != 0 {
        range("limits.disk_bytes", limits.disk_bytes, DISK_MIN, SIZE_MAX);
    }
    for (field, weight) in [("limits.cpu_weight", limits.cpu_weight), ("limits.io_weight", limits.io_weight)] {
        if weight != 0 {
            range(field, u64::from(weight), 1, 10_000);
        }
    }
    if limits.cpu_shares != 0 {
        range("limits.cpu_shares", limits.cpu_shares.into(), CPU_SHARES.0.into(), CPU_SHARES.1.into());
    }
    let absent = [("limits.unlimited_memory", unlimited.memory), ("limits.unlimited_pids", unlimited.pids)];
    for (field, _) in absent.into_iter().filter(|(_, is_absent)| *is_absent && !policy.allow_no_limits) {
        let why = "is not allowed by this daemon's configuration; set policy.allow_no_limits = true to allow it";
        report.add(field, NotAllowed.because(why));
    }
    let parts = [
        ("limits.memory_reservation_bytes", limits.memory_reservation_bytes != 0),
        ("limits.swap_bytes", limits.swap_bytes.is_some()),
    ];
    if unlimited.memory {
        for (field, _) in parts.into_iter().filter(|(_, is_set)| *is_set) {
            report.add(field, Conflict.because("needs a limit on memory (limits.memory_bytes)"));
        }
        return;
    }
    if limits.memory_reservation_bytes > limits.memory_bytes {
        let (is, most) = (limits.memory_reservation_bytes, limits.memory_bytes);
        let why = format!("is {is}; at most {most} (limits.memory_bytes) is allowed");
        report.add("limits.memory_reservation_bytes", OutOfRange.because(why));
    }
    if let Some(swap) = limits.swap_bytes {
        const MOST: i64 = 1 << 50;
        let most = policy.swap_bytes_max;
        if !(-1..=MOST).contains(&swap) {
            report.add("limits.swap_bytes", OutOfRange.because(format!("is {swap}; -1 to {MOST} is allowed")));
        } else if most != -1 && !(0..=most).contains(&swap) {
            let why = format!("is {swap}; this daemon's configuration allows at most {most} (swap_bytes_max)");
            report.add("limits.swap_bytes", NotAllowed.because(why));
        }
    }
}

/// Checks the limits of a sidecar, which must be within the limits of the container.
pub(super) fn sidecar_limits(
    index: usize,
    sidecar: &SidecarLimits,
    sidecars: usize,
    limits: &Limits,
    report: &mut Report,
) {
    let SidecarLimits { memory_bytes, pids } = *sidecar;
    if index >= sidecars || (memory_bytes, pids) == (0, 0) {
        report.add("sidecars", "has limits for a sidecar that does not exist, or limits that are all 0");
        return;
    }
    const MB: u64 = 1 << 20;
    if memory_bytes != 0 && !(MEMORY_MIN..=limits.memory_max()).contains(&memory_bytes) {
        let (least, most) = (MEMORY_MIN.div_ceil(MB), limits.memory_max() / MB);
        let why = format!("is {}; {least} to {most} (the container's limit) is allowed, or 0", memory_bytes / MB);
        report.add(format!("sidecars[{index}].memory_mb"), OutOfRange.because(why));
    }
    if pids != 0 && !(PIDS_MIN..=limits.pids_max()).contains(&pids) {
        let why = format!("is {pids}; {PIDS_MIN} to {} (the container's limit) is allowed, or 0", limits.pids_max());
        report.add(format!("sidecars[{index}].pids"), OutOfRange.because(why));
    }
}

/// Checks a limit on open files.
pub(super) fn nofile(field: &str, limit: u64, report: &mut Report) {
    const MOST: u64 = 1 << 30;
    if !(NOFILE_MIN..=MOST).contains(&limit) {
        let why = format!("is {limit}; {NOFILE_MIN} to {MOST} is allowed");
        report.add(format!("{field}.resource_limits.nofile"), OutOfRange.because(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Amount;
    use crate::plan::WritableFiles;
    use crate::validate::{recheck, validate};

    fn plan(memory_bytes: u64) -> Plan {
        let draft = Draft { id: "c1", path: "/bin/true", memory_bytes, cpu_millis: 500, ..Draft::default() };
        validate(&draft, &Policy::default()).unwrap()
    }

    #[test]
    fn unset_limits_stay_as_they_are() {
        let plan = plan(64 << 20);
        let update = UpdateLimits { pids: 77, ..UpdateLimits::default() };
        let updated = validate_limits(&update, &plan, &Policy::default()).unwrap();
        assert_eq!(updated, Plan { limits: Limits { pids: 77, ..plan.limits }, ..plan });
    }

    #[test]
    fn every_violation_of_new_limits_is_named() {
        let update = UpdateLimits {
            memory_bytes: 1,
            pids: PIDS_MAX + 1,
            cpu_millis: 1,
            cpu_weight: 10_001,
            io_weight: 10_001,
            swap_bytes: Some(-2),
            memory_reservation_bytes: 2,
            ..UpdateLimits::default()
        };
        let violations = validate_limits(&update, &plan(64 << 20), &Policy::default()).unwrap_err();
        let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
        let names =
            ["memory_bytes", "pids", "cpu_millis", "cpu_weight", "io_weight", "memory_reservation_bytes", "swap_bytes"];
        assert_eq!(fields, names.map(|name| format!("limits.{name}")));
        let empty = validate_limits(&UpdateLimits::default(), &plan(64 << 20), &Policy::default()).unwrap_err();
        assert_eq!((empty.len(), &*empty[0].field), (1, "limits"));
    }

    /// An unchanged memory reservation is compared with the new memory limit.
    #[test]
    fn kept_limits_are_compared_with_new_ones() {
        let first = UpdateLimits { memory_reservation_bytes: 60 << 20, ..UpdateLimits::default() };
        let plan = validate_limits(&first, &plan(64 << 20), &Policy::default()).unwrap();
        let lower = UpdateLimits { memory_bytes: 32 << 20, ..UpdateLimits::default() };
        let violations = validate_limits(&lower, &plan, &Policy::default()).unwrap_err();
        assert_eq!(violations[0].field, "limits.memory_reservation_bytes");
        let plan = Plan { writable_files: Some(WritableFiles { bytes_max: 48 << 20 }), ..plan };
        let higher = UpdateLimits { memory_reservation_bytes: 1 << 20, ..lower };
        let violations = validate_limits(&higher, &plan, &Policy::default()).unwrap_err();
        assert!(violations[0].description.contains("writable"), "{violations:?}");
    }

    fn open() -> Policy {
        Policy { allow_no_limits: true, ..Policy::default() }
    }

    fn fields(reported: Result<Plan, Vec<Violation>>) -> Vec<String> {
        reported.err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    }

    /// CRI rule C29: "no limit" differs from an unset limit, reserves no capacity, and needs the operator's permission.
    /// The launcher checks this permission, too.
    #[test]
    fn no_limit_differs_from_unset() {
        let unlimited = Unlimited { memory: true, pids: true };
        let draft = Draft { id: "c1", path: "/bin/true", unlimited, ..Draft::default() };
        let plan = validate(&draft, &open()).unwrap();
        recheck(&plan, &open()).unwrap();
        let amount = Amount::new(&plan.limits, &plan.volumes);
        assert_eq!((plan.limits.memory_bytes, plan.limits.pids, amount.memory_bytes, amount.pids), (0, 0, 0, 0));
        let names = ["limits.unlimited_memory", "limits.unlimited_pids"];
        assert_eq!(fields(validate(&draft, &Policy::default())), names);
        assert_eq!(fields(recheck(&plan, &Policy::default()).map(|()| plan.clone())), names);
        let both = Draft { memory_bytes: 64 << 20, pids: 9, swap_bytes: Some(0), ..draft };
        assert_eq!(fields(validate(&both, &open())), [names[0], names[1], "limits.swap_bytes"]);
    }

    #[test]
    fn limits_can_be_removed_and_return() {
        let update = UpdateLimits { unlimited_memory: true, unlimited_pids: true, ..UpdateLimits::default() };
        let before = plan(64 << 20);
        let before =
            Plan { limits: Limits { memory_reservation_bytes: 1, swap_bytes: Some(0), ..before.limits }, ..before };
        let removed = validate_limits(&update, &before, &open()).unwrap();
        let Limits { memory_bytes, pids, swap_bytes, memory_reservation_bytes, .. } = removed.limits;
        assert_eq!((memory_bytes, pids, swap_bytes, memory_reservation_bytes), (0, 0, None, 0));
        assert_eq!(fields(validate_limits(&update, &before, &Policy::default())).len(), 2);
        let back = UpdateLimits { memory_bytes: 8 << 20, pids: 5, ..UpdateLimits::default() };
        let limits = validate_limits(&back, &removed, &Policy::default()).unwrap().limits;
        assert_eq!((limits.memory_bytes, limits.pids), (8 << 20, 5));
    }

    /// CRI rule C29: a quota with its period replaces the other form of the CPU limit, and shares replace the weight.
    #[test]
    fn cpu_limits_have_one_form_each() {
        let asked = |change: fn(&mut Draft<'_>)| {
            let mut draft = Draft { id: "c1", path: "/bin/true", ..Draft::default() };
            change(&mut draft);
            let plan = validate(&draft, &Policy::default())?;
            recheck(&plan, &Policy::default()).map(|()| plan)
        };
        let good = asked(|d| (d.cpu_quota_us, d.cpu_period_us, d.cpu_shares) = (5000, 10_000, 2)).unwrap();
        assert_eq!((good.limits.cpu_quota_us, good.limits.cpu_period_us, good.limits.cpu_shares), (5000, 10_000, 2));
        assert_eq!(asked(|d| d.cpu_quota_us = -1).unwrap().limits.cpu_quota_us, 0);
        type DraftChange = fn(&mut Draft<'_>);
        let wrong: [(DraftChange, &str); 8] = [
            (|d| d.cpu_quota_us = 999, "cpu_quota_us"),
            (|d| d.cpu_quota_us = -2, "cpu_quota_us"),
            (|d| d.cpu_quota_us = i64::MAX, "cpu_quota_us"),
            (|d| d.cpu_period_us = 999, "cpu_period_us"),
            (|d| d.cpu_period_us = 1_000_001, "cpu_period_us"),
            (|d| (d.cpu_quota_us, d.cpu_millis) = (5000, 50), "cpu_quota_us"),
            (|d| d.cpu_shares = 1, "cpu_shares"),
            (|d| (d.cpu_shares, d.cpu_weight) = (2, 1), "cpu_shares"),
        ];
        for (change, field) in wrong {
            assert_eq!(fields(asked(change)), [format!("limits.{field}")]);
        }
        let update = UpdateLimits { cpu_millis: 100, cpu_weight: 7, ..UpdateLimits::default() };
        let limits = validate_limits(&update, &good, &Policy::default()).unwrap().limits;
        assert_eq!((limits.cpu_quota_us, limits.cpu_period_us, limits.cpu_shares, limits.cpu_weight), (0, 0, 0, 7));
        let none = UpdateLimits { cpu_quota_us: -1, ..UpdateLimits::default() };
        assert_eq!(validate_limits(&none, &good, &Policy::default()).unwrap().limits.cpu_quota_us, 0);
    }
}
