//! Visits the subschemas of a JSON Schema (draft-07).
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

use serde_json::{Map, Value};

use crate::violation::pointer;

/// Keywords of draft-07 whose value is a schema.
const SCHEMA_KEYWORDS: [&str; 8] =
    ["additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "items", "oneOf"];
/// Keywords whose value is a map from names to schemas.
const MAPS: [&str; 5] = ["definitions", "$defs", "dependencies", "patternProperties", "properties"];

/// Calls `visit` with the JSON pointer and the keywords of a schema and each of its subschemas. Values of `default`,
/// `enum`, `const` and `examples` are data and are not visited.
pub(crate) fn each_schema<'a>(schema: &'a Value, visit: &mut impl FnMut(&str, &'a Map<String, Value>)) {
    let mut open = vec![(String::new(), schema)];
    while let Some((at, schema)) = open.pop() {
        let Value::Object(keywords) = schema else { continue };
        visit(&at, keywords);
        for (name, value) in keywords {
            let at = pointer(&at, name);
            match value {
                Value::Array(list) if LISTS.contains(&name.as_str()) => {
                    open.extend(list.iter().enumerate().map(|(index, one)| (format!("{at}/{index}"), one)));
                }
                Value::Object(map) if MAPS.contains(&name.as_str()) => {
                    open.extend(map.iter().map(|(name, one)| (pointer(&at, name), one)));
                }
                Value::Object(_) if SCHEMA_KEYWORDS.contains(&name.as_str()) || name == "items" => {
                    open.push((at, value));
                }
                _ => {}
            }
        }
    }
}

/// Returns true if values of this schema are secret (rule 40): if the schema or one of its subschemas has the keyword
/// `writeOnly` with a value other than `false`.
pub(crate) fn is_write_only(schema: &Value) -> bool {
    let mut found = false;
    each_schema(schema, &mut |_, keywords| {
        found |= keywords.get("writeOnly").is_some_and(|flag| *flag != Value::Bool(false));
    });
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn write_only_is_found_at_any_depth() {
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
            assert_eq!(is_write_only(&definition), expected, "{definition}");
        }
    }
}
