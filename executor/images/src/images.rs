//! Manages the images of a node. This is the crate's interface to the daemon.

use executor_core::text::printable;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use executor_core::image::{Digest, ImageDefaults, ImageReference, read_configuration};
use executor_registry_auth::Credentials;

use crate::blocking::blocking;
use crate::credentials::configured;
use crate::error::ImageError;
use crate::import::{self, ImportFormat};
use crate::intake::Intake;
use crate::layers::LayerStore;
use crate::progress::Reporter;
use crate::pull;
use crate::record::{self, ImageRecord, Provenance};
use crate::registry::Identity;
use crate::settings::Settings;
use crate::sharing::{Pull, Pulls, Watcher};
use crate::signatures::SignaturePolicy;
use crate::store::StoreHold;

/// Minimum number of hexadecimal digits of a digest that can select an image.
const PREFIX_MIN: usize = 8;

pub struct Images<L> {
    pub(crate) intake: Arc<Intake<L>>,
    pulls: Pulls,
}

impl<L> std::fmt::Debug for Images<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").field("dir", &self.intake.settings.dir).finish_non_exhaustive()
    }
}

/// An image that is about to be used. The image is not removed while this value exists.
pub struct Resolved {
    pub record: ImageRecord,
    /// Defaults for the process, from the image's configuration.
    pub defaults: ImageDefaults,
    _held: StoreHold,
}

/// Pull policy: when to fetch an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Fetch if the image is not present.
    IfMissing,
    /// Request the manifest from the registry each time.
    Always,
    Never,
}

impl<L: LayerStore> Images<L> {
    /// Opens the store.
    ///
    /// # Errors
    /// Returns an error if the store cannot be created or read.
    pub fn open(settings: Settings, layers: L) -> Result<Arc<Self>, ImageError> {
        Ok(Arc::new(Self { intake: Arc::new(Intake::open(settings, layers)?), pulls: Pulls::default() }))
    }

    /// Fetches an image, or joins a running pull of the same image. An image on local disk is read from its layout or
    /// archive.
    pub fn pull(self: &Arc<Self>, reference: &ImageReference, credentials: Option<Credentials>) -> Watcher {
        let (watcher, begun) = self.pulls.join(reference, credentials);
        if let Some(pull) = begun {
            tokio::spawn(Arc::clone(self).execute(pull));
        }
        watcher
    }

    async fn execute(self: Arc<Self>, pull: Arc<Pull>) {
        let (reference, sender) = (pull.reference.clone(), Arc::clone(&pull.sender));
        let report = Arc::new(Reporter::new(Arc::clone(&sender)));
        let outcome = tokio::select! {
            outcome = self.fetch(&reference, pull.credentials.clone(), &report) => outcome.map_err(Arc::new),
            // All clients have stopped waiting.
            () = sender.closed() => return,
        };
        match &outcome {
            Ok(record) => tracing::info!(%reference, digest = %record.digest, bytes = record.size, "image is present"),
            Err(error) => tracing::warn!(%reference, "cannot fetch the image: {}", executor_core::errors::chain(error)),
        }
        // The credentials must be dropped before clients receive the outcome.
        drop(pull);
        sender.send_modify(|state| state.outcome = Some(outcome));
    }

    async fn fetch(
        self: &Arc<Self>,
        reference: &ImageReference,
        credentials: Option<Arc<Credentials>>,
        report: &Arc<Reporter>,
    ) -> Result<ImageRecord, ImageError> {
        match reference {
            ImageReference::Registry(repository, selector) => {
                self.intake.settings.policy.may_fetch(repository)?;
                let identity = match credentials {
                    Some(credentials) => Some(Identity { credentials, file: None }),
                    None => configured(self.intake.settings.docker_config.as_ref(), repository).await?,
                };
                pull::pull(&self.intake, (repository, selector), identity, report).await
            }
            ImageReference::Layout(path, name) => {
                self.read(path, ImportFormat::Layout, name.as_deref(), reference).await
            }
            ImageReference::OciArchive(path, name) => {
                self.read(path, ImportFormat::OciArchive, name.as_deref(), reference).await
            }
            ImageReference::DockerArchive(path, name) => {
                self.read(path, ImportFormat::DockerArchive, name.as_deref(), reference).await
            }
        }
    }

    async fn read(
        self: &Arc<Self>,
        path: &std::path::Path,
        form: ImportFormat,
        name: Option<&str>,
        reference: &ImageReference,
    ) -> Result<ImageRecord, ImageError> {
        self.intake.settings.policy.permits(reference)?;
        let (path, name) = (path.to_owned(), name.map(str::to_owned));
        import::import(&self.intake, path, form, name, (Some(reference.to_string()), Provenance::Archive)).await
    }

    /// Returns the image of a reference, ready for use. Fetches the image if the policy requires a fetch. The image is
    /// not removed while the result exists.
    ///
    /// # Errors
    /// Returns an error if the image is not present and cannot or must not be fetched.
    pub async fn resolve(
        self: &Arc<Self>,
        reference: &ImageReference,
        policy: Policy,
        credentials: Option<Credentials>,
    ) -> Result<Resolved, Arc<ImageError>> {
        self.intake.settings.policy.permits(reference).map_err(|refused| Arc::new(refused.into()))?;
        // Read a layout or archive on local disk each time: the file may have changed, and reading needs no network.
        let use_present = policy == Policy::Never || reference.file().is_none() && policy == Policy::IfMissing;
        if use_present && let Some(resolved) = self.ready(reference).await.map_err(Arc::new)? {
            return Ok(resolved);
        }
        if policy == Policy::Never {
            return Err(Arc::new(self.unusable(reference)));
        }
        loop {
            let mut watcher = self.pull(reference, credentials.clone());
            let Some(outcome) = watcher.outcome().await else { continue };
            let digest = outcome?.digest;
            // Pull again if the image was removed after the pull.
            if let Some((record, held)) = self.intake.store.hold_image(|record| record.digest == digest) {
                return self.resolved(record, held).await.map_err(Arc::new);
            }
        }
    }

    /// Returns the image of a reference if all its layers are present.
    async fn ready(&self, reference: &ImageReference) -> Result<Option<Resolved>, ImageError> {
        let usable =
            |record: &ImageRecord| is_referred_to(record, reference) && self.has_allowed_source(record, reference);
        let Some((record, held)) = self.intake.store.hold_image(usable) else { return Ok(None) };
        for (index, layer) in record.layers.iter().enumerate() {
            if self.intake.has(&record.layers, index).await?.is_none() {
                tracing::warn!(image = %record.digest, layer = %layer.diff_id, "a layer is missing; the stored image cannot be used");
                return Ok(None);
            }
        }
        match self.resolved(record, held).await {
            Err(ImageError::WrongDigest { .. } | ImageError::Io { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Returns the reason why no present image can be used for a reference.
    fn unusable(&self, reference: &ImageReference) -> ImageError {
        let mut present = self.intake.store.all();
        present.retain(|record| is_referred_to(record, reference));
        let is_allowed = present.iter().any(|record| self.has_allowed_source(record, reference));
        let reference = reference.to_string();
        match (present.is_empty(), is_allowed) {
            (true, _) => ImageError::NotHere { reference },
            (false, true) => ImageError::Incomplete { reference },
            (false, false) => ImageError::FromElsewhere { reference },
        }
    }

    /// Returns true if a present image may be used for a reference that the policy permits. The name or digest alone is
    /// not enough, because the image may have been imported or fetched from another source.
    fn has_allowed_source(&self, record: &ImageRecord, reference: &ImageReference) -> bool {
        let policy = &self.intake.settings.policy;
        let ImageReference::Registry(repository, selector) = reference else { return true };
        let signatures = &self.intake.settings.signatures;
        let imported = record.imported && policy.may_import().is_ok();
        if (policy.is_open() || imported) && signatures.rules_for(repository).is_empty() {
            return true;
        }
        let same = |name: &String| match selector.digest() {
            None => *name == reference.to_string(),
            Some(_) => matches!(name.parse(), Ok(ImageReference::Registry(other, _)) if other == *repository),
        };
        let mut fetched = record.fetched.iter().filter(|(name, _)| same(name));
        policy.may_fetch(repository).is_ok() && fetched.any(|(_, found)| signatures.is_satisfied(repository, found))
    }

    async fn resolved(&self, record: ImageRecord, held: StoreHold) -> Result<Resolved, ImageError> {
        let (store, wanted) = (Arc::clone(&self.intake.store), record.clone());
        let configuration = blocking(move || {
            store.touch(&wanted.digest, record::now());
            store.document(&wanted.config_digest)
        })
        .await?;
        let parsed = read_configuration(&configuration).map_err(|error| ImageError::Malformed {
            what: format!("the configuration of image {}", record.digest),
            why: error.to_string(),
        })?;
        Ok(Resolved { defaults: ImageDefaults::from_configuration(&parsed)?, record, _held: held })
    }

    /// Returns the operator's rules for signatures of images.
    pub fn signatures(&self) -> &SignaturePolicy {
        &self.intake.settings.signatures
    }

    /// Returns all images, newest first.
    pub fn list(&self) -> Vec<ImageRecord> {
        let mut all = self.intake.store.all();
        all.sort_by_key(|record| std::cmp::Reverse(record.pulled_at));
        all
    }

    /// Finds an image by its reference, or by the digest of its manifest or configuration. At least 8 digits of a
    /// digest are required. Returns the image that was pulled last if several images have the same configuration.
    ///
    /// # Errors
    /// Returns an error if no image matches, or if several images with different configurations match.
    pub fn find(&self, text: &str) -> Result<ImageRecord, ImageError> {
        let reference = ImageReference::parse_short(text).ok();
        let all = self.intake.store.all();
        let named =
            reference.as_ref().and_then(|reference| all.iter().find(|record| is_referred_to(record, reference)));
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        let is_prefix = hex.len() >= PREFIX_MIN && hex.bytes().all(|b| b.is_ascii_hexdigit());
        let begins = |digest: &Digest| is_prefix && digest.hex().starts_with(hex);
        let mut by_digest: Vec<&ImageRecord> =
            all.iter().filter(|record| begins(&record.digest) || begins(&record.config_digest)).collect();
        by_digest.sort_by_key(|record| std::cmp::Reverse(record.pulled_at));
        let mut configurations = BTreeSet::new();
        by_digest.retain(|record| begins(&record.digest) || configurations.insert(&record.config_digest));
        match (named, &by_digest[..]) {
            (Some(record), _) => Ok(record.clone()),
            (None, [record]) => Ok((*record).clone()),
            (None, []) => Err(ImageError::NotFound { what: format!("image \"{}\"", printable(text, 100)) }),
            (None, _) => Err(ImageError::NotFound {
                what: format!(
                    "unique image with the digest prefix \"{}\"; {} images match",
                    printable(text, 100),
                    by_digest.len()
                ),
            }),
        }
    }

    /// Returns the unmodified configuration document of an image.
    ///
    /// # Errors
    /// Returns an error if the document is missing or corrupt.
    pub async fn configuration(&self, record: &ImageRecord) -> Result<Vec<u8>, ImageError> {
        let (store, digest) = (Arc::clone(&self.intake.store), record.config_digest.clone());
        blocking(move || store.document(&digest)).await
    }

    /// Creates a file for an archive that a client sends.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub async fn upload(&self) -> Result<Upload, ImageError> {
        let store = Arc::clone(&self.intake.store);
        let most = self.intake.settings.image_bytes_max;
        let (upload, file) = blocking(move || store.ingest.upload()).await?;
        Ok(Upload { upload, file, written: 0, most })
    }

    /// Imports the image named `inner` from an archive, or the only image if `inner` is `None`.
    ///
    /// # Errors
    /// Returns an error if the archive does not contain the image or is incomplete.
    pub async fn import(
        self: &Arc<Self>,
        upload: Upload,
        form: ImportFormat,
        inner: Option<String>,
        name: Option<&ImageReference>,
    ) -> Result<ImageRecord, ImageError> {
        self.intake.settings.policy.may_import()?;
        let path: PathBuf = upload.upload.path.clone();
        let done =
            import::import(&self.intake, path, form, inner, (name.map(ToString::to_string), Provenance::Import)).await;
        drop(upload);
        done
    }
}

/// An archive that a client is sending.
pub struct Upload {
    upload: crate::store::ingest::Upload,
    file: std::fs::File,
    written: u64,
    most: u64,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("written", &self.written).finish_non_exhaustive()
    }
}

impl Upload {
    /// Appends bytes to the archive.
    ///
    /// # Errors
    /// Returns an error if writing fails or the archive is too large.
    pub async fn write(mut self, bytes: Vec<u8>) -> Result<Self, ImageError> {
        self.written += bytes.len() as u64;
        if self.written > self.most {
            let (is, most) = (self.written, self.most);
            return Err(ImageError::TooLarge { what: "the archive".into(), is, most, unit: "bytes" });
        }
        blocking(move || {
            let written = std::io::Write::write_all(&mut self.file, &bytes);
            written.map_err(|error| ImageError::io("write", &self.upload.path, error))?;
            Ok(self)
        })
        .await
    }

    /// Returns the number of bytes of the archive that were received.
    pub fn written(&self) -> u64 {
        self.written
    }
}

/// Returns true if a reference refers to the image of a record. If the reference has a digest, only the digest is
/// compared.
fn is_referred_to(record: &ImageRecord, reference: &ImageReference) -> bool {
    match reference.digest() {
        Some(digest) => record.digest == *digest || record.index_digest.as_ref() == Some(digest),
        None => record.references.contains_key(&reference.to_string()),
    }
}
