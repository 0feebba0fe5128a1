//! The images of a node: what the rest of the daemon sees of this crate.

use executor_core::text::printable;
use std::path::PathBuf;
use std::sync::Arc;

use executor_core::image::{ImageDefaults, ImageReference, read_configuration};
use executor_registry_auth::Credentials;

use crate::blocking::blocking;
use crate::credentials::configured;
use crate::error::ImageError;
use crate::import::{self, Form};
use crate::intake::Intake;
use crate::layers::LayerStore;
use crate::progress::Reporter;
use crate::pull;
use crate::record::{self, ImageRecord, Provenance};
use crate::registry::Identity;
use crate::settings::Settings;
use crate::sharing::{Pull, Pulls, Watcher};
use crate::signatures::SignaturePolicy;
use crate::store::Held;

/// Fewest digits of a digest that an image is found by.
const PREFIX_MIN: usize = 8;

/// The images of a node.
pub struct Images<L> {
    pub(crate) intake: Arc<Intake<L>>,
    pulls: Pulls,
}

impl<L> std::fmt::Debug for Images<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").field("dir", &self.intake.settings.dir).finish_non_exhaustive()
    }
}

/// An image that is about to be used: it stays while this lives.
pub struct Resolved {
    /// Record of the image.
    pub record: ImageRecord,
    /// Defaults for the process in its configuration.
    pub defaults: ImageDefaults,
    _held: Held,
}

/// Rule for fetching an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Fetch the image if it is not present.
    IfMissing,
    /// HttpRequest the registry each time.
    Always,
    /// Never fetch the image.
    Never,
}

impl<L: LayerStore> Images<L> {
    /// Opens the store.
    ///
    /// # Errors
    /// It cannot be made or read.
    pub fn open(settings: Settings, layers: L) -> Result<Arc<Self>, ImageError> {
        Ok(Arc::new(Self { intake: Arc::new(Intake::open(settings, layers)?), pulls: Pulls::default() }))
    }

    /// Fetches an image, or joins who is fetching it, or reads it from a layout or an archive on this machine's disk.
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
            // Nobody waits any more.
            () = sender.closed() => return,
        };
        match &outcome {
            Ok(record) => tracing::info!(%reference, digest = %record.digest, bytes = record.size, "image is present"),
            Err(error) => tracing::warn!(%reference, "cannot fetch the image: {error}"),
        }
        // Whoever learns of the end may count on the credentials being gone.
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
            ImageReference::Layout(path, name) => self.read(path, Form::Layout, name.as_deref(), reference).await,
            ImageReference::OciArchive(path, name) => {
                self.read(path, Form::OciArchive, name.as_deref(), reference).await
            }
            ImageReference::DockerArchive(path, name) => {
                self.read(path, Form::DockerArchive, name.as_deref(), reference).await
            }
        }
    }

    async fn read(
        self: &Arc<Self>,
        path: &std::path::Path,
        form: Form,
        name: Option<&str>,
        reference: &ImageReference,
    ) -> Result<ImageRecord, ImageError> {
        self.intake.settings.policy.permits(reference)?;
        let (path, name) = (path.to_owned(), name.map(str::to_owned));
        import::import(&self.intake, path, form, name, (Some(reference.to_string()), Provenance::Archive)).await
    }

    /// The image that a reference means, there and ready, fetched as the policy says. It stays while the answer lives.
    ///
    /// # Errors
    /// It is not there and must not or cannot be fetched.
    pub async fn resolve(
        self: &Arc<Self>,
        reference: &ImageReference,
        policy: Policy,
        credentials: Option<Credentials>,
    ) -> Result<Resolved, Arc<ImageError>> {
        self.intake.settings.policy.permits(reference).map_err(|refused| Arc::new(refused.into()))?;
        // What lies on this machine's disk may have changed; to look costs no network.
        let look_first = policy == Policy::Never || reference.file().is_none() && policy == Policy::IfMissing;
        if look_first && let Some(resolved) = self.ready(reference).await.map_err(Arc::new)? {
            return Ok(resolved);
        }
        if policy == Policy::Never {
            let elsewhere = self.intake.store.all().iter().any(|record| is_referred_to(record, reference));
            let reference = reference.to_string();
            return Err(Arc::new(match elsewhere {
                true => ImageError::FromElsewhere { reference },
                false => ImageError::NotHere { reference },
            }));
        }
        loop {
            let mut watcher = self.pull(reference, credentials.clone());
            let Some(outcome) = watcher.outcome().await else { continue };
            let digest = outcome?.digest;
            // Unless somebody removed it in between.
            if let Some((record, held)) = self.intake.store.hold_image(|record| record.digest == digest) {
                return self.resolved(record, held).await.map_err(Arc::new);
            }
        }
    }

    /// The image of a reference, where it is there with all its layers.
    async fn ready(&self, reference: &ImageReference) -> Result<Option<Resolved>, ImageError> {
        let usable =
            |record: &ImageRecord| is_referred_to(record, reference) && self.has_allowed_source(record, reference);
        let Some((record, held)) = self.intake.store.hold_image(usable) else { return Ok(None) };
        for (index, layer) in record.layers.iter().enumerate() {
            if self.intake.has(&record.layers, index).await?.is_none() {
                tracing::warn!(image = %record.digest, layer = %layer.diff_id, "a layer is missing: the image is fetched again");
                return Ok(None);
            }
        }
        match self.resolved(record, held).await {
            Err(ImageError::WrongDigest { .. } | ImageError::Io { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Judges by the way that an image came whether it may be used for a reference that the policy permits: what is kept
    /// under a name, or has the digest, may have been imported or fetched from elsewhere.
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

    async fn resolved(&self, record: ImageRecord, held: Held) -> Result<Resolved, ImageError> {
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

    /// Signatures that images must have.
    pub fn signatures(&self) -> &SignaturePolicy {
        &self.intake.settings.signatures
    }

    /// Returns all images, the newest first.
    pub fn list(&self) -> Vec<ImageRecord> {
        let mut all = self.intake.store.all();
        all.sort_by_key(|record| std::cmp::Reverse(record.pulled_at));
        all
    }

    /// The image that a text means: a reference, a digest, or the first 8 or more digits of one.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn find(&self, text: &str) -> Result<ImageRecord, ImageError> {
        let reference = ImageReference::parse_short(text).ok();
        let all = self.intake.store.all();
        let named =
            reference.as_ref().and_then(|reference| all.iter().find(|record| is_referred_to(record, reference)));
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        let is_prefix = hex.len() >= PREFIX_MIN && hex.bytes().all(|b| b.is_ascii_hexdigit());
        let by_digest: Vec<&ImageRecord> =
            all.iter().filter(|record| is_prefix && record.digest.hex().starts_with(hex)).collect();
        match (named, &by_digest[..]) {
            (Some(record), _) => Ok(record.clone()),
            (None, [record]) => Ok((*record).clone()),
            (None, []) => Err(ImageError::NotFound { what: format!("image \"{}\"", printable(text, 100)) }),
            (None, _) => Err(ImageError::NotFound {
                what: format!("single image \"{}\": {} images match", printable(text, 100), by_digest.len()),
            }),
        }
    }

    /// The configuration of an image, as it came.
    ///
    /// # Errors
    /// It is not whole.
    pub async fn configuration(&self, record: &ImageRecord) -> Result<Vec<u8>, ImageError> {
        let (store, digest) = (Arc::clone(&self.intake.store), record.config_digest.clone());
        blocking(move || store.document(&digest)).await
    }

    /// A place for an archive that a client sends.
    ///
    /// # Errors
    /// It cannot be made.
    pub async fn upload(&self) -> Result<Upload, ImageError> {
        let store = Arc::clone(&self.intake.store);
        let most = self.intake.settings.image_bytes_max;
        let (upload, file) = blocking(move || store.ingest.upload()).await?;
        Ok(Upload { upload, file, written: 0, most })
    }

    /// Takes an archive's image in: the one that is called `inner` in there, or the only one.
    ///
    /// # Errors
    /// It is none, or it is not whole.
    pub async fn import(
        self: &Arc<Self>,
        upload: Upload,
        form: Form,
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

/// An archive on its way.
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
    /// Takes the next bytes.
    ///
    /// # Errors
    /// The disk, or too many bytes.
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

    /// Returns the number of bytes received.
    pub fn written(&self) -> u64 {
        self.written
    }
}

/// Tells whether a reference refers to the image of a record. A digest decides, whatever the names are.
fn is_referred_to(record: &ImageRecord, reference: &ImageReference) -> bool {
    match reference.digest() {
        Some(digest) => record.digest == *digest || record.index_digest.as_ref() == Some(digest),
        None => record.references.contains_key(&reference.to_string()),
    }
}
