//! Tests running containers: trees of actions, checks, restarts, executed processes, logs, outputs and metrics.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod actions;
mod checks;
mod exec;
mod histories;
mod lives;
mod logs_outward;
mod metrics;
mod outputs;
mod outputs_cli;
mod outputs_faults;
mod random_trees;
mod restarts;
mod top;
mod traces;
