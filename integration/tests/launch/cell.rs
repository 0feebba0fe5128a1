//! The cell as a whole: capacity that is reserved for later containers, drain, health, and what does not end.

mod drain;
mod drain_shown;
mod health;
mod quarantine;
mod reservations;
