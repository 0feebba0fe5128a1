//! `agent-cli-kube` runs Kubernetes objects on this host, through executord. agent-cli runs this program as `agent-cli
//! kube`.
//!
//! The library `executor_kube` implements the objects. This crate has the command line ([`cli`], [`args`]), the input
//! files ([`input`]), `play` ([`play`], [`admission`], [`playing`], [`pod`], [`change`], [`jobs`]), `down` ([`down`]),
//! `ps` and `logs` ([`read`]), the digests of secrets that are kept between plays ([`memory`]), systemd units
//! ([`units`]), and the output ([`view`]).

#![forbid(unsafe_code)]

mod admission;
mod args;
mod change;
mod cli;
mod conventions;
mod down;
mod error;
mod hooks;
mod input;
mod jobs;
mod known;
mod memory;
mod play;
mod playing;
mod pod;
mod read;
mod units;
mod view;

use std::process::ExitCode;

use executor_cli_kit::program;

fn main() -> ExitCode {
    program::main::<cli::Cli>()
}
