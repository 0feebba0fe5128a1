//! Reads the strategies for replacing the pods of a workload (rule P61 of `docs/guides/kube-rules.md`).

use k8s_openapi::api::apps::v1::{DaemonSetUpdateStrategy, DeploymentStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Update;
use crate::located::Located;
use crate::report::Report;

/// Reads the replacement strategy of a Deployment. The numbers in it are validated but have no effect, because pods are
/// replaced one by one (rule P61).
pub(super) fn strategy(object: &Located, strategy: Option<&DeploymentStrategy>, report: &mut Report) -> Update {
    let Some(strategy) = strategy else { return Update::Rolling };
    let update = match strategy.type_.as_deref() {
        None | Some("" | "RollingUpdate") => Update::Rolling,
        Some("Recreate") => Update::Recreate,
        Some(_) => {
            report.refuse(&object.origin, "spec.strategy.type", "P61", "must be RollingUpdate or Recreate");
            return Update::Rolling;
        }
    };
    let Some(rolling) = &strategy.rolling_update else { return update };
    let at = "spec.strategy.rollingUpdate";
    if update == Update::Recreate {
        report.refuse(&object.origin, at, "P61", "is not allowed with the type Recreate");
        return update;
    }
    let unavailable = amount(object, &format!("{at}.maxUnavailable"), rolling.max_unavailable.as_ref(), 25, report);
    let surge = amount(object, &format!("{at}.maxSurge"), rolling.max_surge.as_ref(), 25, report);
    if (unavailable, surge) == (Some(0), Some(0)) {
        report.refuse(&object.origin, at, "P61", "has 0 for maxSurge and maxUnavailable: no pod could be replaced");
    }
    update
}

/// Reads a number or a percentage of pods. Reports a violation and returns `None` if the value is neither, or if
/// `maxUnavailable` is more than 100%.
pub(super) fn amount(
    object: &Located,
    path: &str,
    value: Option<&IntOrString>,
    default: u32,
    report: &mut Report,
) -> Option<u32> {
    let (number, is_share) = match value {
        None => return Some(default),
        Some(IntOrString::Int(number)) => (u32::try_from(*number).ok(), false),
        Some(IntOrString::String(text)) => {
            let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            (digits.and_then(|digits| digits.parse().ok()), true)
        }
    };
    let message = match number {
        None => "must be a whole number of 0 or more, or a percentage such as 25%",
        Some(101..) if is_share && path.ends_with("maxUnavailable") => "is more than 100%",
        Some(_) => return number,
    };
    report.refuse(&object.origin, path, "P61", message);
    None
}

/// Checks the rollout settings of a DaemonSet, which have no effect because there is only one pod.
pub(super) fn daemon_rollout(object: &Located, update: &DaemonSetUpdateStrategy, report: &mut Report) {
    let Some(rolling) = update.rolling_update.as_ref().filter(|_| update.type_.as_deref() != Some("OnDelete")) else {
        return;
    };
    let at = "spec.updateStrategy.rollingUpdate";
    let unavailable = amount(object, &format!("{at}.maxUnavailable"), rolling.max_unavailable.as_ref(), 1, report);
    let surge = amount(object, &format!("{at}.maxSurge"), rolling.max_surge.as_ref(), 0, report);
    match (unavailable, surge) {
        (Some(0), Some(0)) => {
            report.refuse(&object.origin, at, "P61", "has 0 for maxSurge and maxUnavailable: no pod could be replaced");
        }
        (Some(1..), Some(1..)) => {
            let message = "requires maxUnavailable: 0 (the default is 1)";
            report.refuse(&object.origin, format!("{at}.maxSurge"), "P61", message);
        }
        _ => {}
    }
}

/// Reads the replacement strategy of kinds that allow only RollingUpdate and OnDelete.
pub(super) fn on_delete(object: &Located, kind: Option<&str>, report: &mut Report) -> Update {
    match kind {
        None | Some("" | "RollingUpdate") => Update::Rolling,
        Some("OnDelete") => Update::OnDelete,
        Some(_) => {
            report.refuse(&object.origin, "spec.updateStrategy.type", "P61", "must be RollingUpdate or OnDelete");
            Update::Rolling
        }
    }
}

pub(super) fn ordinal(object: &Located, path: &str, value: Option<i32>, report: &mut Report) -> u32 {
    let value = value.unwrap_or(0);
    if value < 0 {
        report.refuse(&object.origin, path, "P61", format!("is {value}; it must be 0 or more"));
    }
    u32::try_from(value).unwrap_or(0)
}

pub(super) fn unready(object: &Located, seconds: Option<i32>, report: &mut Report) {
    match seconds {
        Some(..=-1) => report.refuse(&object.origin, "spec.minReadySeconds", "P61", "must be 0 or more"),
        Some(1..) => {
            report.warn(
                &object.origin,
                "spec.minReadySeconds",
                "P61",
                "is ignored: a ready pod counts as available immediately",
            );
        }
        _ => {}
    }
}
