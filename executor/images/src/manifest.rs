//! Detects the type of a document, manifest or index, and reads the relevant fields.
//!
//! The OCI format and Docker's format (version 2, schema 2) differ only in names. A document that could be read as
//! either type is refused, because an earlier checker may have read it as the other type.

use executor_core::image::{Algorithm, Digest, LAYERS_MAX, read_configuration};
use executor_core::text::printable;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use serde::Deserialize;

use crate::error::ImageError;
use crate::platform::{self, Host};
use crate::record::LayerRecord;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Media types that are requested from a registry.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// Media types of layers that are passed to the layer store, as OCI spells them.
const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
const TAR_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const TAR_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

/// A parsed document from a registry or layout.
pub(crate) enum Manifest {
    Image(Box<ImageManifest>),
    Index(Box<ImageIndex>),
}

/// Fields that distinguish manifests from indexes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline {
    schema_version: u64,
    media_type: Option<String>,
    config: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
    manifests: Option<serde::de::IgnoredAny>,
}

/// Parses a document. `content_type` is the media type that the source declares, or empty.
pub(crate) fn parse(bytes: &[u8], content_type: &str, what: &str) -> Result<Manifest, ImageError> {
    let malformed = |why: String| ImageError::Malformed { what: what.to_owned(), why };
    let outline: Outline = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    if outline.schema_version != 2 {
        let why = format!("schema version {} is not supported; only 2 is supported", outline.schema_version);
        return Err(ImageError::Unsupported { what: what.to_owned(), why });
    }
    let said = outline.media_type.as_deref().unwrap_or(content_type);
    let is_index = match (outline.manifests.is_some(), outline.layers.is_some() || outline.config.is_some()) {
        (true, true) => return Err(malformed("the document has both manifests and layers".into())),
        (false, false) => return Err(malformed("the document has neither manifests nor layers".into())),
        (is_index, _) => is_index,
    };
    let fits = match said {
        OCI_INDEX | DOCKER_LIST => is_index,
        OCI_MANIFEST | DOCKER_MANIFEST => !is_index,
        // Some registries serve documents without a specific type.
        "" | "application/json" | "application/octet-stream" | "text/plain" => true,
        other => {
            let why = format!("media type \"{}\" is not supported", printable(other, 100));
            return Err(ImageError::Unsupported { what: what.to_owned(), why });
        }
    };
    if !fits {
        return Err(malformed(format!("the media type is {said}, but the content has another type")));
    }
    let read = |error: serde_json::Error| malformed(error.to_string());
    Ok(match is_index {
        true => Manifest::Index(Box::new(serde_json::from_slice(bytes).map_err(read)?)),
        false => Manifest::Image(Box::new(serde_json::from_slice(bytes).map_err(read)?)),
    })
}

pub(crate) fn digest_and_size(descriptor: &Descriptor, what: &str) -> Result<(Digest, u64), ImageError> {
    let digest = descriptor.digest().to_string().parse::<Digest>();
    let digest =
        digest.map_err(|bad| ImageError::Malformed { what: what.to_owned(), why: format!("a digest {bad}") })?;
    Ok((digest, descriptor.size()))
}

/// Checks that an image has at least one layer, and not too many.
pub(crate) fn check_layer_count(count: usize, what: &str) -> Result<(), ImageError> {
    let why = match count {
        0 => "the image has no layers".to_owned(),
        1..=LAYERS_MAX => return Ok(()),
        _ => format!(
            "the image has {count} layers; the maximum is {LAYERS_MAX}: build it with fewer layers, for example with \
             `podman build --squash-all`"
        ),
    };
    Err(ImageError::Unsupported { what: what.to_owned(), why })
}

/// Returns the layers of a manifest, each with its diff id. Checks the limits on their number and size.
pub(crate) fn layers(
    manifest: &ImageManifest,
    configuration: &ImageConfiguration,
    most: u64,
    what: &str,
) -> Result<Vec<LayerRecord>, ImageError> {
    let malformed = |why: String| ImageError::Malformed { what: what.to_owned(), why };
    let (layers, diff_ids) = (manifest.layers(), configuration.rootfs().diff_ids());
    if layers.len() != diff_ids.len() {
        let (layers, diff_ids) = (layers.len(), diff_ids.len());
        return Err(malformed(format!("the manifest lists {layers} layers, but the configuration lists {diff_ids}")));
    }
    check_layer_count(layers.len(), what)?;
    let mut total = 0u64;
    let mut records = Vec::with_capacity(layers.len());
    for (descriptor, diff_id) in layers.iter().zip(diff_ids) {
        let (digest, size) = digest_and_size(descriptor, what)?;
        let diff_id: Digest = diff_id.parse().map_err(|bad| malformed(format!("a diffID {bad}")))?;
        if diff_id.algorithm() != Algorithm::Sha256 {
            let why =
                format!("the diffID of layer {digest} uses {}; only sha256 is supported", diff_id.algorithm().name());
            return Err(ImageError::Unsupported { what: what.to_owned(), why });
        }
        let media_type = layer_type(descriptor.media_type().as_ref()).ok_or_else(|| {
            let why = format!(
                "layer {digest} has the unsupported media type {:?}",
                printable(descriptor.media_type().as_ref(), 100)
            );
            ImageError::Unsupported { what: what.to_owned(), why }
        })?;
        total = total.saturating_add(size);
        records.push(LayerRecord { diff_id, digest, media_type: media_type.to_owned(), size });
    }
    if total > most {
        return Err(ImageError::TooLarge { what: what.to_owned(), is: total, most, unit: "bytes" });
    }
    Ok(records)
}

/// Returns a layer's media type as OCI spells it, or `None` if the type is unknown. The former non-distributable types
/// map to the ordinary type with the same compression (image specification 1.1, `manifest.md`: "MUST support"). Only
/// pushing such layers was restricted.
pub(crate) fn layer_type(media_type: &str) -> Option<&'static str> {
    match media_type {
        TAR
        | "application/vnd.docker.image.rootfs.diff.tar"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar" => Some(TAR),
        TAR_GZIP
        | "application/vnd.docker.image.rootfs.diff.tar.gzip"
        | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip" => Some(TAR_GZIP),
        TAR_ZSTD
        | "application/vnd.docker.image.rootfs.diff.tar.zstd"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd" => Some(TAR_ZSTD),
        _ => None,
    }
}

/// Detects the compression of a layer from its first bytes.
pub(crate) fn sniff_media_type(head: &[u8]) -> &'static str {
    match head {
        [0x1f, 0x8b, ..] => TAR_GZIP,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => TAR_ZSTD,
        _ => TAR,
    }
}

/// Returns true if the manifest's configuration has the type of an image configuration. Signatures and other artifacts
/// have other types.
pub(crate) fn is_image(manifest: &ImageManifest) -> bool {
    const TYPES: [&str; 2] =
        ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
    TYPES.contains(&manifest.config().media_type().as_ref())
}

/// Parses a configuration and checks that the image runs on this host.
pub(crate) fn configuration(bytes: &[u8], host: &Host, what: &str) -> Result<ImageConfiguration, ImageError> {
    let configuration = read_configuration(bytes).map_err(|error| ImageError::Malformed {
        what: format!("the configuration of {what}"),
        why: error.to_string(),
    })?;
    let (os, arch, variant) = (configuration.os(), configuration.architecture(), configuration.variant().as_deref());
    if host.rank(os, arch, variant).is_none() {
        return Err(ImageError::NoPlatform {
            what: what.to_owned(),
            wanted: host.to_string(),
            there: vec![platform::to_text(os, arch, variant)],
        });
    }
    Ok(configuration)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn descriptor(media_type: &str, size: u64) -> String {
        format!(r#"{{"mediaType":"{media_type}","digest":"sha256:{HEX}","size":{size}}}"#)
    }

    fn image(layers: &[String]) -> String {
        let config = descriptor("application/vnd.oci.image.config.v1+json", 2);
        format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, layers.join(","))
    }

    fn configured(count: usize) -> ImageConfiguration {
        let diff_ids: Vec<String> = (0..count).map(|_| format!("\"sha256:{HEX}\"")).collect();
        let json = format!(
            r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
            diff_ids.join(",")
        );
        serde_json::from_str(&json).unwrap()
    }

    fn parse_layers(layers: &[String], diff_ids: usize) -> Result<Vec<LayerRecord>, ImageError> {
        let Manifest::Image(manifest) = parse(image(layers).as_bytes(), "", "x")? else { panic!("no image") };
        super::layers(&manifest, &configured(diff_ids), 1000, "x")
    }

    #[test]
    fn document_of_ambiguous_type_is_refused() {
        let index = r#"{"schemaVersion":2,"manifests":[]}"#;
        assert!(matches!(parse(index.as_bytes(), OCI_INDEX, "x"), Ok(Manifest::Index(_))));
        assert!(matches!(parse(image(&[]).as_bytes(), DOCKER_MANIFEST, "x"), Ok(Manifest::Image(_))));
        let bad = [
            (r#"{"schemaVersion":1,"manifests":[]}"#, ""),
            (r#"{"schemaVersion":2,"manifests":[],"layers":[]}"#, ""),
            (r#"{"schemaVersion":2}"#, ""),
            (index, OCI_MANIFEST),
            (
                r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","manifests":[]}"#,
                OCI_INDEX,
            ),
            (r#"{"schemaVersion":2,"mediaType":"application/vnd.example","manifests":[]}"#, ""),
            ("[]", ""),
            ("", ""),
        ];
        for (json, content_type) in bad {
            assert!(parse(json.as_bytes(), content_type, "x").is_err(), "{json}");
        }
    }

    #[test]
    fn nondistributable_layers_are_accepted() {
        for (kind, expected) in [
            ("application/vnd.oci.image.layer.nondistributable.v1.tar", TAR),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", TAR_GZIP),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", TAR_ZSTD),
            ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", TAR_GZIP),
        ] {
            assert_eq!(parse_layers(&[descriptor(kind, 10)], 1).unwrap()[0].media_type, expected, "{kind}");
        }
    }

    #[test]
    fn layers_are_limited_in_number_size_type() {
        let (gzip, unknown) = (descriptor(TAR_GZIP, 10), "application/vnd.oci.image.layer.v2.tar");
        let docker = descriptor("application/vnd.docker.image.rootfs.diff.tar.gzip", 990);
        let both = parse_layers(&[gzip.clone(), docker.clone()], 2).unwrap();
        assert!(both.iter().all(|layer| layer.media_type == TAR_GZIP));
        assert!(matches!(
            parse_layers(&[gzip.clone(), docker.clone(), gzip.clone()], 3),
            Err(ImageError::TooLarge { is: 1010, .. })
        ));
        assert!(matches!(parse_layers(&[descriptor(TAR, u64::MAX), docker], 2), Err(ImageError::TooLarge { .. })));
        assert!(matches!(parse_layers(std::slice::from_ref(&gzip), 2), Err(ImageError::Malformed { .. })));
        assert!(matches!(parse_layers(&[], 0), Err(ImageError::Unsupported { .. })));
        assert!(matches!(parse_layers(&[descriptor(unknown, 1)], 1), Err(ImageError::Unsupported { .. })));
        let many = vec![descriptor(TAR, 1); LAYERS_MAX + 1];
        let error = parse_layers(&many, LAYERS_MAX + 1).unwrap_err();
        assert!(error.to_string().contains("the image has 128 layers; the maximum is 127"), "{error}");
    }
}
