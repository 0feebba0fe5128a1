//! Output of bundles and installations: JSON and text. It contains no value of a credential or of anything `writeOnly`.

mod bundle;
mod installation;

pub(crate) use bundle::{Explained, Validated};
pub(crate) use installation::{Done, Installation, Log, claims, claims_text, list, outputs, outputs_text};
