//! Compares templates field by field.
//!
//! If each entry of a list has a unique name, the entries are compared by name. Absent and empty values are equal,
//! because Kubernetes programs write both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

/// Fields for which an empty object differs from absence.
const MEANINGFUL: [&str; 5] = ["emptyDir", "labelSelector", "namespaceSelector", "podSelector", "podInfo"];
/// Fields for which `false` is equal to absence.
const FALSE_IS_ABSENT: [&str; 7] = ["hostNetwork", "hostPID", "hostIPC", "readOnly", "stdin", "stdinOnce", "tty"];

/// A field that differs between two documents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Path of the field, such as `spec.containers[app].env[PORT].value`.
    pub field: String,
    /// Value before; `None` if the field was absent.
    pub before: Option<Value>,
    /// Value after; `None` if the field was removed.
    pub after: Option<Value>,
}

impl fmt::Display for Change {
    /// Writes one line for the old value and one line for the new value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = &self.field;
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "- {field}: {before}\n+ {field}: {after}"),
            (Some(before), None) => write!(f, "- {field}: {before}"),
            (None, Some(after)) => write!(f, "+ {field}: {after}"),
            (None, None) => Ok(()),
        }
    }
}

/// Returns the differences between two documents, sorted by field.
pub fn changes(before: &Value, after: &Value) -> Vec<Change> {
    let (before, after) = (normalized(before), normalized(after));
    let mut found = Vec::new();
    compare(String::new(), before.as_ref(), after.as_ref(), &mut found);
    found
}

/// Removes empty values from a document; `None` if nothing remains.
fn normalized(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Object(fields) => {
            let kept: Map<String, Value> = fields
                .iter()
                .filter(|(key, value)| !(FALSE_IS_ABSENT.contains(&&***key) && **value == Value::Bool(false)))
                .filter_map(|(key, value)| match normalized(value) {
                    None if MEANINGFUL.contains(&&**key) && value.is_object() => Some((key.clone(), value.clone())),
                    None => None,
                    Some(value) => Some((key.clone(), value)),
                })
                .collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        // List entries are kept even if they are empty.
        Value::Array(entries) if entries.is_empty() => None,
        Value::Array(entries) => {
            Some(entries.iter().map(|entry| normalized(entry).unwrap_or_else(|| entry.clone())).collect())
        }
        other => Some(other.clone()),
    }
}

fn compare(field: String, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Change>) {
    if before == after {
        return;
    }
    let empty = Map::new();
    match (before, after) {
        (Some(Value::Object(_)) | None, Some(Value::Object(_))) | (Some(Value::Object(_)), None)
            if !is_leaf(before) && !is_leaf(after) =>
        {
            let fields =
                |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_else(|| empty.clone());
            let (before, after) = (fields(before), fields(after));
            let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for key in keys {
                compare(step(&field, key), before.get(key), after.get(key), found);
            }
        }
        (Some(Value::Array(_)) | None, Some(Value::Array(_))) | (Some(Value::Array(_)), None) => {
            let entries = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
            let (old, new) = (entries(before), entries(after));
            let key = naming_key(&field, old.iter().chain(&new));
            let (Some(old), Some(new)) = (named(key, &old), named(key, &new)) else {
                found.push(Change { field, before: before.cloned(), after: after.cloned() });
                return;
            };
            let (old_map, new_map): (BTreeMap<_, _>, BTreeMap<_, _>) =
                (old.iter().cloned().collect(), new.iter().cloned().collect());
            let names: BTreeSet<&String> = old_map.keys().chain(new_map.keys()).collect();
            for name in names {
                let (old, new) = (old_map.get(name).copied(), new_map.get(name).copied());
                let (before, after) = (without_name(key, old, new), without_name(key, new, old));
                compare(format!("{field}[{name}]"), before.as_ref(), after.as_ref(), found);
            }
            let order = |list: &[(String, &Value)], other: &BTreeMap<String, &Value>| -> Vec<Value> {
                list.iter().filter(|(name, _)| other.contains_key(name)).map(|(name, _)| name.clone().into()).collect()
            };
            let (before, after) = (order(&old, &new_map), order(&new, &old_map));
            if before != after {
                let field = format!("{field} (order)");
                found.push(Change { field, before: Some(before.into()), after: Some(after.into()) });
            }
        }
        _ => found.push(Change { field, before: before.cloned(), after: after.cloned() }),
    }
}

/// Returns true for an object without fields, which is compared as a value.
fn is_leaf(value: Option<&Value>) -> bool {
    value.and_then(Value::as_object).is_some_and(Map::is_empty)
}

/// Returns the field that names the entries of a list.
fn naming_key<'a>(field: &str, mut entries: impl Iterator<Item = &'a Value>) -> &'static str {
    match () {
        () if field.ends_with(".volumeMounts") => "mountPath",
        () if field.ends_with(".volumeDevices") => "devicePath",
        () if field.ends_with(".ports") && entries.any(|port| port["name"].is_null()) => "containerPort",
        () => "name",
    }
}

/// Returns the entries of a list with their names; `None` if an entry has no unique name.
fn named<'a>(key: &str, entries: &'a [Value]) -> Option<Vec<(String, &'a Value)>> {
    let name = |entry: &Value| match entry.get(key)? {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let named: Vec<(String, &Value)> =
        entries.iter().map(|entry| Some((name(entry)?, entry))).collect::<Option<_>>()?;
    let distinct: BTreeSet<&String> = named.iter().map(|(name, _)| name).collect();
    (distinct.len() == named.len()).then_some(named)
}

/// Removes the name from an added or removed entry, because the field path contains the name. The name is kept if it is
/// the only field.
fn without_name(key: &str, entry: Option<&Value>, other: Option<&Value>) -> Option<Value> {
    let mut entry = entry?.clone();
    if let (None, Some(fields)) = (other, entry.as_object_mut().filter(|fields| fields.len() > 1)) {
        fields.remove(key);
    }
    Some(entry)
}

/// Appends a key to a field path.
pub(crate) fn step(field: &str, key: &str) -> String {
    match () {
        () if field.is_empty() => key.to_owned(),
        () if key.contains(['.', '/', '[', ' ']) => format!("{field}[{key}]"),
        () => format!("{field}.{key}"),
    }
}
