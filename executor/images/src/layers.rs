//! Defines the interface to the privileged process that unpacks and stores layers.

use std::fs::File;
use std::future::Future;

use executor_core::image::Digest;

use crate::error::UnpackError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerToUnpack {
    /// Digest of the uncompressed tar archive, which identifies the layer. The unpacker verifies the digest.
    pub diff_id: Digest,
    /// Compression of the blob, as the OCI media type of the layer.
    pub media_type: &'static str,
    /// Layers below this layer in the image, lowest first. These layers must already be unpacked.
    pub parents: Vec<Digest>,
    /// Maximum unpacked size, in bytes.
    pub bytes_max: u64,
}

/// Result of unpacking a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerNotes {
    /// Warning about entries that were skipped when the layer was unpacked.
    pub warning: Option<String>,
}

/// The unpacked layers of a node.
pub trait LayerStore: Send + Sync + 'static {
    /// Returns the notes of a layer if the layer is present, unpacked on top of `parents` (lowest first). `parents`
    /// matter because the result of unpacking some layers depends on the layers below.
    fn has(
        &self,
        diff_id: &Digest,
        parents: &[Digest],
    ) -> impl Future<Output = Result<Option<LayerNotes>, UnpackError>> + Send;

    /// Unpacks a layer from its blob, which must be a separate regular file. Does nothing if the layer is present.
    fn unpack(&self, layer: LayerToUnpack, blob: File) -> impl Future<Output = Result<LayerNotes, UnpackError>> + Send;

    /// Removes a layer. Does nothing if the layer is missing.
    fn remove(&self, diff_id: &Digest) -> impl Future<Output = Result<(), UnpackError>> + Send;
}
