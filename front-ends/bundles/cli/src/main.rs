//! `agent-cli-bundle` installs bundles of operators through executord. agent-cli runs this program as `agent-cli
//! bundle`. Under the name `agent-cli-catalog`, the same program implements `agent-cli catalog`.
//!
//! The library `executor_bundles` implements bundles and catalogs. This crate contains the command lines ([`bundle`],
//! [`catalog`]) and their common parts ([`common`]). The crate manages installations ([`install`], [`events`]), runs
//! `agent-cli-kube` ([`kube`]) and pulls images from registries ([`registry`]).

#![forbid(unsafe_code)]

mod bundle;
mod catalog;
mod common;
mod events;
mod install;
mod kube;
mod registry;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use executor_cli_kit::program;

fn main() -> ExitCode {
    let called = std::env::args_os().next().map(PathBuf::from);
    let name = called.as_deref().and_then(Path::file_name);
    if name.is_some_and(|name| name == catalog::PROGRAM) { program::main::<catalog::Cli>() } else { bundle::main() }
}
