//! Replaces values of secrets in a template before it is sent to conventions, and restores them afterwards (rule 14 of
//! `docs/guides/conventions.md`).
//!
//! Templates usually refer to secrets by name; conventions receive these references. But a template can also contain
//! the value of a secret, for example in a variable or a command. Such a value is replaced with a placeholder. A
//! convention may move a placeholder only within its field: in another field, such as the name of an image, the value
//! could be sent to another host.

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::change::step;
use crate::violation::Violations;

/// Minimum length, in bytes, of values that are also replaced within longer strings. Shorter values would match too
/// often. Short values are replaced only if they are the whole value of a variable, argument or annotation.
pub const PART_MIN: usize = 8;
/// Prefix of a placeholder.
const PREFIX: &str = "__executor_secret_";
/// Fields that hold Kubernetes names or enumerations. Values of these fields are public and not searched.
const NAMES: [&str; 22] = [
    "apiVersion",
    "claimName",
    "dnsPolicy",
    "effect",
    "fieldPath",
    "image",
    "imagePullPolicy",
    "key",
    "kind",
    "mountPropagation",
    "name",
    "nodeName",
    "operator",
    "preemptionPolicy",
    "procMount",
    "protocol",
    "restartPolicy",
    "secretName",
    "serviceAccount",
    "serviceAccountName",
    "terminationMessagePolicy",
    "type",
];
/// Fields whose value is a map with keys of the author's choice.
const MAPS: [&str; 7] = ["annotations", "labels", "limits", "matchLabels", "nodeSelector", "overhead", "requests"];
/// Fields in which a secret value of any length is replaced if it is the whole string.
const WHOLE: [&str; 3] = ["value", "args", "command"];

/// Values of secrets, which are zeroed on drop and never printed.
#[derive(Clone, Default)]
pub struct SecretValues {
    /// Values, longest first: if one value contains another, the longer value is replaced.
    values: Vec<Zeroizing<String>>,
}

impl fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValues([REDACTED])")
    }
}

impl SecretValues {
    /// Adds a value. A value that is not UTF-8 is searched for only in base64, because a template cannot contain the
    /// raw bytes.
    pub fn add(&mut self, value: &[u8]) {
        if value.is_empty() {
            return;
        }
        if let Ok(text) = std::str::from_utf8(value) {
            self.insert(Zeroizing::new(text.to_owned()));
            // Also add the value without the newline at its end, which is often lost when a value is copied.
            let trimmed = text.trim_end_matches(['\n', '\r']);
            if trimmed.len() < text.len() && !trimmed.is_empty() {
                self.insert(Zeroizing::new(trimmed.to_owned()));
            }
        }
        if value.len() >= PART_MIN {
            self.insert(Zeroizing::new(STANDARD.encode(value)));
            self.insert(Zeroizing::new(URL_SAFE_NO_PAD.encode(value)));
        }
    }

    fn insert(&mut self, value: Zeroizing<String>) {
        let at = self.values.partition_point(|other| (other.len(), other.as_str()) > (value.len(), value.as_str()));
        if self.values.get(at) != Some(&value) {
            self.values.insert(at, value);
        }
    }

    /// Replaces the values in a document with placeholders.
    ///
    /// # Errors
    /// Returns an error if the document already contains a placeholder, or if a key contains a value.
    pub(crate) fn hide(&self, document: &mut Value) -> Result<(), Violations> {
        let mut violations = Violations::default();
        self.walk("", "", document, &mut violations);
        violations.or(())
    }

    fn walk(&self, field: &str, kind: &str, value: &mut Value, violations: &mut Violations) {
        match value {
            Value::String(text) => {
                if text.contains(PREFIX) {
                    violations.add(
                        None,
                        field,
                        14,
                        format!("contains {PREFIX}, which is reserved for placeholders of secrets"),
                    );
                } else if let Some(hidden) = self.hidden(text, kind) {
                    *text = hidden;
                }
            }
            Value::Array(entries) => {
                for entry in entries {
                    self.walk(field, kind, entry, violations);
                }
            }
            Value::Object(fields) => {
                let map = MAPS.contains(&kind);
                for (key, value) in fields {
                    if map && self.is_part(key) {
                        violations.add(None, field, 14, "has a key that contains the value of a secret");
                    }
                    let kind = if map && kind == "annotations" {
                        "value"
                    } else if map {
                        ""
                    } else {
                        &**key
                    };
                    if !NAMES.contains(&kind) {
                        self.walk(&step(field, key), kind, value, violations);
                    }
                }
            }
            _ => {}
        }
    }

    fn is_part(&self, text: &str) -> bool {
        self.values.iter().any(|value| value.len() >= PART_MIN && text.contains(&***value))
    }

    /// Returns the string with placeholders; `None` if it contains no value.
    fn hidden(&self, text: &str, kind: &str) -> Option<String> {
        if WHOLE.contains(&kind)
            && let Some(index) = self.values.iter().position(|value| text == value.as_str())
        {
            return Some(placeholder(index));
        }
        let mut rest = text;
        let mut hidden = String::new();
        // If values overlap, the first match is replaced; at the same position, the longest match.
        while let Some((at, index)) = self.first_in(rest) {
            hidden.push_str(&rest[..at]);
            hidden.push_str(&placeholder(index));
            rest = &rest[at + self.values[index].len()..];
        }
        (rest.len() < text.len()).then(|| hidden + rest)
    }

    fn first_in(&self, text: &str) -> Option<(usize, usize)> {
        let long = self.values.iter().enumerate().filter(|(_, value)| value.len() >= PART_MIN);
        long.filter_map(|(index, value)| Some((text.find(&***value)?, index))).min()
    }

    /// Replaces the placeholders in a document with the values of secrets.
    pub(crate) fn reveal(&self, document: &mut Value) {
        match document {
            Value::String(text) if text.contains(PREFIX) => *text = self.revealed(text),
            Value::Array(entries) => entries.iter_mut().for_each(|entry| self.reveal(entry)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.reveal(value)),
            _ => {}
        }
    }

    fn revealed(&self, text: &str) -> String {
        let mut parts = text.split(PREFIX);
        let mut revealed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (index, rest) = part.split_once("__").unwrap_or((part, ""));
            match index.parse().ok().and_then(|index: usize| self.values.get(index)) {
                Some(value) => revealed.push_str(value),
                None => revealed.push_str(PREFIX),
            }
            revealed.push_str(rest);
        }
        revealed
    }
}

fn placeholder(index: usize) -> String {
    format!("{PREFIX}{index}__")
}

/// Refuses a response that contains a placeholder in a field where the template did not contain it.
pub(crate) fn check_places(convention: &str, before: &Value, after: &Value) -> Violations {
    let (before, after) = (places(before), places(after));
    let mut violations = Violations::default();
    for (field, _) in after.difference(&before) {
        violations.add(Some(convention), field.clone(), 14, "contains the value of a secret from another field");
    }
    violations
}

/// Returns the fields with placeholders, and the index of each placeholder. A named list entry has its own field path;
/// other entries have the path of their list.
fn places(document: &Value) -> BTreeSet<(String, usize)> {
    let mut found = BTreeSet::new();
    collect("", document, &mut found);
    found
}

fn collect(field: &str, value: &Value, found: &mut BTreeSet<(String, usize)>) {
    let mut add = |text: &str| found.extend(placeholders(text).into_iter().map(|index| (field.to_owned(), index)));
    match value {
        Value::String(text) => add(text),
        Value::Array(entries) => {
            for entry in entries {
                let name = entry.get("name").and_then(Value::as_str);
                let field = name.map_or_else(|| field.to_owned(), |name| format!("{field}[{name}]"));
                collect(&field, entry, found);
            }
        }
        Value::Object(fields) => {
            fields.keys().for_each(|key| add(key));
            for (key, value) in fields {
                collect(&step(field, key), value, found);
            }
        }
        _ => {}
    }
}

fn placeholders(text: &str) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for part in text.split(PREFIX).skip(1) {
        // An incomplete placeholder is also reported.
        let index = part.split("__").next().and_then(|index| index.parse().ok());
        found.insert(index.unwrap_or(usize::MAX));
    }
    found
}
