//! Parses a configuration file. An entry that cannot be deserialized is removed and the remaining entries are checked.
//! All errors are reported together, each with its line.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::{ConfigError, File};

/// A parsed configuration file.
pub(super) struct Document<'i> {
    text: &'i str,
    whole: Spanned<DeTable<'i>>,
    /// The file without the entries that cannot be deserialized.
    kept: Spanned<DeTable<'i>>,
}

/// Location of a key in a configuration file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// 1-based line number, and the key with the list indices of the file. If the file does not contain the key, this
    /// is the line of the deepest table that should contain the key.
    Line(usize, String),
    /// The file does not contain even the first part of the key.
    Absent,
    /// The entry cannot be deserialized, so its default was checked.
    Removed,
}

impl<'i> Document<'i> {
    /// Reads the file without the entries that cannot be deserialized, and returns their errors.
    ///
    /// # Errors
    /// Returns the errors if the text is not TOML, or if an error does not belong to an entry that can be removed.
    pub(super) fn read(path: &Path, text: &'i str) -> Result<(Self, File, Vec<ConfigError>), ConfigError> {
        let located = |error: toml::de::Error| {
            let line = error.span().map(|span| line_at(text, span.start));
            let path = line.map_or(path.to_owned(), |line| PathBuf::from(format!("{}:{line}", path.display())));
            ConfigError::Form(path, Box::new(error))
        };
        let whole = DeTable::parse(text).map_err(located)?;
        let mut kept = whole.clone();
        let (mut errors, mut incomplete) = (Vec::new(), Vec::new());
        loop {
            let mut error = match File::deserialize(toml::Deserializer::from(kept.clone())) {
                Ok(file) => return Ok((Self { text, whole, kept }, file, errors)),
                Err(error) => error,
            };
            let span = error.span();
            // Skip errors of tables that only lack a removed entry.
            if !span.as_ref().is_some_and(|span| incomplete.contains(span)) {
                error.set_input(Some(text));
                errors.push(located(error));
            }
            if !span.is_some_and(|span| remove_entry(kept.get_mut(), &span, &mut incomplete)) {
                return Err(ConfigError::Several(errors));
            }
        }
    }

    /// Locates a key such as `policy.default_pids` or `volumes[1].path`. The list indices of `key` do not count removed
    /// entries.
    pub(super) fn locate(&self, key: &str) -> Location {
        let (mut whole, mut kept) = (self.whole.get_ref(), self.kept.get_ref());
        let mut parts: Vec<String> = key.split('.').map(str::to_owned).collect();
        let mut found = None;
        for part in &mut parts {
            let (name, index) = match part.split_once('[') {
                Some((name, index)) => (name, index.strip_suffix(']').and_then(|index| index.parse::<usize>().ok())),
                None => (&**part, None),
            };
            let Some((_, mut original)) = entry(whole, name) else { break };
            let Some((name, mut value)) = entry(kept, name) else { return Location::Removed };
            found = Some(name.span().start);
            if let (DeValue::Array(all), DeValue::Array(list), Some(index)) =
                (original.get_ref(), value.get_ref(), index)
            {
                let Some(one) = list.get(index) else { break };
                let Some(at) = all.iter().position(|other| other.span() == one.span()) else { break };
                found = Some(one.span().start);
                *part = format!("{}[{at}]", name.get_ref());
                (original, value) = (&all[at], one);
            }
            let (DeValue::Table(all), DeValue::Table(below)) = (original.get_ref(), value.get_ref()) else { break };
            (whole, kept) = (all, below);
        }
        found.map_or(Location::Absent, |at| Location::Line(line_at(self.text, at), parts.join(".")))
    }
}

type Entry<'t, 'i> = (&'t Spanned<DeString<'i>>, &'t Spanned<DeValue<'i>>);

fn entry<'t, 'i>(table: &'t DeTable<'i>, name: &str) -> Option<Entry<'t, 'i>> {
    table.iter().find(|(known, _)| known.get_ref() == name)
}

/// Removes the innermost entry whose key or value has this span, and adds the spans of the values that contained the
/// entry to `incomplete`. Returns false if no entry has this span.
fn remove_entry(table: &mut DeTable<'_>, span: &Range<usize>, incomplete: &mut Vec<Range<usize>>) -> bool {
    if table.iter_mut().any(|(_, value)| remove_below(value, span, incomplete)) {
        return true;
    }
    let found = table.iter().find(|(key, value)| key.span() == *span || value.span() == *span);
    let found = found.map(|(key, _)| key.clone());
    found.is_some_and(|key| table.remove(&key).is_some())
}

fn remove_below(value: &mut Spanned<DeValue<'_>>, span: &Range<usize>, incomplete: &mut Vec<Range<usize>>) -> bool {
    let own = value.span();
    let removed = match value.get_mut() {
        DeValue::Table(table) => remove_entry(table, span, incomplete),
        DeValue::Array(list) => {
            list.iter_mut().any(|one| remove_below(one, span, incomplete)) || {
                let before = list.len();
                *list = std::mem::replace(list, DeArray::new())
                    .into_iter()
                    .filter(|one| one.span() != *span)
                    .collect::<DeArray<'_>>();
                list.len() < before
            }
        }
        _ => false,
    };
    if removed {
        incomplete.push(own);
    }
    removed
}

/// Returns the 1-based line of a byte offset.
fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_key_is_found() {
        let text = "user = 'a'\n[policy]\n\ndefault_pids = 5\ndefault_memory_bytes = []\n[[volumes]]\nname = 'a'\npath = 1\n\
                    [[volumes]]\nname = 'b'\npath = '/c'\n";
        let (document, file, errors) = Document::read(Path::new("FILE"), text).unwrap();
        let lines: Vec<String> = errors.iter().map(|error| error.to_string().chars().take(7).collect()).collect();
        assert_eq!((lines, file.volumes.len()), (vec!["FILE:5:".to_owned(), "FILE:8:".to_owned()], 1));
        let line = |line, key: &str| Location::Line(line, key.to_owned());
        for (key, location) in [
            ("user", line(1, "user")),
            ("policy.default_pids", line(4, "policy.default_pids")),
            ("policy.default_memory_bytes", Location::Removed),
            ("policy.other", line(2, "policy.other")),
            ("volumes[0].path", line(11, "volumes[1].path")),
            ("volumes", line(6, "volumes")),
            ("capacity.pids", Location::Absent),
        ] {
            assert_eq!(document.locate(key), location, "{key}");
        }
    }
}
