//! Tests the rules of docs/guides/kube-rules.md. The name of each test begins with the number of its rule.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;
mod configuration;
mod pods;
mod reading;
mod storage;
mod workloads;
