//! Workloads: a pod template, the number of pods, and how pods are replaced (P61, P62).

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    DaemonSet, DaemonSetUpdateStrategy, Deployment, DeploymentStrategy, ReplicaSet, StatefulSet,
};
use k8s_openapi::api::batch::v1::{CronJob, Job, JobSpec};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::job::{CronSpec, JobRun, Schedule};
use crate::located::{Located, shown};
use crate::names::{is_label_value, is_qualified};
use crate::report::{Origin, Report};

/// Maximum number of pods of one workload.
pub const REPLICAS_MAX: i32 = 1000;

/// Maximum length of the name of a CronJob.
const CRON_NAME_MAX: usize = 52;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A single pod.
    Pod,
    Deployment,
    ReplicaSet,
    StatefulSet,
    /// One pod, because there is one node.
    DaemonSet,
    Job,
    CronJob,
}

impl Kind {
    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "Pod" => Self::Pod,
            "Deployment" => Self::Deployment,
            "ReplicaSet" => Self::ReplicaSet,
            "StatefulSet" => Self::StatefulSet,
            "DaemonSet" => Self::DaemonSet,
            "Job" => Self::Job,
            "CronJob" => Self::CronJob,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
        }
    }

    /// Returns the supported API version.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Pod => "v1",
            Self::Deployment | Self::ReplicaSet | Self::StatefulSet | Self::DaemonSet => "apps/v1",
            Self::Job | Self::CronJob => "batch/v1",
        }
    }

    /// Returns the path of the pod's metadata and spec in the object.
    pub fn template_path(self) -> &'static str {
        match self {
            Self::Pod => "",
            Self::CronJob => "spec.jobTemplate.spec.template",
            _ => "spec.template",
        }
    }
}

/// Strategy for replacing the pods of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Update {
    /// One after the other, each when the previous pod is ready.
    #[default]
    Rolling,
    /// All pods are stopped first.
    Recreate,
    /// Only pods that are deleted by hand are replaced.
    OnDelete,
}

#[derive(Clone, Debug)]
pub struct Workload {
    pub origin: Origin,
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    /// Labels of the object itself.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the object itself.
    pub annotations: BTreeMap<String, String>,
    /// Labels that the selector requires.
    pub match_labels: BTreeMap<String, String>,
    /// Template of its pods. A caller may change it before the workload is lowered.
    pub template: PodTemplateSpec,
    /// Number of pods; for a Job, of its runs.
    pub replicas: u32,
    /// Replacement strategy.
    pub update: Update,
    /// True if each pod is started only when the previous pod is ready (StatefulSet).
    pub in_order: bool,
    /// Number of the first pod (StatefulSet).
    pub first: u32,
    /// Pods with a lower number are not replaced (StatefulSet).
    pub partition: u32,
    /// Parameters of a Job, also of a CronJob's.
    pub job: Option<JobRun>,
    /// Parameters of a CronJob.
    pub cron: Option<CronSpec>,
}

impl Workload {
    /// Returns the path in the object of a field of the pod: `spec.template.spec.containers[0]`.
    pub fn path(&self, field: &str) -> String {
        match self.kind.template_path() {
            "" => field.to_owned(),
            template => format!("{template}.{field}"),
        }
    }

    /// Returns the names of its pods, in order.
    pub fn pod_names(&self) -> Vec<String> {
        match self.kind {
            Kind::Pod | Kind::DaemonSet => vec![self.name.clone()],
            _ => (self.first..self.first + self.replicas).map(|index| format!("{}-{index}", self.name)).collect(),
        }
    }
}

pub(crate) fn read(kind: Kind, object: &Located, report: &mut Report) -> Option<Workload> {
    let found = report.count();
    let workload = match kind {
        Kind::Pod => {
            let pod: Pod = object.decode(report)?;
            let template = PodTemplateSpec { metadata: Some(pod.metadata.clone()), spec: pod.spec };
            if template.spec.is_none() {
                report.refuse(&object.origin, "spec", "P3", "is missing");
            }
            workload(kind, object, pod.metadata, template, 1)
        }
        Kind::Deployment => {
            let Deployment { metadata, spec, .. } = object.decode(report)?;
            let spec = spec.unwrap_or_default();
            let replicas = replicas(object, spec.replicas, report);
            let mut workload = workload(kind, object, metadata, spec.template, replicas);
            workload.update = strategy(object, spec.strategy.as_ref(), report);
            unready(object, spec.min_ready_seconds, report);
            if spec.paused == Some(true) {
                report.warn(&object.origin, "spec.paused", "P61", "is ignored: the pods are played");
            }
            selected(workload, &spec.selector, report)
        }
        Kind::ReplicaSet => {
            let ReplicaSet { metadata, spec, .. } = object.decode(report)?;
            let spec = spec.unwrap_or_default();
            let replicas = replicas(object, spec.replicas, report);
            let template = spec.template.unwrap_or_default();
            unready(object, spec.min_ready_seconds, report);
            let mut workload = workload(kind, object, metadata, template, replicas);
            workload.update = Update::OnDelete;
            selected(workload, &spec.selector, report)
        }
        Kind::StatefulSet => {
            let StatefulSet { metadata, spec, .. } = object.decode(report)?;
            let spec = spec.unwrap_or_default();
            if spec.volume_claim_templates.as_ref().is_some_and(|claims| !claims.is_empty()) {
                let message =
                    "claims of volumes are not supported: use an emptyDir, or a hostPath that the operator lends";
                report.refuse(&object.origin, "spec.volumeClaimTemplates", "P61", message);
            }
            let replicas = replicas(object, spec.replicas, report);
            let mut template = spec.template;
            // Avoids further violations for their mounts.
            let claims = spec.volume_claim_templates.into_iter().flatten().filter_map(|claim| claim.metadata.name);
            if let Some(spec) = &mut template.spec {
                let volumes = spec.volumes.get_or_insert_default();
                for name in claims {
                    if volumes.iter().all(|volume| volume.name != name) {
                        volumes.push(Volume { name, ..Volume::default() });
                    }
                }
            }
            let mut workload = workload(kind, object, metadata, template, replicas);
            workload.in_order = match spec.pod_management_policy.as_deref() {
                None | Some("" | "OrderedReady") => true,
                Some("Parallel") => false,
                Some(_) => {
                    let message = "must be OrderedReady or Parallel";
                    report.refuse(&object.origin, "spec.podManagementPolicy", "P61", message);
                    true
                }
            };
            unready(object, spec.min_ready_seconds, report);
            let update = spec.update_strategy.unwrap_or_default();
            workload.update = on_delete(object, update.type_.as_deref(), report);
            workload.first =
                ordinal(object, "spec.ordinals.start", spec.ordinals.and_then(|ordinals| ordinals.start), report);
            let rolling_at = "spec.updateStrategy.rollingUpdate";
            if workload.update == Update::OnDelete && update.rolling_update.is_some() {
                report.refuse(&object.origin, rolling_at, "P61", "is not allowed with the type OnDelete");
            }
            let unavailable_at = format!("{rolling_at}.maxUnavailable");
            let unavailable = update.rolling_update.as_ref().and_then(|rolling| rolling.max_unavailable.as_ref());
            if amount(object, &unavailable_at, unavailable, 1, report) == Some(0) {
                report.refuse(&object.origin, unavailable_at, "P61", "is 0: no pod could ever be replaced");
            }
            if let Some(policy) = &spec.persistent_volume_claim_retention_policy {
                for (field, value) in [("whenDeleted", &policy.when_deleted), ("whenScaled", &policy.when_scaled)] {
                    if !matches!(value.as_deref(), None | Some("" | "Retain" | "Delete")) {
                        let path = format!("spec.persistentVolumeClaimRetentionPolicy.{field}");
                        report.refuse(&object.origin, path, "P61", "must be Retain or Delete");
                    }
                }
            }
            let partition = update.rolling_update.and_then(|rolling| rolling.partition);
            workload.partition = ordinal(object, "spec.updateStrategy.rollingUpdate.partition", partition, report);
            selected(workload, &spec.selector, report)
        }
        Kind::DaemonSet => {
            let DaemonSet { metadata, spec, .. } = object.decode(report)?;
            let spec = spec.unwrap_or_default();
            let mut workload = workload(kind, object, metadata, spec.template, 1);
            unready(object, spec.min_ready_seconds, report);
            let update = spec.update_strategy.unwrap_or_default();
            workload.update = on_delete(object, update.type_.as_deref(), report);
            daemon_rollout(object, &update, report);
            selected(workload, &spec.selector, report)
        }
        Kind::Job => {
            let Job { metadata, spec, .. } = object.decode(report)?;
            job(kind, object, metadata, spec.unwrap_or_default(), "spec", report)
        }
        Kind::CronJob => {
            let CronJob { metadata, spec, .. } = object.decode(report)?;
            let schedule = Schedule::parse(&spec.schedule);
            if let Err(message) = &schedule {
                report.refuse(&object.origin, "spec.schedule", "P62", message.clone());
            }
            let asked = spec.concurrency_policy.as_deref().filter(|policy| !policy.is_empty());
            let concurrency = asked.unwrap_or("Allow");
            let origin = &object.origin;
            if !["Allow", "Forbid", "Replace"].contains(&concurrency) {
                report.refuse(origin, "spec.concurrencyPolicy", "P62", "must be Allow, Forbid or Replace");
            } else if asked.is_some() && concurrency != "Forbid" {
                let message =
                    format!("{concurrency} acts as Forbid: a run that is due while another one runs is skipped");
                report.warn(origin, "spec.concurrencyPolicy", "P62", message);
            }
            if spec.time_zone.as_ref().is_some_and(|zone| !is_time_zone(zone)) {
                let message = "is not the name of a time zone, such as Europe/Berlin";
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
                    "is ignored: the last run is kept until the next one",
                ),
                (
                    "failedJobsHistoryLimit",
                    spec.failed_jobs_history_limit.map(i64::from),
                    "is ignored: the last run is kept until the next one",
                ),
            ] {
                match value {
                    Some(..=-1) => report.refuse(origin, format!("spec.{field}"), "P62", "is below 0"),
                    Some(_) => report.warn(origin, format!("spec.{field}"), "P62", message),
                    None => {}
                }
            }
            if object.names(&metadata).1.len() > CRON_NAME_MAX {
                let message = format!("is longer than {CRON_NAME_MAX}; the names of jobs are derived from it");
                report.refuse(origin, "metadata.name", "P62", message);
            }
            let path = "spec.jobTemplate.spec";
            let mut workload = job(kind, object, metadata, spec.job_template.spec.unwrap_or_default(), path, report);
            workload.cron = schedule.ok().map(|schedule| CronSpec {
                schedule,
                time_zone: spec.time_zone,
                concurrency: concurrency.to_owned(),
                suspended: spec.suspend.unwrap_or(false),
            });
            workload
        }
    };
    // An invalid workload is not lowered, which would report its paths again.
    (report.count() == found || workload.template.spec.is_some()).then_some(workload)
}

fn workload(kind: Kind, object: &Located, metadata: ObjectMeta, template: PodTemplateSpec, replicas: u32) -> Workload {
    let (namespace, name) = object.names(&metadata);
    Workload {
        origin: object.origin.clone(),
        kind,
        namespace,
        name,
        labels: metadata.labels.unwrap_or_default(),
        annotations: metadata.annotations.unwrap_or_default(),
        match_labels: BTreeMap::new(),
        template,
        replicas,
        update: Update::default(),
        in_order: false,
        first: 0,
        partition: 0,
        job: None,
        cron: None,
    }
}

fn replicas(object: &Located, replicas: Option<i32>, report: &mut Report) -> u32 {
    let replicas = replicas.unwrap_or(1);
    if !(0..=REPLICAS_MAX).contains(&replicas) {
        report.refuse(&object.origin, "spec.replicas", "P61", format!("is {replicas}; it must be 0 to {REPLICAS_MAX}"));
    }
    u32::try_from(replicas.clamp(0, REPLICAS_MAX)).unwrap_or(0)
}

/// Reads the replacement strategy of a Deployment. The numbers are checked but have no effect: pods are replaced one by
/// one (P61).
fn strategy(object: &Located, strategy: Option<&DeploymentStrategy>, report: &mut Report) -> Update {
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
        report.refuse(&object.origin, at, "P61", "has 0 for both: no pod could ever be replaced");
    }
    update
}

/// Reads a number or a share of pods. Returns `None` if it is neither, or if more pods than all are to be unavailable.
fn amount(object: &Located, path: &str, value: Option<&IntOrString>, default: u32, report: &mut Report) -> Option<u32> {
    let (number, is_share) = match value {
        None => return Some(default),
        Some(IntOrString::Int(number)) => (u32::try_from(*number).ok(), false),
        Some(IntOrString::String(text)) => {
            let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            (digits.and_then(|digits| digits.parse().ok()), true)
        }
    };
    let message = match number {
        None => "is neither a whole number from 0 nor a share such as 25%",
        Some(101..) if is_share && path.ends_with("maxUnavailable") => "is more than 100%",
        Some(_) => return number,
    };
    report.refuse(&object.origin, path, "P61", message);
    None
}

/// Checks the rollout of a DaemonSet, which has no effect because there is one pod.
fn daemon_rollout(object: &Located, update: &DaemonSetUpdateStrategy, report: &mut Report) {
    let Some(rolling) = update.rolling_update.as_ref().filter(|_| update.type_.as_deref() != Some("OnDelete")) else {
        return;
    };
    let at = "spec.updateStrategy.rollingUpdate";
    let unavailable = amount(object, &format!("{at}.maxUnavailable"), rolling.max_unavailable.as_ref(), 1, report);
    let surge = amount(object, &format!("{at}.maxSurge"), rolling.max_surge.as_ref(), 0, report);
    match (unavailable, surge) {
        (Some(0), Some(0)) => report.refuse(&object.origin, at, "P61", "has 0 for both: no pod could ever be replaced"),
        (Some(1..), Some(1..)) => {
            let message = "requires maxUnavailable: 0 (the default is 1)";
            report.refuse(&object.origin, format!("{at}.maxSurge"), "P61", message);
        }
        _ => {}
    }
}

/// Reads the strategy of kinds whose pods are replaced in order, or after they were removed by hand.
fn on_delete(object: &Located, kind: Option<&str>, report: &mut Report) -> Update {
    match kind {
        None | Some("" | "RollingUpdate") => Update::Rolling,
        Some("OnDelete") => Update::OnDelete,
        Some(_) => {
            report.refuse(&object.origin, "spec.updateStrategy.type", "P61", "must be RollingUpdate or OnDelete");
            Update::Rolling
        }
    }
}

fn ordinal(object: &Located, path: &str, value: Option<i32>, report: &mut Report) -> u32 {
    let value = value.unwrap_or(0);
    if value < 0 {
        report.refuse(&object.origin, path, "P61", format!("is {value}; it must not be below 0"));
    }
    u32::try_from(value).unwrap_or(0)
}

fn unready(object: &Located, seconds: Option<i32>, report: &mut Report) {
    match seconds {
        Some(..=-1) => report.refuse(&object.origin, "spec.minReadySeconds", "P61", "is below 0"),
        Some(1..) => {
            report.warn(
                &object.origin,
                "spec.minReadySeconds",
                "P61",
                "is ignored: a pod that is ready counts at once",
            );
        }
        _ => {}
    }
}

/// Returns true if a text can be the name of a time zone: it becomes a word of a unit.
fn is_time_zone(text: &str) -> bool {
    let plain = |part: &str| {
        (1..=14).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_+.".contains(&byte))
            && part != "."
            && part != ".."
    };
    !text.eq_ignore_ascii_case("local") && text.split('/').all(plain)
}

/// Checks that the template's labels match the selector (P61).
fn selected(mut workload: Workload, selector: &LabelSelector, report: &mut Report) -> Workload {
    let labels = workload.template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    let wanted = selector.match_labels.clone().unwrap_or_default();
    let expressions = selector.match_expressions.clone().unwrap_or_default();
    if wanted.is_empty() && expressions.is_empty() {
        report.refuse(&workload.origin, "spec.selector", "P61", "is missing, or selects nothing");
    }
    for (path, fault) in selector_faults(selector) {
        report.refuse(&workload.origin, format!("spec.selector.{path}"), "P61", fault);
    }
    let matches = wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.iter().all(|rule| {
            let has = labels.get(&rule.key);
            let values = rule.values.as_deref().unwrap_or_default();
            match &*rule.operator {
                "In" => has.is_some_and(|value| values.contains(value)),
                "NotIn" => has.is_none_or(|value| !values.contains(value)),
                "Exists" => has.is_some(),
                "DoesNotExist" => has.is_none(),
                _ => false,
            }
        });
    if !matches {
        report.refuse(&workload.origin, "spec.selector", "P61", "does not match the labels of spec.template");
    }
    workload.match_labels = wanted;
    workload
}

/// Returns the faults of a label selector, each with its path in the selector.
pub(crate) fn selector_faults(selector: &LabelSelector) -> Vec<(String, &'static str)> {
    let mut faults = Vec::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        if !is_qualified(key) || !is_label_value(value) {
            faults.push((format!("matchLabels['{}']", shown(key)), "is not a label"));
        }
    }
    for (index, rule) in selector.match_expressions.iter().flatten().enumerate() {
        let path = format!("matchExpressions[{index}]");
        let values = rule.values.as_deref().unwrap_or_default();
        if !is_qualified(&rule.key) {
            faults.push((format!("{path}.key"), "is not the key of a label"));
        }
        if values.iter().any(|value| !is_label_value(value)) {
            faults.push((format!("{path}.values"), "has one that is not the value of a label"));
        }
        let fault = match (&*rule.operator, !values.is_empty()) {
            ("In" | "NotIn", false) => "has no values, which In and NotIn need",
            ("Exists" | "DoesNotExist", true) => "has values, which Exists and DoesNotExist do not take",
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => continue,
            _ => "has an operator that is none of In, NotIn, Exists and DoesNotExist",
        };
        faults.push((path, fault));
    }
    faults
}

fn job(kind: Kind, object: &Located, metadata: ObjectMeta, spec: JobSpec, path: &str, report: &mut Report) -> Workload {
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
    // Without completions, as many pods run once as the parallelism allows: one success means that the work is done.
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
        Some(..=-1) => report.refuse(origin, ttl, "P62", "is below 0"),
        Some(_) => report.warn(origin, ttl, "P62", "is ignored: the pods stay until `down`"),
        None => {}
    }
    if spec.active_deadline_seconds.is_some_and(|seconds| seconds < 0) {
        report.refuse(origin, format!("{path}.activeDeadlineSeconds"), "P62", "is below 0");
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
