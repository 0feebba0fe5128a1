//! Every call of the interface, with the real daemon, launcher and shims.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

mod bbs;
mod events;
mod idempotency;
mod lifecycle;
mod listing;
mod log_limits;
mod logs;
mod services;
mod validate;
mod violations;
