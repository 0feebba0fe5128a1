//! What is wrong with a request, field by field: the words that every judgement of one ends in.

use serde::{Deserialize, Serialize};

/// One thing wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{field}: {description}")]
pub struct Violation {
    /// Path of the field, as in the interface: `action.run.env[3].name`.
    pub field: String,
    /// What is wrong, with limit and size; never a secret's value.
    pub description: String,
}

impl Violation {
    /// A violation of `field`.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self { field: field.into(), description: description.into() }
    }
}
