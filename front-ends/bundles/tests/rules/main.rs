//! The rules of catalogs and bundles, each as a test that is called after it.

mod catalogs;
mod common;
mod resolution;
