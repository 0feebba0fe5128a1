//! The cell as a whole: capacity that is reserved for later containers.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

mod reservations;
