//! Reads bundles and validates them by the rules of their format.
//!
//! A `registry+v1` bundle is an operator: a ClusterServiceVersion (CSV), other objects and annotations. It is validated
//! by rules B1 to B15 of `docs/guides/bundles.md`, which are the rules of `opm alpha bundle validate`. The rules of the
//! CSV are those of operator-framework/api. A `plain+v0` bundle is a directory of objects (rules P1 to P3).

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

/// Name of the image label and of the annotation that hold a bundle's format.
pub(crate) const MEDIA_TYPE: &str = "operators.operatorframework.io.bundle.mediatype.v1";
/// Directory of the Kubernetes objects in a bundle.
pub(crate) const MANIFESTS: &str = "manifests";
/// Directory of the annotations and dependencies in a bundle.
pub(crate) const METADATA: &str = "metadata";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Format {
    /// An operator for the Operator Lifecycle Manager (OLM).
    #[serde(rename = "registry+v1")]
    RegistryV1,
    /// A directory of Kubernetes objects.
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
            other => Err(format!("{other:?} is not a bundle format; use registry+v1 or plain+v0")),
        }
    }
}

#[derive(Clone)]
pub struct Bundle {
    pub format: Format,
    /// Name of the CSV; `None` for plain bundles.
    pub name: Option<String>,
    /// Version; `None` if the format has no versions.
    pub version: Option<Version>,
    /// Package; `None` if the format has no packages.
    pub package: Option<String>,
    pub channels: Vec<String>,
    pub default_channel: Option<String>,
    /// Packages, APIs and constraints that the bundle requires.
    pub dependencies: Vec<Dependency>,
    /// The operator's ClusterServiceVersion; `None` for plain bundles.
    pub csv: Option<Csv>,
    /// All objects except the CSV.
    pub objects: Vec<Object>,
    /// Problems that break no rule.
    pub warnings: Vec<Fault>,
}

/// Returns the format that the image label names. If no label names a format, returns registry+v1 if there is metadata
/// or a CSV, otherwise plain+v0.
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
/// Returns all violations of rules if there are any.
pub fn read(files: &Files, format: Format) -> Result<Bundle, Faults> {
    match format {
        Format::RegistryV1 => registry::read(files),
        Format::PlainV0 => plain::read(files),
    }
}

impl Bundle {
    /// Returns the parts that need a feature that executord does not provide, such as an API server.
    pub fn not_provided(&self) -> Vec<NotProvided> {
        let mut found = self.csv.as_ref().map(Csv::not_provided).unwrap_or_default();
        for object in &self.objects {
            let why = match &*object.kind {
                "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" | "CronJob" | "Pod" | "ConfigMap"
                | "Secret" => continue,
                // Pods only refer to these by name: nothing needs to be created.
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
