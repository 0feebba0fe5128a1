//! The cell as a whole: capacity that is reserved for later containers, drain, health, and what does not end.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

mod drain;
mod drain_shown;
mod health;
mod quarantine;
mod reservations;
