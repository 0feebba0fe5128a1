//! What clients do with a container that exists: rotate its files, execute a command in it, copy, pause, delete it.

pub(crate) mod certify;
pub(crate) mod copy;
pub mod delete;
pub(crate) mod egress;
pub(crate) mod exec;
pub(crate) mod limits;
pub(crate) mod members;
pub(crate) mod pause;
pub(crate) mod reserve;
pub mod rotate;
pub(crate) mod stats;
