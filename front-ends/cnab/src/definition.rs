//! Validates parameters and outputs with their definitions, which are JSON Schemas (draft-07).
//!
//! A definition is self-contained: a `$ref` of `#/...` is relative to the definition, and every other `$ref` is
//! refused, because nothing is fetched. Violations never contain the value, even if it is not `writeOnly`.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

use base64::Engine as _;
use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use serde_json::Value;

use crate::schema;
use crate::violation::Violations;

/// Name of an encoding, and a function that returns true if a string is valid in that encoding.
type Encoding = (&'static str, fn(&str) -> bool);

/// Content encodings by name (RFC 2045, section 6.1). Programs end their output with a newline and may break lines, so
/// white space is ignored in base64.
const ENCODINGS: [Encoding; 5] = [
    ("base64", |text| {
        let text: String = text.split_ascii_whitespace().collect();
        base64::engine::general_purpose::STANDARD.decode(text).is_ok()
    }),
    ("quoted-printable", is_quoted_printable),
    ("7bit", |text| text.is_ascii() && !text.contains('\0')),
    ("8bit", |text| !text.contains('\0')),
    ("binary", |_| true),
];

/// The schema of a parameter or an output.
#[derive(Debug)]
pub struct Definition {
    /// Default for a value that is not supplied (rule 15).
    pub default: Option<Value>,
    /// True if the value is secret and is neither logged nor shown (rule 40).
    pub write_only: bool,
    /// True if the value cannot change after the first action (rule 41).
    pub read_only: bool,
    /// Title for users.
    pub title: String,
    /// Description for users.
    pub description: String,
    /// Names of types; empty if any type is allowed.
    pub types: Vec<String>,
    /// Allowed values; empty if any value is allowed.
    pub choices: Vec<Value>,
    base64: bool,
    validator: Validator,
}

impl Definition {
    /// Parses a schema. `path` is the JSON pointer of the schema, for error messages.
    ///
    /// # Errors
    /// Returns an error if the schema is invalid or refers to another document.
    pub fn new(path: &str, schema: &Value) -> Result<Self, Violations> {
        let mut wrong = Violations::default();
        for error in jsonschema::draft7::meta::validator().iter_errors(schema) {
            let message = format!("is not a valid JSON Schema (draft-07): {}", error.masked_with("the value"));
            wrong.add(format!("{path}{}", error.instance_path()), 24, message);
        }
        schema::each_schema(schema, &mut |at, keywords| {
            for annotation in ["writeOnly", "readOnly"] {
                if keywords.get(annotation).is_some_and(|value| !value.is_boolean()) {
                    wrong.add(format!("{path}{at}/{annotation}"), 24, "must be true or false");
                }
            }
            let encoding = keywords.get("contentEncoding").and_then(Value::as_str);
            if let Some(unknown) = encoding.filter(|name| ENCODINGS.iter().all(|(known, _)| known != name)) {
                let known: Vec<&str> = ENCODINGS.iter().map(|(name, _)| *name).collect();
                let message = format!("unknown contentEncoding {unknown:?}; use one of {}", known.join(", "));
                wrong.add(format!("{path}{at}/contentEncoding"), 24, message);
            }
        });
        wrong.or(())?;
        // Formats such as `format: date` are checked. Encodings are checked at every depth, but contents are not
        // decoded. `contentMediaType` is removed, because the jsonschema crate would otherwise not check the encoding.
        let mut options = jsonschema::options().with_draft(jsonschema::Draft::Draft7).should_validate_formats(true);
        for (name, fits) in ENCODINGS {
            options = options.with_content_encoding(name, fits, |text| Ok(Some(text.to_owned())));
        }
        let mut checked = schema.clone();
        without_media_types(&mut checked);
        let validator = options.build(&checked).map_err(|error| {
            let message = format!(
                "cannot be used as a JSON Schema (external references are not fetched): {}",
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
            write_only: schema::is_write_only(schema),
            read_only: flag("readOnly"),
            title: text("title"),
            description: text("description"),
            types,
            choices: schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            base64: schema.get("contentEncoding").and_then(Value::as_str) == Some("base64"),
            validator,
        })
    }

    /// Checks a value against the schema (rule 21).
    ///
    /// # Errors
    /// Returns all mismatches if the value is invalid. Mismatches do not contain the value.
    pub fn validate(&self, path: &str, value: &Value, rule: u8) -> Result<(), Violations> {
        let mut wrong = Violations::default();
        for error in self.validator.iter_errors(value) {
            // Property names in an object are part of its value.
            let inner = if self.write_only { String::new() } else { error.instance_path().to_string() };
            wrong.add(format!("{path}{inner}"), rule, self.reported(&error));
        }
        wrong.or(())
    }

    /// Describes why a value does not match, without the value.
    fn reported(&self, error: &ValidationError<'_>) -> String {
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } if self.write_only => {
                format!("the value has properties that are not allowed: {}", unexpected.len())
            }
            ValidationErrorKind::PropertyNames { error } => {
                format!("the name of a property: {}", self.reported(error).replacen("the value", "it", 1))
            }
            ValidationErrorKind::ContentEncoding { content_encoding } => {
                format!("the value is not encoded as {content_encoding}, the definition's contentEncoding")
            }
            _ => error.masked_with("the value").to_string(),
        }
    }

    /// Returns true if values are strings in base64.
    pub(crate) fn is_base64(&self) -> bool {
        self.base64
    }

    /// Parses user input as a value of one of the types that the definition allows.
    ///
    /// # Errors
    /// Returns an error if `text` matches none of the types. The error does not contain `text`.
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
        // Accept any case, unlike JSON.
        if has("boolean") && (text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false")) {
            return Ok(Value::Bool(text.eq_ignore_ascii_case("true")));
        }
        Err(Violations::one(path, 13, format!("the value is not valid JSON of type {}", self.types.join(" or "))))
    }

    /// Returns the allowed types for error messages.
    pub fn type_name(&self) -> String {
        if self.types.is_empty() { "any".into() } else { self.types.join("|") }
    }
}

/// Removes `contentMediaType` from a schema and all of its subschemas.
fn without_media_types(schema: &mut Value) {
    let mut places = Vec::new();
    schema::each_schema(schema, &mut |at, keywords| {
        if keywords.contains_key("contentMediaType") {
            places.push(at.to_owned());
        }
    });
    for at in places {
        if let Some(keywords) = schema.pointer_mut(&at).and_then(Value::as_object_mut) {
            keywords.remove("contentMediaType");
        }
    }
}

/// Returns true for valid quoted-printable text (RFC 2045, section 6.7): printable ASCII, with `=` only before two
/// hexadecimal digits or at the end of a line.
fn is_quoted_printable(text: &str) -> bool {
    let hex = |b: Option<&u8>| b.is_some_and(u8::is_ascii_hexdigit);
    text.lines().all(|line| {
        let bytes = line.as_bytes();
        bytes.iter().enumerate().all(|(index, byte)| match byte {
            b'=' => index + 1 == bytes.len() || (hex(bytes.get(index + 1)) && hex(bytes.get(index + 2))),
            byte => matches!(byte, b'\t' | b' '..=b'~'),
        })
    })
}

/// Returns the most specific JSON Schema type of a value.
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

/// Returns false for an integer that does not fit into 64 bits and would lose digits.
fn exact(value: &Value, text: &str) -> bool {
    let Value::Number(number) = value else { return true };
    !number.is_f64() || !text.trim().trim_start_matches('-').bytes().all(|b| b.is_ascii_digit())
}

/// Returns a value as passed to the run tool (rules 16 and 17): strings unchanged, other types as JSON.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
