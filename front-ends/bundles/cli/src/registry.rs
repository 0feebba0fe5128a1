//! Pulls images from registries with executord's library, into memory or a directory. All content is verified by
//! digest.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use executor_bundles::source::{Files, SourceError, image, memory_dir};
use executor_core::image::{Digest, ImageReference};
use executor_images::{Images, LayerNotes, LayerStore, LayerToUnpack, Settings, UnpackError};

/// Maximum size of an image, in bytes.
const IMAGE_MAX: u64 = 4 << 30;

/// Access to registries.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Registry")]
pub(crate) struct RegistryArgs {
    /// File with registry credentials, as written by `docker login` and `podman login`
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
    /// File with additional trusted certificates (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_ca_file: Option<PathBuf>,
}

/// Stores layer blobs without unpacking them.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<File>>>);

impl LayerStore for Kept {
    async fn has(&self, _: &Digest, _: &[Digest]) -> Result<Option<LayerNotes>, UnpackError> {
        Ok(None)
    }

    async fn unpack(&self, _: LayerToUnpack, blob: File) -> Result<LayerNotes, UnpackError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(blob);
        Ok(LayerNotes::default())
    }

    async fn remove(&self, _: &Digest) -> Result<(), UnpackError> {
        Ok(())
    }
}

/// Fetches the files of an image.
pub(crate) fn fetch(reference: &str, args: &RegistryArgs, to: Option<&Path>) -> Result<Files, SourceError> {
    let wrong = |why: String| SourceError::Image(format!("docker://{reference}: {why}"));
    let parsed = ImageReference::parse_registry(reference).map_err(|bad| wrong(bad.to_string()))?;
    let dir = memory_dir()?;
    let mut settings = Settings::new(dir.path().join("images"));
    settings.docker_config = args.registry_auth_file.clone();
    settings.ca_file = args.registry_ca_file.clone();
    settings.image_bytes_max = IMAGE_MAX;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| wrong(error.to_string()))?;
    let layers = Kept::default();
    let (digest, labels) = runtime.block_on(async {
        let images = Images::open(settings, layers.clone()).map_err(|error| wrong(error.to_string()))?;
        let mut watcher = images.pull(&parsed, None);
        let record = loop {
            match watcher.next().await {
                Some(state) => {
                    if let Some(outcome) = state.outcome {
                        break outcome.map_err(|error| wrong(error.to_string()))?;
                    }
                }
                None => return Err(wrong("the fetch was interrupted".to_owned())),
            }
        };
        let configuration = images.configuration(&record).await.map_err(|error| wrong(error.to_string()))?;
        Ok((record.digest.to_string(), image::labels_of(&configuration)))
    })?;
    let layers = std::mem::take(&mut *layers.0.lock().unwrap_or_else(PoisonError::into_inner));
    let files = image::from_layers(layers, to)?;
    Ok(Files { labels, pin: Some(digest), ..files })
}
