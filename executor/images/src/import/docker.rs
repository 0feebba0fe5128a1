//! Reads archives of `docker save`, in which `manifest.json` names a configuration and the layers' files.
//!
//! The format has no manifest with a digest. Therefore a manifest in OCI format is generated, so that the image has a
//! digest. The same content always gets the same manifest.

use std::io::Read as _;

use executor_core::image::{Algorithm, Digest, ImageReference};
use serde::Deserialize;

use super::{FoundImage, ImportFormat, Section, Source, required, several};
use crate::documents::Documents;
use crate::error::ImageError;
use crate::hash::{self, Hasher};
use crate::manifest;

/// Name of the file that lists the images of the archive.
pub(super) const MANIFEST: &str = "manifest.json";
/// Maximum number of images in an archive, and of names for an image.
const IMAGES_MAX: usize = 100;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

/// Finds the image with the name `selected` in an archive, or its only image if `selected` is `None`.
pub(super) fn find(
    source: &mut dyn Source,
    selected: Option<&str>,
    image_bytes_max: u64,
    what: &str,
) -> Result<FoundImage, ImageError> {
    let malformed = |why: String| ImageError::Malformed { what: what.to_owned(), why };
    let images = required(source, MANIFEST, what)?;
    let images: Vec<Image> =
        serde_json::from_slice(&images).map_err(|error| malformed(format!("{MANIFEST}: {error}")))?;
    if images.len() > IMAGES_MAX {
        return Err(malformed(format!("{MANIFEST} lists {} images; the maximum is {IMAGES_MAX}", images.len())));
    }
    let image = select_image(images, selected, what)?;
    manifest::check_layer_count(image.layers.len(), what)?;
    let config = required(source, &image.config, what)?;
    let config_digest = hash::digest(Algorithm::Sha256, &config);
    let mut descriptors = Vec::with_capacity(image.layers.len());
    let mut total = 0u64;
    for name in &image.layers {
        let section = source.open(name)?.ok_or_else(|| malformed(format!("the archive has no file {name:?}")))?;
        total = total.saturating_add(section.size);
        if total > image_bytes_max {
            return Err(ImageError::TooLarge {
                what: what.to_owned(),
                is: total,
                most: image_bytes_max,
                unit: "bytes",
            });
        }
        descriptors.push(describe(section, name)?);
    }
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config_digest.to_string(),
            "size": config.len(),
        },
        "layers": descriptors,
    });
    let manifest = manifest.to_string().into_bytes();
    let digest = hash::digest(Algorithm::Sha256, &manifest);
    let documents = Documents::new((digest, manifest), None, (config_digest, config), image_bytes_max, what)?;
    let names = image.repo_tags.unwrap_or_default().into_iter().take(IMAGES_MAX);
    let names = names.filter_map(|name| Some(ImageReference::parse_short(&name).ok()?.to_string())).collect();
    Ok(FoundImage { documents, files: image.layers, names })
}

/// Returns the image with a name, or the only image if no name is given.
fn select_image(mut images: Vec<Image>, wanted: Option<&str>, what: &str) -> Result<Image, ImageError> {
    let long = |name: &str| ImageReference::parse_short(name).map(|reference| reference.to_string()).ok();
    if let Some(wanted) = wanted {
        let called = |name: &String| name == wanted || (long(wanted).is_some() && long(name) == long(wanted));
        images.retain(|image| image.repo_tags.iter().flatten().any(called));
    }
    match (images.len(), wanted) {
        (1, _) => Ok(images.remove(0)),
        (0, Some(name)) => Err(ImageError::NotFound { what: format!("image {name:?} in {what}") }),
        (0, None) => {
            Err(ImageError::Unsupported { what: what.to_owned(), why: "the archive contains no image".into() })
        }
        (count, _) => {
            let names: Vec<&str> =
                images.iter().flat_map(|image| &image.repo_tags).flatten().map(|name| &**name).collect();
            Err(several(count, &names, ImportFormat::DockerArchive, what))
        }
    }
}

/// Creates a layer's descriptor. Computes the digest, because archives of `docker save` declare none.
fn describe(mut section: Section, name: &str) -> Result<serde_json::Value, ImageError> {
    let failed = |error| ImageError::io("read", name, error);
    section.check_not_sparse(name)?;
    let mut hasher = Hasher::new(Algorithm::Sha256);
    let mut buffer = vec![0; 256 << 10];
    let (mut size, mut media_type) = (0u64, "");
    let mut reader = section.reader().map_err(failed)?;
    loop {
        let n = reader.read(&mut buffer).map_err(failed)?;
        if n == 0 {
            break;
        }
        if size == 0 {
            media_type = manifest::sniff_media_type(&buffer[..n]);
        }
        hasher.update(&buffer[..n]);
        size += n as u64;
    }
    let digest: Digest = hasher.finish();
    Ok(serde_json::json!({"mediaType": media_type, "digest": digest.to_string(), "size": size}))
}
