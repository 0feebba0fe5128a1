//! Reads objects directly from the events of the YAML parser. Parsing takes half the time of the full reader. The full
//! reader supports features that most documents do not use.
//!
//! This reader rejects documents with an anchor, a tag, a merge, an unusual plain scalar or any error. The caller then
//! reads such a document with the full reader. The full reader also reports the errors. The results of both readers are
//! the same.

use std::borrow::Cow;
use std::fmt;

use granit_parser::{Event, Parser, ScalarStyle, StrInput};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

/// Maximum nesting depth of lists and objects.
pub(super) const DEPTH_MAX: usize = 128;
/// Maximum number of values of one object.
pub(super) const NODES_MAX: usize = 4 << 20;

/// Reads one document; `None` if only the full reader can read it.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Option<T> {
    let mut events = Events { parser: Parser::new_from_str(text), depth: 0, nodes: 0 };
    let begins =
        matches!(events.next(), Ok(Event::StreamStart)) && matches!(events.next(), Ok(Event::DocumentStart(..)));
    if !begins {
        return None;
    }
    let event = events.next().ok()?;
    let value = T::deserialize(Node { events: &mut events, event }).ok()?;
    let ends = matches!(events.next(), Ok(Event::DocumentEnd)) && matches!(events.next(), Ok(Event::StreamEnd));
    ends.then_some(value)
}

/// Error for a document that only the full reader can read.
#[derive(Debug)]
struct Unsupported;

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("only the full YAML reader can read this document")
    }
}

impl std::error::Error for Unsupported {}

impl Error for Unsupported {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

struct Events<'a> {
    parser: Parser<'a, StrInput<'a>>,
    depth: usize,
    nodes: usize,
}

/// A scalar without a tag.
enum Scalar<'a> {
    Null,
    Bool(bool),
    Whole(u64),
    Text(Cow<'a, str>),
}

impl<'a> Events<'a> {
    fn next(&mut self) -> Result<Event<'a>, Unsupported> {
        match self.parser.next() {
            Some(Ok((event, _))) => Ok(event),
            _ => Err(Unsupported),
        }
    }

    /// Enters a list or an object.
    fn enter(&mut self) -> Result<Inner<'_, 'a>, Unsupported> {
        self.depth += 1;
        if self.depth < DEPTH_MAX { Ok(Inner { events: self, ended: false }) } else { Err(Unsupported) }
    }
}

/// A value, with its first event already read.
struct Node<'e, 'a> {
    events: &'e mut Events<'a>,
    event: Event<'a>,
}

/// A list or an object whose remaining events have not been read.
struct Inner<'e, 'a> {
    events: &'e mut Events<'a>,
    ended: bool,
}

impl<'a> Inner<'_, 'a> {
    /// Returns the next event; `None` at the end of the list or object.
    fn next(&mut self) -> Result<Option<Event<'a>>, Unsupported> {
        let event = self.events.next()?;
        self.ended = matches!(event, Event::SequenceEnd | Event::MappingEnd);
        Ok((!self.ended).then_some(event))
    }

    fn leave(&mut self) -> Result<(), Unsupported> {
        self.events.depth -= 1;
        if self.ended || self.next()?.is_none() { Ok(()) } else { Err(Unsupported) }
    }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle) -> Result<Scalar<'_>, Unsupported> {
    /// Words that are not strings in some version of YAML.
    const WORDS: [&str; 12] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"];
    if style != ScalarStyle::Plain {
        return Ok(Scalar::Text(text));
    }
    match (&*text, text.as_bytes().first()) {
        ("" | "~" | "null", _) => Ok(Scalar::Null),
        ("true", _) => Ok(Scalar::Bool(true)),
        ("false", _) => Ok(Scalar::Bool(false)),
        ("0", _) => Ok(Scalar::Whole(0)),
        // A scalar with more than one point is a string, not a number.
        (digits, Some(b'0'..=b'9')) if digits.split('.').count() > 2 => Ok(Scalar::Text(text)),
        (digits, Some(b'1'..=b'9')) if digits.len() <= 18 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().map(Scalar::Whole).map_err(|_| Unsupported)
        }
        (_, Some(b'0'..=b'9' | b'+' | b'-' | b'.' | b'=' | b'<' | b'~')) => Err(Unsupported),
        (word, _) if word.len() <= 8 && WORDS.iter().any(|it| word.eq_ignore_ascii_case(it)) => Err(Unsupported),
        _ => Ok(Scalar::Text(text)),
    }
}

impl<'de> Deserializer<'de> for Node<'_, '_> {
    type Error = Unsupported;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsupported> {
        self.events.nodes += 1;
        if self.events.nodes >= NODES_MAX / 2 {
            return Err(Unsupported);
        }
        match self.event {
            Event::Scalar(text, style, 0, None) => match scalar(text, style)? {
                Scalar::Null => visitor.visit_unit(),
                Scalar::Bool(value) => visitor.visit_bool(value),
                Scalar::Whole(value) => visitor.visit_u64(value),
                Scalar::Text(Cow::Borrowed(text)) => visitor.visit_str(text),
                Scalar::Text(Cow::Owned(text)) => visitor.visit_string(text),
            },
            Event::SequenceStart(_, 0, None) => {
                let mut inner = self.events.enter()?;
                let value = visitor.visit_seq(&mut inner)?;
                inner.leave().map(|()| value)
            }
            Event::MappingStart(_, 0, None) => {
                let mut inner = self.events.enter()?;
                let value = visitor.visit_map(&mut inner)?;
                inner.leave().map(|()| value)
            }
            _ => Err(Unsupported),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsupported> {
        match &self.event {
            Event::Scalar(text, ScalarStyle::Plain, 0, None) if matches!(&**text, "" | "~" | "null") => {
                visitor.visit_none()
            }
            _ => visitor.visit_some(self),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for &mut Inner<'_, '_> {
    type Error = Unsupported;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Unsupported> {
        let Some(event) = self.next()? else { return Ok(None) };
        seed.deserialize(Node { events: self.events, event }).map(Some)
    }
}

impl<'de> MapAccess<'de> for &mut Inner<'_, '_> {
    type Error = Unsupported;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unsupported> {
        let Some(event) = self.next()? else { return Ok(None) };
        // Only the full reader can read keys that are not strings.
        match &event {
            Event::Scalar(text, style, 0, None) if matches!(scalar(Cow::Borrowed(text), *style)?, Scalar::Text(_)) => {
                seed.deserialize(Node { events: self.events, event }).map(Some)
            }
            _ => Err(Unsupported),
        }
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Unsupported> {
        let event = self.events.next()?;
        seed.deserialize(Node { events: self.events, event })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::catalog::form::whole;

    #[test]
    fn event_reader_matches_full_yaml_reader() {
        let read_here = [
            "a: b\n",
            "---\na: 'it''s'\nb: \"x\\ty\"\nc: |-\n  one\n  two\nd: >\n  three\n  four\n",
            "- 1\n- 0\n- 123456789012345678\n- true\n- false\n- null\n- ~\n-\n- ''\n- \"null\"\n",
            "version: 1.2.3\nother: 1.2.3-4\nlong: 1.10.20.30\nimage: a.example.com/b@sha256:00\n/x: /y\n",
            "{a: [b, {c: d}, []], e: {}}\n",
            "# comment\na:   # another\n- b\n",
            "\"<<\": x\n\"1\": x\n'true': z\n",
            "a: nullable\nb: yesterday\nc: (d)\ne: \u{e9}\n",
            "a: 1\na: 2\n",
        ];
        for text in read_here {
            let here: Option<Value> = read(text);
            assert_eq!(here, whole::<Value>(text).ok(), "{text}");
            assert!(here.is_some(), "{text}");
        }
        let left = [
            "a: &x b\nc: *x\n",
            "a: !!str 1\n",
            "<<: {a: b}\n",
            "a: 1.5\n",
            "a: 0400\n",
            "a: -1\n",
            "a: yes\n",
            "a: NULL\n",
            "a: 2001-12-14\n",
            "1: a\n",
            "[a]: b\n",
            "? {a: b}\n: c\n",
            "a: b\n---\nc: d\n",
            "a: [\n",
            "a: \"x\n y\"\n b\n",
            "",
            "a: .inf\n",
        ];
        for text in left {
            assert_eq!(read::<Value>(text), None, "{text}");
        }
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(read::<Value>(&deep(100)).is_some() && read::<Value>(&deep(DEPTH_MAX)).is_none());
        assert_eq!(read::<Option<String>>("a\n"), Some(Some("a".to_owned())));
        assert_eq!(read::<Value>("a: 18\n"), Some(json!({"a": 18})));
    }
}
