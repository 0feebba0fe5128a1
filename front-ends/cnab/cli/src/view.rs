//! How bundles and installations look: as JSON documents, and as text for people. No value of a credential or of what is
//! `writeOnly` is in any of them.

mod bundle;
mod installation;

pub(crate) use bundle::{Explained, Validated};
pub(crate) use installation::{Done, Installation, Log, claims, claims_text, list, outputs, outputs_text};
