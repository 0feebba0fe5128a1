//! Reads registry+v1 bundles: a CSV and other objects in `manifests/`, annotations and dependencies in `metadata/`.
//!
//! Rules are numbered as in `docs/guides/bundles.md`.

use std::collections::BTreeSet;

use super::csv::Csv;
use super::names::{is_label_value, is_qualified};
use super::object::{self, Object, map, no_texts, text};
use super::{Bundle, Format, MANIFESTS, METADATA, definition, metadata};
use crate::fault::{Fault, Faults};
use crate::source::Files;

/// Kind of the object that describes an operator.
const CSV: &str = "ClusterServiceVersion";
/// Kind of the objects that define custom resources.
const CRD: &str = "CustomResourceDefinition";
/// Kinds of objects that a bundle may have (rule B10).
const KINDS: [&str; 22] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "ConsoleCLIDownload",
    "ConsoleLink",
    "ConsoleQuickStart",
    "ConsoleYAMLSample",
    "PodDisruptionBudget",
    "PriorityClass",
    "PrometheusRule",
    "Role",
    "RoleBinding",
    "Secret",
    "Service",
    "ServiceAccount",
    "ServiceMonitor",
    "VerticalPodAutoscaler",
    CSV,
    CRD,
    "ConsolePlugin",
    "NetworkPolicy",
    "PodMonitor",
];

/// Returns true if an object in the files is a ClusterServiceVersion (CSV).
pub(super) fn has_csv(files: &Files) -> bool {
    is_csv_among(files.below(MANIFESTS)) || is_bare(files)
}

/// Returns true if the files are manifests at the top level, including a CSV, as used before bundles existed. Such a
/// source has no metadata, and is validated as in operator-framework/api.
fn is_bare(files: &Files) -> bool {
    !files.has_directory(MANIFESTS) && !files.has_directory(METADATA) && is_csv_among(top(files))
}

/// Returns the files at the top level of the source.
fn top(files: &Files) -> impl Iterator<Item = (&str, &[u8])> {
    files.files.iter().filter(|(name, _)| !name.contains('/')).map(|(name, content)| (&**name, &**content))
}

fn is_csv_among<'a>(mut files: impl Iterator<Item = (&'a str, &'a [u8])>) -> bool {
    files.any(|(name, content)| {
        let mut ignored = Faults::default();
        // Search for the kind first: this is fast, and most files do not contain the kind.
        memchr::memmem::find(content, CSV.as_bytes()).is_some()
            && object::read(name, content, true, "B10", &mut ignored).iter().any(|object| object.kind == CSV)
    })
}

/// Reads a registry+v1 bundle.
pub(super) fn read(files: &Files) -> Result<Bundle, Faults> {
    let mut faults = Faults::default();
    let bare = is_bare(files);
    for directory in [MANIFESTS, METADATA] {
        if !bare && !files.has_directory(directory) {
            faults.add(directory, "B1", "the directory does not exist or is empty");
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut objects = Vec::new();
    let in_manifests = files.below(MANIFESTS).map(|(name, content)| (format!("{MANIFESTS}/{name}"), name, content));
    let at_top = files.files.iter().filter(|_| bare).map(|(name, content)| (name.clone(), &**name, &**content));
    for (path, name, content) in in_manifests.chain(at_top) {
        if name.contains('/') {
            faults.add(path, "B15", "is in a subdirectory, which is not allowed for manifests");
            continue;
        }
        if bare && name.starts_with('.') {
            faults.add(path, "B15", "is a hidden file; every file in the directory must be a manifest");
            continue;
        }
        let before = faults.count();
        let read = object::read(&path, content, true, "B10", &mut faults);
        if read.is_empty() && faults.count() == before {
            faults.add(path, "B10", "has no object");
        }
        objects.extend(read);
    }
    for directory in files.empty_directories(if bare { "" } else { MANIFESTS }) {
        faults.add(directory, "B15", "is a subdirectory, which is not allowed for manifests");
    }
    let mut warnings = Vec::new();
    let detected = if objects.iter().any(|object| object.kind == CSV) { "registry+v1" } else { "plain+v0" };
    let found = if bare { Default::default() } else { metadata::read(files, detected, &mut faults) };
    for object in &objects {
        if !bare && !KINDS.contains(&&*object.kind) {
            faults.add(object.place(), "B10", format!("{} is not allowed in a registry+v1 bundle", object.kind));
            continue;
        }
        if object.kind == CRD {
            definition::evaluate(object, &mut faults, &mut warnings);
        }
        if object.kind != CSV {
            object_meta(object, &mut faults, &mut warnings);
        }
    }
    let (descriptions, objects): (Vec<Object>, Vec<Object>) =
        objects.into_iter().partition(|object| object.kind == CSV);
    let csv = match &descriptions[..] {
        [one] => Some(Csv::read(one, &mut faults, &mut warnings)),
        [] => {
            faults.add(MANIFESTS, "B6", format!("has no {CSV}; exactly one is required"));
            None
        }
        [first, second, ..] => {
            faults.add(second.place(), "B6", format!("is a second {CSV}; the first is in {}", first.file));
            None
        }
    };
    if let Some(csv) = &csv {
        definitions(csv, &objects, &mut faults, &mut warnings);
        if bare {
            for warning in warnings.iter().filter(|warning| warning.rule == "B8") {
                faults.add(&*warning.place, "B8", &*warning.message);
            }
            service_accounts(csv, &objects, &mut faults);
        }
    }
    let split =
        |text: &str| text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let bundle = Bundle {
        format: Format::RegistryV1,
        name: csv.as_ref().map(|csv| csv.name.clone()),
        version: csv.as_ref().and_then(|csv| csv.version.clone()),
        package: found.annotation("package.v1").map(str::to_owned),
        channels: found.annotation("channels.v1").map(split).unwrap_or_default(),
        default_channel: found.annotation("channel.default.v1").map(str::to_owned),
        dependencies: found.dependencies,
        csv,
        objects,
        warnings,
    };
    faults.or(bundle)
}

/// Reports ServiceAccount objects that a deployment of the CSV uses, because installing the CSV also creates them.
fn service_accounts(csv: &Csv, objects: &[Object], faults: &mut Faults) {
    let used = |name: &str| {
        csv.deployments.iter().any(|it| text(&it.spec, &["template", "spec", "serviceAccountName"]) == name)
    };
    for object in objects.iter().filter(|object| object.kind == "ServiceAccount" && used(&object.name)) {
        let message = format!("the ServiceAccount {} is also created by the {CSV}: rename one of them", object.name);
        faults.add(object.place(), "B10", message);
    }
}

/// Checks the definitions that the CSV owns and the definitions in the bundle (rules B7, B8 and B9).
fn definitions(csv: &Csv, objects: &[Object], faults: &mut Faults, warnings: &mut Vec<Fault>) {
    let mut there = BTreeSet::new();
    let mut names = BTreeSet::new();
    for object in objects.iter().filter(|object| object.kind == CRD) {
        if !names.insert(&*object.name) {
            faults.add(object.place(), "B9", format!("the definition {} occurs twice", object.name));
        }
        for version in definition::versions(object) {
            there.insert((&*object.name, version, text(&object.node, &["spec", "names", "kind"])));
        }
    }
    for owned in &csv.owned {
        if !there.remove(&(&*owned.name, &*owned.version, &*owned.kind)) {
            faults.add(
                &*csv.place,
                "B7",
                format!(
                    "owns {} {} {}, but no such definition is in the bundle",
                    owned.name, owned.version, owned.kind
                ),
            );
        }
    }
    for (name, version, _) in there {
        warnings.push(Fault {
            place: MANIFESTS.to_owned(),
            rule: "B8",
            message: format!("the definition {name} {version} is not owned by the {CSV}"),
        });
    }
}

/// Checks that the object's metadata is valid for an API server (rule B11).
fn object_meta(object: &Object, faults: &mut Faults, warnings: &mut Vec<Fault>) {
    let mut wrong = |message: String| {
        faults.add(object.place(), "B11", format!("{} {:?}: metadata.{message}", object.kind, object.name));
    };
    if object.name.is_empty() {
        wrong("name is missing; generateName cannot be used instead".to_owned());
    }
    for field in ["namespace", "generateName"] {
        match object::at(&object.node, &["metadata", field]).map(|node| &node.value) {
            None | Some(executor_yaml::Value::Null | executor_yaml::Value::Text(_)) => {}
            Some(other) => wrong(format!("{field} is {}; it must be a string", other.kind())),
        }
    }
    if !text(&object.node, &["metadata", "namespace"]).is_empty() {
        let message = format!(
            "{} {:?}: metadata.namespace is ignored: the installation has its own namespace",
            object.kind, object.name
        );
        warnings.push(Fault { place: object.place(), rule: "B11", message });
    }
    let mut size = 0;
    for (key, value) in map(&object.node, &["metadata", "annotations"]) {
        size += key.len() + value.text().map_or(0, str::len);
        if !is_qualified(&key.to_ascii_lowercase()) {
            wrong(format!("annotations has the key {key:?}, which is not valid"));
        }
    }
    if size > 256 << 10 {
        wrong(format!("annotations is {size} bytes; the maximum is {}", 256 << 10));
    }
    for (key, value) in map(&object.node, &["metadata", "labels"]) {
        if !is_qualified(key) {
            wrong(format!("labels has the key {key:?}, which is not valid"));
        }
        if let Some(text) = value.text().filter(|text| !is_label_value(text)) {
            wrong(format!("labels[{key:?}] is {text:?}, which is not valid"));
        }
    }
    for name in ["labels", "annotations"] {
        for (path, kind) in no_texts(&object.node, &["metadata", name]) {
            wrong(format!("{name}{path} is {kind}"));
        }
    }
}
