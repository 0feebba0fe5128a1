//! The executor's command line, over gRPC only: it runs containers with secret files and looks after them.
//!
//! The library is what programs of the command line have in common: this one, and those that it runs (`programs`).
//!
//! Modules: `cli` reads the command line, `commands` has a module for each command with its arguments, `work`
//! carries a command out, over `connect`, the way to executord (`contexts` says where that is), or `local`, the private executord of `--local`.
//! `source` and `request` are about the inputs of a container, `stay` and `logs` about its output, `view` is
//! the presentation of results, `failure` and `exit` are errors and exit statuses.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // the library's users are the programs beside it; texts of errors and help say what fields are

mod actions;
mod attach;
mod bindings;
pub mod cli;
mod commands;
pub mod connect;
pub mod container;
pub mod contexts;
pub mod destination;
mod docker;
mod egress;
mod executables;
pub mod exit;
pub mod failure;
mod feed;
mod fields;
mod filter;
pub mod generate;
pub mod global;
mod ids;
pub mod images;
pub mod interrupt;
pub mod limits;
mod local;
pub mod logs;
pub mod network;
pub mod output;
mod programs;
mod registry;
pub mod report;
pub mod request;
pub mod session;
pub mod signals;
pub mod source;
pub mod status;
pub mod stay;
pub mod terminal;
pub mod text;
pub mod units;
mod variables;
pub mod view;
pub mod work;
