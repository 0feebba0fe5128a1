//! Locates pod templates in objects, and converts them between JSON and Kubernetes types.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::change::changes;

/// Maximum size of a template, in bytes of JSON.
pub const TEMPLATE_MAX: usize = 2 << 20;
/// Maximum number of containers of all kinds in a template.
pub const CONTAINERS_MAX: usize = 200;
/// Maximum number of unknown fields that are reported.
const UNKNOWN_MAX: usize = 20;

/// Location of the pod template in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The object is a pod: its labels, annotations and `spec` are the template.
    Itself,
    /// JSON pointer to the template.
    At(&'static str),
}

impl Place {
    /// Returns the location for the object's kind; `None` for a kind without a template.
    pub fn from_object(object: &Value) -> Option<Self> {
        Some(match object["kind"].as_str()? {
            "Pod" => Self::Itself,
            "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" | "ReplicationController" => {
                Self::At("/spec/template")
            }
            "PodIntent" if crate::intent::is_intent(object) => Self::At("/spec/template"),
            "CronJob" => Self::At("/spec/jobTemplate/spec/template"),
            "PodTemplate" => Self::At("/template"),
            _ => return None,
        })
    }

    /// Reads the template of an object.
    ///
    /// # Errors
    /// Returns a message of one sentence, without values, if the template is invalid.
    pub fn read(self, object: &Value) -> Result<PodTemplateSpec, String> {
        let template = match self {
            Self::Itself => {
                let metadata = |field: &str| object["metadata"][field].clone();
                json!({
                    "metadata": {"labels": metadata("labels"), "annotations": metadata("annotations")},
                    "spec": object["spec"],
                })
            }
            Self::At(pointer) => object.pointer(pointer).cloned().ok_or_else(|| format!("has no {pointer}"))?,
        };
        typed(&template)
    }

    /// Writes a template back into its object.
    pub fn write(self, object: &mut Value, template: &PodTemplateSpec) {
        let template = document(template);
        match self {
            Self::Itself => {
                for field in ["labels", "annotations"] {
                    let Some(metadata) = object["metadata"].as_object_mut() else { continue };
                    match template["metadata"].get(field) {
                        Some(value) => drop(metadata.insert(field.to_owned(), value.clone())),
                        None => drop(metadata.remove(field)),
                    }
                }
                object["spec"] = template["spec"].clone();
            }
            Self::At(pointer) => {
                if let Some(place) = object.pointer_mut(pointer) {
                    *place = template;
                }
            }
        }
    }
}

/// Returns a template as JSON.
pub fn document(template: &PodTemplateSpec) -> Value {
    serde_json::to_value(template).unwrap_or_default() // cannot fail: all keys are strings
}

/// Parses a template from JSON. Fields that this version of Kubernetes does not define are dropped.
///
/// # Errors
/// Returns a message of one sentence, without values, if the template is invalid.
pub(crate) fn typed(document: &Value) -> Result<PodTemplateSpec, String> {
    // The parser's message could contain a value.
    let template = PodTemplateSpec::deserialize(document).map_err(|error| match named_field(&error.to_string()) {
        Some(field) => format!("is not a pod template: {field}"),
        None => "is not a pod template: a field has the wrong type".to_owned(),
    })?;
    let Some(spec) = &template.spec else { return Err("is not a pod template: it has no spec".to_owned()) };
    let ephemeral = spec.ephemeral_containers.as_ref().map_or(0, Vec::len);
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len) + ephemeral;
    match count {
        _ if spec.containers.is_empty() => Err("is not a pod template: it has no containers".to_owned()),
        _ if count > CONTAINERS_MAX => Err(format!("has {count} containers; at most {CONTAINERS_MAX} are allowed")),
        _ => names(spec).map(|()| template),
    }
}

/// Checks that the names of containers and volumes are unique, because containers and volumes are looked up by name.
fn names(spec: &PodSpec) -> Result<(), String> {
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
    let others = spec.init_containers.iter().flatten().chain(&spec.containers).map(|container| &container.name);
    let volumes = spec.volumes.iter().flatten().map(|volume| &volume.name);
    let mut seen = BTreeSet::new();
    for name in others.chain(ephemeral) {
        if name.is_empty() || !seen.insert(name) {
            let what = if name.is_empty() { "a container without a name" } else { "two containers with the same name" };
            return Err(format!("is not a pod template: it has {what}"));
        }
    }
    seen.clear();
    for name in volumes {
        if name.is_empty() || !seen.insert(name) {
            let what = if name.is_empty() { "a volume without a name" } else { "two volumes with the same name" };
            return Err(format!("is not a pod template: it has {what}"));
        }
    }
    Ok(())
}

/// Returns a message if a serde error reports a missing field. Such an error contains no value.
fn named_field(error: &str) -> Option<String> {
    let rest = error.strip_prefix("missing field `")?;
    let (field, _) = rest.split_once('`')?;
    Some(format!("{field} is missing"))
}

/// Parses a template from a convention's response. Returns the template and the unknown fields, which are dropped.
pub(crate) fn checked(answered: &Value) -> Result<(Value, Vec<String>), String> {
    let known = document(&typed(answered)?);
    let size = known.to_string().len();
    if size > TEMPLATE_MAX {
        return Err(format!("is {size} bytes; the maximum is {TEMPLATE_MAX}"));
    }
    let unknown = changes(answered, &known).into_iter().filter(|change| change.after.is_none());
    Ok((known, unknown.map(|change| change.field).take(UNKNOWN_MAX).collect()))
}
