//! Reads ConfigMaps and Secrets (rules P5 and P7 to P10 of `docs/guides/kube-rules.md`). Values of Secrets are zeroed
//! on drop and do not occur in messages.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::names::is_key;
use crate::plan::{Keyed, Tag};
use crate::report::{Origin, Report};

/// Maximum size of the decoded data of one ConfigMap or Secret, in bytes.
pub const DATA_MAX: usize = 1 << 20;

/// A value of a ConfigMap or a Secret, zeroed on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(Zeroizing<Vec<u8>>);

impl Bytes {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes as a string if they are UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

/// A string of an input file, zeroed on drop.
#[derive(Clone, Default)]
struct Written(Zeroizing<String>);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<String>::deserialize(deserializer).map(|text| Self(Zeroizing::new(text.unwrap_or_default())))
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WrittenConfig {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(rename = "kind")]
    _kind: Option<String>,
    metadata: Option<ObjectMeta>,
    data: Option<BTreeMap<String, Written>>,
    binary_data: Option<BTreeMap<String, Written>>,
    immutable: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WrittenSecret {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(rename = "kind")]
    _kind: Option<String>,
    metadata: Option<ObjectMeta>,
    data: Option<BTreeMap<String, Written>>,
    string_data: Option<BTreeMap<String, Written>>,
    #[serde(rename = "type")]
    kind_of_secret: Option<String>,
    immutable: Option<bool>,
}

/// A ConfigMap or a Secret.
#[derive(Clone, Debug)]
pub struct Config {
    pub origin: Origin,
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Values by key.
    pub data: BTreeMap<String, Bytes>,
    /// Keys of `binaryData`: `envFrom` skips them, and a key reference treats them as missing (rules P15 and P19).
    pub binary: Vec<String>,
    /// True if the data must not change.
    pub immutable: bool,
    /// Type of a Secret; `None` for a ConfigMap.
    pub secret_type: Option<String>,
}

impl Config {
    pub fn is_secret(&self) -> bool {
        self.secret_type.is_some()
    }

    /// Returns the keyed digest of the data of this ConfigMap or Secret.
    pub fn tag(&self, key: &Tag) -> Tag {
        let mut keyed = Keyed::new(key);
        for (name, value) in &self.data {
            keyed.part(name.as_bytes());
            keyed.part(&[u8::from(self.binary.contains(name))]);
            keyed.part(value.bytes());
        }
        keyed.end()
    }
}

pub(crate) fn config_map(object: &crate::located::Located, report: &mut Report) -> Option<Config> {
    let origin = &object.origin;
    let written: WrittenConfig = object.decode(report)?;
    let metadata = written.metadata.unwrap_or_default();
    let mut data = BTreeMap::new();
    for (key, Written(text)) in written.data.unwrap_or_default() {
        check_key(origin, "data", &key, report);
        data.insert(key, Bytes::new(text.as_bytes().to_vec()));
    }
    let mut binary = Vec::new();
    for (key, Written(text)) in written.binary_data.unwrap_or_default() {
        check_key(origin, "binaryData", &key, report);
        if data.contains_key(&key) {
            report.refuse(origin, at("binaryData", &key), "P7", "is also in `data`");
            continue;
        }
        let bytes = decode(origin, "binaryData", &key, &text, report);
        binary.push(key.clone());
        data.insert(key, bytes);
    }
    check_size(origin, &data, report);
    let (namespace, name) = object.names(&metadata);
    Some(Config {
        origin: origin.clone(),
        namespace,
        name,
        labels: metadata.labels.unwrap_or_default(),
        data,
        binary,
        immutable: written.immutable.unwrap_or(false),
        secret_type: None,
    })
}

pub(crate) fn secret(object: &crate::located::Located, report: &mut Report) -> Option<Config> {
    let origin = &object.origin;
    let written: WrittenSecret = object.decode(report)?;
    let metadata = written.metadata.unwrap_or_default();
    let mut data = BTreeMap::new();
    let texts = written.string_data.unwrap_or_default();
    for (key, Written(text)) in written.data.unwrap_or_default() {
        check_key(origin, "data", &key, report);
        let bytes = decode(origin, "data", &key, &text, report);
        data.insert(key, bytes);
    }
    for (key, Written(text)) in texts {
        check_key(origin, "stringData", &key, report);
        data.insert(key, Bytes::new(text.as_bytes().to_vec()));
    }
    check_size(origin, &data, report);
    let kind = written.kind_of_secret.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "Opaque".to_owned());
    check_type(origin, &kind, &data, &metadata, report);
    let (namespace, name) = object.names(&metadata);
    Some(Config {
        origin: origin.clone(),
        namespace,
        name,
        labels: metadata.labels.unwrap_or_default(),
        data,
        binary: Vec::new(),
        immutable: written.immutable.unwrap_or(false),
        secret_type: Some(kind),
    })
}

fn at(field: &str, key: &str) -> String {
    let plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) && !key.is_empty();
    if plain { format!("{field}.{key}") } else { format!("{field}['{}']", key.chars().take(100).collect::<String>()) }
}

fn check_key(origin: &Origin, field: &str, key: &str, report: &mut Report) {
    if !is_key(key) {
        let message = "is not a valid key: use 1 to 253 characters of A-Z, a-z, 0-9, `-`, `_` and `.`; the key must not be `.` or begin with `..`";
        report.refuse(origin, at(field, key), "P7", message);
    }
}

fn decode(origin: &Origin, field: &str, key: &str, text: &str, report: &mut Report) -> Bytes {
    let packed: Zeroizing<Vec<u8>> =
        Zeroizing::new(text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect());
    match STANDARD.decode(&*packed) {
        Ok(bytes) => Bytes::new(bytes),
        Err(_) => {
            report.refuse(origin, at(field, key), "P8", "is not padded base64");
            Bytes::new(Vec::new())
        }
    }
}

fn check_size(origin: &Origin, data: &BTreeMap<String, Bytes>, report: &mut Report) {
    let size: usize = data.values().map(|value| value.bytes().len()).sum();
    if size > DATA_MAX {
        report.refuse(origin, "", "P5", format!("has {size} bytes of data; the maximum is {DATA_MAX}"));
    }
}

fn check_type(origin: &Origin, kind: &str, data: &BTreeMap<String, Bytes>, metadata: &ObjectMeta, report: &mut Report) {
    let mut wrong = |message: &str| report.refuse(origin, "type", "P9", format!("{kind}: {message}"));
    let json = |key: &str| match data.get(key) {
        None => Err(format!("the key `{key}` is missing")),
        Some(value) => {
            // The API server accepts `null` as an object without entries.
            let text = value.bytes().trim_ascii();
            let is_object = text.starts_with(b"{") || text == b"null";
            match serde_json::from_slice::<serde::de::IgnoredAny>(text) {
                Ok(_) if is_object => Ok(()),
                _ => Err(format!("the value of the key `{key}` is not a JSON object")),
            }
        }
    };
    match kind {
        "kubernetes.io/service-account-token" => {
            let named = metadata.annotations.as_ref().and_then(|all| all.get("kubernetes.io/service-account.name"));
            if named.is_none_or(String::is_empty) {
                wrong("the annotation `kubernetes.io/service-account.name` is missing");
            }
        }
        "kubernetes.io/dockercfg" => {
            if let Err(message) = json(".dockercfg") {
                wrong(&message);
            }
        }
        "kubernetes.io/dockerconfigjson" => {
            if let Err(message) = json(".dockerconfigjson") {
                wrong(&message);
            }
        }
        "kubernetes.io/basic-auth" if !data.contains_key("username") && !data.contains_key("password") => {
            wrong("the key `username` or `password` is missing");
        }
        "kubernetes.io/ssh-auth" if data.get("ssh-privatekey").is_none_or(|key| key.bytes().is_empty()) => {
            wrong("the key `ssh-privatekey` is missing or empty");
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"].into_iter().filter(|key| !data.contains_key(*key)) {
                wrong(&format!("the key `{key}` is missing"));
            }
        }
        _ => {}
    }
}
