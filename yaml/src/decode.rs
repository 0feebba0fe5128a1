//! Decodes a tree as a typed value and reports all faults together, each with its path and position and without the
//! value.
//!
//! serde stops at the first error. A faulty node is therefore left out as if it were absent, and the tree is decoded
//! again: Kubernetes types accept the absence of any field.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer as _, Visitor};

use crate::node::{Fault, FaultKind, Node, Place, Value, below};

/// Maximum number of faults that are reported for one document.
const FAULTS_MAX: usize = 100;

/// Name that the type of Kubernetes quantities has in serde.
const QUANTITY: &str = "Quantity";

/// A typed value, and the faults that were found while decoding it.
#[derive(Debug)]
pub struct Decoded<T> {
    /// The value without the faulty nodes; `None` if nothing can be decoded.
    pub value: Option<T>,
    /// Faults in the order of their nodes in the tree.
    pub faults: Vec<Fault>,
}

/// Decodes a tree as a typed value.
pub fn decode<T: DeserializeOwned>(root: &Node) -> Decoded<T> {
    let mut faults: Vec<Fault> = Vec::new();
    let mut holes = HashSet::new();
    loop {
        let state = State { holes: &holes, unknown: RefCell::default() };
        let reader = Reader { node: root, path: String::new(), state: &state };
        match T::deserialize(reader) {
            Ok(value) => {
                let room = FAULTS_MAX.saturating_sub(faults.len());
                faults.extend(state.unknown.into_inner().into_iter().take(room));
                faults.sort_by_key(|fault| fault.place);
                return Decoded { value: Some(value), faults };
            }
            Err(error) => {
                let (path, place, node) = error.at.unwrap_or_else(|| (String::new(), root.place, Id::from_node(root)));
                let is_new = holes.insert(node) && faults.len() < FAULTS_MAX;
                faults.push(Fault { kind: FaultKind::Value, path, place, message: error.message });
                if !is_new {
                    return Decoded { value: None, faults };
                }
            }
        }
    }
}

/// Identity of a node in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id(usize);

impl Id {
    fn from_node(node: &Node) -> Self {
        Self(std::ptr::from_ref(node).addr())
    }
}

struct State<'a> {
    holes: &'a HashSet<Id>,
    unknown: RefCell<Vec<Fault>>,
}

struct Reader<'a> {
    node: &'a Node,
    path: String,
    state: &'a State<'a>,
}

#[derive(Debug)]
struct Error {
    message: String,
    at: Option<(String, Place, Id)>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), at: None }
    }

    // serde's own messages repeat the value.
    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("is not {}", needed(expected)))
    }

    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("is not {}", needed(expected)))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format_args!("is not one of {}", expected.join(", ")))
    }
}

/// Describes the expected value in words instead of the name of the Kubernetes type.
fn needed(expected: &dyn de::Expected) -> String {
    match &*expected.to_string() {
        QUANTITY => "a quantity such as 500m, 1.5 or 128Mi".to_owned(),
        "IntOrString" => "a whole number or a string".to_owned(),
        "Time" | "MicroTime" => "a time such as 2026-01-02T03:04:05Z".to_owned(),
        other => other.to_owned(),
    }
}

impl<'a> Reader<'a> {
    fn is_hole(&self) -> bool {
        self.state.holes.contains(&Id::from_node(self.node))
    }

    fn wrong(&self, expected: &str) -> Error {
        let kind = self.node.value.kind();
        let quote = match (&self.node.value, expected) {
            (Value::Bool(_) | Value::Int(_) | Value::UInt(_) | Value::Float(_), "a string") => ": quote it",
            (Value::Text(text), "a whole number") if text.parse::<i64>().is_ok() => ": write it without quotes",
            _ => "",
        };
        self.error(format!("is {kind}; it must be {expected}{quote}"))
    }

    fn error(&self, message: String) -> Error {
        Error { message, at: Some(self.here()) }
    }

    fn here(&self) -> (String, Place, Id) {
        (self.path.clone(), self.node.place, Id::from_node(self.node))
    }

    /// Adds the path and position of a node to an error that has none.
    fn locate<T>(result: Result<T, Error>, here: (String, Place, Id)) -> Result<T, Error> {
        result.map_err(|mut error| {
            error.at.get_or_insert(here);
            error
        })
    }

    fn list<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value::List(list) = &self.node.value else { return Err(self.wrong("a list")) };
        let here = self.here();
        let items = Items { list: list.iter().enumerate(), path: &self.path, state: self.state };
        Self::locate(visitor.visit_seq(items), here)
    }

    fn map<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value::Map(entries) = &self.node.value else { return Err(self.wrong("a mapping")) };
        let here = self.here();
        let entries = Entries { entries: entries.iter(), value: None, path: &self.path, state: self.state };
        Self::locate(visitor.visit_map(entries), here)
    }
}

struct Items<'a, 'p> {
    list: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    path: &'p str,
    state: &'a State<'a>,
}

impl<'a> de::SeqAccess<'a> for Items<'a, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some((index, node)) = self.list.next() else { return Ok(None) };
        let reader = Reader { node, path: format!("{}[{index}]", self.path), state: self.state };
        let here = reader.here();
        Reader::locate(seed.deserialize(reader), here).map(Some)
    }
}

struct Entries<'a, 'p> {
    entries: std::slice::Iter<'a, (crate::node::Key, Node)>,
    value: Option<&'a (crate::node::Key, Node)>,
    path: &'p str,
    state: &'a State<'a>,
}

impl<'a> de::MapAccess<'a> for Entries<'a, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        self.value = Some(entry);
        seed.deserialize(entry.0.name.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some((key, node)) = self.value.take() else { return Err(de::Error::custom("has a value without a key")) };
        let reader = Reader { node, path: below(self.path, &key.name), state: self.state };
        let here = (reader.path.clone(), key.place, Id::from_node(node));
        Reader::locate(seed.deserialize(reader), here)
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty, $expected:literal;)*) => {
        $(fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
            if self.is_hole() {
                return visitor.$visit(0);
            }
            // go-yaml reads 0888 as the float 888, so integral floats are accepted. This includes 1e3 and 888.0.
            let number = match &self.node.value {
                Value::Int(number) => <$type>::try_from(*number).ok(),
                Value::UInt(number) => <$type>::try_from(*number).ok(),
                Value::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => <$type>::try_from(*number as i64).ok(),
                _ => return Err(self.wrong("a whole number")),
            };
            match number {
                Some(number) => { let here = self.here(); Self::locate(visitor.$visit(number), here) }
                None => Err(self.error(concat!("is not ", $expected).to_owned())),
            }
        })*
    };
}

impl<'a> Deserializer<'a> for Reader<'a> {
    type Error = Error;

    integers! {
        deserialize_i8 visit_i8 i8, "a whole number of 8 bits";
        deserialize_i16 visit_i16 i16, "a whole number of 16 bits";
        deserialize_i32 visit_i32 i32, "a whole number of 32 bits";
        deserialize_i64 visit_i64 i64, "a whole number of 64 bits";
        deserialize_u8 visit_u8 u8, "a whole number from 0 to 255";
        deserialize_u16 visit_u16 u16, "a whole number from 0 to 65535";
        deserialize_u32 visit_u32 u32, "a whole number of 32 bits, not below 0";
        deserialize_u64 visit_u64 u64, "a whole number of 64 bits, not below 0";
    }

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_hole() {
            return visitor.visit_unit();
        }
        let here = self.here();
        let result = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(number) => visitor.visit_i64(*number),
            Value::UInt(number) => visitor.visit_u64(*number),
            // An integral float comes from text such as 0888.
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => visitor.visit_i64(*number as i64),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(_) => return self.list(visitor),
            Value::Map(_) => return self.map(visitor),
        };
        Self::locate(result, here)
    }

    fn deserialize_bool<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            _ if self.is_hole() => visitor.visit_bool(false),
            Value::Bool(value) => visitor.visit_bool(*value),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn deserialize_f32<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            _ if self.is_hole() => visitor.visit_f64(0.0),
            Value::Int(number) => visitor.visit_f64(*number as f64),
            Value::UInt(number) => visitor.visit_f64(*number as f64),
            Value::Float(number) => visitor.visit_f64(*number),
            _ => Err(self.wrong("a number")),
        }
    }

    fn deserialize_char<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        let here = self.here();
        match &self.node.value {
            _ if self.is_hole() => visitor.visit_str(""),
            // As in Go, null is the empty string.
            Value::Null => visitor.visit_str(""),
            Value::Text(text) => Self::locate(visitor.visit_str(text), here),
            _ => Err(self.wrong("a string")),
        }
    }

    fn deserialize_string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_hole() || matches!(self.node.value, Value::Null) {
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            _ if self.is_hole() => visitor.visit_unit(),
            _ => Err(self.wrong("null")),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'a>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        let here = self.here();
        // As in Go, a null quantity is 0.
        if name == QUANTITY && (self.is_hole() || matches!(self.node.value, Value::Null)) {
            let zero: de::value::StrDeserializer<'_, Error> = "0".into_deserializer();
            return visitor.visit_newtype_struct(zero);
        }
        Self::locate(visitor.visit_newtype_struct(self), here)
    }

    fn deserialize_seq<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_hole() || matches!(self.node.value, Value::Null) {
            let items = Items { list: [].iter().enumerate(), path: "", state: self.state };
            return visitor.visit_seq(items);
        }
        self.list(visitor)
    }

    fn deserialize_tuple<V: Visitor<'a>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_hole() || matches!(self.node.value, Value::Null) {
            let entries = Entries { entries: [].iter(), value: None, path: "", state: self.state };
            return visitor.visit_map(entries);
        }
        self.map(visitor)
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let here = self.here();
        match &self.node.value {
            Value::Text(text) => Self::locate(visitor.visit_enum(text.as_str().into_deserializer()), here),
            _ => Err(self.wrong("a string")),
        }
    }

    fn deserialize_identifier<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        if !self.is_hole() && self.state.unknown.borrow().len() < FAULTS_MAX {
            let message = "is an unknown field".to_owned();
            let fault = Fault { kind: FaultKind::Unknown, path: self.path.clone(), place: self.node.place, message };
            self.state.unknown.borrow_mut().push(fault);
        }
        visitor.visit_unit()
    }
}
