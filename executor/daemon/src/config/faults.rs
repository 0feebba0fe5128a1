//! Collects the errors of a configuration file, each with its line.

use super::ConfigError;
use super::document::{Document, Location};

/// Errors of a configuration file that were found so far.
#[derive(Default)]
pub(super) struct Faults(pub(super) Vec<ConfigError>);

impl Faults {
    /// Returns the value of a result. If the result is an error, records the error and returns `None`.
    pub(super) fn record<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    pub(super) fn add(&mut self, fault: ConfigError) {
        self.0.push(fault);
    }
}

impl ConfigError {
    /// Returns each error, with its line if its key occurs in the file. Omits errors about defaults that replace
    /// removed entries.
    pub(super) fn located(self, document: &Document<'_>) -> Vec<Self> {
        match self {
            Self::Value { origin, key, value, why } => match document.locate(&key) {
                Location::Line(line, key) => {
                    vec![Self::Value { origin: format!("{origin}:{line}"), key: key.into(), value, why }]
                }
                Location::Absent => vec![Self::Value { origin, key, value, why }],
                Location::Removed => Vec::new(),
            },
            Self::Several(faults) => faults.into_iter().flat_map(|fault| fault.located(document)).collect(),
            error => vec![error],
        }
    }
}
