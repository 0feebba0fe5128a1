//! From a registry to the store: index, manifest, configuration, layers, record, in this order.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use executor_core::image::{Algorithm, Digest, ImageDefaults, ImageReference, Repository, Selector};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::error::ImageError;
use crate::hash;
use crate::images::{Images, now};
use crate::layers::{LayerNotes, LayerStore, LayerToUnpack};
use crate::manifest::{self, Manifest};
use crate::platform::{self, Host};
use crate::progress::{Reporter, Stage};
use crate::registry::blob::Wanted;
use crate::registry::{Identity, Registry};
use crate::signatures::{self, Evidence};
use crate::store::ingest::Partial;
use crate::store::record::{self, ImageRecord, LayerRecord, Way};

/// Blobs of an image that are fetched at once.
const PARALLEL: usize = 3;
/// Most indexes on the way to a manifest.
const INDEXES_MAX: usize = 2;

/// An image whose documents were read and judged: what is left are its layers.
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

/// A blob that came whole.
struct Fetched {
    file: File,
    partial: Arc<Partial>,
}

impl Documents {
    /// Judges a manifest with its configuration.
    pub(crate) fn of(
        (digest, manifest): (Digest, Vec<u8>),
        index_digest: Option<Digest>,
        (config_digest, configuration): (Digest, Vec<u8>),
        image_bytes_max: u64,
        what: &str,
    ) -> Result<Self, ImageError> {
        let Manifest::Image(parsed) = manifest::parse(&manifest, "", what)? else {
            return Err(ImageError::Malformed { what: what.to_owned(), why: "it is no manifest".into() });
        };
        let config = manifest::configuration(&configuration, &Host::here(), what)?;
        // Told now rather than at the first run.
        ImageDefaults::of(&config)?;
        let layers = manifest::layers(&parsed, &config, image_bytes_max, what)?;
        let size = layers.iter().map(|layer| layer.size).sum::<u64>() + configuration.len() as u64;
        let platform = platform::shown(config.os(), config.architecture(), config.variant().as_deref());
        Ok(Self { digest, manifest, index_digest, config_digest, configuration, platform, layers, size })
    }

    pub(crate) fn record(&self, references: &[String], way: &Way) -> ImageRecord {
        let at = now();
        ImageRecord {
            version: record::VERSION,
            digest: self.digest.clone(),
            index_digest: self.index_digest.clone(),
            config_digest: self.config_digest.clone(),
            references: references.iter().map(|reference| (reference.clone(), at)).collect(),
            fetched: match way {
                Way::Registry(found) => references.iter().map(|name| (name.clone(), found.clone())).collect(),
                Way::Import | Way::Archive => BTreeMap::new(),
            },
            imported: *way == Way::Import,
            platform: self.platform.clone(),
            layers: self.layers.clone(),
            size: self.size,
            pulled_at: at,
            last_used_at: at,
            warnings: Vec::new(),
        }
    }
}

/// Whether bytes are what their name says.
pub(crate) fn verified(declared: &Digest, bytes: &[u8], what: &str) -> Result<(), ImageError> {
    let got = hash::digest(declared.algorithm(), bytes);
    if got == *declared {
        return Ok(());
    }
    Err(ImageError::WrongDigest { what: what.to_owned(), declared: declared.clone(), got })
}

/// Whether a document has its declared size.
pub(crate) fn sized(declared: u64, bytes: &[u8], what: &str) -> Result<(), ImageError> {
    let (what, got) = (what.to_owned(), bytes.len() as u64);
    match got.cmp(&declared) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(ImageError::Truncated { what, declared, got }),
        std::cmp::Ordering::Greater => Err(ImageError::Longer { what, declared }),
    }
}

/// Fetches an image.
pub(crate) async fn pull<L: LayerStore>(
    images: &Arc<Images<L>>,
    (repository, selector): (&Repository, &Selector),
    identity: Option<Identity>,
    report: &Arc<Reporter>,
) -> Result<ImageRecord, ImageError> {
    let reference = ImageReference::Registry(repository.clone(), selector.clone()).to_string();
    let what = format!("image {reference}");
    let insecure = images.settings.is_insecure(repository.registry());
    let policy = images.settings.policy.clone();
    let registry = Arc::new(Registry::new(Arc::clone(&images.client), repository, insecure, identity, policy));
    let (documents, chain) = documents(&registry, selector, images.settings.image_bytes_max, &what).await?;
    let signatures = match &images.settings.signatures.of(repository)[..] {
        [] => Evidence::new(),
        rules => signatures::verify(&registry, repository, &chain, rules, &what).await?,
    };
    drop(chain);
    report.begin(&documents.digest, &documents.layers);
    let _held = images.hold_layers(&documents.layers).await;
    let notes = layers(images, &registry, &documents.layers, report, &what).await?;
    images.keep(documents, vec![reference], Way::Registry(signatures), notes).await
}

/// Verified documents of an image: index and manifest.
pub(crate) type Chain = Vec<(Digest, Vec<u8>)>;

/// The manifest that fits this host, and its configuration; and every document on the way to it, verified.
async fn documents(
    registry: &Registry,
    selector: &Selector,
    image_bytes_max: u64,
    what: &str,
) -> Result<(Documents, Chain), ImageError> {
    let mut chain = Chain::new();
    let mut wanted = selector.wanted();
    let (mut declared, mut size, mut index_digest) = (selector.digest().cloned(), None, None);
    for _ in 0..=INDEXES_MAX {
        let document = registry.manifest(&wanted, what).await?;
        let digest = declared.clone().unwrap_or_else(|| hash::digest(Algorithm::Sha256, &document.bytes));
        if let Some(size) = size {
            sized(size, &document.bytes, &format!("the manifest {digest} of {what}"))?;
        }
        verified(&digest, &document.bytes, &format!("the manifest of {what}"))?;
        chain.push((digest.clone(), document.bytes.clone()));
        match manifest::parse(&document.bytes, &document.content_type, what)? {
            Manifest::Image(image) => {
                let (config_digest, config_size) = manifest::named(image.config(), what)?;
                let config_what = format!("the configuration of {what}");
                let config = registry.small_blob(&config_digest.to_string(), &config_what).await?.bytes;
                sized(config_size, &config, &config_what)?;
                verified(&config_digest, &config, &config_what)?;
                // An image is known by its SHA-256, also where it was asked for by another.
                let known = hash::digest(Algorithm::Sha256, &document.bytes);
                if known != digest {
                    chain.push((known.clone(), document.bytes.clone()));
                    index_digest.get_or_insert(digest);
                }
                let manifest = (known, document.bytes);
                let documents = Documents::of(manifest, index_digest, (config_digest, config), image_bytes_max, what)?;
                return Ok((documents, chain));
            }
            Manifest::Index(index) => {
                let (digest_inside, size_inside) =
                    manifest::named(manifest::choose(&index, &Host::here(), what)?, what)?;
                index_digest.get_or_insert(digest);
                wanted = digest_inside.to_string();
                (declared, size) = (Some(digest_inside), Some(size_inside));
            }
        }
    }
    Err(ImageError::Unsupported { what: what.to_owned(), why: "its index leads to nothing but indexes".into() })
}

/// Fetches in parallel what is not there, and has it unpacked from the bottom up.
async fn layers<L: LayerStore>(
    images: &Arc<Images<L>>,
    registry: &Arc<Registry>,
    layers: &[LayerRecord],
    report: &Arc<Reporter>,
    what: &str,
) -> Result<Vec<LayerNotes>, ImageError> {
    let mut missing = Vec::new();
    let mut notes = vec![LayerNotes::default(); layers.len()];
    for (index, note) in notes.iter_mut().enumerate() {
        if let Some(there) = images.has(layers, index).await? {
            *note = there;
            report.stage(index, Stage::Present);
        } else {
            missing.push(index);
        }
    }
    let permits = Arc::new(Semaphore::new(PARALLEL));
    let mut fetching = JoinSet::new();
    for (at, index) in missing.iter().enumerate() {
        let (digest, size) = (layers[*index].digest.clone(), layers[*index].size);
        let wanted = Wanted { what: format!("layer {digest} of {what}"), digest, size };
        let (images, registry, report) = (Arc::clone(images), Arc::clone(registry), Arc::clone(report));
        let (permits, index) = (Arc::clone(&permits), *index);
        fetching.spawn(async move {
            let _permit = permits.acquire().await;
            (at, fetch(&images, &registry, &wanted, index, &report).await)
        });
    }
    let mut fetched: Vec<Option<Fetched>> = missing.iter().map(|_| None).collect();
    let mut at = 0;
    while at < missing.len() {
        let Some(Fetched { file, partial }) = fetched[at].take() else {
            let (at, result) = match fetching.join_next().await {
                Some(Ok(done)) => done,
                Some(Err(error)) => return Err(ImageError::Internal(error.to_string())),
                None => return Err(ImageError::Internal("a layer was lost".into())),
            };
            fetched[at] = Some(result?);
            continue;
        };
        let index = missing[at];
        report.stage(index, Stage::Unpacking);
        notes[index] = unpack(images, layers, index, file).await?;
        partial.remove();
        report.stage(index, Stage::Done);
        at += 1;
    }
    Ok(notes)
}

async fn fetch<L: LayerStore>(
    images: &Images<L>,
    registry: &Registry,
    wanted: &Wanted,
    index: usize,
    report: &Reporter,
) -> Result<Fetched, ImageError> {
    report.stage(index, Stage::Fetching);
    let partial = Arc::new(images.store.ingest.partial(&wanted.digest, wanted.size).await);
    let file = registry.blob(wanted, &partial, |done| report.bytes(index, done)).await?;
    report.stage(index, Stage::Fetched);
    Ok(Fetched { file, partial })
}

/// Has a layer unpacked.
pub(crate) async fn unpack<L: LayerStore>(
    images: &Images<L>,
    layers: &[LayerRecord],
    index: usize,
    blob: File,
) -> Result<LayerNotes, ImageError> {
    let layer = &layers[index];
    let media_type = manifest::layer_type(&layer.media_type);
    images.store.note_layer(&layer.diff_id)?;
    let order = LayerToUnpack {
        diff_id: layer.diff_id.clone(),
        media_type: media_type.ok_or_else(|| ImageError::Internal("a layer of an unknown kind".into()))?,
        parents: layers[..index].iter().map(|layer| layer.diff_id.clone()).collect(),
        bytes_max: images.settings.image_bytes_max,
    };
    let done = images.layers.unpack(order, blob).await;
    let notes = done.map_err(|source| ImageError::Unpack { diff_id: layer.diff_id.clone(), source })?;
    if let Some(warning) = &notes.warning {
        tracing::warn!("{warning}");
    }
    Ok(notes)
}
