//! Tests the rules of `docs/guides/conventions.md`. The name of each test begins with the number of its rule.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod answers;
mod common;
mod images;
mod order;
mod privileges;
mod properties;
mod registrations;
mod secrets;
