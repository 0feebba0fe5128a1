//! The interface: gRPC, TLS, clients, agent-cli, archives, the systemd units.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

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
