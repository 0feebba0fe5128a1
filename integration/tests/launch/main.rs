//! Tests the creation, the isolation and the limits of containers.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails; the lint does not count its helpers as tests

mod cell;
mod container;
mod disk;
mod environment_bytes;
mod execs;
mod held;
mod host_options;
mod id_map;
mod isolation;
mod kept;
mod layer_size;
mod log_files;
mod many;
mod oom;
mod pods;
mod privilege;
mod privileges;
mod secret_inputs;
mod stop_signal;
mod traps;
mod userns;
mod volumes;
mod vulnerabilities;
mod weaker;
