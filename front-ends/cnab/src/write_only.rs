//! What nobody is shown: values of parameters and outputs that are `writeOnly` (rule 40).
//!
//! Asked of the bundle as JSON and not as a [`crate::bundle::Bundle`]: claims of other programs hold bundles that break
//! rules, and their values are secret all the same. What a bundle does not say anything about counts as secret.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::parameter_sources::{ParameterSources, Source};

/// Keywords of draft-07 whose value is a schema.
const ONE: [&str; 8] =
    ["additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "items", "oneOf"];
/// Keywords whose value has schemas by name.
const MAPS: [&str; 5] = ["definitions", "$defs", "dependencies", "patternProperties", "properties"];

/// Calls `visit` for a schema and every schema in it, with the JSON pointer that leads there. Data in it (`default`,
/// `enum`, `const`, `examples`) are none.
pub(crate) fn each_schema<'a>(schema: &'a Value, visit: &mut impl FnMut(&str, &'a Map<String, Value>)) {
    let mut open = vec![(String::new(), schema)];
    while let Some((at, schema)) = open.pop() {
        let Value::Object(keywords) = schema else { continue };
        visit(&at, keywords);
        for (name, value) in keywords {
            let at = crate::violation::pointer(&at, name);
            match value {
                Value::Array(list) if LISTS.contains(&name.as_str()) => {
                    open.extend(list.iter().enumerate().map(|(index, one)| (format!("{at}/{index}"), one)));
                }
                Value::Object(map) if MAPS.contains(&name.as_str()) => {
                    open.extend(map.iter().map(|(name, one)| (crate::violation::pointer(&at, name), one)));
                }
                Value::Object(_) if ONE.contains(&name.as_str()) || name == "items" => open.push((at, value)),
                _ => {}
            }
        }
    }
}

/// Whether a value of this schema is secret: it is `writeOnly`, or a part of it is.
pub(crate) fn schema(schema: &Value) -> bool {
    let mut found = false;
    each_schema(schema, &mut |_, keywords| {
        found |= keywords.get("writeOnly").is_some_and(|flag| *flag != Value::Bool(false));
    });
    found
}

/// Whether the value of a parameter of this bundle is secret: by its definition, or because it may come from an output that
/// is.
pub fn parameter(bundle: &Value, name: &str) -> bool {
    let sources = bundle.get("custom").and_then(Value::as_object).and_then(|custom| ParameterSources::of(custom).ok());
    let from_secret = |source: &Source| matches!(source, Source::Output(name) if output(bundle, name));
    entry(bundle, "parameters", name)
        || sources.is_some_and(|sources| sources.of_parameter(name).iter().any(from_secret))
}

/// Whether the content of an output of this bundle is secret.
pub fn output(bundle: &Value, name: &str) -> bool {
    entry(bundle, "outputs", name)
}

/// Names of a claim's parameters that are not to be shown.
pub fn parameters<'a>(bundle: &Value, values: &'a Map<String, Value>) -> BTreeSet<&'a str> {
    values.keys().map(String::as_str).filter(|name| parameter(bundle, name)).collect()
}

fn entry(bundle: &Value, section: &str, name: &str) -> bool {
    let definition = bundle.get(section).and_then(|section| section.get(name)?.get("definition")?.as_str());
    let definition = definition.and_then(|definition| bundle.get("definitions")?.get(definition));
    definition.is_none_or(schema)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn at_any_depth_and_never_by_a_name_or_by_data() {
        let table = [
            (json!({ "writeOnly": true }), true),
            (json!({ "writeOnly": false }), false),
            (json!({ "writeOnly": "yes" }), true),
            (json!({ "properties": { "pass": { "writeOnly": true } } }), true),
            (json!({ "items": { "writeOnly": true } }), true),
            (json!({ "items": [{}, { "writeOnly": true }] }), true),
            (json!({ "allOf": [{ "if": {}, "then": { "writeOnly": true } }] }), true),
            (json!({ "additionalProperties": { "writeOnly": true } }), true),
            (json!({ "properties": { "writeOnly": { "type": "boolean" } } }), false),
            (json!({ "properties": { "writeOnly": true } }), false),
            (json!({ "default": { "writeOnly": true }, "const": { "writeOnly": true } }), false),
            (json!({ "dependencies": { "a": ["writeOnly"] } }), false),
            (json!(true), false),
        ];
        for (definition, expected) in table {
            assert_eq!(schema(&definition), expected, "{definition}");
        }
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
