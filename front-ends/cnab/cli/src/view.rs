//! Presentation of bundles and installations: JSON documents, and text for people. None of them has a value of a
//! credential or of anything that is `writeOnly`.

mod bundle;
mod installation;

pub(crate) use bundle::{Explained, Validated};
pub(crate) use installation::{Done, Installation, Log, claims, claims_text, list, outputs, outputs_text};
