//! The rules of catalogs and bundles, each as a test whose name begins with its number.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test; the lint does not treat helpers as tests

mod bundles;
mod catalogs;
mod common;
mod resolution;
