//! Checks the documents of one image, manifest and configuration, regardless of their source.

use std::collections::BTreeMap;

use executor_core::image::{Digest, ImageDefaults};

use crate::error::ImageError;
use crate::manifest::{self, Manifest};
use crate::platform::{self, Host};
use crate::record::{self, ImageRecord, LayerRecord, Provenance};

/// The documents of an image whose layers have not been fetched or read yet.
pub(crate) struct Documents {
    pub(crate) digest: Digest,
    pub(crate) manifest: Vec<u8>,
    pub(crate) index_digest: Option<Digest>,
    pub(crate) config_digest: Digest,
    pub(crate) configuration: Vec<u8>,
    pub(crate) platform: String,
    pub(crate) layers: Vec<LayerRecord>,
    pub(crate) size: u64,
}

impl Documents {
    /// Checks the manifest and the configuration of an image.
    pub(crate) fn new(
        (digest, manifest): (Digest, Vec<u8>),
        index_digest: Option<Digest>,
        (config_digest, configuration): (Digest, Vec<u8>),
        image_bytes_max: u64,
        what: &str,
    ) -> Result<Self, ImageError> {
        let Manifest::Image(parsed) = manifest::parse(&manifest, "", what)? else {
            let why = "an image manifest is expected, not an index".into();
            return Err(ImageError::Malformed { what: what.to_owned(), why });
        };
        let config = manifest::configuration(&configuration, &Host::here(), what)?;
        // Report invalid defaults now and not when the image first runs.
        ImageDefaults::from_configuration(&config)?;
        let layers = manifest::layers(&parsed, &config, image_bytes_max, what)?;
        let size = layers.iter().map(|layer| layer.size).sum::<u64>() + configuration.len() as u64;
        let platform = platform::to_text(config.os(), config.architecture(), config.variant().as_deref());
        Ok(Self { digest, manifest, index_digest, config_digest, configuration, platform, layers, size })
    }

    pub(crate) fn record(&self, references: &[String], provenance: &Provenance) -> ImageRecord {
        let at = record::now();
        ImageRecord {
            version: record::VERSION,
            digest: self.digest.clone(),
            index_digest: self.index_digest.clone(),
            config_digest: self.config_digest.clone(),
            references: references.iter().map(|reference| (reference.clone(), at)).collect(),
            fetched: match provenance {
                Provenance::Registry(found) => references.iter().map(|name| (name.clone(), found.clone())).collect(),
                Provenance::Import | Provenance::Archive => BTreeMap::new(),
            },
            imported: *provenance == Provenance::Import,
            platform: self.platform.clone(),
            layers: self.layers.clone(),
            size: self.size,
            pulled_at: at,
            last_used_at: at,
            warnings: Vec::new(),
        }
    }
}
