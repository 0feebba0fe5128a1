//! Every call of the interface, against the real daemon, launcher and shims.

mod bbs;
mod events;
mod idempotency;
mod lifecycle;
mod listing;
mod logs;
mod services;
mod violations;
