//! The executor's decisions, apart from carrying them out.
//!
//! In go requests, the content of a rootfs' passwd file, the outcome of a step; out come validated plans,
//! OCI specifications, mount plans, transitions and records. Nothing here opens a file, makes a system
//! call, knows the time or spawns anything, so all of it is tested by values alone. The daemon, which faces
//! the network, and the launcher, which holds the privilege, both use it: the launcher checks a plan again
//! with the very code that the daemon admitted it with.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod archive;
pub mod backoff;
pub mod capacity;
pub mod cdi;
mod cdi_name;
pub mod checks;
pub mod cni;
pub mod cpulist;
pub mod disclosure;
pub mod ident;
pub mod identity;
pub mod idmap;
pub mod image;
pub mod lifecycle;
pub mod limits;
pub mod loglimit;
pub mod logline;
pub mod names;
pub mod outputs;
pub mod payload;
pub mod placement;
pub mod plan;
pub mod protocol;
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
