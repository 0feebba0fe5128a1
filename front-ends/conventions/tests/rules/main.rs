//! Every rule of `docs/guides/conventions.md` has a test here that is called after it.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

mod answers;
mod common;
mod images;
mod order;
mod privileges;
mod properties;
mod registrations;
mod secrets;
