//! `agent-cli-cnab` runs Cloud Native Application Bundles (CNAB) through executord. agent-cli runs this program as
//! `agent-cli cnab`. Under the name `cnab-executor` the same program is a command driver for cnab-go and Porter.
//!
//! The library `executor_cnab` implements bundles. This crate has the command line ([`cli`], [`args`]), its inputs
//! ([`input`], [`secrets`]), the plan of an action ([`plan`]) and its request ([`request`]), the actions on an
//! installation ([`actions`], [`perform`], [`settle`], [`ended`]), the driver ([`operation`], [`drive`]), and the
//! output ([`view`]).

#![forbid(unsafe_code)]

mod actions;
mod args;
mod cli;
mod drive;
mod ended;
mod error;
mod image;
mod input;
mod operation;
mod perform;
mod plan;
mod read;
mod request;
mod secrets;
mod settle;
mod view;

use std::process::ExitCode;

use executor_cli_kit::program;

fn main() -> ExitCode {
    if operation::is_called() { drive::drive() } else { program::main::<cli::Cli>() }
}
