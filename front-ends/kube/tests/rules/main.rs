//! Each rule of docs/guides/kube-rules.md has a test that is called after it.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

mod common;
mod configuration;
mod pods;
mod reading;
mod storage;
mod workloads;
