//! Collects violations of rules by a document or a value, to report them together. Each violation has a JSON pointer
//! and a rule.
//!
//! Messages never contain values that may be secret. The code that adds a violation must ensure this.

use std::fmt;

/// Maximum number of violations that are stored. A document that is not a bundle can have thousands.
pub const VIOLATIONS_MAX: usize = 100;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// JSON pointer into the document (`/parameters/port/destination`).
    pub path: String,
    /// Number of the rule in the table in `docs/guides/cnab-rules.md`.
    pub rule: u8,
    /// Description in one sentence, without the JSON pointer.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.path {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
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
    pub fn add(&mut self, path: impl Into<String>, rule: u8, message: impl Into<String>) {
        let violation = Violation { path: path.into(), rule, message: message.into() };
        if self.found.contains(&violation) {
            return;
        }
        if self.found.len() < VIOLATIONS_MAX {
            self.found.push(violation);
        } else {
            self.beyond += 1;
        }
    }

    /// Adds all violations of another list.
    pub fn append(&mut self, other: Self) {
        self.beyond += other.beyond;
        for violation in other.found {
            self.add(violation.path, violation.rule, violation.message);
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

    /// Returns a list with one violation.
    pub fn one(path: impl Into<String>, rule: u8, message: impl Into<String>) -> Self {
        let mut violations = Self::default();
        violations.add(path, rule, message);
        violations
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
        if self.beyond > 0 {
            write!(f, "\nand {} more", self.beyond)?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}

/// Appends a name to a JSON pointer.
pub(crate) fn pointer(parent: &str, name: &str) -> String {
    format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_are_limited_and_counted() {
        let mut all = Violations::default();
        for index in 0..VIOLATIONS_MAX + 7 {
            all.add(format!("/{index}"), 24, "is wrong");
            all.add(format!("/{index}"), 24, "is wrong");
        }
        assert_eq!(all.iter().count(), VIOLATIONS_MAX);
        assert!(all.to_string().ends_with("/99: is wrong\nand 14 more"), "{all}");
        assert_eq!(pointer("/a", "b/c~d"), "/a/b~1c~0d");
    }
}
