//! Converts requests from API messages to validated, complete input: drafts, digests, secret references.

pub mod digest;
pub(crate) mod draft;
pub(crate) mod references;
