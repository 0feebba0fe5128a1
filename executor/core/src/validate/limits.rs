//! Validates the limits of a request, and new limits of a running container.

use super::{Draft, Policy, Report, Violation};
use crate::limits::{DISK_MIN, MEMORY_MIN, NOFILE_MIN, PIDS_MAX, PIDS_MIN, SIZE_MAX};
use crate::plan::{Limits, Plan, SidecarLimits};
use crate::protocol::UpdateLimits;
use crate::violation::ViolationReason::{Conflict, NotAllowed, OutOfRange, Required};

/// Fills in defaults, and checks the limits of a request.
pub(super) fn limits(draft: &Draft<'_>, policy: &Policy, report: &mut Report) -> Limits {
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    let limits = Limits {
        memory_bytes: or(draft.memory_bytes, policy.default_memory_bytes),
        pids: or(draft.pids, policy.default_pids),
        cpu_millis: draft.cpu_millis,
        nofile: draft.nofile.unwrap_or(policy.default_nofile),
        disk_bytes: or(draft.disk_bytes, policy.default_disk_bytes),
        cpu_weight: draft.cpu_weight,
        io_weight: draft.io_weight,
        swap_bytes: draft.swap_bytes,
        memory_reservation_bytes: draft.memory_reservation_bytes,
    };
    check(&limits, policy, report);
    if draft.actions.is_none() {
        nofile("action.run", limits.nofile, report);
    }
    limits
}

/// Validates new limits of a running container, and returns the plan with the new limits.
///
/// # Errors
/// Returns every violation.
pub fn validate_limits(update: &UpdateLimits, plan: &Plan, policy: &Policy) -> Result<Plan, Vec<Violation>> {
    let mut report = Report::default();
    if *update == UpdateLimits::default() {
        report.add("limits", Required.because("is empty: set at least one limit to change"));
    }
    let or = |new: u64, old: u64| if new == 0 { old } else { new };
    let weight = |new: u32, old: u32| if new == 0 { old } else { new };
    let old = &plan.limits;
    let limits = Limits {
        memory_bytes: or(update.memory_bytes, old.memory_bytes),
        pids: or(update.pids, old.pids),
        cpu_millis: or(update.cpu_millis, old.cpu_millis),
        cpu_weight: weight(update.cpu_weight, old.cpu_weight),
        io_weight: weight(update.io_weight, old.io_weight),
        swap_bytes: update.swap_bytes.or(old.swap_bytes),
        memory_reservation_bytes: or(update.memory_reservation_bytes, old.memory_reservation_bytes),
        ..*old
    };
    check(&limits, policy, &mut report);
    if let Some(actions) = &plan.actions {
        for (index, limited) in &actions.sidecar_limits {
            sidecar_limits(*index, limited, actions.sidecars.len(), &limits, &mut report);
        }
    }
    if let Some(size) = plan.writable_files.map(|files| files.bytes_max).filter(|size| *size > limits.memory_bytes) {
        let why = format!("is {}; at least {size} (the size of writable_files) is required", limits.memory_bytes);
        report.add("limits.memory_bytes", Conflict.because(why));
    }
    if report.0.is_empty() { Ok(Plan { limits, ..plan.clone() }) } else { Err(report.0) }
}

/// Checks every limit except the limit on open files.
fn check(limits: &Limits, policy: &Policy, report: &mut Report) {
    let mut range = |field: &str, value: u64, least: u64, most: u64| {
        if value < least || value > most {
            report.add(field, OutOfRange.because(format!("is {value}; {least} to {most} is allowed")));
        }
    };
    range("limits.memory_bytes", limits.memory_bytes, MEMORY_MIN, SIZE_MAX);
    range("limits.pids", limits.pids, PIDS_MIN, PIDS_MAX);
    if limits.cpu_millis != 0 {
        range("limits.cpu_millis", limits.cpu_millis, 10, 4_096_000);
    }
    if limits.disk_bytes != 0 {
        range("limits.disk_bytes", limits.disk_bytes, DISK_MIN, SIZE_MAX);
    }
    for (field, weight) in [("limits.cpu_weight", limits.cpu_weight), ("limits.io_weight", limits.io_weight)] {
        if weight != 0 {
            range(field, u64::from(weight), 1, 10_000);
        }
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
    if memory_bytes != 0 && !(MEMORY_MIN..=limits.memory_bytes).contains(&memory_bytes) {
        let (least, most) = (MEMORY_MIN.div_ceil(MB), limits.memory_bytes / MB);
        let why = format!("is {}; {least} to {most} (the container's limit) is allowed, or 0", memory_bytes / MB);
        report.add(format!("sidecars[{index}].memory_mb"), OutOfRange.because(why));
    }
    if pids != 0 && !(PIDS_MIN..=limits.pids).contains(&pids) {
        let why = format!("is {pids}; {PIDS_MIN} to {} (the container's limit) is allowed, or 0", limits.pids);
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
    use crate::plan::WritableFiles;
    use crate::validate::validate;

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
}
