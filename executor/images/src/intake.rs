//! Adds images to the store, for pulls and imports. Holds the settings, the HTTP client, the image store and the layer
//! store.
//!
//! Pulls and imports deliver verified documents and blobs. This module protects the layers from removal, lets the layer
//! store unpack them bottom-up, and records the image.

use std::fs::File;
use std::sync::Arc;

use executor_core::image::Digest;
use tokio::sync::Mutex;

use crate::blocking::blocking;
use crate::documents::Documents;
use crate::error::ImageError;
use crate::layers::{LayerNotes, LayerStore, LayerToUnpack};
use crate::manifest;
use crate::record::{ImageRecord, LayerRecord, Provenance};
use crate::settings::Settings;
use crate::store::{Store, StoreHold};
use executor_http::Client;

/// Adds images to the stores of a node.
pub(crate) struct Intake<L> {
    pub(crate) settings: Settings,
    pub(crate) store: Arc<Store>,
    pub(crate) client: Arc<Client>,
    pub(crate) layers: L,
    /// Held while layers are selected and removed, and while a pull or import registers its layers.
    pub(crate) gate: Mutex<()>,
}

impl<L: LayerStore> Intake<L> {
    pub(crate) fn open(settings: Settings, layers: L) -> Result<Self, ImageError> {
        let client = Client::new(settings.ca_file.clone(), settings.patience, settings.bytes_least)
            .with_proxy(settings.proxy.clone());
        let store = Arc::new(Store::open(&settings.dir)?);
        Ok(Self { store, client: Arc::new(client), settings, layers, gate: Mutex::new(()) })
    }

    /// Returns the layer at `index` if it is present, unpacked on top of the layers below it.
    pub(crate) async fn has(&self, layers: &[LayerRecord], index: usize) -> Result<Option<LayerNotes>, ImageError> {
        let parents: Vec<Digest> = layers[..index].iter().map(|layer| layer.diff_id.clone()).collect();
        self.layers.has(&layers[index].diff_id, &parents).await.map_err(ImageError::Layers)
    }

    /// Protects the layers of an image from removal while the image is added.
    pub(crate) async fn hold_layers(&self, layers: &[LayerRecord]) -> StoreHold {
        let _gate = self.gate.lock().await;
        self.store.hold_layers(layers.iter().map(|layer| layer.diff_id.clone()).collect())
    }

    /// Unpacks a layer from its verified blob.
    pub(crate) async fn unpack(
        &self,
        layers: &[LayerRecord],
        index: usize,
        blob: File,
    ) -> Result<LayerNotes, ImageError> {
        let layer = &layers[index];
        let media_type = manifest::layer_type(&layer.media_type);
        self.store.record_layer(&layer.diff_id)?;
        let order = LayerToUnpack {
            diff_id: layer.diff_id.clone(),
            media_type: media_type.ok_or_else(|| ImageError::Internal("a layer has an unknown media type".into()))?,
            parents: layers[..index].iter().map(|layer| layer.diff_id.clone()).collect(),
            bytes_max: self.settings.image_bytes_max,
        };
        let done = self.layers.unpack(order, blob).await;
        let notes = done.map_err(|source| ImageError::Unpack { diff_id: layer.diff_id.clone(), source })?;
        if let Some(warning) = &notes.warning {
            tracing::warn!("{warning}");
        }
        Ok(notes)
    }

    /// Records an image whose layers are all unpacked.
    pub(crate) async fn record(
        &self,
        documents: Documents,
        references: Vec<String>,
        provenance: Provenance,
        notes: Vec<LayerNotes>,
    ) -> Result<ImageRecord, ImageError> {
        let store = Arc::clone(&self.store);
        let warnings = notes.into_iter().filter_map(|notes| notes.warning).collect();
        let record = ImageRecord { warnings, ..documents.record(&references, &provenance) };
        blocking(move || store.save(record, (&documents.manifest, &documents.configuration))).await
    }
}
