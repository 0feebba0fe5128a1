//! Determines which parameters and outputs are `writeOnly` and must not be shown (CNAB 101, rule 40 of
//! `docs/guides/cnab-rules.md`).
//!
//! The functions take the bundle as JSON instead of a [`crate::bundle::Bundle`], because claims of other programs may
//! contain bundles that break rules. Names that the bundle does not declare are treated as secret.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::parameter_sources::{ParameterSources, Source};
use crate::schema;

/// Returns true if the value of a parameter is secret, because its definition is `writeOnly` or because its value may
/// come from a secret output.
pub fn parameter(bundle: &Value, name: &str) -> bool {
    let sources =
        bundle.get("custom").and_then(Value::as_object).and_then(|custom| ParameterSources::from_custom(custom).ok());
    let from_secret = |source: &Source| matches!(source, Source::Output(name) if output(bundle, name));
    entry(bundle, "parameters", name)
        || sources.is_some_and(|sources| sources.for_parameter(name).iter().any(from_secret))
}

/// Returns true if the content of an output is secret.
pub fn output(bundle: &Value, name: &str) -> bool {
    entry(bundle, "outputs", name)
}

/// Returns the names of a claim's parameters that must not be shown.
pub fn parameters<'a>(bundle: &Value, values: &'a Map<String, Value>) -> BTreeSet<&'a str> {
    values.keys().map(String::as_str).filter(|name| parameter(bundle, name)).collect()
}

fn entry(bundle: &Value, section: &str, name: &str) -> bool {
    let definition = bundle.get(section).and_then(|section| section.get(name)?.get("definition")?.as_str());
    let definition = definition.and_then(|definition| bundle.get("definitions")?.get(definition));
    definition.is_none_or(schema::is_write_only)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn write_only_follows_definition_source_or_default() {
        let bundle = json!({
            "definitions": { "s": {}, "w": { "writeOnly": true } },
            "parameters": { "plain": { "definition": "s" }, "pass": { "definition": "w" }, "lost": { "definition": "n" },
                "state": { "definition": "s" } },
            "outputs": { "state": { "definition": "w" } },
            "custom": { "io.cnab.parameter-sources": { "state": { "sources": { "output": { "name": "state" } } } } },
        });
        for (name, expected) in [("plain", false), ("pass", true), ("lost", true), ("none", true), ("state", true)] {
            assert_eq!(parameter(&bundle, name), expected, "{name}");
        }
    }
}
