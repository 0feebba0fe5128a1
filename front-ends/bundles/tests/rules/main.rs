//! The rules of catalogs and bundles, each as a test that is called after it.

mod bundles;
mod catalogs;
mod common;
mod resolution;
