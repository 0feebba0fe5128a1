//! Checks the structure of a bundle.json with the JSON Schema in `bundle/schema.json`.

use std::sync::OnceLock;

use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde_json::Value;

use crate::violation::{Violations, pointer};

/// Returns all violations of the schema by a bundle.json.
pub(super) fn check(value: &Value) -> Violations {
    static FORM: OnceLock<Validator> = OnceLock::new();
    let validator = FORM.get_or_init(|| {
        let schema = serde_json::from_str(include_str!("schema.json")).unwrap_or(Value::Bool(false));
        #[allow(clippy::expect_used)] // the schema is a constant, and every test uses it
        jsonschema::draft7::new(&schema).expect("the schema of bundles is a JSON Schema")
    });
    let mut wrong = Violations::default();
    for error in validator.iter_errors(value) {
        let path = error.instance_path().to_string();
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                for name in unexpected {
                    let message = "is not a field of a bundle.json; data outside the specification belongs in `custom`";
                    wrong.add(pointer(&path, name), 37, message);
                }
            }
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                let rule = if name == "destination" { 29 } else { 24 };
                wrong.add(pointer(&path, name), rule, "is missing");
            }
            ValidationErrorKind::MinItems { .. } => {
                wrong.add(path, 24, "is empty; a bundle has at least one invocation image");
            }
            _ => wrong.add(path, 24, error.masked_with("the value").to_string()),
        }
    }
    wrong
}
