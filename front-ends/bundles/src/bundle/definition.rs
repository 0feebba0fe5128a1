//! Validates CustomResourceDefinitions with the checks of operator-framework/api, except for their schemas (rule B9 of
//! `docs/guides/bundles.md`).

use std::collections::BTreeSet;

use executor_yaml::{Node, Value};

use super::names::{is_subdomain, is_word};
use super::object::{Object, at, list, map, text};
use crate::fault::{Fault, Faults};

/// Types of printer columns.
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
/// Versions of ConversionReview that API servers support.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
/// Annotation that a definition in a Kubernetes API group must have.
const APPROVED: &str = "api-approved.kubernetes.io";

/// Returns the version names of a definition.
pub(super) fn versions(object: &Object) -> Vec<&str> {
    match text(&object.node, &["spec", "version"]) {
        single if !single.is_empty() && object.api_version.ends_with("v1beta1") => vec![single],
        _ => list(&object.node, &["spec", "versions"]).iter().map(|version| text(version, &["name"])).collect(),
    }
}

/// Validates a definition.
pub(super) fn evaluate(object: &Object, faults: &mut Faults, warnings: &mut Vec<Fault>) {
    let place = object.place();
    let mut wrong = |message: String| faults.add(&*place, "B9", format!("{}: {message}", object.name));
    let old = match &*object.api_version {
        "apiextensions.k8s.io/v1" => false,
        "apiextensions.k8s.io/v1beta1" => true,
        other => {
            return wrong(format!("has the apiVersion {other:?}; it must be apiextensions.k8s.io/v1 or v1beta1"));
        }
    };
    if old {
        let message = format!("{}: Kubernetes 1.22 and later do not support {}", object.name, object.api_version);
        warnings.push(Fault { place: place.clone(), rule: "B9", message });
    }
    let empty = Node { value: Value::Null, place: object.node.place };
    let spec = object.node.get("spec").unwrap_or(&empty);
    names(object, spec, &mut wrong);
    match text(spec, &["scope"]) {
        "Namespaced" | "Cluster" => {}
        "" if old => {}
        _ => wrong("spec.scope must be Namespaced or Cluster".to_owned()),
    }
    check_versions(spec, old, &mut wrong);
    details(spec, "spec", &mut wrong);
    conversion(spec, old, &mut wrong);
    if !old && is_true(spec, "preserveUnknownFields") {
        wrong("spec.preserveUnknownFields must not be true".to_owned());
    }
    let group = text(spec, &["group"]);
    let approved = text(&object.node, &["metadata", "annotations", APPROVED]);
    let is_url = approved.split_once("://").is_some_and(|(scheme, rest)| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(inner)
            && !rest.is_empty()
            && !rest.starts_with('/')
    });
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    if is_protected && !(is_url || approved.starts_with("unapproved")) {
        wrong(format!(
            "the group {group} is Kubernetes' own: the annotation {APPROVED} must be a URL, or begin with unapproved"
        ));
    }
}

fn is_true(node: &Node, key: &str) -> bool {
    matches!(node.get(key).map(|node| &node.value), Some(Value::Bool(true)))
}

fn names(object: &Object, spec: &Node, wrong: &mut impl FnMut(String)) {
    let field = |path: &[&str]| text(spec, path);
    let (group, plural, kind) = (field(&["group"]), field(&["names", "plural"]), field(&["names", "kind"]));
    for (name, value) in [("spec.group", group), ("spec.names.plural", plural), ("spec.names.kind", kind)] {
        if value.is_empty() {
            wrong(format!("has no {name}"));
        }
    }
    if !(group.is_empty() || is_subdomain(group) && group.contains('.')) {
        wrong(format!("spec.group {group:?} must be a DNS name with a dot"));
    }
    if !group.is_empty() && !plural.is_empty() && object.name != format!("{plural}.{group}") {
        wrong(format!("must be called {plural}.{group}"));
    }
    let words = |name: &'static str| list(spec, &["names", name]).iter().map(move |it| (name, it.text().unwrap_or("")));
    let single = ["plural", "singular", "kind", "listKind"].map(|name| (name, field(&["names", name])));
    let single = single.into_iter().filter(|(_, value)| !value.is_empty());
    for (name, value) in single.chain(words("shortNames")).chain(words("categories")) {
        // `kind` and `listKind` may contain upper-case letters.
        let folded = if name.ends_with("ind") { value.to_lowercase() } else { value.to_owned() };
        if !is_word(&folded) {
            let needed = "must be at most 63 characters of a-z, 0-9 and `-`, beginning with a letter";
            wrong(format!("spec.names.{name} {value:?} {needed}"));
        }
    }
    if !kind.is_empty() && kind == field(&["names", "listKind"]) {
        wrong("spec.names.kind and listKind must differ".to_owned());
    }
}

fn check_versions(spec: &Node, old: bool, wrong: &mut impl FnMut(String)) {
    let all = list(spec, &["versions"]);
    let single = if old { text(spec, &["version"]) } else { "" };
    if all.is_empty() && single.is_empty() {
        return wrong("has no version".to_owned());
    }
    let mut seen = BTreeSet::new();
    // A v1beta1 definition may have a single `version` instead of a list.
    let alone = Some(single).filter(|_| all.is_empty());
    for name in all.iter().map(|version| text(version, &["name"])).chain(alone) {
        if !is_word(name) {
            wrong(format!(
                "the version {name:?} must be at most 63 characters of a-z, 0-9 and `-`, beginning with a letter"
            ));
        }
        if !seen.insert(name) {
            wrong(format!("has the version {name} twice"));
        }
    }
    let count = all.iter().filter(|version| is_true(version, "storage")).count();
    if !all.is_empty() && count != 1 {
        wrong(format!("has {count} versions with storage: true; exactly one is required"));
    }
    if let (false, Some(first)) = (single.is_empty(), all.first())
        && text(first, &["name"]) != single
    {
        wrong(format!("spec.version {single:?} is not the first of spec.versions"));
    }
    for (index, version) in all.iter().enumerate() {
        let path = format!("spec.versions[{index}]");
        details(version, &path, wrong);
        let reported = at(version, &["deprecationWarning"]).and_then(Node::text);
        match reported {
            Some(_) if !is_true(version, "deprecated") => {
                wrong(format!("{path}.deprecationWarning is set, but the version is not deprecated"));
            }
            Some(reported) if reported.is_empty() || reported.len() > 256 => {
                wrong(format!("{path}.deprecationWarning is {} bytes; it must be 1 to 256 bytes", reported.len()));
            }
            _ => {}
        }
        for (whole, own) in [
            ("validation", "schema"),
            ("subresources", "subresources"),
            ("additionalPrinterColumns", "additionalPrinterColumns"),
        ] {
            let is_set = |node: &Node, key: &str| node.get(key).is_some_and(|it| !matches!(it.value, Value::Null));
            if old && is_set(spec, whole) && is_set(version, own) {
                wrong(format!("has both spec.{whole} and {path}.{own}"));
            }
        }
    }
}

/// Checks the printer columns and the scale subresource in `node`: in the spec (for all versions), or in one version.
fn details(node: &Node, path: &str, wrong: &mut impl FnMut(String)) {
    for (index, column) in list(node, &["additionalPrinterColumns"]).iter().enumerate() {
        let path = format!("{path}.additionalPrinterColumns[{index}]");
        if text(column, &["name"]).is_empty() {
            wrong(format!("{path} has no name"));
        }
        if !COLUMN_TYPES.contains(&text(column, &["type"])) {
            wrong(format!("{path}.type must be one of {}", COLUMN_TYPES.join(", ")));
        }
        // v1beta1 spells this key `JSONPath`. Case is ignored, because both spellings occur in v1.
        let keys = map(column, &[]).filter(|(key, _)| key.eq_ignore_ascii_case("jsonPath"));
        if !keys.filter_map(|(_, value)| value.text()).any(|value| value.starts_with('.')) {
            wrong(format!("{path}.jsonPath must begin with `.`"));
        }
    }
    let Some(scale) = at(node, &["subresources", "scale"]).filter(|it| matches!(it.value, Value::Map(_))) else {
        return;
    };
    if !text(scale, &["specReplicasPath"]).starts_with(".spec.") {
        wrong(format!("{path}.subresources.scale.specReplicasPath must begin with `.spec.`"));
    }
    let selector = text(scale, &["labelSelectorPath"]);
    if !selector.is_empty() && ![".spec.", ".status."].iter().any(|begin| selector.starts_with(begin)) {
        wrong(format!("{path}.subresources.scale.labelSelectorPath must begin with `.spec.` or `.status.`"));
    }
}

fn conversion(spec: &Node, old: bool, wrong: &mut impl FnMut(String)) {
    let Some(conversion) = spec.get("conversion").filter(|it| matches!(it.value, Value::Map(_))) else { return };
    let (client, reviews): (&[&str], &[&str]) = match old {
        true => (&["webhookClientConfig"], &["conversionReviewVersions"]),
        false => (&["webhook", "clientConfig"], &["webhook", "conversionReviewVersions"]),
    };
    let client = at(conversion, client).filter(|it| matches!(it.value, Value::Map(_)));
    let reviews = list(conversion, reviews);
    let path = "spec.conversion";
    match text(conversion, &["strategy"]) {
        "None" => {
            if client.is_some() || !reviews.is_empty() {
                wrong(format!("{path} has a webhook, which the strategy None does not permit"));
            }
        }
        "Webhook" => {
            let is_set =
                |key: &str| client.and_then(|it| it.get(key)).is_some_and(|it| !matches!(it.value, Value::Null));
            match client {
                None => wrong(format!("{path} has the strategy Webhook, but no clientConfig")),
                Some(_) if is_set("url") == is_set("service") => {
                    wrong(format!("{path}: the clientConfig must have either a url or a service"));
                }
                Some(client) if is_set("service") => {
                    for field in ["name", "namespace"] {
                        if text(client, &["service", field]).is_empty() {
                            wrong(format!("{path}: the clientConfig's service has no {field}"));
                        }
                    }
                }
                Some(client) if !text(client, &["url"]).starts_with("https://") => {
                    wrong(format!("{path}: the clientConfig's url must begin with https://"));
                }
                Some(_) => {}
            }
            let known = reviews.iter().filter_map(Node::text).any(|version| REVIEWS.contains(&version));
            // In v1beta1 an empty list means the default.
            if !(known || old && reviews.is_empty()) {
                wrong(format!("{path}.conversionReviewVersions must have one of {}", REVIEWS.join(", ")));
            }
            if old && !matches!(spec.get("preserveUnknownFields").map(|it| &it.value), Some(Value::Bool(false))) {
                wrong(format!("{path}.strategy Webhook requires preserveUnknownFields: false"));
            }
        }
        _ => wrong(format!("{path}.strategy must be None or Webhook")),
    }
}
