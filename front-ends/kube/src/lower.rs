//! Lowers workloads to pods, with a run request for each container. Unsupported fields are refused by name or reported
//! as warnings.
//!
//! Rules are numbered as in `docs/guides/kube-rules.md`.

mod apparmor;
mod checks;
mod container;
mod placement;
mod resources;
mod security;
mod shared;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use executor_client::v1::CreatePodRequest;
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest as _, Sha256};

use crate::config::Config;
use crate::names::is_label;
use crate::object::{Objects, check_annotations, check_labels};
use crate::options::Options;
use crate::plan::{self, CronPlan, Member, Plan, PodPlan, Role};
use crate::report::{Report, Violation, Violations};
use crate::workload::{Kind, Update, Workload};

/// Maximum length of the id of a pod or a container, in bytes.
const ID_MAX: usize = 128;
/// Maximum number of user labels on a pod. executord accepts 64 labels, including internal labels.
const LABELS_MAX: usize = 40;
/// Maximum number of pods in all files.
const PODS_MAX: usize = 10_000;
/// Maximum total size of the files, variables and arguments of all containers, in bytes.
const BYTES_MAX: usize = 128 << 20;

/// Lowers all objects. `report` contains the violations and warnings from reading them.
///
/// # Errors
/// Returns all violations if reading or lowering found any.
pub fn lower(objects: &Objects, options: &Options, mut report: Report) -> Result<(Plan, Vec<Violation>), Violations> {
    let mut plan = Plan::default();
    let mut budget = Budget { too_many_pods: too_many_pods(objects, &mut report), bytes: BYTES_MAX };
    for workload in &objects.workloads {
        let pods = pods(workload, objects, options, &mut budget, &mut report);
        match &workload.cron {
            Some(cron) => plan.crons.push(CronPlan {
                namespace: workload.namespace.clone(),
                name: workload.name.clone(),
                cron: cron.clone(),
                pods,
            }),
            None if workload.kind == Kind::CronJob => {}
            None => plan.pods.extend(pods),
        }
    }
    unique(&plan, objects, &mut report);
    report.finish(plan)
}

/// Checks that pod ids and published ports are unique (rules P6 and P43).
fn unique(plan: &Plan, objects: &Objects, report: &mut Report) {
    let mut ids: BTreeMap<&str, &PodPlan> = BTreeMap::new();
    let mut ports: BTreeMap<(i32, u32, &str), &str> = BTreeMap::new();
    let workloads = objects.workloads.iter();
    let origins: BTreeMap<_, _> = workloads.map(|one| ((one.kind, &*one.namespace, &*one.name), &one.origin)).collect();
    let crons = plan.crons.iter().flat_map(|cron| &cron.pods);
    for pod in plan.pods.iter().chain(crons) {
        let Some(origin) = origins.get(&(pod.kind, &*pod.namespace, &*pod.workload)) else { continue };
        if let Some(first) = ids.insert(&pod.id, pod) {
            let message = format!(
                "creates the pod `{}`, which the {} {} also creates",
                pod.name,
                first.kind.name(),
                first.workload
            );
            report.refuse(origin, "metadata.name", "P6", message);
        }
        for port in &pod.create.ports {
            if let Some(other) = ports.insert((port.protocol, port.host_port, &port.host_ip), &pod.id) {
                let message = format!("publishes the host's port {}, which `{other}` also publishes", port.host_port);
                report.refuse(origin, "spec", "P43", message);
            }
        }
    }
}

/// Remaining memory budget. Without a limit, a few lines could require any amount of memory by repeating large objects.
struct Budget {
    /// True if there are too many pods. Then only one pod of each workload is lowered, to check it.
    too_many_pods: bool,
    bytes: usize,
}

/// Returns true and reports a violation if the workloads have too many pods.
fn too_many_pods(objects: &Objects, report: &mut Report) -> bool {
    let mut total = 0;
    let beyond = objects.workloads.iter().find(|workload| {
        total += workload.pod_names().len();
        total > PODS_MAX
    });
    if let Some(workload) = beyond {
        let message = format!("creates, with preceding objects, more than {PODS_MAX} pods");
        report.refuse(&workload.origin, "spec", "P5", message);
    }
    beyond.is_some()
}

/// Lowers the pods of a workload.
fn pods(
    workload: &Workload,
    objects: &Objects,
    options: &Options,
    budget: &mut Budget,
    report: &mut Report,
) -> Vec<PodPlan> {
    let Some(spec) = &workload.template.spec else {
        report.refuse(&workload.origin, workload.path("spec"), "P3", "is missing");
        return Vec::new();
    };
    let metadata = workload.template.metadata.clone().unwrap_or_default();
    let mut names = workload.pod_names();
    let none = names.is_empty() || workload.job.as_ref().is_some_and(|job| job.suspended);
    if names.is_empty() {
        // Lower one pod, so that the object is also checked.
        names.push(workload.name.clone());
    }
    if budget.too_many_pods {
        names.truncate(1);
    }
    let qos = resources::qos(spec);
    let mut pods = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let index = workload.first + u32::try_from(index).unwrap_or(0);
        let mut lowering = Lowering {
            workload,
            spec,
            metadata: &metadata,
            objects,
            options,
            budget,
            qos,
            report,
            id: format!("{}_{name}", workload.namespace),
            name,
            index,
        };
        pods.push(lowering.pod());
    }
    if none { Vec::new() } else { pods }
}

/// Returns the names of the fields that are set, for objects that must have exactly one field, such as a volume source
/// or a handler.
fn set_fields(value: &impl serde::Serialize) -> Vec<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::Object(fields)) => fields.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    }
}

/// Context for lowering one pod.
pub(crate) struct Lowering<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) spec: &'a PodSpec,
    pub(crate) metadata: &'a ObjectMeta,
    pub(crate) objects: &'a Objects,
    pub(crate) options: &'a Options,
    budget: &'a mut Budget,
    qos: resources::Qos,
    pub(crate) report: &'a mut Report,
    pub(crate) id: String,
    pub(crate) name: String,
    /// Index of the pod in its workload.
    pub(crate) index: u32,
}

impl<'a> Lowering<'a> {
    /// Adds a violation for a field of the pod. `path` is the path in the template.
    pub(crate) fn refuse(&mut self, path: &str, rule: &'static str, message: impl Into<String>) {
        self.report.refuse(&self.workload.origin, self.workload.path(path), rule, message);
    }

    /// Adds a warning for a field of the pod. `path` is the path in the template.
    pub(crate) fn warn(&mut self, path: &str, rule: &'static str, message: impl Into<String>) {
        self.report.warn(&self.workload.origin, self.workload.path(path), rule, message);
    }

    /// Returns the named ConfigMap or Secret in the pod's namespace.
    pub(crate) fn config(&self, secret: bool, name: &str) -> Option<&'a Config> {
        let key = (self.workload.namespace.clone(), name.to_owned());
        let objects = self.objects;
        if secret { objects.secrets.get(&key) } else { objects.config_maps.get(&key) }
    }

    /// Returns path, container and role of each container, init containers first.
    pub(crate) fn containers(&self) -> Vec<(String, &'a Container, Role)> {
        let spec = self.spec;
        let inits = spec.init_containers.iter().flatten().enumerate();
        let inits = inits.map(|(index, one)| {
            let role = if one.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init };
            (format!("spec.initContainers[{index}]"), one, role)
        });
        let mains = spec.containers.iter().enumerate();
        inits.chain(mains.map(|(index, one)| (format!("spec.containers[{index}]"), one, Role::Main))).collect()
    }

    fn pod(&mut self) -> PodPlan {
        self.check_spec();
        self.placement();
        self.security_annotations();
        self.pod_security();
        let shared = self.shared();
        let mut create = CreatePodRequest { id: self.id.clone(), labels: self.labels(), ..shared };
        let volumes = self.volumes(&mut create);
        let mut members: Vec<Member> = Vec::new();
        let mut names = BTreeSet::new();
        for (path, container, role) in self.containers() {
            if !is_label(&container.name) {
                let message =
                    format!("`{}` is not a DNS label: use at most 63 characters of a-z, 0-9 and `-`", container.name);
                self.refuse(&format!("{path}.name"), "P6", message);
            }
            if !names.insert(container.name.clone()) {
                let message = format!("`{}` is the name of another container of the pod", container.name);
                self.refuse(&format!("{path}.name"), "P6", message);
            }
            let index = members.len();
            let member = self.container(&path, container, role, index, &volumes, &create);
            match self.budget.bytes.checked_sub(member.bytes()) {
                Some(left) => self.budget.bytes = left,
                None => {
                    let message = format!(
                        "needs, with preceding objects, more than {BYTES_MAX} bytes of files, variables and arguments"
                    );
                    self.refuse(&path, "P5", message);
                    break;
                }
            }
            members.push(member);
        }
        if self.spec.containers.is_empty() {
            self.refuse("spec.containers", "P6", "is empty: a pod has at least one container");
        }
        let longest = members.iter().map(|member| member.request.id.len()).max().unwrap_or(self.id.len());
        if longest > ID_MAX {
            let message =
                format!("results in an id NAMESPACE_POD_CONTAINER of {longest} bytes; at most {ID_MAX} are allowed");
            self.report.refuse(&self.workload.origin, "metadata.name", "P6", message);
        }
        let digest = plan::digest(&create, &members);
        create.labels.insert(plan::SPEC.into(), digest.clone());
        create.labels.insert(plan::PLAY.into(), self.options.play.clone());
        for member in &mut members {
            member.request.labels.insert(plan::PLAY.into(), self.options.play.clone());
        }
        let deadline = self.spec.active_deadline_seconds;
        let runs_on = !matches!(self.workload.kind, Kind::Pod | Kind::Job | Kind::CronJob);
        if deadline.is_some() && runs_on {
            let message =
                format!("is not allowed for pods of a {}, which run until they are removed", self.workload.kind.name());
            self.refuse("spec.activeDeadlineSeconds", "P27", message);
        }
        let job_deadline = self.workload.job.as_ref().and_then(|job| job.deadline_seconds);
        if deadline.is_some_and(|seconds| !(1..=i64::from(i32::MAX)).contains(&seconds)) {
            self.refuse("spec.activeDeadlineSeconds", "P27", "must be 1 to 2147483647");
        }
        let deadline =
            [deadline.and_then(|seconds| u64::try_from(seconds).ok()), job_deadline].into_iter().flatten().min();
        PodPlan {
            id: self.id.clone(),
            namespace: self.workload.namespace.clone(),
            name: self.name.clone(),
            kind: self.workload.kind,
            workload: self.workload.name.clone(),
            update: if self.index < self.workload.partition { Update::OnDelete } else { self.workload.update },
            in_order: self.workload.in_order,
            create,
            members,
            deadline: deadline.map(Duration::from_secs),
            job: self.workload.job.clone(),
            digest,
            origin: self.workload.origin.clone(),
            template: self.workload.kind.template_path(),
        }
    }

    /// Returns the internal labels of the pod, and the user's labels that executord accepts.
    fn labels(&mut self) -> HashMap<String, String> {
        let mut labels = HashMap::from([
            (plan::NAMESPACE.to_owned(), self.workload.namespace.clone()),
            (plan::POD.to_owned(), self.name.clone()),
            (plan::WORKLOAD.to_owned(), format!("{}/{}", self.workload.kind.name(), self.workload.name)),
        ]);
        let own = self.metadata.labels.clone().unwrap_or_default();
        let mut left_out = 0;
        for (key, value) in own {
            if key.len() > 63 || value.len() > 256 || labels.len() >= LABELS_MAX || key.starts_with("executor.kube/") {
                left_out += 1;
            } else {
                labels.insert(key, value);
            }
        }
        if left_out > 0 {
            let message = format!("labels that executord does not accept are not set on the pod: {left_out}");
            self.warn("metadata.labels", "P6", message);
        }
        // Shorten internal labels: executord would refuse the pod if a value were too long.
        for value in labels.values_mut() {
            if value.len() > 256 {
                value.truncate(value.floor_char_boundary(256));
            }
        }
        labels
    }

    /// Returns a stable id of the pod in UUID format.
    pub(crate) fn uid(&self) -> String {
        let hash = hex::encode(Sha256::digest(format!("{}/{}", self.options.play, self.id)));
        format!("{}-{}-5{}-8{}-{}", &hash[..8], &hash[8..12], &hash[13..16], &hash[17..20], &hash[20..32])
    }

    /// Checks the fields of the pod that are refused or cause a warning (rules P24, P40, P47, P48, P52 and P63).
    fn check_spec(&mut self) {
        let spec = self.spec;
        let (origin, metadata) = (&self.workload.origin, self.metadata);
        let labels = metadata.labels.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
        check_labels(origin, &self.workload.path("metadata.labels"), labels, self.report);
        let annotations = metadata.annotations.iter().flatten().map(|(key, _)| key.as_str());
        check_annotations(origin, &self.workload.path("metadata.annotations"), annotations, self.report);
        let refused: [(&str, &'static str, bool, &str); 9] = [
            (
                "ephemeralContainers",
                "P63",
                spec.ephemeral_containers.as_ref().is_some_and(|all| !all.is_empty()),
                "is not supported: use `agent-cli exec`",
            ),
            (
                "resourceClaims",
                "P52",
                spec.resource_claims.as_ref().is_some_and(|all| !all.is_empty()),
                "is not supported",
            ),
            (
                "resources",
                "P52",
                spec.resources.as_ref().is_some_and(|all| {
                    let ResourceRequirements { claims, limits, requests } = all;
                    let lists = [
                        claims.as_ref().map(Vec::len),
                        limits.as_ref().map(BTreeMap::len),
                        requests.as_ref().map(BTreeMap::len),
                    ];
                    lists.into_iter().flatten().any(|length| length > 0)
                }),
                "is not supported: set the limits of each container",
            ),
            (
                "runtimeClassName",
                "P63",
                spec.runtime_class_name.as_ref().is_some_and(|name| !name.is_empty()),
                "is not supported: there is one runtime",
            ),
            (
                "schedulingGates",
                "P63",
                spec.scheduling_gates.as_ref().is_some_and(|all| !all.is_empty()),
                "is not supported: no controller removes the gates",
            ),
            ("os", "P63", spec.os.as_ref().is_some_and(|os| os.name != "linux"), "must be linux"),
            ("hostnameOverride", "P40", spec.hostname_override.is_some(), "is not supported: use `hostname`"),
            ("schedulingGroup", "P63", spec.scheduling_group.is_some(), "is not supported"),
            ("setHostnameAsFQDN", "P40", spec.set_hostname_as_fqdn == Some(true), "is not supported: use `hostname`"),
        ];
        for (field, rule, _, message) in refused.into_iter().filter(|(_, _, set, _)| *set) {
            self.refuse(&format!("spec.{field}"), rule, message);
        }
        let warned: [(&str, &'static str, bool, &str); 12] = [
            ("affinity", "P63", spec.affinity.is_some(), "is ignored: there is one node"),
            ("nodeName", "P63", spec.node_name.is_some(), "is ignored: there is one node"),
            (
                "nodeSelector",
                "P63",
                spec.node_selector.as_ref().is_some_and(|all| !all.is_empty()),
                "is ignored: there is one node",
            ),
            ("overhead", "P52", spec.overhead.is_some(), "is ignored"),
            ("preemptionPolicy", "P63", spec.preemption_policy.is_some(), "is ignored: nothing is preempted"),
            ("priority", "P63", spec.priority.is_some(), "is ignored: nothing is preempted"),
            ("priorityClassName", "P63", spec.priority_class_name.is_some(), "is ignored: nothing is preempted"),
            (
                "readinessGates",
                "P30",
                spec.readiness_gates.as_ref().is_some_and(|all| !all.is_empty()),
                "is ignored: no controller opens the gates",
            ),
            ("schedulerName", "P63", spec.scheduler_name.is_some(), "is ignored: there is one node"),
            ("subdomain", "P40", spec.subdomain.is_some(), "is ignored: there is no cluster domain"),
            (
                "tolerations",
                "P63",
                spec.tolerations.as_ref().is_some_and(|all| !all.is_empty()),
                "is ignored: there is one node",
            ),
            (
                "topologySpreadConstraints",
                "P63",
                spec.topology_spread_constraints.as_ref().is_some_and(|all| !all.is_empty()),
                "is ignored: there is one node",
            ),
        ];
        for (field, rule, _, message) in warned.into_iter().filter(|(_, _, set, _)| *set) {
            self.warn(&format!("spec.{field}"), rule, message);
        }
        match spec.restart_policy.as_deref() {
            None | Some("" | "Always" | "OnFailure" | "Never") => {}
            Some(_) => self.refuse("spec.restartPolicy", "P24", "must be Always, OnFailure or Never"),
        }
        let needs_always = !matches!(self.workload.kind, Kind::Pod | Kind::Job | Kind::CronJob);
        if needs_always && !matches!(spec.restart_policy.as_deref(), None | Some("" | "Always")) {
            let message = format!("must be Always in a {}", self.workload.kind.name());
            self.refuse("spec.restartPolicy", "P24", message);
        }
    }
}
