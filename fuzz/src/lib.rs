//! The fuzzer's targets: code that reads bytes of others, as plain functions of bytes.
//!
//! A target takes any bytes and must come back. It panics where a rule that must hold for any input does not:
//! that is a finding. The engine (`src/main.rs`, built by `cargo xtask fuzz`) looks for such bytes; a test
//! (`tests/replay.rs`) runs every target over the stored corpus and over the inputs that were findings once, so
//! that neither needs the engine. Nothing here opens a file or makes a system call.
//!
//! | target | bytes from | through |
//! |---|---|---|
//! | `request` | a caller on the network | decoder, draft, validation, plan, recheck, specification |
//! | `paths` | a caller, and a hostile root file system | rules for paths, mount points, updates |
//! | `users` | a hostile root file system | passwd, group, `user:group` |
//! | `protocol` | a daemon that was taken over | messages, plan, payloads, records |
//! | `logline` | a process in a container | log files |
//! | `redactor` | a process in a container | masking of secrets |
//! | `layer` | whoever packed an image | tar archives: headers, pax records, sparse files |
//! | `image` | a caller, and a registry | references, digests, configurations of images |
//! | `kube` | whoever wrote a file of Kubernetes objects | YAML, objects, lowering to requests |
//! | `wire` | a caller on the network | frames, blocks of header fields, the cost of messages |
//! | `catalog` | whoever wrote a catalog of operators | splitting, YAML and JSON, objects |
//! | `range` | the same | versions, ranges of versions, references |

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

/// A target by its name, which is also that of its corpus.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
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

/// The target of a name.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, run)| *run)
}
