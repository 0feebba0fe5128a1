//! Parses claims and results, which another program may have written, and checks them with a JSON Schema for CNAB 400.
//!
//! The published schemas accept any field, because their `additionalProperties` is at the wrong level. The schemas here
//! refuse unknown fields, except for `schemaVersion`, which cnab-go writes.

use std::sync::OnceLock;

use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde::Deserialize as _;
use serde_json::Value;

use super::{Claim, ClaimResult};
use crate::id::is_ulid;
use crate::names;
use crate::violation::{Violations, pointer};

impl Claim {
    /// Parses a claim. The claim's bundle is not validated, because it may be older than the rules.
    ///
    /// # Errors
    /// Returns all violations if the claim is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, Violations> {
        static FORM: OnceLock<Validator> = OnceLock::new();
        let validator = FORM.get_or_init(|| compiled(include_str!("claim.json")));
        let (value, mut wrong) = form(bytes, validator, 44)?;
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        if text("id").is_some_and(|id| !is_ulid(id)) {
            wrong.add("/id", 44, "is not a ULID");
        }
        if text("revision").is_some_and(|id| !is_ulid(id)) {
            wrong.add("/revision", 8, "is not a ULID");
        }
        if let Some(fault) = text("installation").and_then(names::fault) {
            wrong.add("/installation", 5, fault);
        }
        let action = text("action").unwrap_or_default();
        let declared = value.pointer("/bundle/actions").is_some_and(|actions| actions.get(action).is_some());
        if !action.is_empty() && !declared && !crate::action::BUILT_IN.contains(&action) && action != "unknown" {
            wrong.add("/action", 6, "is neither a built-in action nor an action of the bundle");
        }
        wrong.or(())?;
        Self::deserialize(value).map_err(|error| Violations::one("", 44, error.to_string()))
    }
}

impl ClaimResult {
    /// Parses a result.
    ///
    /// # Errors
    /// Returns all violations if the result is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, Violations> {
        static FORM: OnceLock<Validator> = OnceLock::new();
        let validator = FORM.get_or_init(|| compiled(include_str!("result.json")));
        let (value, mut wrong) = form(bytes, validator, 47)?;
        for name in ["id", "claimId"] {
            if value.get(name).and_then(Value::as_str).is_some_and(|id| !is_ulid(id)) {
                wrong.add(pointer("", name), 47, "is not a ULID");
            }
        }
        wrong.or(())?;
        Self::deserialize(value).map_err(|error| Violations::one("", 47, error.to_string()))
    }
}

#[allow(clippy::expect_used)] // the schemas are constants, and every test uses them
fn compiled(schema: &str) -> Validator {
    let schema = serde_json::from_str(schema).expect("the schema is JSON");
    let options = jsonschema::options().with_draft(jsonschema::Draft::Draft7).should_validate_formats(true);
    options.build(&schema).expect("the schema is valid")
}

fn form(bytes: &[u8], validator: &Validator, rule: u8) -> Result<(Value, Violations), Violations> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| Violations::one("", rule, format!("is not valid JSON: {error}")))?;
    let mut wrong = Violations::default();
    for error in validator.iter_errors(&value) {
        let path = error.instance_path().to_string();
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                unexpected.iter().for_each(|name| wrong.add(pointer(&path, name), 37, "is an unknown field"));
            }
            ValidationErrorKind::Required { property } => {
                wrong.add(pointer(&path, property.as_str().unwrap_or_default()), rule, "is missing");
            }
            _ => wrong.add(path, rule, error.masked_with("the value").to_string()),
        }
    }
    Ok((value, wrong))
}
