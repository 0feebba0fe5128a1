//! Reading: streams of documents to located objects, and those to what can be run (P1, P4, P6, P63).

use std::collections::BTreeMap;
use std::sync::Arc;

use executor_yaml::{FaultKind, Limits, Node, Value, decode, parse, parts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

use crate::config::{self, Config};
use crate::names::{is_label, is_subdomain};
use crate::report::{Origin, Report, Strictness};
use crate::workload::{self, Workload};

/// Most bytes of all files together.
pub const INPUT_MAX: usize = 64 << 20;
/// Most objects of all files together.
pub const OBJECTS_MAX: usize = 10_000;
/// Largest annotations of one object, in bytes (P5).
const ANNOTATIONS_MAX: usize = 262_144;
/// Kinds that have no meaning on one host, or whose meaning is not carried out here (P63).
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

/// An object and its place, not looked into yet.
#[derive(Clone, Debug)]
pub struct Located {
    /// Origin.
    pub origin: Origin,
    /// `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
    /// The object.
    pub node: Node,
}

impl Located {
    /// Reads the object as a type, and reports every fault with its path. `None` where nothing can be made of it.
    pub fn decode<T: DeserializeOwned>(&self, report: &mut Report) -> Option<T> {
        let decoded = decode::<T>(&self.node);
        for fault in decoded.faults {
            match fault.kind {
                FaultKind::Unknown => report.unknown(&self.origin, fault.path, "P4", fault.message),
                FaultKind::Duplicate | FaultKind::Value => report.refuse(&self.origin, fault.path, "P3", fault.message),
            }
        }
        decoded.value
    }

    /// Namespace and name.
    pub fn names(&self, metadata: &ObjectMeta) -> (String, String) {
        let namespace = metadata.namespace.clone().filter(|namespace| !namespace.is_empty());
        (namespace.unwrap_or_else(|| "default".into()), metadata.name.clone().unwrap_or_default())
    }
}

/// Cuts a file into its objects: documents, and the items of lists.
pub fn locate(file: &str, text: &str, report: &mut Report) -> Vec<Located> {
    let file: Arc<str> = file.into();
    let mut found = Vec::new();
    for part in parts(text) {
        let empty = Arc::new(Node { value: Value::Null, place: executor_yaml::Place { line: part.line, column: 1 } });
        let blank = |root: Arc<Node>| Origin {
            file: Arc::clone(&file),
            document: part.number,
            base: String::new(),
            object: String::new(),
            root,
        };
        if part.beside_separator {
            let message = "has text on the line of `---`, which kubectl leaves out: put it on the next line";
            report.refuse(&blank(empty), "", "P1", message);
            continue;
        }
        let parsed = match parse(part.text, part.line, &Limits::OBJECT) {
            Ok(parsed) => parsed,
            Err(error) => {
                let place = Arc::new(Node { value: Value::Null, place: error.place });
                report.refuse(&blank(place), "", "P2", format!("column {}: {error}", error.place.column));
                continue;
            }
        };
        let origin = blank(Arc::new(parsed.root));
        if matches!(origin.root.value, Value::Null) {
            continue;
        }
        for fault in parsed.duplicates {
            report.unknown(&origin, fault.path, "P4", fault.message);
        }
        let root = Node::clone(&origin.root);
        flatten(origin, root, &mut found, report, 0);
        if found.len() > OBJECTS_MAX {
            break;
        }
    }
    found
}

fn flatten(mut origin: Origin, node: Node, found: &mut Vec<Located>, report: &mut Report, depth: usize) {
    if !matches!(node.value, Value::Map(_)) {
        report.refuse(&origin, "", "P3", format!("is {}; an object is a mapping", node.value.kind()));
        return;
    }
    let text = |name: &str| node.get(name).and_then(Node::text).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let metadata = |name: &str| node.get("metadata").and_then(|metadata| metadata.get(name)).and_then(Node::text);
    let (namespace, name) = (metadata("namespace").unwrap_or("default"), metadata("name").unwrap_or_default());
    origin.object = format!("{} {}/{}", shown(&kind), shown(namespace), shown(name));
    if api_version.is_empty() || kind.is_empty() {
        let missing = if api_version.is_empty() { "apiVersion" } else { "kind" };
        report.refuse(&origin, missing, "P3", "is missing: an object has `apiVersion` and `kind`");
        return;
    }
    if !kind.ends_with("List") || depth > 0 {
        found.push(Located { origin, api_version, kind, node });
        return;
    }
    match node.get("items").map(|items| &items.value) {
        Some(Value::List(items)) => {
            for (index, item) in items.iter().enumerate().take(OBJECTS_MAX + 1 - found.len().min(OBJECTS_MAX)) {
                let mut inner = origin.clone();
                inner.base = format!("items[{index}]");
                flatten(inner, item.clone(), found, report, depth + 1);
            }
        }
        None | Some(Value::Null) => {}
        Some(other) => report.refuse(&origin, "items", "P3", format!("is {}; it must be a list", other.kind())),
    }
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// Objects that can be run, by what they are.
#[derive(Debug, Default)]
pub struct Objects {
    /// ConfigMaps by namespace and name.
    pub config_maps: BTreeMap<(String, String), Config>,
    /// Secrets likewise.
    pub secrets: BTreeMap<(String, String), Config>,
    /// Workloads in the order of the files. A caller may change their templates before they are lowered.
    pub workloads: Vec<Workload>,
}

/// Reads files, each with its name: ConfigMaps and Secrets first, whatever the order (P1). What is wrong is in the report.
pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>, report: &mut Report) -> Objects {
    let mut located = Vec::new();
    for (file, text) in files {
        located.extend(locate(file, text, report));
    }
    if let (true, Some(one)) = (located.len() > OBJECTS_MAX, located.last()) {
        report.refuse(&one.origin.clone(), "", "P5", format!("is beyond {OBJECTS_MAX} objects"));
        return Objects::default();
    }
    of(&located, report)
}

/// Takes objects that were located.
pub fn of(located: &[Located], report: &mut Report) -> Objects {
    let mut objects = Objects::default();
    for object in located {
        take(object, &mut objects, report);
    }
    objects
}

fn take(object: &Located, objects: &mut Objects, report: &mut Report) {
    let origin = &object.origin;
    let version = |expected: &str, report: &mut Report| {
        let fits = object.api_version == expected;
        if !fits {
            let (is, kind) = (shown(&object.api_version), shown(&object.kind));
            report.refuse(origin, "apiVersion", "P4", format!("is {is}; of a {kind} it must be {expected}"));
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
                report.refuse(origin, "metadata.name", "P6", format!("is that of the object in {file}:{line}, too"));
                return;
            }
            all.insert(key, config);
        }
        kind => match workload::Kind::of(kind) {
            Some(kind) => {
                if !version(kind.api_version(), report) {
                    return;
                }
                check_metadata(object, report);
                let Some(workload) = workload::read(kind, object, report) else { return };
                let same = |other: &&Workload| {
                    (other.kind, &other.namespace, &other.name) == (workload.kind, &workload.namespace, &workload.name)
                };
                if let Some(first) = objects.workloads.iter().find(same) {
                    let (file, line) = (&first.origin.file, first.origin.place("").line);
                    report.refuse(
                        origin,
                        "metadata.name",
                        "P6",
                        format!("is that of the object in {file}:{line}, too"),
                    );
                    return;
                }
                objects.workloads.push(workload);
            }
            None if NOT_RUN.contains(&kind) => {
                let message = format!("a {kind} is not carried out on one host");
                report.unknown(origin, "kind", "P63", message);
            }
            None => {
                let message = format!("{} is not a kind that is known here", shown(kind));
                report.unknown(origin, "kind", "P4", message);
            }
        },
    }
}

/// Checks namespace, name and annotations.
fn check_metadata(object: &Located, report: &mut Report) {
    let origin = &object.origin;
    let metadata: Option<&Node> = object.node.get("metadata");
    let text = |name: &str| metadata.and_then(|metadata| metadata.get(name)).and_then(Node::text);
    match text("name") {
        None | Some("") => {
            let generated = text("generateName").is_some();
            let message = match generated {
                true => {
                    "is missing: `generateName` is not carried out, because the same file would be played anew each time"
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
                "is not a DNS subdomain: use a-z, 0-9, `-` and `.`, at most 253",
            );
        }
        Some(_) => {}
    }
    if text("namespace").is_some_and(|namespace| !namespace.is_empty() && !is_label(namespace)) {
        report.refuse(origin, "metadata.namespace", "P6", "is not a DNS label: use a-z, 0-9 and `-`, at most 63");
    }
    if let Some(Value::Map(annotations)) = metadata.and_then(|all| all.get("annotations")).map(|node| &node.value) {
        let size: usize =
            annotations.iter().map(|(key, value)| key.name.len() + value.text().map_or(0, str::len)).sum();
        if size > ANNOTATIONS_MAX {
            report.refuse(
                origin,
                "metadata.annotations",
                "P5",
                format!("have {size} bytes; at most {ANNOTATIONS_MAX}"),
            );
        }
    }
}

/// A report for files that are read with this strictness.
pub fn report(strictness: Strictness) -> Report {
    Report::new(strictness)
}
