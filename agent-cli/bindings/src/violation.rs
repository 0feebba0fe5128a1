//! Violations of bindings. A violation that Cloud Controller also reports has Cloud Controller's message
//! (cloud_controller_ng, `ServiceBindingFilesBuilder` and the recipe builder that wraps it).
//!
//! No message contains a value. Names are escaped for terminals and truncated to 300 bytes.

use executor_core::text::printable;
use std::fmt::{self, Write as _};

use crate::names::BINDING_RULE;
use crate::{BYTES_MAX, DEPTH_MAX, INPUT_MAX};

/// Prefix of Cloud Controller's messages.
const PREFIX: &str = "Cannot build service binding files for app - ";
/// Maximum length of a name in a message, in bytes.
const SHOWN_MAX: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Invalid name of a binding, which is the name of its directory.
    #[error("Invalid binding name: '{}'. Name must match {BINDING_RULE}", printable(.0, SHOWN_MAX))]
    BindingName(String),
    /// Two bindings have the same name and would share a directory.
    #[error("Duplicate binding name: {}", printable(.0, SHOWN_MAX))]
    DuplicateBinding(String),
    /// Invalid name of a credential or an attribute, which is the name of its file.
    #[error("Invalid file name: {}", printable(.0, SHOWN_MAX))]
    FileName(String),
    /// Total size of paths and contents, in bytes, above the limit.
    #[error("Bindings exceed the maximum allowed bytesize of {BYTES_MAX}: {0}")]
    Size(u64),
    /// The text is not JSON or not UTF-8. Line and column are counted from 1; the content is not repeated.
    #[error("VCAP_SERVICES is not valid JSON (line {line}, column {column})")]
    Syntax {
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
    },
    /// VCAP_SERVICES is longer than allowed.
    #[error("VCAP_SERVICES is {0} bytes; the maximum is {INPUT_MAX}")]
    Input(usize),
    /// VCAP_SERVICES is nested deeper than allowed.
    #[error("VCAP_SERVICES is nested deeper than {DEPTH_MAX} levels")]
    Depth,
    /// The document does not match `{"LABEL": [...]}`.
    #[error("VCAP_SERVICES is not an object of lists of bindings")]
    NoServices,
    /// The value of a label is not a list.
    #[error("VCAP_SERVICES: '{}' is not a list of bindings", printable(.0, SHOWN_MAX))]
    NoList(String),
    /// An element of a list of bindings is not an object.
    #[error("VCAP_SERVICES: binding {number} of '{}' is not an object", printable(.service, SHOWN_MAX))]
    NoBinding {
        /// The key of the list.
        service: String,
        /// Number of the binding in the list, from 1.
        number: usize,
    },
    /// `credentials` is neither an object nor null.
    #[error("VCAP_SERVICES: the credentials of '{}' are not an object", printable(.0, SHOWN_MAX))]
    NoCredentials(String),
    /// A directory has no entry `type`, which every consumer requires (Service Binding specification 1.1).
    #[error("Binding has no entry 'type': {}", printable(.0, SHOWN_MAX))]
    NoType(String),
}

/// All violations, in the order in which they were found. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub(crate) Vec<Violation>);

impl Refused {
    pub fn violations(&self) -> &[Violation] {
        &self.0
    }

    /// Returns the messages of the violations, with Cloud Controller's prefix.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violation_escapes_control_characters_in_names() {
        let violation = Violation::BindingName("a\u{1b}[2J\nb\u{202e}".into());
        assert_eq!(
            Refused(vec![violation, Violation::FileName("ä".repeat(400))]).to_string(),
            format!(
                "Cannot build service binding files for app - Invalid binding name: 'a\\u{{1b}}[2J\\nb\\u{{202e}}'. Name must \
                 match /^[a-z0-9\\-.]{{1,253}}$/\nCannot build service binding files for app - Invalid file name: {}...",
                "ä".repeat(150)
            )
        );
    }
}
