//! The common parts of the executor's command line programs: agent-cli, and the front ends that it runs as
//! `agent-cli NAME`.
//!
//! Modules: `program` is the entry point of a program, and `global` has the flags of all programs. `contexts` and
//! `connect` find executord, and `local` starts the private executord of `--local`. `execute` runs a command in a
//! `session`. `source`, `request` and `images` are the inputs of a container, `follow`, `attach` and `logs` handle its
//! streams, and `destination` writes files that a container sends. `view` formats results; `status`, `failure`,
//! `report` and `exit` are errors and exit statuses; `generate` writes manuals and completions.

#![forbid(unsafe_code)]

pub mod attach;
pub mod connect;
pub mod container;
pub mod contexts;
pub mod destination;
pub mod executables;
pub mod execute;
pub mod exit;
pub mod failure;
pub mod flag_names;
pub mod follow;
pub mod generate;
pub mod global;
pub mod images;
pub mod input;
pub mod interrupt;
pub mod limits;
mod local;
pub mod logs;
pub mod network;
pub mod output;
pub mod program;
pub mod report;
pub mod request;
pub mod session;
pub mod signals;
pub mod source;
pub mod status;
pub mod terminal;
pub mod text;
pub mod units;
pub mod view;
