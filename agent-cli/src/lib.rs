//! The executor's command line: runs and manages containers with secret files, over gRPC only.
//!
//! The library holds code shared by agent-cli and the external programs that it runs (`programs`).
//!
//! Modules: `cli` parses the command line; `commands` has one module per command; `work` executes a command, over
//! `connect` (which uses `contexts` to find executord) or `local`, the private executord of `--local`. `source` and
//! `request` handle the inputs of a container, `stay` and `logs` its output, `view` formats results, `failure` and
//! `exit` are errors and exit statuses.

#![forbid(unsafe_code)]

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
