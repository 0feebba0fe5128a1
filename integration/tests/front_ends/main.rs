//! The front ends, and the features for schedulers.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod bundles;
mod cnab;
mod conventions;
mod kube;
mod schedulers;
