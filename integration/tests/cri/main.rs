//! executor-cri with real containers: rules C1 to C55 and complaints X1 to X10 of the Kubernetes runtime interface. critest
//! judges it too (`cargo xtask engines-test`).

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod bad_input;
mod churn;
mod csi;
mod dead_mounts;
mod errors;
mod images;
mod lifecycle;
mod logs;
mod network;
mod privileged;
mod reboot;
mod restarts;
mod secrets;
mod stalls;
mod stats;
mod streaming;
mod times;
mod users;
mod values;
