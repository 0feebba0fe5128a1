//! Tests the interface: gRPC, TLS, clients, agent-cli, archives, the systemd units.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails; the lint does not count its helpers as tests

mod api;
mod bad_input;
mod cli;
mod client;
mod go_client;
mod python_client;
mod refusals;
mod systemd_units;
mod tls;
mod transfers;
