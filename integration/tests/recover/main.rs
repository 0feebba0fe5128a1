//! Recovery: killed processes, restarts of the daemons, cleanup.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod crash;
mod hangup;
mod launcher;
mod lost;
mod removal;
mod restart;
mod warm_pool;
