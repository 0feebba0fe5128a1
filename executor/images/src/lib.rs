//! Fetches images from registries, reads them from layouts and archives, and stores them by digest.
//!
//! ```text
//!  reference ──> registry ──> http         responses of a registry, limited in size and time
//!       │   └──> import (layout, archive)  documents and layers from files
//!       │  signatures                      keys that signed an image
//!       v
//!     pull ──> store (records, manifests, configurations, partial blobs)
//!       └────> LayerStore                  unpacks; implemented outside this crate
//! ```
//! The input is references, credentials, and untrusted bytes from registries and archives. The output is image records
//! and layers. Every byte of an image is verified by digest. An implementation of [`LayerStore`] unpacks the layers.
//! This crate unpacks, mounts and runs nothing, and needs no privilege.
//!
//! After a crash at any point the store is consistent: a record is written last, by rename, and a partial blob is
//! verified again from its first byte before it is used.

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
pub use import::ImportFormat;
pub use layers::{LayerNotes, LayerStore, LayerToUnpack};
pub use progress::{LayerProgress, Progress, PullResult, Stage, State};
pub use prune::{PruneRules, Pruned};
pub use record::{ImageRecord, LayerRecord};
pub use settings::{Mirror, Mirrors, Settings};
pub use sharing::Watcher;
