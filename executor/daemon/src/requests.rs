//! Requests from the wire form to validated, complete input: drafts, digests, references to secrets.

pub mod digest;
pub(crate) mod draft;
pub(crate) mod references;
