//! New containers and pods: admission, and recovery of those of an earlier daemon.

pub(crate) mod admit;
pub(crate) mod dry_run;
mod launch;
mod payload;
pub mod plan;
pub(crate) mod pods;
pub mod recover;
mod wiped;
