//! Collects violations, to report them together. Each violation has a convention, a field and a rule.
//!
//! Messages never contain values of a template or of a response, because these values may be secret.

use executor_core::text::printable;
use std::fmt;

use serde::Serialize;

use crate::grant::Grant;

/// Maximum number of violations that are stored.
pub const VIOLATIONS_MAX: usize = 100;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Name of the convention; `None` for violations by the template or the registrations file.
    pub convention: Option<String>,
    /// Path of the field, such as `spec.containers[app].securityContext.privileged`; may be empty.
    pub field: String,
    /// Number of the rule in the table in `docs/guides/conventions.md`.
    pub rule: u8,
    /// Grant that the registration lacks.
    pub grant: Option<Grant>,
    /// Description in one sentence, without convention, field, rule and grant.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(convention) = &self.convention {
            write!(f, "convention {convention}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)?;
        match self.grant {
            Some(grant) => write!(f, ", and the registration lacks the grant {grant}"),
            None => Ok(()),
        }
    }
}

/// Violations in the order in which they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    found: Vec<Violation>,
    beyond: usize,
}

impl Violations {
    /// Returns a list with one violation.
    pub fn one(convention: Option<&str>, field: impl Into<String>, rule: u8, message: impl Into<String>) -> Self {
        let mut violations = Self::default();
        violations.add(convention, field, rule, message);
        violations
    }

    pub fn add(&mut self, convention: Option<&str>, field: impl Into<String>, rule: u8, message: impl Into<String>) {
        let convention = convention.map(str::to_owned);
        self.push(Violation { convention, field: field.into(), rule, grant: None, message: message.into() });
    }

    pub(crate) fn push(&mut self, violation: Violation) {
        if self.found.contains(&violation) {
            return;
        }
        if self.found.len() < VIOLATIONS_MAX {
            self.found.push(violation);
        } else {
            self.beyond += 1;
        }
    }

    /// Returns true if there are no violations.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the stored violations.
    pub fn iter(&self) -> std::slice::Iter<'_, Violation> {
        self.found.iter()
    }

    /// Returns `value` if there are no violations.
    ///
    /// # Errors
    /// Returns the violations, if there are any.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.found.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            violation.fmt(f)?;
        }
        match self.beyond {
            0 => Ok(()),
            beyond => write!(f, "\nand {beyond} more"),
        }
    }
}

impl std::error::Error for Violations {}

/// Quotes an untrusted string for an error message, on one line and with limited length.
pub(crate) fn shown(text: &str) -> String {
    format!("\"{}\"", printable(text, 80))
}
