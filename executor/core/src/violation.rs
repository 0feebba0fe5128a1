//! Defines violations: errors in the fields of a request, with a description for people and a reason for programs.
//!
//! Reasons are part of the API (`google.rpc.BadRequest.FieldViolation.reason`): their names do not change, and
//! docs/errors.md lists them. A violation without a specific reason has [`ViolationReason::InvalidValue`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// An error in a field of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{field}: {description}")]
pub struct Violation {
    /// Path of the field, as in the public API: `action.run.env[3].name`.
    pub field: String,
    /// Kind of the error, for programs.
    #[serde(default)]
    pub reason: ViolationReason,
    /// Description with limit and size; never a secret's value.
    pub description: String,
}

impl Violation {
    /// Creates a violation of `field`.
    pub fn new(field: impl Into<String>, fault: impl Into<FieldFault>) -> Self {
        let FieldFault { reason, description } = fault.into();
        Self { field: field.into(), reason, description }
    }
}

/// An error in a field whose name is not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldFault {
    /// Reason; see [`Violation::reason`].
    pub reason: ViolationReason,
    /// Description; see [`Violation::description`].
    pub description: String,
}

impl FieldFault {
    /// Prefixes the description with the invalid part of the field.
    #[must_use]
    pub fn within(self, what: &str) -> Self {
        Self { description: format!("{what}: {}", self.description), ..self }
    }
}

impl fmt::Display for FieldFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

impl From<String> for FieldFault {
    fn from(description: String) -> Self {
        Self { reason: ViolationReason::InvalidValue, description }
    }
}

impl From<&String> for FieldFault {
    fn from(description: &String) -> Self {
        description.clone().into()
    }
}

impl From<&str> for FieldFault {
    fn from(description: &str) -> Self {
        description.to_owned().into()
    }
}

/// Declares the reasons with their names in the API.
macro_rules! reasons {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal,)+) => {
        /// Kind of a violation, for programs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
        pub enum ViolationReason {
            $($(#[$doc])+ $variant,)+
        }

        impl ViolationReason {
            /// Every reason, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the name in the API.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

reasons! {
    /// A required value is missing.
    Required = "REQUIRED",
    /// A string without the required format.
    InvalidFormat = "INVALID_FORMAT",
    /// A string with a character that the field must not have, such as a NUL.
    InvalidCharacter = "INVALID_CHARACTER",
    /// A string that is not UTF-8.
    NotUtf8 = "NOT_UTF8",
    /// A number or a name that is unknown.
    UnknownValue = "UNKNOWN_VALUE",
    /// A field that this executord does not support, in a call with strict fields.
    UnknownField = "UNKNOWN_FIELD",
    /// A number, a size or a time outside of its range.
    OutOfRange = "OUT_OF_RANGE",
    /// A string with too many bytes.
    TooLong = "TOO_LONG",
    /// A list with too many entries.
    TooMany = "TOO_MANY",
    /// Contents that together have too many bytes.
    TooLarge = "TOO_LARGE",
    /// A value that occurs twice.
    Duplicate = "DUPLICATE",
    /// A value that conflicts with another field, or requires another field that is not set.
    Conflict = "CONFLICT",
    /// A path or a name that belongs to the kernel or to the executor.
    Reserved = "RESERVED",
    /// A value that this node's configuration does not allow.
    NotAllowed = "NOT_ALLOWED",
    /// A value that this host does not support.
    Unsupported = "UNSUPPORTED",
    /// The object that the field names does not exist.
    NotFound = "NOT_FOUND",
    /// The object that the field names exists, but is not suitable.
    Unsuitable = "UNSUITABLE",
    /// The object that the field names cannot be read: a registry or a file's permissions deny access.
    AccessDenied = "ACCESS_DENIED",
    /// The registry's certificate is not trusted, or no secure connection to the registry is possible.
    Untrusted = "UNTRUSTED",
    /// The image has no signature that this node's configuration requires.
    Unsigned = "UNSIGNED",
    /// The registry cannot be reached, is slow, or responds with a temporary error.
    Unreachable = "UNREACHABLE",
    /// The registry refuses the request itself.
    Rejected = "REJECTED",
    /// Capacity, memory or disk is not sufficient.
    Insufficient = "INSUFFICIENT",
    /// There are more violations than a response can hold; the description contains their number.
    MoreViolations = "MORE_VIOLATIONS",
    /// Any other error.
    #[default]
    InvalidValue = "INVALID_VALUE",
}

impl ViolationReason {
    /// Creates an error of this kind.
    pub fn because(self, description: impl Into<String>) -> FieldFault {
        FieldFault { reason: self, description: description.into() }
    }

    /// Returns the reason with this name, or [`Self::InvalidValue`] if the name is not known.
    pub fn from_name(name: &str) -> Self {
        Self::ALL.iter().copied().find(|reason| reason.name() == name).unwrap_or_default()
    }

    /// Returns this reason, or `other` if this reason is [`Self::InvalidValue`].
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self == Self::InvalidValue { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names have the format that google.rpc.BadRequest requires.
    #[test]
    fn names_are_stable_and_documented() {
        let page = include_str!("../../../docs/errors.md");
        for reason in ViolationReason::ALL {
            let name = reason.name();
            assert!(
                name.len() <= 63 && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_' || b == b'8'),
                "{name}"
            );
            assert_eq!(page.matches(&format!("| `{name}` |")).count(), 1, "{name} in docs/errors.md");
            assert_eq!(ViolationReason::from_name(name), *reason);
        }
        let rows = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, ViolationReason::ALL.len(), "docs/errors.md has a row for an unknown reason");
        assert_eq!(ViolationReason::from_name("OF_A_NEWER_PEER"), ViolationReason::InvalidValue);
    }
}
