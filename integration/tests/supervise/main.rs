//! Tests running containers: trees of actions, checks, restarts, executed processes, logs, outputs and metrics.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails; the lint does not count its helpers as tests

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
