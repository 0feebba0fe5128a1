//! Reads the annotations and dependencies in `metadata/` of a registry+v1 bundle.
//!
//! Rules are numbered as in `docs/guides/bundles.md`.

use std::collections::BTreeMap;
use std::fmt;

use executor_yaml::{Limits, Node, Value, parse, parts};
use serde::Serialize;

use super::object::{folded, spellings};
use super::{MEDIA_TYPE, METADATA};
use crate::fault::Faults;
use crate::range::Range;
use crate::source::Files;

/// Prefix of the names of a bundle's annotations.
const PREFIX: &str = "operators.operatorframework.io.bundle.";

/// A requirement of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Dependency {
    /// The bundle requires a package with a version in a range.
    Package { package: String, range: String },
    /// The bundle requires a package that provides this API.
    #[serde(rename = "gvk")]
    Api { group: String, version: String, kind: String },
    /// A constraint in CEL. The constraint is recorded but not evaluated.
    Constraint {
        /// The CEL expression.
        rule: String,
    },
    /// The bundle requires a label of the cluster.
    Label { label: String },
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Package { package, range } => write!(f, "package {package} {range}"),
            Self::Api { group, version, kind } => write!(f, "API {kind} of {group}/{version}"),
            Self::Constraint { rule } => write!(f, "constraint {rule}"),
            Self::Label { label } => write!(f, "label {label}"),
        }
    }
}

/// Content of a bundle's `metadata/` directory.
#[derive(Default)]
pub(super) struct Metadata {
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) dependencies: Vec<Dependency>,
}

impl Metadata {
    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(&format!("{PREFIX}{name}")).map(String::as_str)
    }
}

/// Reads `metadata/` and validates it by rules B2 to B5 and B13.
pub(super) fn read(files: &Files, detected: &str, faults: &mut Faults) -> Metadata {
    let mut found = Metadata::default();
    let (mut annotated, mut depends) = (false, false);
    for (name, content) in files.below(METADATA).filter(|(name, _)| !name.contains('/')) {
        // File names do not matter. Files without annotations or dependencies are ignored.
        let Some(root) = document(content) else { continue };
        if !annotated && let Some(annotations) = annotations(&root) {
            annotated = true;
            found.annotations = annotations;
            continue;
        }
        if let (false, Some(Value::List(all))) = (depends, folded(&root, "dependencies").map(|node| &node.value)) {
            depends = !all.is_empty();
            found.dependencies = dependencies(all, &format!("{METADATA}/{name}"), faults);
        }
    }
    if annotated {
        evaluate(&found, detected, faults);
    } else {
        faults.add(METADATA, "B2", "has no file with annotations");
    }
    found
}

/// Parses the first YAML document of a file.
fn document(content: &[u8]) -> Option<Node> {
    let text = std::str::from_utf8(content).ok()?;
    let part = parts(text).next()?;
    parse(part.text, part.line, &Limits::OBJECT).ok().map(|parsed| parsed.root)
}

/// Returns the annotations: the string values of the top-level key `annotations`. If several keys differ only in case,
/// their mappings are merged.
fn annotations(root: &Node) -> Option<BTreeMap<String, String>> {
    let found = spellings(root, "annotations");
    if found.is_empty() {
        return None;
    }
    let text = |node: &Node| match &node.value {
        Value::Null => Some(String::new()),
        Value::Text(text) => Some(text.to_string()),
        // Unquoted values are accepted as strings.
        Value::Bool(value) => Some(value.to_string()),
        Value::Int(value) => Some(value.to_string()),
        Value::UInt(value) => Some(value.to_string()),
        Value::Float(value) => Some(value.to_string()),
        Value::List(_) | Value::Map(_) => None,
    };
    let mut all = BTreeMap::new();
    for (_, node) in found {
        let Value::Map(entries) = &node.value else { return None };
        for (key, node) in entries {
            all.insert(key.name.clone(), text(node)?);
        }
    }
    Some(all)
}

fn evaluate(found: &Metadata, detected: &str, faults: &mut Faults) {
    for name in ["mediatype.v1", "manifests.v1", "metadata.v1", "package.v1", "channels.v1"] {
        if found.annotation(name).is_none() {
            faults.add(METADATA, "B3", format!("the annotation {PREFIX}{name} is missing"));
        }
    }
    if found.annotation("channel.default.v1") == Some("") {
        faults.add(METADATA, "B3", format!("the annotation {PREFIX}channel.default.v1 is empty"));
    }
    if let Some(named) = found.annotations.get(MEDIA_TYPE)
        && named != detected
    {
        faults.add(METADATA, "B4", format!("the annotation {MEDIA_TYPE} is {named:?}, but the bundle is {detected}"));
    }
    if found.annotation("channels.v1") == Some("") {
        faults.add(
            METADATA,
            "B5",
            format!("the annotation {PREFIX}channels.v1 is empty: at least one channel is required"),
        );
    }
}

/// Reads dependencies (rule B13).
fn dependencies(all: &[Node], place: &str, faults: &mut Faults) -> Vec<Dependency> {
    let mut found = Vec::new();
    for (index, node) in all.iter().enumerate() {
        let mut wrong = |why: String| faults.add(place, "B13", format!("dependencies[{index}] {why}"));
        let field = |path: &[&str]| {
            let found = path.iter().try_fold(folded(node, "value")?, |node, key| folded(node, key));
            found.and_then(Node::text).map(str::to_owned)
        };
        let field = |path: &[&str]| field(path).unwrap_or_default();
        match folded(node, "type").and_then(Node::text).unwrap_or_default() {
            "olm.package" => {
                let (package, range) = (field(&["packageName"]), field(&["version"]));
                if package.is_empty() {
                    wrong("has no packageName".to_owned());
                } else if range.is_empty() {
                    wrong("has no version".to_owned());
                } else if let Err(error) = Range::parse(&range) {
                    wrong(format!("has the version {range:?}, which {error}"));
                } else {
                    found.push(Dependency::Package { package, range });
                }
            }
            "olm.gvk" => {
                let (group, version, kind) = (field(&["group"]), field(&["version"]), field(&["kind"]));
                match [("group", &group), ("version", &version), ("kind", &kind)]
                    .iter()
                    .find(|(_, text)| text.is_empty())
                {
                    Some((name, _)) => wrong(format!("has no {name}")),
                    None => found.push(Dependency::Api { group, version, kind }),
                }
            }
            "olm.constraint" => match field(&["cel", "rule"]) {
                rule if rule.is_empty() => wrong("has no cel.rule".to_owned()),
                rule => found.push(Dependency::Constraint { rule }),
            },
            "olm.label" => match field(&["label"]) {
                label if label.is_empty() => wrong("has no label".to_owned()),
                label => found.push(Dependency::Label { label }),
            },
            other => {
                wrong(format!("has the unknown type {other:?}; use olm.package, olm.gvk, olm.constraint or olm.label"));
            }
        }
    }
    found
}
