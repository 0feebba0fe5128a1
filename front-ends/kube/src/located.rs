//! Splits files into objects with their locations (rules P1 and P4 of `docs/guides/kube-rules.md`).

use executor_core::text::printable;
use std::sync::Arc;

use executor_yaml::{FaultKind, Limits, Node, Value, decode, parse, parts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

use crate::report::{Origin, Report};

/// Maximum number of objects in all files.
pub const OBJECTS_MAX: usize = 10_000;

/// An undecoded object and its location.
#[derive(Clone, Debug)]
pub struct Located {
    pub origin: Origin,
    /// API version, for example `apps/v1`.
    pub api_version: String,
    /// Kind, for example `Deployment`.
    pub kind: String,
    pub node: Node,
}

impl Located {
    /// Decodes the object as a type, and reports every error with its path. `None` if the object cannot be decoded.
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

    /// Returns the namespace, by default `default`, and the name.
    pub fn names(&self, metadata: &ObjectMeta) -> (String, String) {
        let namespace = metadata.namespace.clone().filter(|namespace| !namespace.is_empty());
        (namespace.unwrap_or_else(|| "default".into()), metadata.name.clone().unwrap_or_default())
    }
}

/// Splits a file into its objects, which are documents or items of lists.
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
            let message = "has text on the line of `---`, which kubectl ignores: put the text on the next line";
            report.refuse(&blank(empty), "", "P1", message);
            continue;
        }
        let parsed = match parse(part.text, part.line, &Limits::OBJECT) {
            Ok(parsed) => parsed,
            Err(error) => {
                let place = Arc::new(Node { value: Value::Null, place: error.place });
                report.refuse(&blank(place), "", "P2", error.to_string());
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
        flatten(origin, root, &mut found, report);
        if found.len() > OBJECTS_MAX {
            break;
        }
    }
    found
}

fn flatten(mut origin: Origin, node: Node, found: &mut Vec<Located>, report: &mut Report) {
    if !matches!(node.value, Value::Map(_)) {
        report.refuse(&origin, "", "P3", format!("is {}; an object must be a mapping", node.value.kind()));
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
    match node.into_items() {
        Ok(items) => {
            for (index, item) in items.into_iter().enumerate() {
                if found.len() > OBJECTS_MAX {
                    break;
                }
                let mut inner = origin.clone();
                let dot = if origin.base.is_empty() { "" } else { "." };
                inner.base = format!("{}{dot}items[{index}]", origin.base);
                flatten(inner, item, found, report);
            }
        }
        Err(node) => match node.get("items").map(|items| &items.value) {
            Some(items) if kind.ends_with("List") => {
                report.refuse(&origin, "items", "P3", format!("is {}; it must be a list", items.kind()));
            }
            _ => found.push(Located { origin, api_version, kind, node }),
        },
    }
}

pub(crate) fn shown(text: &str) -> String {
    printable(text, 100)
}
