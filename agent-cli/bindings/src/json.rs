//! Parses JSON without changing its text: numbers keep their digits, and objects keep the order of their keys.
//!
//! `serde_json::Value` would convert a large integer to a float and sort keys. The features that avoid this
//! (`arbitrary_precision`, `preserve_order`) would also change every other crate of the workspace. Therefore a document
//! is parsed one level at a time, and each value is kept as text.
//!
//! A duplicate key has its last value, at the position of its first occurrence. Ruby's Hash, which Cloud Controller
//! uses to read and write JSON, does the same, and so do all readers of VCAP_SERVICES.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use crate::{DEPTH_MAX, Violation};

/// A value of a document. Nested values are not parsed.
pub(crate) enum Json<'a> {
    Null,
    /// A number, `true` or `false`, as written.
    Word(&'a str),
    String(Zeroizing<String>),
    Array(Vec<&'a RawValue>),
    Object(Vec<(String, &'a RawValue)>),
}

/// Text of a whole document. Each value is parsed separately, and `serde_json` reports positions within that value. The
/// document converts them to positions in the whole text.
#[derive(Clone, Copy)]
pub(crate) struct Document<'a>(&'a str);

impl<'a> Document<'a> {
    /// Parses a whole, well-formed document.
    pub(crate) fn read(text: &'a str) -> Result<(Self, &'a RawValue), Violation> {
        let document = Self(text);
        serde_json::from_str(text).map(|raw| (document, raw)).map_err(|error| document.syntax(text, &error))
    }

    /// Parses a value, but not the values that are nested in it.
    pub(crate) fn parse(self, raw: &'a RawValue) -> Result<Json<'a>, Violation> {
        let text = raw.get();
        let json = match text.as_bytes().first() {
            Some(b'{') => serde_json::from_str(text).map(|Entries(entries)| Json::Object(entries)),
            Some(b'[') => serde_json::from_str(text).map(Json::Array),
            Some(b'"') => serde_json::from_str(text).map(|string: String| Json::String(Zeroizing::new(string))),
            _ if text == "null" => return Ok(Json::Null),
            _ => return Ok(Json::Word(text)),
        };
        json.map_err(|error| self.syntax(text, &error))
    }

    /// Returns the error with its position in the whole document, without serde_json's message, which can contain a
    /// part of the document.
    fn syntax(self, part: &str, error: &serde_json::Error) -> Violation {
        // `part` is a slice of the document, because values are borrowed.
        let begins = (part.as_ptr() as usize).checked_sub(self.0.as_ptr() as usize);
        let before = begins.and_then(|begins| self.0.get(..begins)).unwrap_or_default();
        let lines = before.matches('\n').count();
        let indent = before.len() - before.rfind('\n').map_or(0, |at| at + 1);
        let column = if error.line() == 1 { indent + error.column() } else { error.column() };
        Violation::Syntax { line: lines + error.line(), column }
    }

    /// Returns the file content for this value: a string unchanged, any other value as JSON without white space.
    pub(crate) fn content(self, raw: &'a RawValue) -> Result<Zeroizing<Vec<u8>>, Violation> {
        match self.parse(raw)? {
            Json::String(mut text) => Ok(Zeroizing::new(std::mem::take(&mut *text).into_bytes())),
            _ => self.compact(raw),
        }
    }

    /// Returns JSON without white space. Characters outside ASCII are not escaped, as in Cloud Controller.
    pub(crate) fn compact(self, raw: &'a RawValue) -> Result<Zeroizing<Vec<u8>>, Violation> {
        // The result is never longer than the input, so the buffer never moves and leaves no copy behind.
        let mut out = Zeroizing::new(Vec::with_capacity(raw.get().len()));
        self.write(raw, &mut out, DEPTH_MAX)?;
        Ok(out)
    }

    fn write(self, raw: &'a RawValue, out: &mut Vec<u8>, depth: usize) -> Result<(), Violation> {
        let deeper = depth.checked_sub(1).ok_or(Violation::Depth)?;
        match self.parse(raw)? {
            Json::Null => out.extend_from_slice(b"null"),
            Json::Word(word) => out.extend_from_slice(word.as_bytes()),
            Json::String(text) => quoted(&text, out)?,
            Json::Array(values) => {
                out.push(b'[');
                for (index, value) in values.into_iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    self.write(value, out, deeper)?;
                }
                out.push(b']');
            }
            Json::Object(entries) => {
                out.push(b'{');
                for (index, (key, value)) in entries.into_iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    quoted(&key, out)?;
                    out.push(b':');
                    self.write(value, out, deeper)?;
                }
                out.push(b'}');
            }
        }
        Ok(())
    }
}

impl Json<'_> {
    /// Returns true for null, `[]` and `{}`. (An empty string is a value.)
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Array(values) => values.is_empty(),
            Self::Object(entries) => entries.is_empty(),
            Self::Word(_) | Self::String(_) => false,
        }
    }
}

fn quoted(text: &str, out: &mut Vec<u8>) -> Result<(), Violation> {
    // Writing to memory does not fail.
    serde_json::to_writer(out, text).map_err(|error| Violation::Syntax { line: error.line(), column: error.column() })
}

/// The entries of a JSON object, in the order of the document.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries: Vec<(String, &'de RawValue)> = Vec::new();
                let mut places: HashMap<String, usize> = HashMap::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    match places.get(&key) {
                        Some(place) => entries[*place].1 = value,
                        None => {
                            places.insert(key.clone(), entries.len());
                            entries.push((key, value));
                        }
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compacted(text: &str) -> Result<String, Violation> {
        let (document, raw) = Document::read(text)?;
        let compact = document.compact(raw)?;
        Ok(String::from_utf8(compact.to_vec()).unwrap())
    }

    #[test]
    fn values_keep_their_text_and_order() {
        let table = [
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("[1.0, 1e3, -0, 0.10]", "[1.0,1e3,-0,0.10]"),
            (r#" { "z" : 1 , "a" : [ true , null ] } "#, r#"{"z":1,"a":[true,null]}"#),
            (r#"{"a": 1, "b": 2, "a": {"c" : 3}}"#, r#"{"a":{"c":3},"b":2}"#),
            (r#""\u00e4\/\u0001\t\"\\ 😀 \ud83d\ude00""#, r#""ä/\u0001\t\"\\ 😀 😀""#),
            ("[]", "[]"),
            ("{}", "{}"),
        ];
        for (text, expected) in table {
            let compact = compacted(text).unwrap();
            assert_eq!(compact, expected);
            assert!(compact.len() <= text.len(), "the buffer moved: {text}");
        }
    }

    #[test]
    fn invalid_json_is_reported_without_its_text() {
        for text in ["", "{", "hunter2", "{\"a\":hunter2}", "[1,]", "{} x", "\"\\ud800\"", "{\"a\" \"hunter2\"}", "01"]
        {
            let violation = compacted(text).unwrap_err();
            assert!(matches!(violation, Violation::Syntax { .. }), "{text}: {violation:?}");
            assert!(!violation.to_string().contains("hunter2"));
        }
    }

    /// Positions are counted from the beginning of the document, although nested values are parsed as separate text.
    #[test]
    fn syntax_error_positions_are_relative_to_document() {
        for (text, place) in [
            ("{\n  \"a\": [1,\n \"\\ud800\"]}", (3, 9)),
            ("[1, \"\\ud800\"]", (1, 12)),
            ("[\"\u{e4}\", {\"\\ud800\": 1}]", (1, 16)),
            ("[1,\n2,]", (2, 3)),
        ] {
            let Violation::Syntax { line, column } = compacted(text).unwrap_err() else { panic!("{text}") };
            assert_eq!((line, column), place, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(compacted(&nested(DEPTH_MAX)).unwrap(), nested(DEPTH_MAX));
        for depth in [DEPTH_MAX + 1, 100_000] {
            assert_eq!(compacted(&nested(depth)), Err(Violation::Depth));
        }
    }
}
