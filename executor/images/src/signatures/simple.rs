//! Reads cosign's simple signing format (cosign, `specs/SIGNATURE_SPEC.md`): a layer with a payload that names a
//! manifest's digest, and an annotation of the layer with the signature.

use executor_core::text::printable;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_core::image::Digest;
use serde::Deserialize;

use super::Signed;

/// Media type of a layer that contains a payload.
pub(super) const MEDIA_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Annotation that contains the signature of a payload.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Required value of the field `type` of a payload.
const TYPE: &str = "cosign container image signature";

#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    #[serde(default)]
    identity: Identity,
    image: Image,
    r#type: String,
}

#[derive(Default, Deserialize)]
struct Identity {
    #[serde(rename = "docker-reference", default)]
    reference: String,
}

#[derive(Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

/// Returns the signature of a layer if the signature is for this digest.
pub(super) fn read(
    payload: Vec<u8>,
    annotations: &BTreeMap<String, String>,
    digest: &Digest,
) -> Result<Signed, String> {
    let signature = annotations.get(SIGNATURE).ok_or_else(|| format!("the layer has no annotation {SIGNATURE}"))?;
    let signature =
        STANDARD.decode(signature).map_err(|error| format!("annotation {SIGNATURE} is not base64: {error}"))?;
    let Payload { critical } =
        serde_json::from_slice(&payload).map_err(|error| format!("the payload is malformed: {error}"))?;
    if critical.r#type != TYPE {
        return Err("the payload is not a signature of an image".into());
    }
    if critical.image.digest != digest.to_string() {
        return Err(format!("the payload names another image, \"{}\"", printable(&critical.image.digest, 100)));
    }
    let name = Some(critical.identity.reference).filter(|name| !name.is_empty());
    Ok(Signed { message: payload, signatures: vec![signature], name })
}
