//! Every rule of `docs/guides/cnab-rules.md` has a test here that is called after it.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)] // helpers of tests: a panic names its line, `json!` is written in place

mod claims;
mod common;
mod descriptor;
mod examples;
mod extensions;
mod runtime;
mod stored;
