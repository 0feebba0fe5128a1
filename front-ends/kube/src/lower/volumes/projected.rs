//! Lowers volumes that consist of files: ConfigMaps, Secrets, the downward API and projected volumes (rules P53, P54
//! and P20 of `docs/guides/kube-rules.md`).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, ProjectedVolumeSource};
use zeroize::Zeroizing;

use super::{Kind, clean};
use crate::lower::{Lowering, set_fields};
use crate::names::is_item_path;

/// Default mode of files.
pub(super) const MODE: i32 = 0o644;

/// Message for an invalid file path in a volume.
const NOT_ITEM: &str = "must be a relative path without a component `..`, and must not begin with `..`";

/// A file of a volume.
#[derive(Clone)]
pub(in crate::lower) struct Projected {
    pub(super) content: Zeroizing<Vec<u8>>,
    pub(super) mode: u32,
    pub(super) secret: bool,
}

impl Lowering<'_> {
    pub(super) fn mode(&mut self, at: &str, mode: Option<i32>, default: i32) -> u32 {
        let mode = mode.unwrap_or(default);
        if !(0..=0o777).contains(&mode) {
            self.refuse(at, "P2", format!("is {mode}, which is 0{mode:o} in octal; it must be 0 to 0777"));
        }
        mode.unsigned_abs() & 0o777
    }

    /// Returns the files of a ConfigMap or Secret (rule P53).
    pub(super) fn configured(
        &mut self,
        at: &str,
        secret: bool,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
        mode: u32,
    ) -> BTreeMap<String, Projected> {
        let what = if secret { "Secret" } else { "ConfigMap" };
        let optional = optional == Some(true);
        let Some(config) = self.config(secret, name) else {
            if !optional {
                let message =
                    format!("there is no {what} `{name}` in the namespace {} among the files", self.workload.namespace);
                self.refuse(at, "P19", message);
            }
            return BTreeMap::new();
        };
        let mut files = BTreeMap::new();
        let projected = |content: &[u8], mode| Projected { content: Zeroizing::new(content.to_vec()), mode, secret };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            for (key, value) in &config.data {
                files.insert(key.clone(), projected(value.bytes(), mode));
            }
            return files;
        };
        for (index, item) in items.iter().enumerate() {
            let at = format!("{at}.items[{index}]");
            if !is_item_path(&item.path) {
                self.refuse(&format!("{at}.path"), "P53", NOT_ITEM);
                continue;
            }
            let mode = self.mode(&format!("{at}.mode"), item.mode, i32::try_from(mode).unwrap_or(MODE));
            match config.data.get(&item.key) {
                Some(value) => {
                    files.insert(clean(&item.path), projected(value.bytes(), mode));
                }
                None if optional => {}
                None => {
                    self.refuse(&format!("{at}.key"), "P53", format!("the {what} `{name}` has no key `{}`", item.key));
                }
            }
        }
        files
    }

    /// Returns the files of the downward API (rule P20).
    pub(super) fn downward(
        &mut self,
        at: &str,
        items: &[DownwardAPIVolumeFile],
        mode: u32,
    ) -> BTreeMap<String, Projected> {
        let mut files = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            let at = format!("{at}.items[{index}]");
            if !is_item_path(&item.path) {
                self.refuse(&format!("{at}.path"), "P53", NOT_ITEM);
                continue;
            }
            let mode = self.mode(&format!("{at}.mode"), item.mode, i32::try_from(mode).unwrap_or(MODE));
            if item.field_ref.is_some() && item.resource_field_ref.is_some() {
                self.refuse(&at, "P20", "has both fieldRef and resourceFieldRef");
                continue;
            }
            let value = if let Some(field) = &item.field_ref {
                self.volume_field(&format!("{at}.fieldRef"), field)
            } else if let Some(resource) = &item.resource_field_ref {
                match self.container_of(resource.container_name.as_deref().unwrap_or_default()) {
                    Some(container) => self.resource_field(&format!("{at}.resourceFieldRef"), resource, container),
                    None => {
                        self.refuse(
                            &format!("{at}.resourceFieldRef.containerName"),
                            "P21",
                            "is not a container of the pod",
                        );
                        None
                    }
                }
            } else {
                self.refuse(&at, "P20", "must have fieldRef or resourceFieldRef");
                None
            };
            if let Some(value) = value {
                let content = Zeroizing::new(value.into_bytes());
                files.insert(clean(&item.path), Projected { content, mode, secret: false });
            }
        }
        files
    }

    fn volume_field(&mut self, at: &str, field: &ObjectFieldSelector) -> Option<String> {
        let lines = |all: &BTreeMap<String, String>| {
            all.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect::<Vec<_>>().join("\n")
        };
        match &*field.field_path {
            "metadata.labels" => Some(lines(&self.metadata.labels.clone().unwrap_or_default())),
            "metadata.annotations" => Some(lines(&self.metadata.annotations.clone().unwrap_or_default())),
            path if path.starts_with("metadata.") => self.field(at, field),
            _ => {
                self.refuse(&format!("{at}.fieldPath"), "P20", "must be a metadata.* field in a volume");
                None
            }
        }
    }

    pub(super) fn projected(&mut self, at: &str, source: &ProjectedVolumeSource) -> Kind {
        let mode = self.mode(&format!("{at}.defaultMode"), source.default_mode, MODE);
        let mut files = BTreeMap::new();
        let mut paths = BTreeSet::new();
        for (index, source) in source.sources.iter().flatten().enumerate() {
            let at = format!("{at}.sources[{index}]");
            let kinds = set_fields(source);
            if kinds.len() > 1 {
                self.refuse(&at, "P54", format!("has {}; exactly one is allowed", kinds.join(" and ")));
                continue;
            }
            let items = [
                &source.config_map.as_ref().and_then(|one| one.items.as_ref()),
                &source.secret.as_ref().and_then(|one| one.items.as_ref()),
            ];
            let items = items.into_iter().copied().flatten().flatten().map(|item| &item.path);
            let downward = source.downward_api.iter().flat_map(|one| one.items.iter().flatten()).map(|item| &item.path);
            for path in items.chain(downward) {
                if !paths.insert(clean(path)) {
                    self.refuse(&at, "P54", format!("has the path `{path}`, which another item also has"));
                }
            }
            // Later sources overwrite earlier ones (rule P54).
            if let Some(source) = &source.config_map {
                files.extend(self.configured(
                    &format!("{at}.configMap"),
                    false,
                    &source.name,
                    source.items.as_deref(),
                    source.optional,
                    mode,
                ));
            }
            if let Some(source) = &source.secret {
                files.extend(self.configured(
                    &format!("{at}.secret"),
                    true,
                    &source.name,
                    source.items.as_deref(),
                    source.optional,
                    mode,
                ));
            }
            if let Some(source) = &source.downward_api {
                files.extend(self.downward(
                    &format!("{at}.downwardAPI"),
                    source.items.as_deref().unwrap_or_default(),
                    mode,
                ));
            }
            for (field, set) in [
                ("serviceAccountToken", source.service_account_token.is_some()),
                ("clusterTrustBundle", source.cluster_trust_bundle.is_some()),
                ("podCertificate", source.pod_certificate.is_some()),
            ] {
                if set {
                    self.refuse(
                        &format!("{at}.{field}"),
                        "P54",
                        "is not supported: there is no API server that issues one",
                    );
                }
            }
        }
        Kind::Files(files)
    }
}

/// Quotes a string like Go's `%q`, which is the format of values in the downward API (rule P20).
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            '\0'..='\u{1f}' | '\u{7f}' => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            '\u{80}'..='\u{a0}' | '\u{ad}' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
