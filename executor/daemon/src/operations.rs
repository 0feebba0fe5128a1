//! Operations on existing containers: start, rotate files, execute a command, copy, pause, delete.

pub(crate) mod certify;
pub(crate) mod copy;
pub mod delete;
pub(crate) mod egress;
pub(crate) mod exec;
pub(crate) mod limits;
pub(crate) mod members;
pub(crate) mod pause;
pub(crate) mod reopen;
pub(crate) mod reserve;
pub mod rotate;
pub(crate) mod start;
pub(crate) mod stats;
