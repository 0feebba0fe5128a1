//! The image that a container's root file system is made of, as it was resolved: nothing of it changes afterwards.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An image, by what it is made of. What its configuration says of the process is in the plan's own fields by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedImage {
    /// Reference in the request.
    pub reference: String,
    /// Digest of the manifest, `sha256:HEX`.
    pub digest: String,
    /// diffIDs of its layers, the lowest first, each `sha256:HEX`.
    pub layers: Vec<String>,
    /// Directories that it declares as volumes: a writable place each.
    pub volumes: Vec<PathBuf>,
    /// Labels of the image, unchanged.
    pub labels: BTreeMap<String, String>,
}
