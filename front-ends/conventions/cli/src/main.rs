//! `agent-cli-convention`: decorates Kubernetes objects by the conventions that are registered. agent-cli runs it as
//! `agent-cli convention`.
//!
//! The library `executor_conventions` knows what conventions are. Here is the rest: the command line ([`cli`], [`args`]), the files of
//! objects ([`objects`]), the work on them ([`work`]), and how things look ([`view`]). executord is not asked.

#![forbid(unsafe_code)]

mod args;
mod cli;
mod error;
mod objects;
mod view;
mod work;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
