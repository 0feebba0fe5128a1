//! Reads image metadata without pulling the image: digest, configuration, and single small layers.
//!
//! Nothing is stored or unpacked. Every byte is verified by digest, as in a pull.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use executor_core::image::{Digest, ImagePolicy, ImageReference, Repository};
use executor_http::Client;

use crate::blocking::blocking;
use crate::credentials::configured;
use crate::documents::Documents;
use crate::error::ImageError;
use crate::import::{self, ImportFormat};
use crate::pull;
use crate::record::LayerRecord;
use crate::registry::Registry;
use crate::{hash, settings};

/// Settings of a [`MetadataReader`]: limits and paths.
#[derive(Clone, Debug)]
pub struct MetadataSettings {
    /// Registries that are accessed without encryption: `host` for every port, or `host:port`.
    pub insecure_registries: Vec<String>,
    /// Trusted certificates (PEM), in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// Docker's configuration file with credentials.
    pub auth_file: Option<PathBuf>,
    /// Period in which a registry must send at least [`Self::bytes_least`].
    pub patience: Duration,
    /// Minimum number of bytes per [`Self::patience`].
    pub bytes_least: u64,
}

impl Default for MetadataSettings {
    fn default() -> Self {
        let (patience, bytes_least) = (Duration::from_secs(30), 32 << 10);
        Self { insecure_registries: settings::own_names(), ca_file: None, auth_file: None, patience, bytes_least }
    }
}

/// Reads image metadata.
#[derive(Debug)]
pub struct MetadataReader {
    client: Arc<Client>,
    settings: MetadataSettings,
}

#[derive(Clone, Debug)]
pub struct Metadata {
    reference: ImageReference,
    digest: Digest,
    configuration: Vec<u8>,
    layers: Vec<LayerRecord>,
}

impl Metadata {
    /// Returns the digest of the manifest for this machine's platform.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Returns the unmodified configuration (JSON).
    pub fn configuration(&self) -> &[u8] {
        &self.configuration
    }
}

impl MetadataReader {
    pub fn new(settings: MetadataSettings) -> Self {
        let client = Arc::new(Client::new(settings.ca_file.clone(), settings.patience, settings.bytes_least));
        Self { client, settings }
    }

    /// Reads the manifest and configuration of an image.
    ///
    /// # Errors
    /// Returns an error if the image does not exist, cannot be read, or does not support this machine's platform.
    pub async fn read(&self, reference: &ImageReference) -> Result<Metadata, ImageError> {
        let documents = match (reference, on_disk(reference)) {
            (ImageReference::Registry(repository, selector), _) => {
                let what = format!("image {reference}");
                pull::documents(&self.registry(repository).await?, selector, u64::MAX, &what).await?.0
            }
            (_, Some((path, form, inner))) => {
                blocking(move || import::documents(&path, form, inner.as_deref(), u64::MAX)).await?
            }
            (_, None) => return Err(ImageError::NotFound { what: format!("image {reference}") }),
        };
        let Documents { digest, configuration, layers, .. } = documents;
        Ok(Metadata { reference: reference.clone(), digest, configuration, layers })
    }

    /// Reads one layer of an image as stored, with at most `most` bytes. Returns `None` if the image has no such layer.
    ///
    /// # Errors
    /// Returns an error if the layer cannot be read, is larger than `most`, or does not match its digest.
    pub async fn layer(&self, image: &Metadata, diff_id: &Digest, most: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let Some(layer) = image.layers.iter().find(|layer| layer.diff_id == *diff_id) else { return Ok(None) };
        let what = format!("layer {} of image {}", layer.digest, image.reference);
        if layer.size > most {
            return Err(ImageError::TooLarge { what, is: layer.size, most, unit: "bytes" });
        }
        let bytes = match (&image.reference, on_disk(&image.reference)) {
            (ImageReference::Registry(repository, _), _) => {
                let registry = self.registry(repository).await?;
                Some(registry.bounded_blob(&layer.digest.to_string(), layer.size, &what).await?)
            }
            (_, Some((path, form, inner))) => {
                let diff_id = diff_id.clone();
                blocking(move || import::layer(&path, form, inner.as_deref(), (&diff_id, most))).await?
            }
            (_, None) => None,
        };
        if let Some(bytes) = &bytes {
            hash::check_size(layer.size, bytes, &what)?;
            hash::check_digest(&layer.digest, bytes, &what)?;
        }
        Ok(bytes)
    }

    async fn registry(&self, repository: &Repository) -> Result<Registry, ImageError> {
        let identity = configured(self.settings.auth_file.as_ref(), repository).await?;
        let insecure = settings::is_insecure(&self.settings.insecure_registries, repository.registry());
        let policy = ImagePolicy::default();
        Ok(Registry::new(Arc::clone(&self.client), repository, insecure, identity, policy))
    }
}

/// Returns path, format and inner name of an image on local disk. Returns `None` for an image in a registry.
fn on_disk(reference: &ImageReference) -> Option<(PathBuf, ImportFormat, Option<String>)> {
    match reference {
        ImageReference::Registry(..) => None,
        ImageReference::Layout(path, name) => Some((path.clone(), ImportFormat::Layout, name.clone())),
        ImageReference::OciArchive(path, name) => Some((path.clone(), ImportFormat::OciArchive, name.clone())),
        ImageReference::DockerArchive(path, name) => Some((path.clone(), ImportFormat::DockerArchive, name.clone())),
    }
}
