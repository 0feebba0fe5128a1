//! Every rule of `docs/guides/cnab-rules.md` has a test here whose name begins with its number.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)] // test helpers: a panic names its line, `json!` is passed by value

mod claims;
mod common;
mod descriptor;
mod examples;
mod extensions;
mod runtime;
mod stored;
