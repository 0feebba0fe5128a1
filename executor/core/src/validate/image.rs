//! Validates a resolved image, whose values reach the host's file system.

use super::ViolationReason::{InvalidFormat, TooMany, Unsuitable};
use super::{FieldFault, check_path, shorten};
use crate::image::{Algorithm, Digest};
use crate::limits::{LAYERS_MAX, PATH_MAX};
use crate::plan::PlannedImage;

/// Maximum number of volumes.
const VOLUMES_MAX: usize = 64;
/// Maximum number of labels.
const LABELS_MAX: usize = 1024;
/// Maximum total size of the labels, in bytes.
const LABEL_BYTES_MAX: usize = 256 << 10;

/// Checks an image; `text` is its reference in the request.
pub(super) fn check(text: &str, image: &PlannedImage) -> Result<(), FieldFault> {
    if text != image.reference {
        return Err(InvalidFormat.because(format!("\"{}\" is not the image that was resolved", shorten(text))));
    }
    check_parts(text, &image.digest, &image.layers)?;
    if image.volumes.len() > VOLUMES_MAX {
        return Err(TooMany
            .because(format!("the image has {} volumes; at most {VOLUMES_MAX} are allowed", image.volumes.len())));
    }
    for volume in &image.volumes {
        let shown = volume.display().to_string();
        check_path(&shown).map_err(|why| why.within("a volume of the image"))?;
        if !volume.is_absolute() || shown == "/" || ["/proc", "/sys", "/dev"].iter().any(|bad| volume.starts_with(bad))
        {
            return Err(Unsuitable.because(format!(
                "the image's volume `{}` must be an absolute path other than `/`, and not under /proc, /sys or /dev",
                shorten(&shown)
            )));
        }
    }
    let bytes: usize = image.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    if image.labels.len() > LABELS_MAX || bytes > LABEL_BYTES_MAX {
        let count = image.labels.len();
        let why = format!(
            "the image has {count} labels ({bytes} bytes); at most {LABELS_MAX} ({LABEL_BYTES_MAX} bytes) are allowed"
        );
        return Err(TooMany.because(why));
    }
    Ok(())
}

/// Checks the digests of an image, and the length of its reference.
pub(super) fn check_parts(reference: &str, digest: &str, layers: &[String]) -> Result<(), FieldFault> {
    if reference.is_empty() || reference.len() >= PATH_MAX {
        let why = format!("the reference is {} bytes; 1 to {} are allowed", reference.len(), PATH_MAX - 1);
        return Err(InvalidFormat.because(why));
    }
    if !is_sha256(digest) {
        let why = format!("the manifest's digest \"{}\" is not of the form `sha256:HEX`", shorten(digest));
        return Err(InvalidFormat.because(why));
    }
    if layers.is_empty() || layers.len() > LAYERS_MAX {
        let why = format!("the image has {} layers; 1 to {LAYERS_MAX} are allowed", layers.len());
        return Err(TooMany.because(why));
    }
    if let Some(layer) = layers.iter().find(|layer| !is_sha256(layer)) {
        return Err(
            InvalidFormat.because(format!("the layer's digest \"{}\" is not of the form `sha256:HEX`", shorten(layer)))
        );
    }
    Ok(())
}

fn is_sha256(text: &str) -> bool {
    text.parse().is_ok_and(|digest: Digest| digest.algorithm() == Algorithm::Sha256)
}
