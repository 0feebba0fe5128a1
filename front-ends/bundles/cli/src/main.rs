//! `agent-cli-bundle`: bundles of operators through executord. agent-cli runs it as `agent-cli bundle`; called as `agent-cli-catalog` it is
//! `agent-cli catalog`.
//!
//! The library `executor_bundles` knows what bundles and catalogs are. Here is the rest: the command lines ([`bundle`], [`catalog`]), what both have in
//! common ([`common`]), installations ([`install`], [`events`]) by plays ([`kube`]), and images of registries ([`registry`]).

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

fn main() -> ExitCode {
    let called = std::env::args_os().next().map(PathBuf::from);
    let name = called.as_deref().and_then(Path::file_name);
    if name.is_some_and(|name| name == catalog::PROGRAM) { catalog::main() } else { bundle::main() }
}
