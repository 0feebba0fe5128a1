//! Tests the rules of catalogs and bundles. The name of each test begins with the number of its rule.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test; the lint does not treat helpers as tests

mod bundles;
mod catalogs;
mod common;
mod resolution;
