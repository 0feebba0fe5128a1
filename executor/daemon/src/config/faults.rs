//! Collects the errors of a configuration file, each with its line.

use std::path::PathBuf;

use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// Errors found so far.
#[derive(Default)]
pub(super) struct Faults(pub(super) Vec<ConfigError>);

impl Faults {
    /// Returns the value of a result, and records an error.
    pub(super) fn record<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// Records an error.
    pub(super) fn add(&mut self, fault: ConfigError) {
        self.0.push(fault);
    }
}

impl ConfigError {
    /// Adds the line in `text` to each error whose key occurs there.
    pub(super) fn located(self, text: &str) -> Self {
        match self {
            Self::Value { origin, key, value, why } => {
                let origin = line_of(text, &key).map_or(origin.clone(), |line| format!("{origin}:{line}"));
                Self::Value { origin, key, value, why }
            }
            Self::Form(path, error) => {
                let line = error.span().map(|span| line_at(text, span.start));
                let path = line.map_or(path.clone(), |line| PathBuf::from(format!("{}:{line}", path.display())));
                Self::Form(path, error)
            }
            Self::Several(faults) => Self::Several(faults.into_iter().map(|fault| fault.located(text)).collect()),
            error => error,
        }
    }
}

/// Returns the 1-based line of a key such as `policy.default_pids` or `volumes[1].path`, or of the deepest table that
/// contains it.
/// `None` if `text` has not even the first part.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let (mut table, mut found) = (root.get_ref(), None);
    for part in key.split('.') {
        let (name, index) = match part.split_once('[') {
            Some((name, index)) => (name, index.strip_suffix(']').and_then(|index| index.parse::<usize>().ok())),
            None => (part, None),
        };
        let Some((name, mut value)) = table.iter().find(|(known, _)| known.get_ref() == name) else { break };
        found = Some(name.span().start);
        if let (DeValue::Array(list), Some(index)) = (value.get_ref(), index) {
            let Some(one) = list.get(index) else { break };
            found = Some(one.span().start);
            value = one;
        }
        let DeValue::Table(below) = value.get_ref() else { break };
        table = below;
    }
    found.map(|at| line_at(text, at))
}

/// Returns the 1-based line of a byte offset.
fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_keys_by_table() {
        let text =
            "user = 'a'\n[policy]\n\ndefault_pids = 5\n[[volumes]]\nname = 'a'\n[[volumes]]\nname = 'b'\npath = 'c'\n";
        for (key, line) in [
            ("user", Some(1)),
            ("policy.default_pids", Some(4)),
            ("policy.other", Some(2)),
            ("volumes[1].path", Some(9)),
            ("volumes", Some(5)),
            ("capacity.pids", None),
        ] {
            assert_eq!(line_of(text, key), line, "{key}");
        }
    }
}
