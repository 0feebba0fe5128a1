//! Decodes and groups the objects of files (rules P1, P4, P6 and P63 of `docs/guides/kube-rules.md`).

use std::collections::BTreeMap;

use executor_yaml::{Node, Value};

use crate::config::{self, Config};
use crate::located::shown;
pub use crate::located::{Located, OBJECTS_MAX, locate};
use crate::names::{is_label, is_label_value, is_qualified, is_subdomain};
use crate::report::{Origin, Report, Strictness};
use crate::workload::{self, Workload};

/// Maximum total size of all files, in bytes.
pub const INPUT_MAX: usize = 64 << 20;
/// Maximum size of the annotations of one object, in bytes (rule P5).
const ANNOTATIONS_MAX: usize = 262_144;
/// Message for an invalid key of a label or an annotation.
const NOT_QUALIFIED: &str = "is not a valid key of a label or annotation: use [DNS subdomain/]NAME, where NAME is 1 to 63 characters of A-Z, a-z, 0-9, `-`, `_` and `.`";
/// Kinds that are unsupported or have no effect on a single host (rule P63).
const NOT_RUN: [&str; 27] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "EndpointSlice",
    "Endpoints",
    "Gateway",
    "HTTPRoute",
    "HorizontalPodAutoscaler",
    "Ingress",
    "IngressClass",
    "LimitRange",
    "MutatingWebhookConfiguration",
    "Namespace",
    "NetworkPolicy",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "PriorityClass",
    "ReplicationController",
    "ResourceQuota",
    "Role",
    "RoleBinding",
    "RuntimeClass",
    "Service",
    "ServiceAccount",
    "StorageClass",
    "ValidatingWebhookConfiguration",
];

/// The supported objects of the files.
#[derive(Debug, Default)]
pub struct Objects {
    /// ConfigMaps by namespace and name.
    pub config_maps: BTreeMap<(String, String), Config>,
    /// Secrets by namespace and name.
    pub secrets: BTreeMap<(String, String), Config>,
    /// Workloads in the order of the files. A caller may change their templates before they are lowered.
    pub workloads: Vec<Workload>,
}

impl Objects {
    /// Returns true if the files contain no supported object. An object that runs no pod, such as a Deployment with
    /// zero replicas, is also an object.
    pub fn is_empty(&self) -> bool {
        self.config_maps.is_empty() && self.secrets.is_empty() && self.workloads.is_empty()
    }
}

/// Reads files, which are given by name and content. The order of ConfigMaps, Secrets and workloads does not matter
/// (rule P1). Violations are added to the report.
pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>, report: &mut Report) -> Objects {
    let mut located = Vec::new();
    for (file, text) in files {
        located.extend(locate(file, text, report));
    }
    if let (true, Some(one)) = (located.len() > OBJECTS_MAX, located.last()) {
        report.refuse(&one.origin.clone(), "", "P5", format!("exceeds the limit of {OBJECTS_MAX} objects"));
        return Objects::default();
    }
    group(&located, report)
}

/// Decodes located objects and groups them by kind.
pub fn group(located: &[Located], report: &mut Report) -> Objects {
    let (mut objects, mut names) = (Objects::default(), Names::new());
    for object in located {
        take(object, &mut objects, &mut names, report);
    }
    objects
}

/// Locations of workloads by kind, namespace and name.
type Names = BTreeMap<(workload::Kind, String, String), Origin>;

fn take(object: &Located, objects: &mut Objects, names: &mut Names, report: &mut Report) {
    let origin = &object.origin;
    let version = |expected: &str, report: &mut Report| {
        let fits = object.api_version == expected;
        if !fits {
            let (is, kind) = (shown(&object.api_version), shown(&object.kind));
            report.refuse(origin, "apiVersion", "P4", format!("is {is}; for a {kind} it must be {expected}"));
        }
        fits
    };
    match &*object.kind {
        "ConfigMap" | "Secret" => {
            if !version("v1", report) {
                return;
            }
            let is_secret = object.kind == "Secret";
            let config = if is_secret { config::secret(object, report) } else { config::config_map(object, report) };
            let Some(config) = config else { return };
            check_metadata(object, report);
            let all = if is_secret { &mut objects.secrets } else { &mut objects.config_maps };
            let key = (config.namespace.clone(), config.name.clone());
            if let Some(first) = all.get(&key) {
                let (file, line) = (&first.origin.file, first.origin.place("").line);
                report.refuse(
                    origin,
                    "metadata.name",
                    "P6",
                    format!("is also the name of the object in {file}:{line}"),
                );
                return;
            }
            all.insert(key, config);
        }
        kind => match workload::Kind::from_name(kind) {
            Some(kind) => {
                if !version(kind.api_version(), report) {
                    return;
                }
                check_metadata(object, report);
                let Some(workload) = workload::read(kind, object, report) else { return };
                let key = (workload.kind, workload.namespace.clone(), workload.name.clone());
                if let Some(first) = names.get(&key) {
                    let (file, line) = (&first.file, first.place("").line);
                    report.refuse(
                        origin,
                        "metadata.name",
                        "P6",
                        format!("is also the name of the object in {file}:{line}"),
                    );
                    return;
                }
                names.insert(key, origin.clone());
                objects.workloads.push(workload);
            }
            None if NOT_RUN.contains(&kind) => {
                let message = format!("a {kind} is not supported on a single host");
                report.unknown(origin, "kind", "P63", message);
            }
            None => {
                let message = format!("{} is an unknown kind", shown(kind));
                report.unknown(origin, "kind", "P4", message);
            }
        },
    }
}

/// Checks the namespace, the name and the annotations of an object.
fn check_metadata(object: &Located, report: &mut Report) {
    let origin = &object.origin;
    let metadata: Option<&Node> = object.node.get("metadata");
    let text = |name: &str| metadata.and_then(|metadata| metadata.get(name)).and_then(Node::text);
    match metadata.map_or(Some(""), |metadata| text_or_missing(metadata, "name")) {
        Some("") => {
            let generated = text("generateName").is_some();
            let message = match generated {
                true => {
                    "is missing: `generateName` is not supported, because each play of the same file would create new objects"
                }
                false => "is missing",
            };
            report.refuse(origin, "metadata.name", "P6", message);
        }
        Some(name) if !is_subdomain(name) => {
            report.refuse(
                origin,
                "metadata.name",
                "P6",
                "is not a DNS subdomain: use at most 253 characters of a-z, 0-9, `-` and `.`",
            );
        }
        Some(_) | None => {}
    }
    if text("namespace").is_some_and(|namespace| !namespace.is_empty() && !is_label(namespace)) {
        report.refuse(
            origin,
            "metadata.namespace",
            "P6",
            "is not a DNS label: use at most 63 characters of a-z, 0-9 and `-`",
        );
    }
    let map = |name: &str| match metadata.and_then(|all| all.get(name)).map(|node| &node.value) {
        Some(Value::Map(entries)) => Some(entries),
        _ => None,
    };
    check_references(origin, metadata, report);
    let labels = map("labels").into_iter().flatten();
    check_labels(
        origin,
        "metadata.labels",
        labels.filter_map(|(key, value)| Some((&*key.name, value.text()?))),
        report,
    );
    if let Some(annotations) = map("annotations") {
        let keys = annotations.iter().map(|(key, _)| &*key.name);
        check_annotations(origin, "metadata.annotations", keys, report);
        let size: usize =
            annotations.iter().map(|(key, value)| key.name.len() + value.text().map_or(0, str::len)).sum();
        if size > ANNOTATIONS_MAX {
            report.refuse(
                origin,
                "metadata.annotations",
                "P5",
                format!("is {size} bytes; the maximum is {ANNOTATIONS_MAX}"),
            );
        }
    }
}

/// Returns the string in a field; empty if the field is missing or null. `None` if the value is not a string. Decoding
/// reports such a value.
fn text_or_missing<'a>(node: &'a Node, field: &str) -> Option<&'a str> {
    node.get(field).filter(|node| !matches!(node.value, Value::Null)).map_or(Some(""), Node::text)
}

/// Checks owners and finalizers like the API server, although they have no effect here.
fn check_references(origin: &Origin, metadata: Option<&Node>, report: &mut Report) {
    let list = |name: &str| match metadata.and_then(|all| all.get(name)).map(|node| &node.value) {
        Some(Value::List(entries)) => entries.iter().collect(),
        _ => Vec::new(),
    };
    let mut controllers = 0;
    for (index, owner) in list("ownerReferences").into_iter().enumerate() {
        let at = format!("metadata.ownerReferences[{index}]");
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text_or_missing(owner, field) == Some("") {
                report.refuse(origin, format!("{at}.{field}"), "P6", "is missing");
            }
        }
        controllers += usize::from(owner.get("controller").is_some_and(|node| matches!(node.value, Value::Bool(true))));
    }
    if controllers > 1 {
        report.refuse(origin, "metadata.ownerReferences", "P6", "has more than one controller");
    }
    let finalizers: Vec<&str> = list("finalizers").into_iter().filter_map(Node::text).collect();
    for (index, name) in finalizers.iter().enumerate().filter(|(_, name)| !is_qualified(name)) {
        let message = format!("{} {NOT_QUALIFIED}", shown(name));
        report.refuse(origin, format!("metadata.finalizers[{index}]"), "P6", message);
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        report.refuse(origin, "metadata.finalizers", "P6", "has both orphan and foregroundDeletion");
    }
}

/// Checks the keys and values of labels.
pub(crate) fn check_labels<'a>(
    origin: &Origin,
    at: &str,
    labels: impl Iterator<Item = (&'a str, &'a str)>,
    report: &mut Report,
) {
    for (key, value) in labels {
        if !is_qualified(key) {
            report.refuse(origin, format!("{at}['{}']", shown(key)), "P6", NOT_QUALIFIED);
        }
        if !is_label_value(value) {
            let message = "is not a valid label value: use at most 63 characters of A-Z, a-z, 0-9, `-`, `_` and `.`, with a letter or digit at both ends";
            report.refuse(origin, format!("{at}['{}']", shown(key)), "P6", message);
        }
    }
}

/// Checks the keys of annotations, in which upper case is allowed and treated as lower case.
pub(crate) fn check_annotations<'a>(
    origin: &Origin,
    at: &str,
    keys: impl Iterator<Item = &'a str>,
    report: &mut Report,
) {
    for key in keys.filter(|key| !is_qualified(&key.to_ascii_lowercase())) {
        report.refuse(origin, format!("{at}['{}']", shown(key)), "P6", NOT_QUALIFIED);
    }
}

/// Returns an empty report with this strictness.
pub fn report(strictness: Strictness) -> Report {
    Report::new(strictness)
}
