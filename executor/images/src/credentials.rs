//! Reads registry credentials from the operator's file.

use std::path::PathBuf;
use std::sync::Arc;

use executor_core::image::Repository;
use executor_registry_auth::{FILE_MAX, from_docker_config};
use zeroize::Zeroizing;

use crate::blocking::blocking;
use crate::error::ImageError;
use crate::registry::Identity;

/// Reads the credentials for a repository from the configured file.
pub(crate) async fn configured(
    docker_config: Option<&PathBuf>,
    repository: &Repository,
) -> Result<Option<Identity>, ImageError> {
    let Some(path) = docker_config.cloned() else { return Ok(None) };
    let (registry, repository) = (repository.registry().to_owned(), repository.path().to_owned());
    blocking(move || {
        let file = std::fs::File::open(&path).map_err(|error| ImageError::io("open", &path, error))?;
        let mut content = Zeroizing::new(Vec::with_capacity(64 << 10));
        std::io::Read::read_to_end(&mut std::io::Read::take(file, FILE_MAX as u64 + 1), &mut content)
            .map_err(|error| ImageError::io("read", &path, error))?;
        match from_docker_config(&content, &registry, &repository) {
            Ok(found) => Ok(found.map(|found| Identity { credentials: Arc::new(found), file: Some(path) })),
            Err(source) => Err(ImageError::AuthFile { path, source }),
        }
    })
    .await
}
