//! Tests recovery: killed processes, restarts of the daemons, cleanup.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails; the lint does not count its helpers as tests

mod crash;
mod hangup;
mod launcher;
mod lost;
mod removal;
mod restart;
mod warm_pool;
