//! Pulls images from a registry into the store: index, manifest, configuration, layers and record, in this order.

use std::collections::HashMap;
use std::fs::File;
use std::io::Seek as _;
use std::sync::Arc;

use executor_core::image::{Algorithm, ImageReference, Repository, Selector};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::choice::{Candidate, Chain, Search};
use crate::credentials::configured;
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
use crate::store::ingest::Complete;

/// Number of blobs fetched in parallel per image.
const PARALLEL: usize = 3;

/// A complete, verified blob.
struct Fetched {
    file: File,
    stored: Complete,
}

impl Fetched {
    /// Returns a second descriptor of the file, and sets the position to the start.
    fn copy(&self) -> Result<File, ImageError> {
        let io = |error| ImageError::io("read", self.stored.path(), error);
        let mut file = self.file.try_clone().map_err(io)?;
        file.rewind().map_err(io)?;
        Ok(file)
    }
}

/// Fetches an image from the first mirror that has it, or from its registry.
///
/// If a mirror fails, logs the error and tries the next mirror, which continues a partial blob. The operator configures
/// the credentials of each mirror; the credentials of the request are not sent to mirrors.
pub(crate) async fn pull<L: LayerStore>(
    intake: &Arc<Intake<L>>,
    (repository, selector): (&Repository, &Selector),
    identity: Option<Identity>,
    report: &Arc<Reporter>,
) -> Result<ImageRecord, ImageError> {
    for mirror in intake.settings.mirrors_of(repository) {
        let pulled = async {
            let identity = configured(intake.settings.docker_config.as_ref(), &mirror).await?;
            pull_from(intake, &mirror, (repository, selector), identity, report).await
        };
        match pulled.await {
            Err(error) if error.is_registry_error() => {
                let why = executor_core::errors::chain(&error);
                tracing::warn!(%mirror, "the mirror cannot be used for {repository}: {why}");
            }
            other => return other,
        }
    }
    pull_from(intake, repository, (repository, selector), identity, report).await
}

/// Fetches an image from `source`: the repository of its reference, or a mirror.
async fn pull_from<L: LayerStore>(
    intake: &Arc<Intake<L>>,
    source: &Repository,
    (repository, selector): (&Repository, &Selector),
    identity: Option<Identity>,
    report: &Arc<Reporter>,
) -> Result<ImageRecord, ImageError> {
    let reference = ImageReference::Registry(repository.clone(), selector.clone()).to_string();
    let what = match source == repository {
        true => format!("image {reference}"),
        false => format!("image {reference} (in the mirror {source})"),
    };
    let insecure = intake.settings.is_insecure(source.registry());
    let policy = intake.settings.policy.clone();
    let registry = Arc::new(Registry::new(Arc::clone(&intake.client), source, insecure, identity, policy));
    let (documents, chain) = documents(&registry, selector, intake.settings.image_bytes_max, &what).await?;
    let signatures = match &intake.settings.signatures.rules_for(repository)[..] {
        [] => Evidence::new(),
        rules => signatures::verify(&registry, repository, &chain, rules, &what).await?,
    };
    drop(chain);
    report.start(&documents.digest, &documents.layers);
    let _held = intake.hold_layers(&documents.layers).await;
    let notes = layers(intake, &registry, &documents.layers, report, &what).await?;
    intake.record(documents, vec![reference], Provenance::Registry(signatures), notes).await
}

/// Fetches and verifies the manifest for this host, its configuration, and every index that leads to the manifest.
pub(crate) async fn documents(
    registry: &Registry,
    selector: &Selector,
    image_bytes_max: u64,
    what: &str,
) -> Result<(Documents, Chain), ImageError> {
    let mut search = Search::new(Host::here(), what);
    let mut candidate: Option<Candidate> = None;
    loop {
        let wanted = candidate.as_ref().map_or_else(|| selector.wanted(), |entry| entry.digest.to_string());
        let declared = candidate.as_ref().map(|entry| &entry.digest).or_else(|| selector.digest()).cloned();
        let document = registry.manifest(&wanted, what).await?;
        let digest = declared.unwrap_or_else(|| hash::digest(Algorithm::Sha256, &document.bytes));
        if let Some(entry) = &candidate {
            hash::check_size(entry.size, &document.bytes, &format!("the manifest {digest} of {what}"))?;
        }
        hash::check_digest(&digest, &document.bytes, &format!("the manifest of {what}"))?;
        let mut chain = candidate.as_ref().map(|entry| Chain::clone(&entry.indexes)).unwrap_or_default();
        match manifest::parse(&document.bytes, &document.content_type, what)? {
            Manifest::Image(image) if candidate.is_some() && !manifest::is_image(&image) => {}
            Manifest::Image(image) => {
                let (config_digest, config_size) = manifest::digest_and_size(image.config(), what)?;
                let config_what = format!("the configuration of {what}");
                let config = registry.small_blob(&config_digest.to_string(), &config_what).await?.bytes;
                hash::check_size(config_size, &config, &config_what)?;
                hash::check_digest(&config_digest, &config, &config_what)?;
                let mut index_digest = chain.first().map(|(digest, _)| digest.clone());
                chain.push((digest.clone(), document.bytes.clone()));
                // An image is identified by its SHA-256 digest, even if it was requested by a digest of another
                // algorithm.
                let known = hash::digest(Algorithm::Sha256, &document.bytes);
                if known != digest {
                    chain.push((known.clone(), document.bytes.clone()));
                    index_digest.get_or_insert(digest);
                }
                let manifest = (known, document.bytes);
                match Documents::new(manifest, index_digest, (config_digest, config), image_bytes_max, what) {
                    Ok(documents) => return Ok((documents, chain)),
                    Err(error) => search.pass_over(error)?,
                }
            }
            Manifest::Index(index) => {
                chain.push((digest, document.bytes));
                search.add(&index, chain)?;
            }
        }
        candidate = Some(search.next()?);
    }
}

/// Fetches the missing blobs in parallel, and lets the layer store unpack the layers bottom-up.
///
/// A blob that occurs several times is fetched once. A layer that another pull has unpacked in the meantime is not
/// unpacked again.
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
    let first = |index: usize| missing.iter().copied().find(|other| same_blob(&layers[*other], &layers[index]));
    for index in missing.iter().copied().filter(|index| first(*index) == Some(*index)) {
        let (digest, size) = (layers[index].digest.clone(), layers[index].size);
        let wanted = BlobRequest { what: format!("layer {digest} of {what}"), digest, size };
        let (intake, registry, report) = (Arc::clone(intake), Arc::clone(registry), Arc::clone(report));
        let permits = Arc::clone(&permits);
        fetching.spawn(async move {
            let _permit = permits.acquire().await;
            (index, fetch(&intake, &registry, &wanted, index, &report).await)
        });
    }
    // Blobs by the index of the lowest layer that has the blob.
    let mut fetched: HashMap<usize, Fetched> = HashMap::new();
    for (at, index) in missing.iter().copied().enumerate() {
        let lowest = first(index).unwrap_or(index);
        let blob = loop {
            if let Some(blob) = fetched.remove(&lowest) {
                break blob;
            }
            let (other, result) = match fetching.join_next().await {
                Some(Ok(done)) => done,
                Some(Err(error)) => return Err(ImageError::Internal(error.to_string())),
                None => return Err(ImageError::Internal("a layer was not fetched".into())),
            };
            fetched.insert(other, result?);
        };
        report.stage(index, Stage::Unpacking);
        notes[index] = match intake.has(layers, index).await? {
            Some(there) => there,
            None => intake.unpack(layers, index, blob.copy()?).await?,
        };
        report.stage(index, Stage::Done);
        if missing[at + 1..].iter().any(|above| same_blob(&layers[*above], &layers[index])) {
            fetched.insert(lowest, blob);
        } else {
            blob.stored.remove();
        }
    }
    Ok(notes)
}

fn same_blob(one: &LayerRecord, other: &LayerRecord) -> bool {
    (&one.digest, one.size) == (&other.digest, other.size)
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
    Ok(Fetched { file, stored: partial.complete() })
}
