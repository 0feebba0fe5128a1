//! JSON as it came: numbers keep their text, keys their order.
//!
//! serde_json's own value would make a float of a large integer and sort keys, and its features that do not
//! (`arbitrary_precision`, `preserve_order`) would change every other crate of the workspace. So a document is looked at
//! one level at a time, each value as the text that it is.
//!
//! A key that is there twice counts as the last of its values, at the place of the first: Ruby's Hash, which Cloud
//! Controller reads and writes with, does that, and so does every reader of VCAP_SERVICES.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use crate::{DEPTH_MAX, Violation};

/// One level of a document.
pub(crate) enum Json<'a> {
    Null,
    /// A number, `true` or `false`, as it is written.
    Word(&'a str),
    String(Zeroizing<String>),
    Array(Vec<&'a RawValue>),
    Object(Vec<(String, &'a RawValue)>),
}

/// The whole of a document, well-formed to its ends.
pub(crate) fn document(text: &str) -> Result<&RawValue, Violation> {
    serde_json::from_str(text).map_err(|error| syntax(&error))
}

/// Where the error is. Its own words could repeat what stands there.
fn syntax(error: &serde_json::Error) -> Violation {
    Violation::Syntax { line: error.line(), column: error.column() }
}

impl<'a> Json<'a> {
    /// Looks at a value.
    pub(crate) fn of(raw: &'a RawValue) -> Result<Self, Violation> {
        let text = raw.get();
        let json = match text.as_bytes().first() {
            Some(b'{') => serde_json::from_str(text).map(|Entries(entries)| Self::Object(entries)),
            Some(b'[') => serde_json::from_str(text).map(Self::Array),
            Some(b'"') => serde_json::from_str(text).map(|string: String| Self::String(Zeroizing::new(string))),
            _ if text == "null" => return Ok(Self::Null),
            _ => return Ok(Self::Word(text)),
        };
        json.map_err(|error| syntax(&error))
    }

    /// Says nothing: null, `[]`, `{}`. (An empty string says that it is empty.)
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Array(values) => values.is_empty(),
            Self::Object(entries) => entries.is_empty(),
            Self::Word(_) | Self::String(_) => false,
        }
    }
}

/// What a file with this value holds: a string as it is, everything else as JSON without white space.
pub(crate) fn content(raw: &RawValue) -> Result<Zeroizing<Vec<u8>>, Violation> {
    match Json::of(raw)? {
        Json::String(mut text) => Ok(Zeroizing::new(std::mem::take(&mut *text).into_bytes())),
        _ => compact(raw),
    }
}

/// JSON without white space. Characters outside of ASCII stand for themselves, as Cloud Controller writes them.
pub(crate) fn compact(raw: &RawValue) -> Result<Zeroizing<Vec<u8>>, Violation> {
    // Nothing becomes longer by it, so the buffer never moves and leaves no copy behind.
    let mut out = Zeroizing::new(Vec::with_capacity(raw.get().len()));
    write(raw, &mut out, DEPTH_MAX)?;
    Ok(out)
}

fn write(raw: &RawValue, out: &mut Vec<u8>, depth: usize) -> Result<(), Violation> {
    let deeper = depth.checked_sub(1).ok_or(Violation::Depth)?;
    match Json::of(raw)? {
        Json::Null => out.extend_from_slice(b"null"),
        Json::Word(word) => out.extend_from_slice(word.as_bytes()),
        Json::String(text) => quoted(&text, out)?,
        Json::Array(values) => {
            out.push(b'[');
            for (index, value) in values.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(value, out, deeper)?;
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
                write(value, out, deeper)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

fn quoted(text: &str, out: &mut Vec<u8>) -> Result<(), Violation> {
    serde_json::to_writer(out, text).map_err(|error| syntax(&error))
}

/// An object's entries in their order.
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
        let compact = compact(document(text)?)?;
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
    fn what_is_no_json_is_told_without_its_text() {
        for text in ["", "{", "hunter2", "{\"a\":hunter2}", "[1,]", "{} x", "\"\\ud800\"", "{\"a\" \"hunter2\"}", "01"]
        {
            let violation = compacted(text).unwrap_err();
            assert!(matches!(violation, Violation::Syntax { .. }), "{text}: {violation:?}");
            assert!(!violation.to_string().contains("hunter2"));
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
