//! Each rule of docs/guides/kube-rules.md has a test whose name begins with its number.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;
mod configuration;
mod pods;
mod reading;
mod storage;
mod workloads;
