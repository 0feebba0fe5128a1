//! Admits new containers and pods, and recovers the containers of earlier daemons.

pub(crate) mod admit;
pub(crate) mod dry_run;
mod launch;
pub mod plan;
pub(crate) mod pods;
pub mod recover;
