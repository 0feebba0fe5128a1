//! The executor's command line: runs and manages containers with secret files, over gRPC only.
//!
//! `executor_cli_kit` has the common parts of this program and of the programs that it runs (`programs`).
//!
//! Modules: `cli` parses the command line; `commands` has one module per command; `batch` runs an operation on several
//! containers; `bindings`, `actions`, `egress`, `registry` and `variables` are inputs of commands; `view` formats
//! results.

#![forbid(unsafe_code)]

mod actions;
mod batch;
mod bindings;
mod cli;
mod commands;
mod docker;
mod egress;
mod filter;
mod ids;
mod programs;
mod registry;
mod variables;
mod view;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
