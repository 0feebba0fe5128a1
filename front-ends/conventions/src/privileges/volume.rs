//! Determines the privileges that volumes grant.

use serde_json::Value;

use super::{entries, text};
use crate::grant::Grant;

/// Separator between a secret's name and one of its keys.
pub(super) const KEY: &str = ", key ";
/// Suffix that represents all keys.
pub(super) const EVERY_KEY: &str = ", every key";
/// Kinds of volumes that grant no privilege: they are private to the pod, or come from objects that are not secret.
const FREE: [&str; 4] = ["emptyDir", "configMap", "downwardAPI", "image"];

/// Returns the privilege to use one key of a secret, or the whole secret if `key` is `None`.
pub(super) fn secret(name: &str, key: Option<&str>) -> (Grant, String) {
    let what = match key {
        Some(key) => format!("the secret {name}{KEY}{key}"),
        None => format!("the secret {name}{EVERY_KEY}"),
    };
    (Grant::Secrets, what)
}

/// Returns the privileges that a container gains by mounting a volume.
pub(super) fn privileges(volume: &Value) -> Vec<(Grant, String)> {
    let mut found = Vec::new();
    let sources = volume.as_object().into_iter().flatten().filter(|(kind, _)| *kind != "name");
    for (kind, source) in sources {
        match &**kind {
            kind if FREE.contains(&kind) => {}
            "hostPath" => {
                let kind = Some(text(&source["type"])).filter(|kind| !kind.is_empty());
                let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
                found.push((Grant::HostPath, format!("the host's path {}{kind}", text(&source["path"]))));
            }
            "secret" => found.extend(keys(text(&source["secretName"]), &source["items"])),
            "projected" => {
                for source in entries(&source["sources"]) {
                    found.extend(projected(source));
                }
            }
            kind => found.push((Grant::Volumes, format!("a volume of the kind {kind}: {source}"))),
        }
    }
    found
}

fn keys(name: &str, items: &Value) -> Vec<(Grant, String)> {
    match entries(items) {
        [] => vec![secret(name, None)],
        items => items.iter().map(|item| secret(name, Some(text(&item["key"])))).collect(),
    }
}

fn projected(source: &Value) -> Vec<(Grant, String)> {
    let mut found = Vec::new();
    for (kind, source) in source.as_object().into_iter().flatten() {
        match &**kind {
            "configMap" | "downwardAPI" => {}
            "secret" => found.extend(keys(text(&source["name"]), &source["items"])),
            "serviceAccountToken" => {
                let audience = text(&source["audience"]);
                found.push((Grant::ServiceAccount, format!("a token of the service account for {audience:?}")));
            }
            kind => found.push((Grant::ServiceAccount, format!("a projected source of the kind {kind}: {source}"))),
        }
    }
    found
}
