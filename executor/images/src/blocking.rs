//! Runs blocking disk work on tokio's blocking thread pool.

use crate::error::ImageError;

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(ImageError::Internal(error.to_string())),
    }
}
