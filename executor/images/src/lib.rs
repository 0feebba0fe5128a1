//! Images: fetched from registries, read from layouts and archives, kept by digest.
//!
//! ```text
//!  reference ──> registry ──> http         what a registry says, within bounds and time
//!       │   └──> import (layout, archive)  the same from files
//!       │  signatures                      by whom an image is signed
//!       v
//!     pull ──> store (records, manifests, configurations, blobs on their way)
//!       └────> LayerStore                  who unpacks: not this crate
//! ```
//! What goes in: references, credentials, the bytes of registries and archives, none of them trusted. What comes out:
//! records of images whose every byte was verified by its digest, and layers handed over to be unpacked by whoever
//! implements [`LayerStore`]. Nothing here is unpacked, mounted or run, and nothing needs a privilege.
//!
//! A crash at any point leaves the store whole: a record is written by rename and last of all, and a blob on its way
//! is verified again from its first byte before it counts.

#![forbid(unsafe_code)]

mod blocking;
mod choice;
mod credentials;
mod documents;
pub mod error;
mod hash;
mod images;
mod import;
mod intake;
mod layers;
mod manifest;
pub mod metadata;
mod platform;
mod progress;
mod prune;
mod pull;
mod record;
mod registry;
pub mod settings;
mod sharing;
pub mod signatures;
mod store;

pub use error::{ImageError, UnpackError};
pub use executor_http::Proxy;
pub use executor_registry_auth::{AuthFileError, Credentials, from_docker_config};
pub use images::{Images, Policy, Resolved, Upload};
pub use import::Form;
pub use layers::{LayerNotes, LayerStore, LayerToUnpack};
pub use progress::{LayerProgress, Outcome, Progress, Stage, State};
pub use prune::{PruneRules, Pruned};
pub use record::{ImageRecord, LayerRecord};
pub use settings::{Mirror, Mirrors, Settings};
pub use sharing::Watcher;
