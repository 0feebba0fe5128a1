//! Writes the status of `PodIntent` objects, which contain a template to decorate (rule 11 of
//! `docs/guides/conventions.md`).

use serde_json::{Value, json};

use crate::violation::Violations;

const API_VERSION: &str = "conventions.carto.run/v1alpha1";
const KIND: &str = "PodIntent";
/// Types of the conditions for the decoration and for the whole object. Both have the same status here.
const CONDITIONS: [&str; 2] = ["ConventionsApplied", "Ready"];

/// Returns true for a PodIntent.
pub(crate) fn is_intent(object: &Value) -> bool {
    object["apiVersion"] == API_VERSION && object["kind"] == KIND
}

/// Writes the outcome into the status of a PodIntent. After a failure, the last decorated template and its
/// `observedGeneration` are kept. If that generation is older than the object's generation, the template is stale.
/// Other objects are not changed.
///
/// Returns true if the object is a PodIntent.
pub fn settle(object: &mut Value, outcome: Result<Value, &Violations>) -> bool {
    if !is_intent(object) {
        return false;
    }
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    let (is, reason, message) = match outcome {
        Ok(template) => {
            object["status"]["template"] = template;
            object["status"]["observedGeneration"] = generation.into();
            ("True", "Applied", String::new())
        }
        Err(violations) => ("False", "ConventionsApplied", violations.to_string()),
    };
    let condition = |kind: &str| json!({"type": kind, "status": is, "reason": reason, "message": message});
    object["status"]["conditions"] = CONDITIONS.map(condition).to_vec().into();
    true
}
