//! Tests the cell as a whole: reservations, drain, health, and containers that do not exit.

mod drain;
mod drain_shown;
mod health;
mod quarantine;
mod reservations;
