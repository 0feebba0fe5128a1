//! An in-memory layer store for tests. The store accepts a layer only if the content matches the layer's digest.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::image::{Digest, ImageReference};
use executor_images::{
    Credentials, ImageError, ImageRecord, Images, LayerNotes, LayerStore, LayerToUnpack, Settings, UnpackError,
};
use tempfile::TempDir;

use crate::fake::sha256;

#[derive(Clone, Default)]
pub(crate) struct Shelf {
    pub(crate) layers: Arc<Mutex<BTreeMap<Digest, Vec<u8>>>>,
    /// Layers that a container uses.
    pub(crate) mounted: Arc<Mutex<Vec<Digest>>>,
}

impl LayerStore for Shelf {
    async fn has(&self, diff_id: &Digest, _parents: &[Digest]) -> Result<Option<LayerNotes>, UnpackError> {
        Ok(self.layers.lock().unwrap().contains_key(diff_id).then(LayerNotes::default))
    }

    async fn unpack(&self, layer: LayerToUnpack, mut blob: std::fs::File) -> Result<LayerNotes, UnpackError> {
        let mut bytes = Vec::new();
        blob.read_to_end(&mut bytes).map_err(|error| UnpackError::Internal(error.to_string()))?;
        let mut layers = self.layers.lock().unwrap();
        if let Some(parent) = layer.parents.iter().find(|parent| !layers.contains_key(parent)) {
            return Err(UnpackError::Refused(format!("its parent {parent} is missing")));
        }
        if sha256(&bytes) != layer.diff_id.to_string() {
            return Err(UnpackError::Refused("its content does not match its digest".into()));
        }
        layers.insert(layer.diff_id, bytes);
        Ok(LayerNotes::default())
    }

    async fn remove(&self, diff_id: &Digest) -> Result<(), UnpackError> {
        if self.mounted.lock().unwrap().contains(diff_id) {
            return Err(UnpackError::InUse("a container has it".into()));
        }
        self.layers.lock().unwrap().remove(diff_id);
        Ok(())
    }
}

/// A separate store for one test, with its directory and its layer store.
pub(crate) struct TestStore {
    pub(crate) dir: TempDir,
    pub(crate) shelf: Shelf,
    pub(crate) images: Arc<Images<Shelf>>,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mut settings, shelf) = (Settings::new(dir.path().join("images")), Shelf::default());
        settings.patience = Duration::from_secs(10);
        change(&mut settings);
        let images = Images::open(settings, shelf.clone()).unwrap();
        Self { dir, shelf, images }
    }

    /// Opens the same store again, as after a restart of the daemon.
    pub(crate) fn reopened(self) -> Self {
        self.reopened_with(|_| ())
    }

    pub(crate) fn reopened_with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::new(self.dir.path().join("images"));
        change(&mut settings);
        let images = Images::open(settings, self.shelf.clone()).unwrap();
        Self { images, ..self }
    }

    pub(crate) async fn pull(&self, reference: &ImageReference) -> Result<ImageRecord, Arc<ImageError>> {
        self.pull_as(reference, None).await
    }

    pub(crate) async fn pull_as(
        &self,
        reference: &ImageReference,
        credentials: Option<Credentials>,
    ) -> Result<ImageRecord, Arc<ImageError>> {
        let mut watcher = self.images.pull(reference, credentials);
        let mut last = None;
        while let Some(state) = watcher.next().await {
            last = state.outcome;
        }
        last.expect("the pull ends")
    }

    /// Checks the invariants: the layers of every record are present, and incomplete files are not used.
    pub(crate) async fn assert_consistent(&self) {
        for record in self.images.list() {
            for layer in &record.layers {
                assert!(
                    self.shelf.has(&layer.diff_id, &[]).await.unwrap().is_some(),
                    "{} of {}",
                    layer.diff_id,
                    record.digest
                );
            }
            self.images.configuration(&record).await.unwrap();
        }
        for (digest, bytes) in self.shelf.layers.lock().unwrap().iter() {
            assert_eq!(sha256(bytes), digest.to_string());
        }
    }

    /// Returns the names of the partial blobs.
    pub(crate) fn partials(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("images/ingest")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}
