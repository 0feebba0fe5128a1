//! `agent-cli-kube`: Kubernetes objects on this host, through executord. agent-cli runs it as `agent-cli kube`.
//!
//! The library `executor_kube` knows what the objects mean. Here is the rest: the command line ([`cli`], [`args`]), its files ([`input`]),
//! the play ([`play`], [`admission`], [`playing`], [`pod`], [`change`], [`jobs`]) and its end ([`down`]), what is read ([`read`]), what this program remembers of
//! secrets ([`memory`]), units for systemd ([`units`]), and how things look ([`view`]).

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

fn main() -> ExitCode {
    cli::main()
}
