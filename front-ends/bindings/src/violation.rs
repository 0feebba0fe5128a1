//! Violations of bindings, in Cloud Controller's own words if it has any (cloud_controller_ng,
//! `ServiceBindingFilesBuilder` and the builder of recipes that wraps it).
//!
//! No message holds a value. Names are shown so that they do nothing to a terminal, and no longer than is of use.

use std::fmt::{self, Write as _};

use executor_core::text::visible;

use crate::names::BINDING_RULE;
use crate::{BYTES_MAX, DEPTH_MAX, INPUT_MAX};

/// Prefix of Cloud Controller's messages.
const PREFIX: &str = "Cannot build service binding files for app - ";
/// Maximum number of characters of a name in a message.
const SHOWN_MAX: usize = 300;

/// A violation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A binding's name. It is its directory, so it has to match over its whole length.
    #[error("Invalid binding name: '{}'. Name must match {BINDING_RULE}", shown(.0))]
    BindingName(String),
    /// Two bindings have one name, and would have one directory.
    #[error("Duplicate binding name: {}", shown(.0))]
    DuplicateBinding(String),
    /// A credential's or an attribute's name. It is its file.
    #[error("Invalid file name: {}", shown(.0))]
    FileName(String),
    /// Bytes of the paths and contents of all files.
    #[error("Bindings exceed the maximum allowed bytesize of {BYTES_MAX}: {0}")]
    Size(u64),
    /// The text is not JSON, or not UTF-8. Line and column are counted from 1; the content is not repeated.
    #[error("VCAP_SERVICES is not valid JSON (line {line}, column {column})")]
    Syntax {
        /// Line.
        line: usize,
        /// Column, in bytes.
        column: usize,
    },
    /// The text is longer than allowed.
    #[error("VCAP_SERVICES has {0} bytes; at most {INPUT_MAX}")]
    Input(usize),
    /// Nested deeper than is read.
    #[error("VCAP_SERVICES is nested deeper than {DEPTH_MAX} levels")]
    Depth,
    /// The document is not of the form `{"LABEL": [...]}`.
    #[error("VCAP_SERVICES is not an object of lists of bindings")]
    NoServices,
    /// The value of a label is not a list.
    #[error("VCAP_SERVICES: '{}' is not a list of bindings", shown(.0))]
    NoList(String),
    /// An element of such a list, counted from 1.
    #[error("VCAP_SERVICES: binding {number} of '{}' is not an object", shown(.service))]
    NoBinding {
        /// The key that the list stands under.
        service: String,
        /// Number of the binding in the list.
        number: usize,
    },
    /// `credentials` is neither an object nor null.
    #[error("VCAP_SERVICES: the credentials of '{}' are not an object", shown(.0))]
    NoCredentials(String),
    /// A directory without the entry that every consumer looks for (Service Binding specification 1.1).
    #[error("Binding without an entry 'type': {}", shown(.0))]
    NoType(String),
}

/// Everything that is wrong, in the order in which it was found; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub(crate) Vec<Violation>);

impl Refused {
    /// Returns the violations.
    pub fn violations(&self) -> &[Violation] {
        &self.0
    }

    /// Returns each violation as Cloud Controller words it.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|violation| format!("{PREFIX}{violation}"))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, line) in self.lines().enumerate() {
            if number > 0 {
                f.write_char('\n')?;
            }
            f.write_str(&line)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

/// A name without what a terminal would obey, and not longer than [`SHOWN_MAX`].
fn shown(name: &str) -> String {
    match name.char_indices().nth(SHOWN_MAX) {
        None => visible(name),
        Some((end, _)) => visible(&name[..end]) + "...",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_nothing_to_a_terminal() {
        let violation = Violation::BindingName("a\u{1b}[2J\nb\u{202e}".into());
        assert_eq!(
            Refused(vec![violation, Violation::FileName("ä".repeat(400))]).to_string(),
            format!(
                "Cannot build service binding files for app - Invalid binding name: 'a\\u{{1b}}[2J\\nb\\u{{202e}}'. Name must \
                 match /^[a-z0-9\\-.]{{1,253}}$/\nCannot build service binding files for app - Invalid file name: {}...",
                "ä".repeat(300)
            )
        );
    }
}
