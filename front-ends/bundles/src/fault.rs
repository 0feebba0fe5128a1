//! Collects the violations in a catalog or bundle, to report them together. Each violation has a location and a rule.

use std::fmt;

use serde::Serialize;

/// Maximum number of violations that are stored. A file that is not a catalog can have thousands.
pub const FAULTS_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fault {
    /// File and, if known, line (`catalog.yaml:12`). Empty if the violation concerns the whole catalog or bundle.
    pub place: String,
    /// Number of the rule in `docs/guides/catalogs.md` or `docs/guides/bundles.md`.
    pub rule: &'static str,
    /// Description in one sentence.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        write!(f, "{} ({})", self.message, self.rule)
    }
}

/// Violations in the order in which they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// The first violations, at most [`FAULTS_MAX`].
    pub found: Vec<Fault>,
    /// Number of violations that were not stored.
    pub beyond: usize,
}

impl Faults {
    pub fn add(&mut self, place: impl Into<String>, rule: &'static str, message: impl Into<String>) {
        if self.found.len() < FAULTS_MAX {
            self.found.push(Fault { place: place.into(), rule, message: message.into() });
        } else {
            self.beyond += 1;
        }
    }

    /// Returns true if there are no violations.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the number of violations, including violations that were not stored.
    pub fn count(&self) -> usize {
        self.found.len() + self.beyond
    }

    /// Returns `value` if there are no violations.
    ///
    /// # Errors
    /// Returns the violations if there are any.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Returns true if this rule has a stored violation.
    pub fn breaks(&self, rule: &str) -> bool {
        self.found.iter().any(|fault| fault.rule == rule)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.found.iter().enumerate() {
            write!(f, "{}{fault}", if index == 0 { "" } else { "\n" })?;
        }
        if self.beyond > 0 {
            write!(f, "\nand {} more", self.beyond)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
