//! Tasks that run while the daemon serves: drain, retention, self-test, reloads of the configuration and of
//! certificates.

pub(crate) mod authority;
pub(crate) mod drain;
pub(crate) mod reload;
pub(crate) mod renewal;
pub mod retention;
pub(crate) mod self_test;
