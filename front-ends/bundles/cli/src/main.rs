//! `agent-cli-bundle`: bundles of operators through executord. agent-cli runs it as `agent-cli bundle`; under the name
//! `agent-cli-catalog` it is `agent-cli catalog`.
//!
//! The library `executor_bundles` implements bundles and catalogs. This crate has the command lines ([`bundle`],
//! [`catalog`]), their common parts ([`common`]), installations ([`install`], [`events`]) by plays ([`kube`]), and
//! images of registries ([`registry`]).

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
