//! Pulls of images from a registry to the store: index, manifest, configuration, layers, record, in this order.

use std::fs::File;
use std::sync::Arc;

use executor_core::image::{Algorithm, Digest, ImageReference, Repository, Selector};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::documents::Documents;
use crate::error::ImageError;
use crate::hash;
use crate::intake::Intake;
use crate::layers::{LayerNotes, LayerStore};
use crate::manifest::{self, Manifest};
use crate::platform::Host;
use crate::progress::{Reporter, Stage};
use crate::record::{Evidence, ImageRecord, LayerRecord, Provenance};
use crate::registry::blob::BlobRequest;
use crate::registry::{Identity, Registry};
use crate::signatures;
use crate::store::ingest::Partial;

/// Blobs of an image that are fetched at once.
const PARALLEL: usize = 3;
/// Maximum number of indexes on the way to a manifest.
const INDEXES_MAX: usize = 2;

/// A blob that came whole.
struct Fetched {
    file: File,
    partial: Arc<Partial>,
}

/// Fetches an image.
pub(crate) async fn pull<L: LayerStore>(
    intake: &Arc<Intake<L>>,
    (repository, selector): (&Repository, &Selector),
    identity: Option<Identity>,
    report: &Arc<Reporter>,
) -> Result<ImageRecord, ImageError> {
    let reference = ImageReference::Registry(repository.clone(), selector.clone()).to_string();
    let what = format!("image {reference}");
    let insecure = intake.settings.is_insecure(repository.registry());
    let policy = intake.settings.policy.clone();
    let registry = Arc::new(Registry::new(Arc::clone(&intake.client), repository, insecure, identity, policy));
    let (documents, chain) = documents(&registry, selector, intake.settings.image_bytes_max, &what).await?;
    let signatures = match &intake.settings.signatures.of(repository)[..] {
        [] => Evidence::new(),
        rules => signatures::verify(&registry, repository, &chain, rules, &what).await?,
    };
    drop(chain);
    report.begin(&documents.digest, &documents.layers);
    let _held = intake.hold_layers(&documents.layers).await;
    let notes = layers(intake, &registry, &documents.layers, report, &what).await?;
    intake.record(documents, vec![reference], Provenance::Registry(signatures), notes).await
}

/// Verified documents of an image: index and manifest.
pub(crate) type Chain = Vec<(Digest, Vec<u8>)>;

/// The manifest that fits this host, and its configuration; and every document on the way to it, verified.
pub(crate) async fn documents(
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
            hash::check_size(size, &document.bytes, &format!("the manifest {digest} of {what}"))?;
        }
        hash::check_digest(&digest, &document.bytes, &format!("the manifest of {what}"))?;
        chain.push((digest.clone(), document.bytes.clone()));
        match manifest::parse(&document.bytes, &document.content_type, what)? {
            Manifest::Image(image) => {
                let (config_digest, config_size) = manifest::digest_and_size(image.config(), what)?;
                let config_what = format!("the configuration of {what}");
                let config = registry.small_blob(&config_digest.to_string(), &config_what).await?.bytes;
                hash::check_size(config_size, &config, &config_what)?;
                hash::check_digest(&config_digest, &config, &config_what)?;
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
                    manifest::digest_and_size(manifest::choose(&index, &Host::here(), what)?, what)?;
                index_digest.get_or_insert(digest);
                wanted = digest_inside.to_string();
                (declared, size) = (Some(digest_inside), Some(size_inside));
            }
        }
    }
    Err(ImageError::Unsupported { what: what.to_owned(), why: "its indexes are nested too deeply".into() })
}

/// Fetches in parallel what is not there, and has it unpacked from the bottom up.
async fn layers<L: LayerStore>(
    intake: &Arc<Intake<L>>,
    registry: &Arc<Registry>,
    layers: &[LayerRecord],
    report: &Arc<Reporter>,
    what: &str,
) -> Result<Vec<LayerNotes>, ImageError> {
    let mut missing = Vec::new();
    let mut notes = vec![LayerNotes::default(); layers.len()];
    for (index, note) in notes.iter_mut().enumerate() {
        if let Some(there) = intake.has(layers, index).await? {
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
        let wanted = BlobRequest { what: format!("layer {digest} of {what}"), digest, size };
        let (intake, registry, report) = (Arc::clone(intake), Arc::clone(registry), Arc::clone(report));
        let (permits, index) = (Arc::clone(&permits), *index);
        fetching.spawn(async move {
            let _permit = permits.acquire().await;
            (at, fetch(&intake, &registry, &wanted, index, &report).await)
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
        notes[index] = intake.unpack(layers, index, file).await?;
        partial.remove();
        report.stage(index, Stage::Done);
        at += 1;
    }
    Ok(notes)
}

async fn fetch<L: LayerStore>(
    intake: &Intake<L>,
    registry: &Registry,
    wanted: &BlobRequest,
    index: usize,
    report: &Reporter,
) -> Result<Fetched, ImageError> {
    report.stage(index, Stage::Fetching);
    let partial = Arc::new(intake.store.ingest.partial(&wanted.digest, wanted.size).await);
    let file = registry.blob(wanted, &partial, |done| report.bytes(index, done)).await?;
    report.stage(index, Stage::Fetched);
    Ok(Fetched { file, partial })
}
