//! Prints bundles and installations as JSON or text. Values of credentials and `writeOnly` values are never printed.

mod bundle;
mod installation;

pub(crate) use bundle::{Explained, Validated};
pub(crate) use installation::{Done, Installation, Log, claims, claims_text, list, outputs, outputs_text};
