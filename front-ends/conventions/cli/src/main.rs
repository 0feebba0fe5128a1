//! `agent-cli-convention` decorates Kubernetes objects with the registered conventions. agent-cli runs this program as
//! `agent-cli convention`.
//!
//! The library `executor_conventions` implements conventions. This crate has the command line ([`cli`], [`args`]), the
//! reader of object files ([`objects`]), the commands ([`work`]) and the output ([`view`]). The program does not
//! connect to executord.

#![forbid(unsafe_code)]

mod args;
mod cli;
mod error;
mod objects;
mod view;
mod work;

use std::process::ExitCode;

use executor_cli_kit::program;

fn main() -> ExitCode {
    program::main::<cli::Cli>()
}
