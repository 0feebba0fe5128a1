//! Writes the objects of a bundle that `agent-cli kube play` supports as a stream of JSON documents. The stream is also
//! valid YAML. The stream can hold values of Secrets: it is zeroed on drop and written only to a pipe.

use std::fmt::Write as _;

use executor_yaml::{Node, Value};
use zeroize::Zeroizing;

use crate::bundle::{Bundle, NotProvided, Object};

/// Kinds that `agent-cli kube play` supports.
const PLAYED: [&str; 9] =
    ["Pod", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "ConfigMap", "Secret"];

/// Reason why a bundle cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("the bundle needs parts that are not provided here:\n{}\nuse --partial to install only the supported parts", list(.0))]
    NotProvided(Vec<NotProvided>),
    #[error("no object of the bundle can run on this node")]
    Nothing,
}

fn list(not_provided: &[NotProvided]) -> String {
    let line = |it: &NotProvided| format!("  {}: {}", it.what, it.why);
    not_provided.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the objects of a bundle that can run here, with their namespace replaced with `namespace`. Objects that need
/// an API server are skipped if `partial` is true.
///
/// # Errors
/// Returns an error if an object needs an API server and `partial` is false, or if no workload remains.
pub fn play(bundle: &Bundle, namespace: &str, partial: bool) -> Result<Zeroizing<String>, ManifestError> {
    let not_provided = bundle.not_provided();
    if !partial && !not_provided.is_empty() {
        return Err(ManifestError::NotProvided(not_provided));
    }
    let mut text = Zeroizing::new(String::new());
    let mut runs = false;
    for object in &bundle.objects {
        match &*object.kind {
            kind if PLAYED.contains(&kind) => {
                runs |= !matches!(kind, "ConfigMap" | "Secret");
                let Object { node, .. } = object;
                put_object(&mut text, node, namespace);
            }
            _ => {}
        }
    }
    for deployment in bundle.csv.iter().flat_map(|csv| &csv.deployments) {
        runs = true;
        text.push_str("---\n{\"apiVersion\":\"apps/v1\",\"kind\":\"Deployment\",\"metadata\":{\"name\":");
        put_text(&mut text, &deployment.name);
        text.push_str(",\"namespace\":");
        put_text(&mut text, namespace);
        text.push_str(",\"labels\":{");
        for (index, (key, value)) in deployment.labels.iter().enumerate() {
            text.push_str(if index == 0 { "" } else { "," });
            put_text(&mut text, key);
            text.push(':');
            put_text(&mut text, value);
        }
        text.push_str("}},\"spec\":");
        put(&mut text, &deployment.spec);
        text.push_str("}\n");
    }
    if runs { Ok(text) } else { Err(ManifestError::Nothing) }
}

/// Writes an object as a document, with its namespace replaced.
fn put_object(text: &mut String, node: &Node, namespace: &str) {
    let Value::Map(entries) = &node.value else { return };
    text.push_str("---\n{");
    for (index, (key, value)) in entries.iter().enumerate() {
        text.push_str(if index == 0 { "" } else { "," });
        put_text(text, &key.name);
        text.push(':');
        match &value.value {
            Value::Map(metadata) if key.name == "metadata" => {
                text.push_str("{\"namespace\":");
                put_text(text, namespace);
                for (key, value) in metadata.iter().filter(|(key, _)| key.name != "namespace") {
                    text.push(',');
                    put_text(text, &key.name);
                    text.push(':');
                    put(text, value);
                }
                text.push('}');
            }
            _ => put(text, value),
        }
    }
    text.push_str("}\n");
}

/// Writes a value as JSON.
fn put(text: &mut String, node: &Node) {
    match &node.value {
        Value::Null => text.push_str("null"),
        Value::Bool(value) => _ = write!(text, "{value}"),
        Value::Int(value) => _ = write!(text, "{value}"),
        Value::UInt(value) => _ = write!(text, "{value}"),
        Value::Float(value) => _ = write!(text, "{value:?}"),
        Value::Text(value) => put_text(text, value),
        Value::List(list) => {
            text.push('[');
            for (index, node) in list.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                put(text, node);
            }
            text.push(']');
        }
        Value::Map(map) => {
            text.push('{');
            for (index, (key, node)) in map.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                put_text(text, &key.name);
                text.push(':');
                put(text, node);
            }
            text.push('}');
        }
    }
}

/// Writes a quoted string without copying it.
fn put_text(text: &mut String, value: &str) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => {
                _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
}
