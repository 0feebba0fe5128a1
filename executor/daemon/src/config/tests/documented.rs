//! Checks that docs/executor.toml and docs/configuration.md list every configuration key with its default and bounds,
//! and no other key.
//!
//! The keys are collected from the structures through serde, so that an undocumented new key fails here by name.

use std::collections::{BTreeMap, BTreeSet};

use executor_core::settings::Bytes;
use serde::de::value::{Error, MapDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::{Deserialize as _, forward_to_deserialize_any};

use super::super::document::Document;
use super::super::{Config, ConfigError, File};
use super::load;

/// Deserializer that follows a path of keys into a structure, and collects the field names found there.
struct KeyPathReader<'a> {
    path: &'a [&'static str],
    found: &'a mut Option<&'static [&'static str]>,
}

impl<'de> Deserializer<'de> for KeyPathReader<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Some((key, path)) = self.path.split_first() else {
            *self.found = Some(fields);
            return Err(Error::custom("the end of the path"));
        };
        visitor.visit_map(MapDeserializer::new(std::iter::once((*key, KeyPathReader { path, found: self.found }))))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no structure"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for KeyPathReader<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Returns every key below a path, as `section.key`.
fn keys(path: &[&'static str]) -> BTreeSet<String> {
    let mut found = None;
    let _ = File::deserialize(KeyPathReader { path, found: &mut found });
    match found {
        None => [path.join(".")].into(),
        Some(fields) => fields.iter().flat_map(|field| keys(&[path, &[field]].concat())).collect(),
    }
}

/// A key in docs/executor.toml.
#[derive(Debug)]
struct Shown {
    value: String,
    /// Comment above the key in docs/executor.toml.
    text: String,
}

/// Returns the keys of the example, including commented-out keys (`#key = value`, without a space).
fn example(text: &str) -> BTreeMap<String, Shown> {
    let mut shown = BTreeMap::new();
    let (mut section, mut comment) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if line.starts_with("# ") {
            comment.push_str(&line[1..]);
            continue;
        } else if let Some((key, value)) = line.trim_start_matches('#').split_once(" = ") {
            let value = Shown { value: value.to_owned(), text: comment.clone() };
            let twice = shown.insert(format!("{section}{key}"), value);
            assert!(twice.is_none(), "{section}{key} is there twice");
        } else {
            assert_eq!(
                line.trim_start_matches('#'),
                "",
                "this line is not a comment (`# ...`) or a key (`#key = value`)"
            );
        }
        comment.clear();
    }
    shown
}

/// Returns a configuration file with one key.
fn file(key: &str, value: &str) -> String {
    match key.rsplit_once('.') {
        None => format!("{key} = {value}\n"),
        Some((section, key)) => format!("[{section}]\n{key} = {value}\n"),
    }
}

/// Loads a configuration file. Returns the resulting settings as text, or the error.
fn outcome(text: &str) -> Result<String, String> {
    let read = Document::read("x".as_ref(), text);
    let file = read.and_then(|(_, file, errors)| ConfigError::all(errors).map(|()| file));
    let launcher = file.map_err(|error| error.to_string())?.launcher;
    load(text, &[]).map(|config| {
        format!(
            "{:?} {launcher:?}",
            Config { file: None, text: String::new(), args: crate::config::cli::Args::default(), ..config }
        )
    })
}

/// Returns true if the value is the key's default. A key that requires other keys has no default.
fn is_default(key: &str, value: &str) -> bool {
    outcome(&file(key, value)).is_ok_and(|got| got == outcome("").expect("an empty file"))
}

/// Parses `Bounds: A to B.` or `Bounds: at least A.` in a text as integers.
fn bounds(text: &str) -> Option<(u64, Option<u64>)> {
    let (_, reported) = text.split_once("Bounds: ")?;
    let (reported, _) = reported.split_once(['.', ',', ';']).expect("bounds end with a full stop");
    let number = |text: &str| -> u64 {
        let bytes: Bytes = serde_json::from_str(text).unwrap_or_else(|why| panic!("bounds {reported:?}: {why}"));
        bytes.0
    };
    if let Some(least) = reported.strip_prefix("at least ") {
        return Some((number(least), None));
    }
    let (least, most) = reported.split_once(" to ").unwrap_or_else(|| panic!("bounds {reported:?}"));
    Some((number(least), Some(number(most))))
}

/// Returns the rows of the key tables: section and key, and the default column.
fn table(text: &str) -> BTreeMap<String, String> {
    let mut rows = BTreeMap::new();
    let (mut section, mut of_keys) = (None, false);
    for line in text.lines() {
        of_keys = line.starts_with("| key |") || (of_keys && line.starts_with('|'));
        if let Some(title) = line.strip_prefix("## ") {
            section = match title.strip_prefix('[').and_then(|title| title.strip_suffix(']')) {
                Some(name) => Some(format!("{name}.")),
                None => title.starts_with("Top level").then(String::new),
            };
        }
        let (Some(section), Some(row)) = (&section, line.strip_prefix("| `").filter(|_| of_keys)) else { continue };
        let (key, columns) = row.split_once("` | ").expect("a key, then columns");
        // The first section has an extra column for flags.
        let default = columns.split(" | ").nth(if section.is_empty() { 2 } else { 1 }).expect("a default");
        assert!(rows.insert(format!("{section}{key}"), default.to_owned()).is_none(), "{section}{key} is there twice");
    }
    rows
}

/// Lists the keys that only one of the two sets contains.
fn difference(wanted: &BTreeSet<String>, found: &BTreeSet<String>) -> String {
    let list = |what: &str, keys: Vec<&String>| keys.iter().map(|key| format!("{what} {key}\n")).collect::<String>();
    list("missing:", wanted.difference(found).collect()) + &list("not a key:", found.difference(wanted).collect())
}

/// Old key names, which are accepted but not documented.
const OLD_NAMES: [&str; 4] = ["shells.network", "shells.ready", "shells.size", "warm_pool.ready"];

const EXAMPLE: &str = include_str!("../../../../../docs/executor.toml");
const REFERENCE: &str = include_str!("../../../../../docs/configuration.md");

#[test]
fn every_key_is_in_example_and_reference() {
    let mut keys = keys(&[]);
    assert!(OLD_NAMES.iter().all(|name| keys.remove(*name)), "each old name is read");
    let among = [
        "run_dir",
        "policy.files_root",
        "listen.unix",
        "listen.tcp.key",
        "images.ca_file",
        "launcher.watchdog_seconds",
    ];
    assert!(among.iter().all(|key| keys.contains(*key)), "control failed: keys of a kind are missing in {keys:?}");
    assert_eq!(difference(&keys, &example(EXAMPLE).into_keys().collect()), "", "docs/executor.toml");
    assert_eq!(difference(&keys, &table(REFERENCE).into_keys().collect()), "", "docs/configuration.md");
}

/// The example is valid both unchanged and with every commented-out key enabled.
#[test]
fn the_example_is_a_configuration() {
    load(EXAMPLE, &[]).unwrap();
    let uncommented = EXAMPLE.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase()) => key,
        _ => line,
    });
    load(&uncommented.collect::<Vec<_>>().join("\n"), &[]).unwrap();
}

/// Each value in the example is the default, or its comment states the default. The reference states the same defaults.
#[test]
fn defaults_are_reported() {
    for (key, Shown { value, text }) in example(EXAMPLE) {
        assert_eq!(is_default(&key, &value), !text.contains("Default: "), "docs/executor.toml: {key} = {value}:{text}");
    }
    let mut compared = 0;
    for (key, default) in table(REFERENCE) {
        let Some(value) = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) else { continue };
        if value.contains('`') || value.contains("RUN_DIR") {
            continue; // a row about other keys
        }
        let quoted = format!("{value:?}");
        let value = if outcome(&file(&key, value)).is_ok() { value } else { &quoted };
        assert!(is_default(&key, value), "docs/configuration.md: {key} = {value} is not the default");
        compared += 1;
    }
    assert!(compared > 30, "control failed: only {compared} defaults are documented");
}

#[test]
fn documented_bounds_are_enforced() {
    let number = |value: &str| value.parse::<u64>().is_ok() || serde_json::from_str::<Bytes>(value).is_ok();
    let keys = example(EXAMPLE).into_iter().filter(|(_, shown)| number(&shown.value));
    for (key, Shown { text, .. }) in keys {
        let (least, most) = bounds(&text).unwrap_or_else(|| panic!("docs/executor.toml: no bounds of {key}:{text}"));
        let allowed = |value: u64| outcome(&file(&key, &value.to_string())).is_ok();
        assert!(allowed(least) && most.is_none_or(allowed), "docs/executor.toml: {key} may not have its bounds:{text}");
        let beyond = least.checked_sub(1).into_iter().chain(most.map(|most| most + 1));
        let taken: Vec<u64> = beyond.filter(|value| allowed(*value)).collect();
        assert!(taken.is_empty(), "docs/executor.toml: {key} accepts {taken:?}, outside its bounds:{text}");
    }
}
