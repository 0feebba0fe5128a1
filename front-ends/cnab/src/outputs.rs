//! Validates the outputs of an action, and adds defaults for missing outputs (rules 38 to 40 of
//! `docs/guides/cnab-rules.md`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::action::Action;
use crate::bundle::{Bundle, applies};
use crate::definition::text;
use crate::digest::sha256;
use crate::violation::{Violations, pointer};

/// Name of the output in which Porter stores the log of the run tool.
pub const LOGS: &str = "io.cnab.outputs.invocationImageLogs";

/// Content of an output. Its `Debug` output omits the content, which may be `writeOnly`.
#[derive(Clone, PartialEq, Eq)]
pub struct Content {
    /// The file's bytes.
    pub bytes: Vec<u8>,
    /// True if the content is the default from the definition, because the action did not write the output.
    pub defaulted: bool,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

/// Validated outputs of an action.
#[derive(Debug)]
pub struct Settled {
    pub outputs: BTreeMap<String, Content>,
    /// Missing outputs, and contents that do not match their definition. Empty if the action failed.
    pub wrong: Violations,
}

/// Validates the outputs in `found`. If the action succeeded, adds defaults for missing outputs.
pub fn settle(bundle: &Bundle, action: &Action, succeeded: bool, found: BTreeMap<String, Vec<u8>>) -> Settled {
    let mut settled = Settled { outputs: BTreeMap::new(), wrong: Violations::default() };
    for (name, bytes) in found {
        settled.outputs.insert(name, Content { bytes, defaulted: false });
    }
    if !succeeded {
        return settled;
    }
    for (name, output) in &bundle.outputs {
        let Some(definition) = bundle.definition(&output.definition) else { continue };
        let at = pointer("/outputs", name);
        match settled.outputs.get(name) {
            Some(content) => {
                let value = String::from_utf8(content.bytes.clone()).ok().and_then(|text| {
                    let string = definition.types.is_empty() || definition.types.iter().any(|one| one == "string");
                    if string { Some(Value::String(text)) } else { serde_json::from_str(&text).ok() }
                });
                match value {
                    Some(value) => {
                        if let Err(violations) = definition.validate(&at, &value, 39) {
                            settled.wrong.append(violations);
                        }
                    }
                    // If the definition has no type, any content is valid.
                    None if definition.types.is_empty() => {}
                    None => {
                        settled.wrong.add(&at, 39, format!("the content is not of type {}", definition.type_name()));
                    }
                }
            }
            None if !applies(&output.apply_to, action.name()) => {}
            None => match &definition.default {
                Some(default) => {
                    let content = Content { bytes: text(default).into_bytes(), defaulted: true };
                    settled.outputs.insert(name.clone(), content);
                }
                None => settled.wrong.add(&at, 39, format!("is missing at {} and has no default", output.path)),
            },
        }
    }
    settled
}

/// Returns the metadata of an output for a result (CNAB 400).
pub fn metadata(content: &Content) -> Value {
    json!({ "contentDigest": sha256(&content.bytes), "generatedByBundle": (!content.defaulted).to_string() })
}
