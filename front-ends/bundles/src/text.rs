//! Parses objects of which only some keys are known. Keys are case-insensitive, `null` means absent, and unknown keys
//! are ignored. Go's JSON decoder, which operator tools use, behaves in the same manner.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

/// Declares a type for an object by its keys. The case of keys is ignored. If a key occurs twice, its last value is
/// used. If a key is absent or `null`, its field has the default value.
///
/// With a leading `top`, keys that differ only in case are an error.
macro_rules! object {
    (top $($rest:tt)*) => { $crate::text::object!(@ true $($rest)*); };
    (@ $top:literal $(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$inner:meta])* $field:ident ($key:literal): $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default)]
        $vis struct $name { $($(#[$inner])* pub(crate) $field: $type,)* }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Object;
                impl<'de> serde::de::Visitor<'de> for Object {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_unit<E>(self) -> Result<$name, E> {
                        Ok($name::default())
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut object = $name::default();
                        let mut keys = $crate::text::Keys::new($top);
                        while let Some(key) = map.next_key::<$crate::text::Key>()? {
                            keys.add::<A::Error>(&key)?;
                            $(if key.is($key) {
                                if let Some(value) = map.next_value::<Option<$type>>()? {
                                    object.$field = value;
                                }
                                continue;
                            })*
                            map.next_value::<serde::de::IgnoredAny>()?;
                        }
                        Ok(object)
                    }
                }
                deserializer.deserialize_any(Object)
            }
        }
    };
    ($($rest:tt)*) => { $crate::text::object!(@ false $($rest)*); };
}
pub(crate) use object;

/// Keys of an object. If they are checked, keys that differ only in case are an error.
pub(crate) struct Keys(Option<Vec<(String, String)>>);

impl Keys {
    pub(crate) fn new(checked: bool) -> Self {
        Self(checked.then(Vec::new))
    }

    pub(crate) fn add<E: Error>(&mut self, Key(key): &Key) -> Result<(), E> {
        /// Maximum number of keys that are compared.
        const MAX: usize = 1000;
        let Some(keys) = &mut self.0 else { return Ok(()) };
        let folded = key.to_lowercase();
        if let Some((_, other)) = keys.iter().find(|(other, name)| *other == folded && name != key) {
            return Err(E::custom(format!("the keys {other:?} and {key:?} differ only by case")));
        }
        if keys.len() < MAX {
            keys.push((folded, key.clone()));
        }
        Ok(())
    }
}

pub(crate) struct Key(pub(crate) String);

impl Key {
    /// Returns true if the key equals `name`, ignoring ASCII case.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.0.eq_ignore_ascii_case(name)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key(text.to_owned()))
            }
            fn visit_string<E>(self, text: String) -> Result<Key, E> {
                Ok(Key(text))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Key, E> {
                Ok(Key(value.to_string()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Key, E> {
                Ok(Key(value.to_string()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Key, E> {
                Ok(Key(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Key, E> {
                Ok(Key(value.to_string()))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// A string or `null`, which is checked and not stored. Other values are an error.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnyText;

impl<'de> Deserialize<'de> for AnyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = AnyText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E>(self, _: &str) -> Result<AnyText, E> {
                Ok(AnyText)
            }
            fn visit_unit<E>(self) -> Result<AnyText, E> {
                Ok(AnyText)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// Declares a type of values that are checked and not stored. Quoted strings are refused.
macro_rules! any_value {
    ($(#[$meta:meta])* $name:ident, $expected:literal, $($visit:ident $type:ty),*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $name;

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Value;
                impl Visitor<'_> for Value {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    $(fn $visit<E>(self, _: $type) -> Result<$name, E> {
                        Ok($name)
                    })*
                }
                deserializer.deserialize_any(Value)
            }
        }
    };
}

any_value!(AnyBool, "true or false", visit_bool bool);
any_value!(AnyWhole, "a whole number", visit_i64 i64, visit_u64 u64);

/// A map from strings to strings that is checked and not stored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnyTexts;

impl<'de> Deserialize<'de> for AnyTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = AnyTexts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_unit<E>(self) -> Result<AnyTexts, E> {
                Ok(AnyTexts)
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<AnyTexts, A::Error> {
                while map.next_key::<Key>()?.is_some() {
                    map.next_value::<Option<AnyText>>()?;
                }
                Ok(AnyTexts)
            }
        }
        deserializer.deserialize_any(Texts)
    }
}

/// A list whose elements are checked and not stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnyList<T>(std::marker::PhantomData<T>);

impl<T> Default for AnyList<T> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for AnyList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = AnyList<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_unit<E>(self) -> Result<AnyList<T>, E> {
                Ok(AnyList::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<AnyList<T>, A::Error> {
                while list.next_element::<Option<T>>()?.is_some() {}
                Ok(AnyList::default())
            }
        }
        deserializer.deserialize_any(List(std::marker::PhantomData))
    }
}

/// Bytes in base64, as Go programs write them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Base64(pub(crate) Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Base64;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string in base64")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Base64, E> {
                decode(text).map(Base64).ok_or_else(|| E::invalid_value(Unexpected::Other("another string"), &self))
            }
            fn visit_unit<E>(self) -> Result<Base64, E> {
                Ok(Base64::default())
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// Decodes base64. Line breaks are ignored.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    use base64::alphabet::STANDARD;
    use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
    const ENGINE: GeneralPurpose =
        GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));
    if text.contains(['\r', '\n']) {
        return ENGINE.decode(text.replace(['\r', '\n'], "")).ok();
    }
    ENGINE.decode(text).ok()
}
