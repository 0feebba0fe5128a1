//! Pins the images of a template to digests and reads their metadata (rules 4, 5 and 6 of
//! `docs/guides/conventions.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use executor_core::image::ImageReference;
use executor_images::metadata::{MetadataReader, MetadataSettings};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::context::ImageConfig;
use crate::sbom;
use crate::violation::{Violations, shown};

/// Fields with the containers whose images are resolved.
const LISTS: [&str; 2] = ["initContainers", "containers"];

/// Source of image metadata.
pub trait ImageSource {
    /// Returns the metadata of an image. The field `image` of the result is the full reference with digest.
    ///
    /// # Errors
    /// Returns a message of one sentence if the image cannot be found or read.
    fn describe(&self, image: &str) -> impl Future<Output = Result<Arc<ImageConfig>, String>>;
}

/// Reads images in registries, and in layouts and archives on the local disk.
#[derive(Debug)]
pub struct Registries {
    reader: MetadataReader,
    /// Images that are not fetched because they are replaced at run time.
    replaced: BTreeSet<String>,
    /// Cache of the metadata; pinned images do not change.
    known: Mutex<BTreeMap<String, Arc<ImageConfig>>>,
}

impl Registries {
    /// Returns a reader of images. `auth_file` has credentials as written by `docker login`; `ca_file` has additional
    /// trusted certificates (PEM).
    pub fn new(auth_file: Option<PathBuf>, ca_file: Option<PathBuf>) -> Self {
        let settings = MetadataSettings { auth_file, ca_file, ..MetadataSettings::default() };
        Self { reader: MetadataReader::new(settings), replaced: BTreeSet::new(), known: Mutex::default() }
    }

    /// Adds images that are replaced at run time. They are not fetched or pinned, and their metadata is empty.
    #[must_use]
    pub fn replacing(mut self, images: impl IntoIterator<Item = String>) -> Self {
        self.replaced.extend(images);
        self
    }

    async fn read(&self, reference: &ImageReference) -> Result<ImageConfig, String> {
        let reported = |error: executor_images::ImageError| error.to_string();
        let found = self.reader.read(reference).await.map_err(reported)?;
        let config: Value = serde_json::from_slice(found.configuration())
            .map_err(|error| format!("the image configuration is not JSON: {error}"))?;
        let boms = match sbom::layer(&config)? {
            None => Vec::new(),
            Some(diff_id) => {
                let layer = self.reader.layer(&found, &diff_id, sbom::LAYER_MAX).await.map_err(reported)?;
                let layer = layer
                    .ok_or_else(|| format!("the SBOM label names layer {diff_id}, which the image does not have"))?;
                sbom::read(&layer)?
            }
        };
        Ok(ImageConfig { image: pinned(reference, &found.digest().to_string()), boms, config })
    }
}

impl ImageSource for Registries {
    async fn describe(&self, image: &str) -> Result<Arc<ImageConfig>, String> {
        if self.replaced.contains(image) {
            let (image, config) = (image.to_owned(), Value::Object(serde_json::Map::new()));
            return Ok(Arc::new(ImageConfig { image, boms: Vec::new(), config }));
        }
        let reference = ImageReference::parse_short(image).map_err(|bad| bad.to_string())?;
        if let Some(known) = self.known.lock().await.get(image) {
            return Ok(Arc::clone(known));
        }
        let found = Arc::new(self.read(&reference).await?);
        if reference.digest().is_some() || reference.file().is_none() {
            self.known.lock().await.insert(found.image.clone(), Arc::clone(&found));
        }
        Ok(found)
    }
}

/// Returns the full reference with digest: `REGISTRY/REPOSITORY[:TAG]@DIGEST` (rule 5).
fn pinned(reference: &ImageReference, digest: &str) -> String {
    let long = reference.to_string();
    let long = long.strip_prefix("docker://").unwrap_or(&long);
    match reference.digest() {
        Some(_) => long.to_owned(),
        None => format!("{long}@{digest}"),
    }
}

/// Reads the metadata of each distinct image of init and main containers, sorted by image name, and pins the images in
/// the template (rules 4 and 5).
pub(crate) async fn resolve(
    template: &mut Value,
    images: &impl ImageSource,
) -> Result<Vec<Arc<ImageConfig>>, Violations> {
    let mut wanted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for_each_image(template, |field, image| {
        if !image.is_empty() {
            wanted.entry(image.clone()).or_default().insert(field);
        }
    });
    let (mut found, mut violations) = (BTreeMap::new(), Violations::default());
    for (image, fields) in wanted {
        match images.describe(&image).await {
            Ok(described) => drop(found.insert(image, described)),
            Err(why) => {
                let message = format!("cannot resolve image {}: {why}", shown(&image));
                fields.into_iter().for_each(|field| violations.add(None, field, 5, message.clone()));
            }
        }
    }
    violations.or(())?;
    for_each_image(template, |_, image| {
        // Images on the local disk cannot be pinned: they have no reference with digest.
        if let Some(described) = found.get(image).filter(|_| !on_disk(image)) {
            image.clone_from(&described.image);
        }
    });
    Ok(found.into_values().collect())
}

fn on_disk(image: &str) -> bool {
    ImageReference::parse_short(image).is_ok_and(|reference| reference.file().is_some())
}

fn for_each_image(template: &mut Value, mut visit: impl FnMut(String, &mut String)) {
    for list in LISTS {
        let containers = template.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default();
            let field = format!("spec.{list}[{name}].image");
            if let Some(Value::String(image)) = container.get_mut("image") {
                visit(field, image);
            }
        }
    }
}
