//! Measures the image store: executord's own files, and the layers through the launcher.

use executor_proto::v1;
use executor_sys::tree_size::{self, TreeSize};

use crate::api_error::{ApiError, Kind};
use crate::node::Node;

/// Returns the size of the image store and of the layer store.
///
/// # Errors
/// Returns an error if there is no launcher, or a directory cannot be read.
pub(crate) async fn store_usage(node: &Node) -> Result<v1::ImageStoreUsageResponse, ApiError> {
    let layers = node.launcher.layers_size().await?;
    let state = node.config.paths.state_dir.clone();
    let own = state.join("images");
    // Manifests, configurations, records and partial downloads: a few files for each image.
    let measured = tokio::task::spawn_blocking(move || match std::fs::File::open(&own) {
        Ok(dir) => tree_size::measure(dir.into()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(TreeSize::default()),
        Err(error) => Err(error),
    });
    let documents = measured.await.map_err(ApiError::from)?;
    let documents =
        documents.map_err(|error| ApiError::new(Kind::Internal, format!("cannot read the image store: {error}")))?;
    Ok(v1::ImageStoreUsageResponse {
        directory: state.join("layers").display().to_string(),
        used_bytes: layers.bytes.saturating_add(documents.bytes),
        used_inodes: layers.inodes.saturating_add(documents.inodes),
        time: Some(std::time::SystemTime::now().into()),
    })
}
