//! Harness for tests that run the real binaries, as root, with real containers.
//!
//! The binaries are built by `cargo xtask build --release` (in `target/dist/`, or the directory in `EXECUTOR_DIST`). Every test
//! has its own run and state directories. A test removes all of its files and processes when it finishes, even if it
//! fails.

pub mod api;
pub mod cli;
pub mod conventions;
pub mod cri;
pub mod daemon;
pub mod dist;
pub mod dns;
pub mod footprint;
pub mod fuse;
pub mod guide;
pub mod host;
pub mod http2;
pub mod id_pool;
pub mod identity;
pub mod images;
pub mod interrupt;
pub mod kubernetes_streams;
pub mod lanes;
pub mod launcher;
pub mod layers;
pub mod loop_devices;
pub mod metrics;
pub mod mount;
pub mod network;
pub mod outputs;
pub mod quota;
pub mod race;
pub mod request;
pub mod residue;
pub mod rootfs;
pub mod runtime;
pub mod shelf;
pub mod streams;
pub mod supervised;
pub mod terminal;
pub mod tls;
pub mod tree;
pub mod wait;
pub mod warm_pool;
pub mod web;
