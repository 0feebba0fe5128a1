//! Tests the rules of docs/guides/kube-rules.md. The name of a test begins with its rule, for example `p6_`. The only
//! test without a rule is `null_is_no_key`.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;
mod configuration;
mod pods;
mod reading;
mod storage;
mod workloads;
