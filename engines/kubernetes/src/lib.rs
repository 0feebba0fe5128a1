//! `executor-cri`: serves the Kubernetes container runtime interface (CRI), `runtime.v1`, over executord.
//!
//! ```text
//!  kubelet, crictl ──runtime.v1──> serve ──> services ──> node ──executor.v1──> executord
//!  kubelet ────────────csi.v1─────> serve ──> csi ──────────┘ volumes: mounts of secrets
//!                                              │           │ ▲
//!                          lower: requests <───┘           │ └── follow, events: states of executord
//!                          status: responses               └──> store: records on disk
//! ```
//! A sandbox is a pod of executord, and a container is a held container (`RunRequest.hold`) in this pod, with the same
//! id. Data that executord does not store, such as the kubelet's names and annotations, is in records on disk, which
//! contain no environment. List calls are served from memory.
//!
//! Rules are numbered as in `docs/guides/cri-rules.md`.

#![forbid(unsafe_code)]

pub mod program;

mod cgroup;
mod check;
mod config;
mod containers;
mod csi;
mod events;
mod exec;
mod failure;
mod follow;
mod ids;
mod image_names;
mod images;
mod lower;
mod metrics;
mod node;
mod options;
mod pod_cgroup;
mod sandboxes;
mod secrets;
mod serve;
mod services;
mod stats;
mod status;
mod store;
mod streams;
mod volumes;
