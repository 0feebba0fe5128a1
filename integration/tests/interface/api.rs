//! Tests every call of the interface with the real daemon, launcher and shims.

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
