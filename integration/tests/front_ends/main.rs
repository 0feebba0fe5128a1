//! Tests the front ends, and the features for schedulers.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails; the lint does not count its helpers as tests

mod bundles;
mod cnab;
mod conventions;
mod kube;
mod schedulers;
