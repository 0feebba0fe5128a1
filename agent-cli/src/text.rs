//! Sanitizes untrusted text for a terminal.

pub use executor_core::text::visible as plain;
