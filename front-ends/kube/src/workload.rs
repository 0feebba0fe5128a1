//! Reads workloads: a pod template, the number of pods, and the strategy for replacing pods (rules P61 and P62 of
//! `docs/guides/kube-rules.md`).

mod jobs;
mod rollout;
mod selector;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
pub(crate) use selector::selector_faults;

use crate::job::{CronSpec, JobRun};
use crate::located::Located;
use crate::report::{Origin, Report};

/// Maximum number of pods of one workload.
pub const REPLICAS_MAX: i32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A single pod.
    Pod,
    Deployment,
    ReplicaSet,
    StatefulSet,
    /// Runs one pod, because there is only one node.
    DaemonSet,
    Job,
    CronJob,
}

impl Kind {
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

    /// Returns the API version in which this kind is supported.
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
    /// Pods are replaced one by one. Each waits until the previous pod is ready.
    #[default]
    Rolling,
    /// All old pods are stopped before the new pods are started.
    Recreate,
    /// Only pods that the user has deleted are replaced.
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
    /// Template of the pods. A caller may change the template before the workload is lowered.
    pub template: PodTemplateSpec,
    /// Number of pods; for a Job, the number of completions.
    pub replicas: u32,
    /// Strategy by which existing pods are replaced.
    pub update: Update,
    /// True if each pod is started only when the previous pod is ready (StatefulSet).
    pub in_order: bool,
    /// Index of the first pod (StatefulSet).
    pub first: u32,
    /// Pods with a lower index are not replaced (StatefulSet).
    pub partition: u32,
    /// Parameters of a Job, or of the Job in a CronJob.
    pub job: Option<JobRun>,
    /// Parameters of a CronJob.
    pub cron: Option<CronSpec>,
}

impl Workload {
    /// Returns the path in the object for a field of the pod, for example `spec.template.spec.containers[0]`.
    pub fn path(&self, field: &str) -> String {
        match self.kind.template_path() {
            "" => field.to_owned(),
            template => format!("{template}.{field}"),
        }
    }

    /// Returns the names of the workload's pods, in order.
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
            workload.update = rollout::strategy(object, spec.strategy.as_ref(), report);
            rollout::unready(object, spec.min_ready_seconds, report);
            if spec.paused == Some(true) {
                report.warn(&object.origin, "spec.paused", "P61", "is ignored: the pods are created anyway");
            }
            selector::selected(workload, &spec.selector, report)
        }
        Kind::ReplicaSet => {
            let ReplicaSet { metadata, spec, .. } = object.decode(report)?;
            let spec = spec.unwrap_or_default();
            let replicas = replicas(object, spec.replicas, report);
            let template = spec.template.unwrap_or_default();
            rollout::unready(object, spec.min_ready_seconds, report);
            let mut workload = workload(kind, object, metadata, template, replicas);
            workload.update = Update::OnDelete;
            selector::selected(workload, &spec.selector, report)
        }
        Kind::StatefulSet => stateful_set(object, report)?,
        Kind::DaemonSet => {
            let DaemonSet { metadata, spec, .. } = object.decode(report)?;
            let spec = spec.unwrap_or_default();
            let mut workload = workload(kind, object, metadata, spec.template, 1);
            rollout::unready(object, spec.min_ready_seconds, report);
            let update = spec.update_strategy.unwrap_or_default();
            workload.update = rollout::on_delete(object, update.type_.as_deref(), report);
            rollout::daemon_rollout(object, &update, report);
            selector::selected(workload, &spec.selector, report)
        }
        Kind::Job => {
            let Job { metadata, spec, .. } = object.decode(report)?;
            jobs::job(kind, object, metadata, spec.unwrap_or_default(), "spec", report)
        }
        Kind::CronJob => jobs::cron_job(object, report)?,
    };
    // If the workload is invalid and has no pod spec, do not lower it: lowering would report the missing spec again.
    (report.count() == found || workload.template.spec.is_some()).then_some(workload)
}

/// Reads a StatefulSet, whose pods are replaced in order.
fn stateful_set(object: &Located, report: &mut Report) -> Option<Workload> {
    let StatefulSet { metadata, spec, .. } = object.decode(report)?;
    let spec = spec.unwrap_or_default();
    if spec.volume_claim_templates.as_ref().is_some_and(|claims| !claims.is_empty()) {
        let message = "volume claims are not supported: use an emptyDir, or a hostPath that the operator offers";
        report.refuse(&object.origin, "spec.volumeClaimTemplates", "P61", message);
    }
    let replicas = replicas(object, spec.replicas, report);
    let mut template = spec.template;
    // Add empty volumes, to avoid further violations for the mounts of the claims.
    let claims = spec.volume_claim_templates.into_iter().flatten().filter_map(|claim| claim.metadata.name);
    if let Some(spec) = &mut template.spec {
        let volumes = spec.volumes.get_or_insert_default();
        for name in claims {
            if volumes.iter().all(|volume| volume.name != name) {
                volumes.push(Volume { name, ..Volume::default() });
            }
        }
    }
    let mut workload = workload(Kind::StatefulSet, object, metadata, template, replicas);
    workload.in_order = match spec.pod_management_policy.as_deref() {
        None | Some("" | "OrderedReady") => true,
        Some("Parallel") => false,
        Some(_) => {
            let message = "must be OrderedReady or Parallel";
            report.refuse(&object.origin, "spec.podManagementPolicy", "P61", message);
            true
        }
    };
    rollout::unready(object, spec.min_ready_seconds, report);
    let update = spec.update_strategy.unwrap_or_default();
    workload.update = rollout::on_delete(object, update.type_.as_deref(), report);
    workload.first =
        rollout::ordinal(object, "spec.ordinals.start", spec.ordinals.and_then(|ordinals| ordinals.start), report);
    let rolling_at = "spec.updateStrategy.rollingUpdate";
    if workload.update == Update::OnDelete && update.rolling_update.is_some() {
        report.refuse(&object.origin, rolling_at, "P61", "is not allowed with the type OnDelete");
    }
    let unavailable_at = format!("{rolling_at}.maxUnavailable");
    let unavailable = update.rolling_update.as_ref().and_then(|rolling| rolling.max_unavailable.as_ref());
    if rollout::amount(object, &unavailable_at, unavailable, 1, report) == Some(0) {
        report.refuse(&object.origin, unavailable_at, "P61", "is 0: no pod could be replaced");
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
    workload.partition = rollout::ordinal(object, "spec.updateStrategy.rollingUpdate.partition", partition, report);
    Some(selector::selected(workload, &spec.selector, report))
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
