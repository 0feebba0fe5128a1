//! Parses a bundle.json as a [`Bundle`] that breaks no rule, or returns all violations.
//!
//! The structure is checked with the JSON Schema in `bundle/schema.json`. The published schema is not used, because it
//! has errors (an unanchored version, `items` written as `additionalProperties`) and does not treat unknown fields
//! consistently. Here unknown fields are errors everywhere except in `custom`, which is kept unchanged. Rules that a
//! schema cannot express are in `bundle/check.rs`. Both checks run on all entries that can be parsed, so that all
//! violations are reported together.
//!
//! The maximum size is 4 MiB. Nothing is fetched, not even the target of a `$ref`.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

mod check;
mod document;
mod form;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::action::Custom;
use crate::definition::Definition;
use crate::violation::{Violations, pointer};
use crate::write_only;

pub use self::document::{Credential, Destination, Image, Maintainer, Metadata, Output, Parameter, applies};

/// Maximum size of a bundle.json, in bytes.
pub const BUNDLE_MAX: usize = 4 << 20;

/// A bundle that breaks no rule.
#[derive(Debug)]
pub struct Bundle {
    /// Name, which has only graphic characters (rule 5).
    pub name: String,
    /// Version (SemVer 2).
    pub version: String,
    /// Version of the specification, for example `v1.0.0`.
    pub schema_version: String,
    pub about: Metadata,
    /// Invocation images, at least one. The first image for the platform is run (rule 25).
    pub invocation_images: Vec<Image>,
    /// Other images of the bundle.
    pub images: BTreeMap<String, Image>,
    /// Actions other than install, upgrade and uninstall.
    pub actions: BTreeMap<String, Custom>,
    pub parameters: BTreeMap<String, Parameter>,
    pub credentials: BTreeMap<String, Credential>,
    pub outputs: BTreeMap<String, Output>,
    /// Schemas of parameters and outputs.
    pub definitions: BTreeMap<String, Definition>,
    /// Names of extensions that are required to run the bundle (rule 36).
    pub required_extensions: Vec<String>,
    /// Data of extensions, unchanged.
    pub custom: Map<String, Value>,
    /// Warnings for `validate`: problems that break no rule.
    pub warnings: Vec<String>,
    original: Vec<u8>,
    value: Value,
}

impl Bundle {
    /// Parses a bundle.json.
    ///
    /// # Errors
    /// Returns all violations if the bundle is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, Violations> {
        if bytes.len() > BUNDLE_MAX {
            let message = format!("the bundle.json is {} bytes; the maximum is {BUNDLE_MAX}", bytes.len());
            return Err(Violations::one("", 24, message));
        }
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| Violations::one("", 24, format!("the bundle.json is not valid JSON: {error}")))?;
        Self::from_value(value, bytes.to_vec())
    }

    /// Reads the bundle in a claim. The original bytes of the published bundle.json are not available.
    ///
    /// # Errors
    /// Returns all violations if the bundle is invalid.
    pub fn from_claim(value: &Value) -> Result<Self, Violations> {
        Self::from_value(value.clone(), value.to_string().into_bytes())
    }

    fn from_value(value: Value, original: Vec<u8>) -> Result<Self, Violations> {
        let mut wrong = form::check(&value);
        let Value::Object(object) = &value else { return Err(wrong) };
        let definitions = definitions(object.get("definitions"), &mut wrong);
        let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut bundle = Self {
            name: text("name"),
            version: text("version"),
            schema_version: text("schemaVersion"),
            about: read(&value).unwrap_or_default(),
            invocation_images: object
                .get("invocationImages")
                .and_then(Value::as_array)
                .map(|images| images.iter().filter_map(read).collect())
                .unwrap_or_default(),
            images: section(object.get("images")),
            actions: section(object.get("actions")),
            parameters: section(object.get("parameters")),
            credentials: section(object.get("credentials")),
            outputs: section(object.get("outputs")),
            definitions,
            required_extensions: object.get("requiredExtensions").and_then(read).unwrap_or_default(),
            custom: object.get("custom").and_then(Value::as_object).cloned().unwrap_or_default(),
            warnings: Vec::new(),
            original,
            value: Value::Null,
        };
        bundle.warnings = check::check(&bundle, object, &mut wrong);
        bundle.value = value;
        wrong.or(bundle)
    }

    /// Returns the original bytes, which are mounted at `/cnab/bundle.json` (rule 3).
    pub fn original(&self) -> &[u8] {
        &self.original
    }

    /// Returns the bundle as JSON, as stored in a claim.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Returns a definition by its name. Every definition that a validated bundle names exists.
    pub(crate) fn definition(&self, name: &str) -> Option<&Definition> {
        self.definitions.get(name)
    }

    /// Returns true if the value of a parameter is secret (rule 40).
    pub fn is_write_only(&self, parameter: &str) -> bool {
        self.parameters.contains_key(parameter) && write_only::parameter(&self.value, parameter)
    }

    /// Returns true if the content of an output is secret (rule 40).
    pub fn is_output_write_only(&self, output: &str) -> bool {
        self.outputs.contains_key(output) && write_only::output(&self.value, output)
    }

    /// Returns all image references of the bundle (rule 23).
    pub fn image_references(&self) -> impl Iterator<Item = &str> {
        self.invocation_images.iter().chain(self.images.values()).map(|image| image.image.as_str())
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

/// Returns the entries of a map that can be parsed; the schema check reports the others.
fn section<T: DeserializeOwned>(value: Option<&Value>) -> BTreeMap<String, T> {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), read(value)?))).collect()
}

fn definitions(value: Option<&Value>, wrong: &mut Violations) -> BTreeMap<String, Definition> {
    let mut definitions = BTreeMap::new();
    for (name, schema) in value.and_then(Value::as_object).into_iter().flatten() {
        match Definition::new(&pointer("/definitions", name), schema) {
            Ok(definition) => drop(definitions.insert(name.clone(), definition)),
            Err(violations) => wrong.append(violations),
        }
    }
    definitions
}
