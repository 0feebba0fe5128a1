//! Reads the software bills of materials (SBOMs) of an image. Cloud Native Buildpacks store SBOMs in a separate layer
//! (rule 6 of `docs/guides/conventions.md`).

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_core::image::Digest;
use executor_tar::{Limits, Reader, TarError};
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use serde::Deserialize;
use serde_json::Value;

use crate::context::Bom;

/// Maximum size of the SBOM layer as stored in the registry, in bytes.
pub const LAYER_MAX: u64 = 32 << 20;
/// Maximum total size of an image's SBOMs, and of the unpacked layer, in bytes.
pub const BYTES_MAX: u64 = 32 << 20;
/// Maximum number of SBOMs per image, and of entries in the SBOM layer.
pub const BOMS_MAX: u64 = 1000;
/// Label with the layer's diffID.
const LABEL: &str = "io.buildpacks.app.sbom";
/// Label with the metadata of the build, which also contains the diffID.
const METADATA: &str = "io.buildpacks.lifecycle.metadata";
/// Prefix of an SBOM's name; the path of the file follows.
const PREFIX: &str = "cnb-app";

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    sbom: Option<Layer>,
    bom: Option<Layer>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Layer {
    sha: String,
}

/// Returns the diffID of the SBOM layer; `None` if the image's configuration names no such layer.
///
/// # Errors
/// Returns an error if a label is malformed.
pub fn layer(configuration: &Value) -> Result<Option<Digest>, String> {
    let labels = &configuration["config"]["Labels"];
    let label = |name: &str| labels.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let named = match (label(LABEL), label(METADATA)) {
        (Some(diff_id), _) => Some(diff_id.to_owned()),
        (None, Some(metadata)) => {
            let metadata: Metadata = serde_json::from_str(metadata)
                .map_err(|_| format!("the label {METADATA} is not valid lifecycle metadata in JSON"))?;
            let shas = [metadata.sbom, metadata.bom].into_iter().flatten().map(|layer| layer.sha);
            shas.into_iter().find(|sha| !sha.is_empty())
        }
        (None, None) => None,
    };
    let parse = |text: String| text.parse().map_err(|bad| format!("the diffID of the SBOM layer {bad}"));
    named.map(parse).transpose()
}

/// Reads the SBOMs in a layer. Each regular file is an SBOM.
///
/// # Errors
/// Returns an error if the layer cannot be read or exceeds a limit.
pub fn read(layer: &[u8]) -> Result<Vec<Bom>, String> {
    let reader: Box<dyn Read + '_> = match layer {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(layer)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            Box::new(StreamingDecoder::new(layer).map_err(|error| format!("the SBOM layer cannot be read: {error}"))?)
        }
        plain => Box::new(plain),
    };
    let wrong = |error: TarError| format!("the SBOM layer cannot be read: {error}");
    let limits = Limits { bytes: BYTES_MAX, file_bytes: BYTES_MAX, entries: BOMS_MAX, ..Limits::default() };
    let mut archive = Reader::new(reader, limits);
    let mut boms = Vec::new();
    while let Some(entry) = archive.next_entry().map_err(wrong)? {
        if !entry.is_plain_file() {
            continue;
        }
        let path = String::from_utf8_lossy(&entry.path);
        let mut raw = Vec::new();
        archive.plain_content().read_to_end(&mut raw).map_err(|error| wrong(TarError::Read(error)))?;
        boms.push(Bom { name: format!("{PREFIX}:{path}"), raw: STANDARD.encode(raw) });
    }
    Ok(boms)
}
