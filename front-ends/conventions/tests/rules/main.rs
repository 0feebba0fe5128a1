//! Every rule of `docs/guides/conventions.md` has a test here whose name begins with its number.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod answers;
mod common;
mod images;
mod order;
mod privileges;
mod properties;
mod registrations;
mod secrets;
