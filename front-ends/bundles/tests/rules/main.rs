//! The rules of catalogs and bundles, each as a test that is called after it.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod bundles;
mod catalogs;
mod common;
mod resolution;
