//! New containers and pods: admission, and recovery of those that an earlier daemon started.

pub mod admit;
pub(crate) mod pods;
pub mod recover;
