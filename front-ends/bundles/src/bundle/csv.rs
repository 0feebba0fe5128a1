//! Reads the ClusterServiceVersion of an operator (deployments, owned and required APIs) and validates it as
//! operator-framework/api does.
//!
//! Rules are numbered as in `docs/guides/bundles.md`.

use std::collections::BTreeSet;

use executor_yaml::{Node, Value};
use semver::Version;
use serde::Serialize;
use serde_json::Value as Json;

use super::names::{is_label_value, is_subdomain};
use super::object::{Object, at, list, map, no_texts, text};
use crate::fault::{Fault, Faults};
use crate::range;

/// Annotations whose names are checked for upper and lower case.
const CASED: [&str; 5] =
    ["olm.operatorGroup", "olm.operatorNamespace", "olm.targetNamespaces", "olm.providedAPIs", "olm.skipRange"];

/// A CustomResourceDefinition that the operator owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedDefinition {
    /// Name, for example `backups.example.com`.
    pub name: String,
    pub version: String,
    pub kind: String,
}

/// A deployment of an operator.
#[derive(Clone)]
pub struct Deployment {
    pub name: String,
    pub labels: Vec<(String, String)>,
    /// The `spec` of a Deployment object.
    pub spec: Node,
}

/// A part of a bundle that needs a feature that executord does not provide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotProvided {
    /// Name of the part, for error messages.
    pub what: String,
    /// Reason why the part is not provided: the missing feature.
    pub why: &'static str,
}

/// A ClusterServiceVersion: the description of an operator.
#[derive(Clone)]
pub struct Csv {
    pub name: String,
    pub version: Option<Version>,
    pub display_name: String,
    pub deployments: Vec<Deployment>,
    /// CustomResourceDefinitions that the operator owns.
    pub owned: Vec<OwnedDefinition>,
    /// Service accounts that the operator's permissions name.
    pub service_accounts: BTreeSet<String>,
    pub install_modes: Vec<String>,
    /// Images that the operator uses.
    pub related_images: Vec<String>,
    pub(super) place: String,
    permissions: usize,
    webhooks: usize,
    api_services: usize,
    required: usize,
}

impl Csv {
    /// Reads and validates the CSV.
    pub(super) fn read(object: &Object, faults: &mut Faults, warnings: &mut Vec<Fault>) -> Self {
        let (node, place) = (&object.node, object.place());
        let mut wrong = |rule, message: String| faults.add(&*place, rule, message);
        let mut odd = |message: String| warnings.push(Fault { place: place.clone(), rule: "CSV", message });
        for (what, name) in [("metadata.name", &*object.name), ("spec.replaces", text(node, &["spec", "replaces"]))] {
            if (what == "metadata.name" || !name.is_empty()) && !(is_subdomain(name) && is_label_value(name)) {
                wrong("CSV", format!("{what} {name:?} must be a DNS name of at most 63 bytes"));
            }
        }
        for name in ["labels", "annotations"] {
            for (path, kind) in no_texts(node, &["metadata", name]) {
                wrong("CSV", format!("metadata.{name}{path} is {kind}"));
            }
        }
        for name in ["displayName", "description", "minKubeVersion", "maturity", "replaces", "release"] {
            match at(node, &["spec", name]).map(|node| &node.value) {
                None | Some(Value::Null | Value::Text(_)) => {}
                Some(other) => wrong("CSV", format!("spec.{name} is {}; it must be a string", other.kind())),
            }
        }
        if object.api_version.is_empty() {
            wrong("CSV", "has no apiVersion".to_owned());
        }
        for (path, found) in [
            ("spec.displayName", text(node, &["spec", "displayName"])),
            ("spec.install.strategy", text(node, &["spec", "install", "strategy"])),
        ] {
            if found.is_empty() {
                wrong("CSV", format!("has no {path}"));
            }
        }
        let deployments = list(node, &["spec", "install", "spec", "deployments"]);
        if at(node, &["spec", "install", "spec"])
            .is_some_and(|spec| matches!(&spec.value, Value::Map(map) if !map.is_empty()))
            && at(node, &["spec", "install", "spec", "deployments"])
                .is_none_or(|deployments| matches!(deployments.value, Value::Null))
        {
            wrong("CSV", "has no spec.install.spec.deployments".to_owned());
        }
        let version = text(node, &["spec", "version"]);
        let parsed = tolerant(version);
        match at(node, &["spec", "version"]).map(|node| &node.value) {
            None | Some(Value::Null) => {}
            Some(Value::Text(_)) if parsed.is_none() => {
                wrong("CSV", format!("spec.version {version:?} is not a semantic version"));
            }
            Some(Value::Text(_)) => {}
            Some(other) => wrong("CSV", format!("spec.version is {}; it must be a string", other.kind())),
        }
        match text(node, &["spec", "minKubeVersion"]).trim() {
            "" => odd("has no spec.minKubeVersion".to_owned()),
            _ => {
                if let Err(error) = range::version(text(node, &["spec", "minKubeVersion"])) {
                    wrong("CSV", format!("spec.minKubeVersion {error}"));
                }
            }
        }
        install_modes(node, &mut wrong);
        let owned = |path: &[&str]| -> Vec<OwnedDefinition> {
            let read = |it: &Node| OwnedDefinition {
                name: text(it, &["name"]).to_owned(),
                version: text(it, &["version"]).to_owned(),
                kind: text(it, &["kind"]).to_owned(),
            };
            list(node, path).iter().map(read).collect()
        };
        let definitions = owned(&["spec", "customresourcedefinitions", "owned"]);
        annotations(node, &definitions, &mut wrong, &mut odd);
        let release = text(node, &["spec", "release"]);
        if at(node, &["spec", "release"]).and_then(Node::text).is_some_and(|release| !range::is_release(release)) {
            let needed =
                "use identifiers of letters, digits and `-`, separated by dots; numbers must not have leading zeros";
            wrong("CSV", format!("spec.release {release:?} is not valid: {needed}"));
        }
        if !release.is_empty() && !text(node, &["metadata", "annotations", "olm.substitutesFor"]).is_empty() {
            wrong("B14", "has both a spec.release and the annotation olm.substitutesFor".to_owned());
        }
        let mut permissions = 0;
        let mut service_accounts = BTreeSet::new();
        for path in [["spec", "install", "spec", "permissions"], ["spec", "install", "spec", "clusterPermissions"]] {
            for permission in list(node, &path) {
                permissions += 1;
                service_accounts.insert(text(permission, &["serviceAccountName"]).to_owned());
            }
        }
        let deployments = deployments.iter().enumerate().filter_map(|(index, it)| {
            let name = text(it, &["name"]).to_owned();
            let Some(spec) = it.get("spec").filter(|spec| matches!(spec.value, Value::Map(_))) else {
                wrong("CSV", format!("spec.install.spec.deployments[{index}] has no spec"));
                return None;
            };
            for (path, kind) in no_texts(it, &["label"]) {
                wrong("CSV", format!("spec.install.spec.deployments[{index}].label{path} is {kind}"));
            }
            let labels = map(it, &["label"])
                .filter_map(|(key, value)| Some((key.to_owned(), value.text()?.to_owned())))
                .collect();
            Some(Deployment { name, labels, spec: spec.clone() })
        });
        Self {
            name: object.name.clone(),
            version: parsed,
            display_name: text(node, &["spec", "displayName"]).to_owned(),
            deployments: deployments.collect(),
            owned: definitions,
            service_accounts,
            install_modes: list(node, &["spec", "installModes"])
                .iter()
                .filter(|it| is_true(it.get("supported")))
                .map(|it| text(it, &["type"]).to_owned())
                .collect(),
            related_images: list(node, &["spec", "relatedImages"])
                .iter()
                .map(|it| text(it, &["image"]).to_owned())
                .collect(),
            permissions,
            webhooks: list(node, &["spec", "webhookdefinitions"]).len(),
            api_services: list(node, &["spec", "apiservicedefinitions", "owned"]).len(),
            required: list(node, &["spec", "customresourcedefinitions", "required"]).len()
                + list(node, &["spec", "apiservicedefinitions", "required"]).len(),
            place,
        }
    }

    /// Returns the parts that need an API server.
    pub(super) fn not_provided(&self) -> Vec<NotProvided> {
        let counted = [
            (self.permissions, "permissions (RBAC)", "no API server that grants access (RBAC)"),
            (self.webhooks, "webhooks", "no API server that calls webhooks"),
            (self.api_services, "API services", "no API server to extend"),
            (self.required, "required APIs", "no API server that serves them"),
        ];
        let counted = counted.into_iter().filter(|(count, ..)| *count > 0);
        counted
            .map(|(count, what, why)| NotProvided { what: format!("{count} {what} of the ClusterServiceVersion"), why })
            .collect()
    }
}

fn is_true(node: Option<&Node>) -> bool {
    matches!(node.map(|node| &node.value), Some(Value::Bool(true)))
}

/// Checks the install modes (rule B12), and their allowed combinations.
fn install_modes(node: &Node, wrong: &mut impl FnMut(&'static str, String)) {
    let modes = list(node, &["spec", "installModes"]);
    if modes.is_empty() {
        return wrong("B12", "has no spec.installModes".to_owned());
    }
    if !modes.iter().any(|mode| is_true(mode.get("supported"))) {
        wrong("B12", "has no supported install mode in spec.installModes".to_owned());
    }
    let converts = list(node, &["spec", "webhookdefinitions"])
        .iter()
        .any(|webhook| !list(webhook, &["conversionCRDs"]).is_empty());
    let is_all = |mode: &Node| text(mode, &["type"]) == "AllNamespaces";
    if converts && modes.iter().any(|mode| is_all(mode) != is_true(mode.get("supported"))) {
        wrong("B12", "has conversion webhooks, which are only allowed with the install mode AllNamespaces".to_owned());
    }
}

/// Checks the case of annotation names, and the examples in `alm-examples`.
fn annotations(
    node: &Node,
    owned: &[OwnedDefinition],
    wrong: &mut impl FnMut(&'static str, String),
    odd: &mut impl FnMut(String),
) {
    let all: Vec<(&str, &Node)> = map(node, &["metadata", "annotations"]).collect();
    for (key, _) in &all {
        if let Some(right) = CASED.iter().find(|right| right.eq_ignore_ascii_case(key) && *right != key) {
            wrong("CSV", format!("the annotation {key} must be written {right}"));
        }
        if *key == "olm.properties" {
            odd("has the annotation olm.properties: move the properties to metadata/properties.yaml".to_owned());
        }
    }
    let find = |name: &str| all.iter().find(|(key, _)| *key == name).map(|(_, node)| node.text().unwrap_or_default());
    let Some(examples) = find("alm-examples").or_else(|| find("olm.examples")) else {
        return odd("has no examples (the annotation alm-examples)".to_owned());
    };
    if examples.is_empty() {
        return;
    }
    let examples: Json = match serde_json::from_str(examples) {
        Ok(examples) => examples,
        Err(error) => return wrong("CSV", format!("the examples (the annotation alm-examples) are not JSON: {error}")),
    };
    let examples = match examples {
        Json::Array(examples) => examples,
        Json::Null => Vec::new(),
        _ => return wrong("CSV", "the examples (the annotation alm-examples) are not a list".to_owned()),
    };
    let mut provided: BTreeSet<(String, String, String)> = BTreeSet::new();
    for it in owned {
        match it.name.split_once('.') {
            Some((_, group)) => _ = provided.insert((group.to_owned(), it.version.clone(), it.kind.clone())),
            None => wrong("CSV", format!("owns {:?}, which is not PLURAL.GROUP", it.name)),
        }
    }
    for it in list(node, &["spec", "apiservicedefinitions", "owned"]) {
        provided.insert((
            text(it, &["group"]).to_owned(),
            text(it, &["version"]).to_owned(),
            text(it, &["kind"]).to_owned(),
        ));
    }
    for example in &examples {
        let field = |name: &str| example.get(name).and_then(Json::as_str).unwrap_or_default();
        let (group, version) = field("apiVersion").split_once('/').unwrap_or(("", field("apiVersion")));
        let kind = field("kind");
        if kind.is_empty() {
            wrong("CSV", "an example (the annotation alm-examples) has no kind".to_owned());
        } else if !provided.contains(&(group.to_owned(), version.to_owned(), kind.to_owned())) {
            wrong("CSV", format!("the example {kind} of {group}/{version} belongs to no provided API"));
        }
    }
}

/// Parses the version of a ClusterServiceVersion leniently, as operator-framework/api does. The version may have a
/// leading `v`, surrounding spaces or leading zeros, and its last numbers may be missing.
fn tolerant(text: &str) -> Option<Version> {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
    for part in &mut parts {
        let stripped = part.trim_start_matches('0');
        if part.len() > 1 && part.starts_with('0') {
            *part = if stripped.starts_with(|c: char| c.is_ascii_digit()) {
                stripped.to_owned()
            } else {
                format!("0{stripped}")
            };
        }
    }
    if parts.len() < 3 && parts.last().is_some_and(|part| part.contains(['+', '-'])) {
        return None;
    }
    while parts.len() < 3 {
        parts.push("0".to_owned());
    }
    range::version(&parts.join(".")).ok()
}
