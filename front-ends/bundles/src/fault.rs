//! Faults of a catalog or a bundle: all of them at once, each with its place and the rule that it breaks.

use std::fmt;

use serde::Serialize;

/// Most faults that are kept; what is not a catalog at all has thousands.
pub const FAULTS_MAX: usize = 200;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fault {
    /// File, with the line where one is known (`catalog.yaml:12`); empty for the whole.
    pub place: String,
    /// The rule, as `docs/guides/catalogs.md` and `docs/guides/bundles.md` number them.
    pub rule: &'static str,
    /// The fault in one sentence.
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

/// Faults in the order of their places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// The first of them.
    pub found: Vec<Fault>,
    /// Number of further faults.
    pub beyond: usize,
}

impl Faults {
    /// Adds one.
    pub fn add(&mut self, place: impl Into<String>, rule: &'static str, message: impl Into<String>) {
        if self.found.len() < FAULTS_MAX {
            self.found.push(Fault { place: place.into(), rule, message: message.into() });
        } else {
            self.beyond += 1;
        }
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Number of all faults.
    pub fn count(&self) -> usize {
        self.found.len() + self.beyond
    }

    /// Returns `value` if there are none.
    ///
    /// # Errors
    /// The faults, if there are any.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Returns true if one of them breaks this rule.
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
