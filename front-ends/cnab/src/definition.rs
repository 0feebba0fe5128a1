//! Definitions: JSON Schemas (draft-07) of parameters and outputs.
//!
//! A definition stands for itself: `#/...` in it counts from itself, and a `$ref` to anywhere else is refused, because
//! nothing is fetched. A violation never repeats the value, whether it is `writeOnly` or not.

use base64::Engine as _;
use jsonschema::Validator;
use serde_json::Value;

use crate::violation::Violations;

/// The schema of a parameter or an output.
#[derive(Debug)]
pub struct Definition {
    /// What counts where no value is supplied (rule 15).
    pub default: Option<Value>,
    /// The value is sensitive: in no log, and not shown (rule 40).
    pub write_only: bool,
    /// The value is fixed by the first action (rule 41).
    pub read_only: bool,
    /// For a person.
    pub title: String,
    /// For a person.
    pub description: String,
    /// Names of types; empty where any will do.
    pub types: Vec<String>,
    /// Values, where only some are allowed.
    pub choices: Vec<Value>,
    base64: bool,
    validator: Validator,
}

impl Definition {
    /// Reads a schema that is at `path`.
    ///
    /// # Errors
    /// It is none, or it refers to another.
    pub fn new(path: &str, schema: &Value) -> Result<Self, Violations> {
        let mut wrong = Violations::default();
        for error in jsonschema::draft7::meta::validator().iter_errors(schema) {
            let message = format!("is no JSON Schema (draft-07): {}", error.masked_with("the value"));
            wrong.add(format!("{path}{}", error.instance_path()), 24, message);
        }
        for annotation in ["writeOnly", "readOnly"] {
            if schema.get(annotation).is_some_and(|value| !value.is_boolean()) {
                wrong.add(format!("{path}/{annotation}"), 24, "is neither true nor false");
            }
        }
        wrong.or(())?;
        // Formats are checked: `format: date` says nothing otherwise. Of contents only base64 is, and by us, because what
        // programs print ends with a newline, and may be broken into lines.
        let options = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft7)
            .should_validate_formats(true)
            .without_content_encoding_support("base64")
            .without_content_media_type_support("application/json");
        let validator = options.build(schema).map_err(|error| {
            let message = format!(
                "cannot be used as a JSON Schema; nothing is fetched for it: {}",
                error.masked_with("the value")
            );
            Violations::one(path, 24, message)
        })?;
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
        let text = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let types = match schema.get("type") {
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        Ok(Self {
            default: schema.get("default").cloned(),
            write_only: flag("writeOnly"),
            read_only: flag("readOnly"),
            title: text("title"),
            description: text("description"),
            types,
            choices: schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            base64: schema.get("contentEncoding").and_then(Value::as_str) == Some("base64"),
            validator,
        })
    }

    /// Whether a value fits (rule 21).
    ///
    /// # Errors
    /// Every reason, none of which has the value.
    pub fn validate(&self, path: &str, value: &Value, rule: u8) -> Result<(), Violations> {
        let mut wrong = Violations::default();
        for error in self.validator.iter_errors(value) {
            wrong.add(format!("{path}{}", error.instance_path()), rule, error.masked_with("the value").to_string());
        }
        // An annotation in draft-07, and still the author's word on what comes: checked, and delivered as it is.
        if let (true, Value::String(text)) = (self.base64, value)
            && base64::engine::general_purpose::STANDARD
                .decode(text.split_ascii_whitespace().collect::<String>())
                .is_err()
        {
            wrong.add(path, rule, "the value is not base64, which `contentEncoding` says it is");
        }
        wrong.or(())
    }

    /// Reads what a person wrote as a value of the types that the definition allows.
    ///
    /// # Errors
    /// It is none of them. The text is not repeated.
    pub fn read(&self, path: &str, text: &str) -> Result<Value, Violations> {
        let has = |name: &str| self.types.iter().any(|one| one == name);
        let parsed: Option<Value> = serde_json::from_str(text).ok();
        let other = parsed.filter(|value| {
            !value.is_string() && (self.types.is_empty() || has(kind(value)) || (value.is_number() && has("number")))
        });
        if let Some(value) = other
            && exact(&value, text)
        {
            return Ok(value);
        }
        if self.types.is_empty() || has("string") {
            return Ok(Value::String(text.to_owned()));
        }
        // As it is written everywhere but in JSON.
        if has("boolean") && (text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false")) {
            return Ok(Value::Bool(text.eq_ignore_ascii_case("true")));
        }
        Err(Violations::one(path, 13, format!("the value is no {} as JSON writes it", self.types.join(" or "))))
    }

    /// Its types in words.
    pub fn type_name(&self) -> String {
        if self.types.is_empty() { "any".into() } else { self.types.join("|") }
    }
}

/// Type of a value, the narrowest.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() && number.as_f64().is_none_or(|number| number.fract() != 0.0) => {
            "number"
        }
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// An integer beyond 64 bits would lose its last digits.
fn exact(value: &Value, text: &str) -> bool {
    let Value::Number(number) = value else { return true };
    !number.is_f64() || !text.trim().trim_start_matches('-').bytes().all(|b| b.is_ascii_digit())
}

/// How a value is delivered (rules 16 and 17): strings as they are, others as JSON text.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
