//! Fuzz targets: plain functions that pass bytes to the code that reads untrusted input.
//!
//! A target accepts any bytes and must return. If a rule that must hold for any input is violated, the target panics;
//! the input is then a finding. The engine (`src/main.rs`, built by `cargo xtask fuzz`) searches for findings. A test
//! (`tests/replay.rs`) runs every target over the stored corpus and over former findings, without the engine. This
//! crate opens no files and makes no system calls.
//!
//! | target | source of the bytes | code under test |
//! |---|---|---|
//! | `request` | a caller on the network | decoder, draft, validation, plan, recheck, specification |
//! | `paths` | a caller, and a hostile root file system | rules for paths, mount points, updates |
//! | `users` | a hostile root file system | passwd, group, `user:group` |
//! | `protocol` | a compromised daemon | messages, plan, payloads, records |
//! | `logline` | a process in a container | log files |
//! | `redactor` | a process in a container | masking of secrets |
//! | `layer` | the author of an image, a download or a bundle | tar archives: headers, pax records, sparse files |
//! | `image` | a caller, and a registry | references, digests, configurations of images |
//! | `kube` | the author of a file of Kubernetes objects | YAML, objects, lowering to requests |
//! | `wire` | a caller on the network | frames, blocks of header fields, the memory cost of messages |
//! | `catalog` | the author of a catalog of operators | splitting, YAML and JSON, objects |
//! | `range` | the author of a catalog of operators | versions, ranges of versions |

#![forbid(unsafe_code)]

pub mod catalog;
pub mod image;
pub mod kube;
pub mod layer;
pub mod logline;
pub mod paths;
pub mod protocol;
pub mod range;
pub mod redactor;
pub mod request;
pub mod users;
pub mod wire;

mod rules;

/// Name of a target and of its corpus, and the target's function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 12] = [
    ("request", request::run),
    ("paths", paths::run),
    ("users", users::run),
    ("protocol", protocol::run),
    ("logline", logline::run),
    ("redactor", redactor::run),
    ("layer", layer::run),
    ("image", image::run),
    ("wire", wire::run),
    ("catalog", catalog::run),
    ("range", range::run),
    ("kube", kube::run),
];

/// Returns the target with this name.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, run)| *run)
}
