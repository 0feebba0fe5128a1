//! Bundles, validated by the rules of their format.
//!
//! `registry+v1` is an operator: a CSV, other objects, annotations (rules B1 to B15, as in `opm alpha bundle validate`,
//! with the CSV validated as in operator-framework/api). `plain+v0` is a directory of objects (rules P1 to P3).

mod csv;
mod definition;
mod metadata;
mod names;
mod object;
mod plain;
mod registry;

use std::fmt;

use semver::Version;
use serde::Serialize;

pub use csv::{Csv, Deployment, NotProvided};
pub use metadata::Dependency;
pub use object::Object;

use crate::fault::{Fault, Faults};
use crate::source::Files;

/// Label and annotation with a bundle's format.
pub(crate) const MEDIA_TYPE: &str = "operators.operatorframework.io.bundle.mediatype.v1";
/// Directory of the objects.
pub(crate) const MANIFESTS: &str = "manifests";
/// Directory of the metadata.
pub(crate) const METADATA: &str = "metadata";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Format {
    /// An operator of OLM.
    #[serde(rename = "registry+v1")]
    RegistryV1,
    /// Kubernetes objects.
    #[serde(rename = "plain+v0")]
    PlainV0,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RegistryV1 => "registry+v1",
            Self::PlainV0 => "plain+v0",
        })
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "registry+v1" => Ok(Self::RegistryV1),
            "plain+v0" => Ok(Self::PlainV0),
            other => Err(format!("{other:?} is not a format of bundles; use registry+v1 or plain+v0")),
        }
    }
}

/// A valid bundle.
#[derive(Clone)]
pub struct Bundle {
    pub format: Format,
    /// Name of the CSV; `None` for plain bundles.
    pub name: Option<String>,
    /// Version; `None` if the format has none.
    pub version: Option<Version>,
    /// Package; `None` if the format has none.
    pub package: Option<String>,
    pub channels: Vec<String>,
    pub default_channel: Option<String>,
    /// Requirements.
    pub dependencies: Vec<Dependency>,
    /// The operator's description; `None` for plain bundles.
    pub csv: Option<Csv>,
    /// All objects except the CSV.
    pub objects: Vec<Object>,
    /// Oddities that break no rule.
    pub warnings: Vec<Fault>,
}

/// Returns the format named by an image label or the annotations, else registry+v1 if there is metadata or a CSV.
pub fn format(files: &Files) -> Format {
    let named = files.labels.get(MEDIA_TYPE).map(String::as_str);
    match named {
        Some("plain+v0") => return Format::PlainV0,
        Some("registry+v1") => return Format::RegistryV1,
        _ => {}
    }
    if files.has_directory(METADATA) || registry::has_csv(files) { Format::RegistryV1 } else { Format::PlainV0 }
}

/// Reads and validates a bundle.
///
/// # Errors
/// Returns all faults.
pub fn read(files: &Files, format: Format) -> Result<Bundle, Faults> {
    match format {
        Format::RegistryV1 => registry::read(files),
        Format::PlainV0 => plain::read(files),
    }
}

impl Bundle {
    /// Returns the parts that need an API server and are not provided here.
    pub fn not_provided(&self) -> Vec<NotProvided> {
        let mut found = self.csv.as_ref().map(Csv::not_provided).unwrap_or_default();
        for object in &self.objects {
            let why = match &*object.kind {
                "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" | "CronJob" | "Pod" | "ConfigMap"
                | "Secret" => continue,
                // Names that pods use; nothing needs to be done for them.
                "ServiceAccount" | "Namespace" => continue,
                "CustomResourceDefinition" => "no API server that serves custom resources",
                "Role" | "ClusterRole" | "RoleBinding" | "ClusterRoleBinding" => {
                    "no API server that grants access (RBAC)"
                }
                "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
                    "no API server that calls webhooks"
                }
                "Service" | "NetworkPolicy" | "Ingress" => "no cluster network",
                _ => "no API server that supports such objects",
            };
            found.push(NotProvided { what: format!("{} {}", object.kind, object.name), why });
        }
        for dependency in &self.dependencies {
            found.push(NotProvided {
                what: format!("dependency: {dependency}"),
                why: "no catalog that resolves dependencies",
            });
        }
        found
    }

    /// Returns true if the bundle contains Secrets.
    pub fn has_secrets(&self) -> bool {
        self.objects.iter().any(|object| object.kind == "Secret")
    }
}
