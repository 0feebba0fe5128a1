//! Reads Jobs and CronJobs (rule P62 of `docs/guides/kube-rules.md`).

use k8s_openapi::api::batch::v1::{CronJob, JobSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::selector::selector_faults;
use super::{Kind, REPLICAS_MAX, Workload, workload};
use crate::job::{CronSpec, JobRun, Schedule};
use crate::located::Located;
use crate::report::Report;

/// Maximum length of the name of a CronJob, in bytes.
const CRON_NAME_MAX: usize = 52;

/// Reads a CronJob and the Job in its template.
pub(super) fn cron_job(object: &Located, report: &mut Report) -> Option<Workload> {
    let CronJob { metadata, spec, .. } = object.decode(report)?;
    let schedule = Schedule::parse(&spec.schedule);
    if let Err(message) = &schedule {
        report.refuse(&object.origin, "spec.schedule", "P62", message.clone());
    }
    let policy = spec.concurrency_policy.as_deref().filter(|policy| !policy.is_empty());
    let concurrency = policy.unwrap_or("Allow");
    let origin = &object.origin;
    if !["Allow", "Forbid", "Replace"].contains(&concurrency) {
        report.refuse(origin, "spec.concurrencyPolicy", "P62", "must be Allow, Forbid or Replace");
    } else if policy.is_some() && concurrency != "Forbid" {
        let message = format!("{concurrency} acts as Forbid: a run that is due during another run is skipped");
        report.warn(origin, "spec.concurrencyPolicy", "P62", message);
    }
    if spec.time_zone.as_ref().is_some_and(|zone| !is_time_zone(zone)) {
        let message = "is not a time zone name such as Europe/Berlin";
        report.refuse(origin, "spec.timeZone", "P62", message);
    }
    for (field, value, message) in [
        (
            "startingDeadlineSeconds",
            spec.starting_deadline_seconds,
            "is ignored: a missed run is started once, however late",
        ),
        (
            "successfulJobsHistoryLimit",
            spec.successful_jobs_history_limit.map(i64::from),
            "is ignored: the last run is kept until the next run",
        ),
        (
            "failedJobsHistoryLimit",
            spec.failed_jobs_history_limit.map(i64::from),
            "is ignored: the last run is kept until the next run",
        ),
    ] {
        match value {
            Some(..=-1) => report.refuse(origin, format!("spec.{field}"), "P62", "must be 0 or more"),
            Some(_) => report.warn(origin, format!("spec.{field}"), "P62", message),
            None => {}
        }
    }
    if object.names(&metadata).1.len() > CRON_NAME_MAX {
        let message = format!("is longer than {CRON_NAME_MAX} bytes; job names are derived from this name");
        report.refuse(origin, "metadata.name", "P62", message);
    }
    let path = "spec.jobTemplate.spec";
    let mut workload = job(Kind::CronJob, object, metadata, spec.job_template.spec.unwrap_or_default(), path, report);
    workload.cron = schedule.ok().map(|schedule| CronSpec {
        schedule,
        time_zone: spec.time_zone,
        concurrency: concurrency.to_owned(),
        suspended: spec.suspend.unwrap_or(false),
    });
    Some(workload)
}

/// Returns true if a string has the form of a time zone name. The name is written into a systemd unit.
fn is_time_zone(text: &str) -> bool {
    let plain = |part: &str| {
        (1..=14).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_+.".contains(&byte))
            && part != "."
            && part != ".."
    };
    !text.eq_ignore_ascii_case("local") && text.split('/').all(plain)
}

/// Reads a Job, whose spec is at `path` in the object.
pub(super) fn job(
    kind: Kind,
    object: &Located,
    metadata: ObjectMeta,
    spec: JobSpec,
    path: &str,
    report: &mut Report,
) -> Workload {
    let origin = &object.origin;
    let number = |field: &str, value: Option<i32>, default: i32, report: &mut Report| {
        let value = value.unwrap_or(default);
        if !(0..=REPLICAS_MAX).contains(&value) {
            report.refuse(
                origin,
                format!("{path}.{field}"),
                "P62",
                format!("is {value}; it must be 0 to {REPLICAS_MAX}"),
            );
        }
        u32::try_from(value.clamp(0, REPLICAS_MAX)).unwrap_or(0)
    };
    let indexed = match spec.completion_mode.as_deref() {
        None | Some("NonIndexed") => false,
        Some("Indexed") => true,
        Some(_) => {
            report.refuse(origin, format!("{path}.completionMode"), "P62", "must be NonIndexed or Indexed");
            false
        }
    };
    let parallelism = number("parallelism", spec.parallelism, 1, report);
    // If `completions` is unset, the Job runs as many pods as `parallelism` allows, each once.
    let completions = number("completions", spec.completions, i32::try_from(parallelism).unwrap_or(1).max(1), report);
    if indexed && spec.completions.is_none() {
        report.refuse(origin, format!("{path}.completions"), "P62", "is missing: an Indexed job needs it");
    }
    for (field, is_set) in [
        ("podFailurePolicy", spec.pod_failure_policy.is_some()),
        ("successPolicy", spec.success_policy.is_some()),
        ("backoffLimitPerIndex", spec.backoff_limit_per_index.is_some()),
        ("maxFailedIndexes", spec.max_failed_indexes.is_some()),
        ("managedBy", spec.managed_by.is_some()),
    ] {
        if is_set {
            report.refuse(origin, format!("{path}.{field}"), "P62", "is not supported here");
        }
    }
    let replacement = format!("{path}.podReplacementPolicy");
    match spec.pod_replacement_policy.as_deref() {
        None => {}
        Some("TerminatingOrFailed" | "Failed") => {
            report.warn(origin, replacement, "P62", "is ignored: a container that fails is restarted in its pod");
        }
        Some(_) => report.refuse(origin, replacement, "P62", "must be TerminatingOrFailed or Failed"),
    }
    match (spec.manual_selector == Some(true), &spec.selector) {
        (true, None) => report.refuse(origin, format!("{path}.selector"), "P62", "is required with manualSelector"),
        (false, Some(_)) => {
            let message = "is set by Kubernetes: remove it, or set manualSelector: true";
            report.refuse(origin, format!("{path}.selector"), "P62", message);
        }
        (true, Some(selector)) => {
            for (below, fault) in selector_faults(selector) {
                report.refuse(origin, format!("{path}.selector.{below}"), "P62", fault);
            }
        }
        (false, None) => {}
    }
    let ttl = format!("{path}.ttlSecondsAfterFinished");
    match spec.ttl_seconds_after_finished {
        Some(..=-1) => report.refuse(origin, ttl, "P62", "must be 0 or more"),
        Some(_) => report.warn(origin, ttl, "P62", "is ignored: the pods stay until `down`"),
        None => {}
    }
    if spec.active_deadline_seconds.is_some_and(|seconds| seconds < 0) {
        report.refuse(origin, format!("{path}.activeDeadlineSeconds"), "P62", "must be 0 or more");
    }
    let policy = spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    if !matches!(policy, Some("OnFailure" | "Never")) {
        report.refuse(
            origin,
            format!("{path}.template.spec.restartPolicy"),
            "P62",
            "must be OnFailure or Never in a Job",
        );
    }
    let run = JobRun {
        completions,
        parallelism: parallelism.max(1),
        backoff_limit: number("backoffLimit", spec.backoff_limit, 6, report),
        indexed,
        suspended: spec.suspend.unwrap_or(false) || parallelism == 0,
        deadline_seconds: spec.active_deadline_seconds.and_then(|seconds| u64::try_from(seconds).ok()),
    };
    let mut workload = workload(kind, object, metadata, spec.template, completions);
    workload.job = Some(run);
    workload
}
