//! Pure logic of the executor, without side effects.
//!
//! The inputs are values such as requests, the content of a rootfs' passwd file and the outcome of a step. The outputs
//! are validated plans, OCI specifications, mount plans, state transitions and records. This crate opens no file, makes
//! no system call, reads no clock and spawns no process, so its tests need only values. Both the daemon, which faces
//! the network, and the launcher, which is privileged, use this crate: the launcher checks each plan again, with the
//! same code as the daemon.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod backoff;
pub mod bridge;
pub mod capacity;
pub mod cdi;
mod cdi_name;
pub mod checks;
pub mod cni;
pub mod cpulist;
pub mod disclosure;
pub mod errors;
pub mod ident;
pub mod identity;
pub mod idmap;
pub mod image;
pub mod lifecycle;
pub mod limits;
pub mod logfile;
pub mod loglimit;
pub mod logline;
pub mod names;
pub mod outputs;
pub mod payload;
pub mod placement;
pub mod plan;
pub mod protocol;
pub mod quantity;
pub mod record;
pub mod reference;
pub mod settings;
pub mod shortage;
pub mod spec;
pub mod steps;
pub mod text;
pub mod time;
pub mod token;
pub mod update;
pub mod usage;
pub mod users;
pub mod validate;
mod violation;
