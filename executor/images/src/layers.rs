//! Interface to the process that unpacks and keeps layers, which has the privilege to do so.

use std::fs::File;
use std::future::Future;

use executor_core::image::Digest;

use crate::error::UnpackError;

/// A layer that is to be unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerToUnpack {
    /// Digest of its tar archive, uncompressed: its name from then on. The other side verifies it.
    pub diff_id: Digest,
    /// Compression of the blob, as a media type in OCI's spelling.
    pub media_type: &'static str,
    /// Layers below this one in its image, the lowest first, which are unpacked already.
    pub parents: Vec<Digest>,
    /// Maximum bytes of what comes out.
    pub bytes_max: u64,
}

/// Notes about an unpacked layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerNotes {
    /// Warning about entries that were left out when it was unpacked.
    pub warning: Option<String>,
}

/// The layers of a node, unpacked.
pub trait LayerStore: Send + Sync + 'static {
    /// A layer, if it is there, for an image in which it lies on these, the lowest first: what some layers come to
    /// depends on what is below.
    fn has(
        &self,
        diff_id: &Digest,
        parents: &[Digest],
    ) -> impl Future<Output = Result<Option<LayerNotes>, UnpackError>> + Send;

    /// Unpacks a layer from its blob, which is a regular file of its own. A layer that is there already is done.
    fn unpack(&self, layer: LayerToUnpack, blob: File) -> impl Future<Output = Result<LayerNotes, UnpackError>> + Send;

    /// Removes a layer. One that is not there is done.
    fn remove(&self, diff_id: &Digest) -> impl Future<Output = Result<(), UnpackError>> + Send;
}
