//! Writes YAML with maps and lists in block style, sorted by key. Strings that a YAML reader could parse as another
//! type are quoted.

use std::fmt::Write as _;

use serde_json::Value;

/// Writes a value as a YAML document, without `---`.
pub fn write(value: &Value) -> String {
    let mut text = String::new();
    put(&mut text, value, 0, false);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Writes a value. `inline` is true if other text precedes the value on its line.
fn put(text: &mut String, value: &Value, indent: usize, inline: bool) {
    let pad = |text: &mut String, first: bool| {
        if !first || !inline {
            text.extend(std::iter::repeat_n(' ', indent));
        }
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (index, (key, value)) in map.iter().enumerate() {
                pad(text, index == 0);
                text.push_str(&scalar(key));
                text.push(':');
                match value {
                    Value::Object(inner) if !inner.is_empty() => {
                        text.push('\n');
                        put(text, value, indent + 2, false);
                    }
                    Value::Array(inner) if !inner.is_empty() => {
                        text.push('\n');
                        put(text, value, indent, false);
                    }
                    _ => {
                        text.push(' ');
                        put(text, value, indent, true);
                        text.push('\n');
                    }
                }
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for (index, value) in list.iter().enumerate() {
                pad(text, index == 0);
                text.push_str("- ");
                put(text, value, indent + 2, true);
                if !text.ends_with('\n') {
                    text.push('\n');
                }
            }
        }
        Value::String(string) => text.push_str(&scalar(string)),
        other => _ = write!(text, "{other}"),
    }
}

/// Returns a string without quotes if it is unambiguous, otherwise quoted as in JSON, which is valid YAML.
fn scalar(text: &str) -> String {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '@');
    // A `:` needs quotes at the end of a word, but not inside a word.
    let words = text.split(':').all(|part| !part.is_empty() && part.chars().all(plain));
    const OTHERS: [&str; 12] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"];
    if starts && words && text.len() < 200 && !OTHERS.contains(&&*text.to_ascii_lowercase()) {
        return text.to_owned();
    }
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_yaml_reads_as_same_value() {
        let value = serde_json::json!({
            "plain": "quay.io/a/b:v1@sha256:00", "odd": ["yes", "0644", "1.0", "", " x", "a: b", "a #b", "- x", "null", "é\u{7}\n\"", "x:"],
            "nested": [[1, [2, []]], {"a": {"b": {}}, "c": null}, [{"x": [true]}, {}]], "a key: with": 1.5, "n": {"y": "n"},
        });
        let text = write(&value);
        assert_eq!(crate::catalog::form::Form::Yaml.read::<Value>(&text).unwrap(), value, "{text}");
        assert!(text.contains("plain: quay.io/a/b:v1@sha256:00\n") && text.contains("- \"yes\"\n"), "{text}");
    }
}
