//! Work that may wait for the disk, on a thread of tokio's pool for it.

use crate::error::ImageError;

/// Runs `work` on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(ImageError::Internal(error.to_string())),
    }
}
