//! Software bills of materials of an image, which Cloud Native Buildpacks store in a separate layer (rule 6).

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_core::image::Digest;
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use serde::Deserialize;
use serde_json::Value;

use crate::context::Bom;

/// Maximum size of the layer with bills as stored in the registry, in bytes.
pub const LAYER_MAX: u64 = 32 << 20;
/// Maximum total size of an image's bills, and of the unpacked layer, in bytes.
pub const BYTES_MAX: u64 = 32 << 20;
/// Maximum number of bills of an image, and of entries of the layer.
pub const BOMS_MAX: usize = 1000;
/// Label with the layer's diffID, and the metadata label that has it as well.
const LABEL: &str = "io.buildpacks.app.sbom";
const METADATA: &str = "io.buildpacks.lifecycle.metadata";
/// Prefix of the path of each file.
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

/// Returns the diffID of the layer with the bills; `None` if the image's configuration names no such layer.
///
/// # Errors
/// Returns an error if a label exists and is malformed.
pub fn layer(configuration: &Value) -> Result<Option<Digest>, String> {
    let labels = &configuration["config"]["Labels"];
    let label = |name: &str| labels.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let named = match (label(LABEL), label(METADATA)) {
        (Some(diff_id), _) => Some(diff_id.to_owned()),
        (None, Some(metadata)) => {
            let metadata: Metadata = serde_json::from_str(metadata)
                .map_err(|_| format!("its label {METADATA} is not the JSON of a lifecycle"))?;
            let shas = [metadata.sbom, metadata.bom].into_iter().flatten().map(|layer| layer.sha);
            shas.into_iter().find(|sha| !sha.is_empty())
        }
        (None, None) => None,
    };
    let parse = |text: String| text.parse().map_err(|bad| format!("the diffID of its layer with SBOMs {bad}"));
    named.map(parse).transpose()
}

/// Reads the bills of a layer: its regular files.
///
/// # Errors
/// Returns an error if the layer cannot be read or exceeds a limit.
pub fn read(layer: &[u8]) -> Result<Vec<Bom>, String> {
    let reader: Box<dyn Read + '_> = match layer {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(layer)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            Box::new(StreamingDecoder::new(layer).map_err(|error| format!("its layer with SBOMs: {error}"))?)
        }
        plain => Box::new(plain),
    };
    let wrong = |error: std::io::Error| format!("its layer with SBOMs cannot be read: {error}");
    let too_large = || format!("its SBOMs have more than {BYTES_MAX} bytes");
    let mut archive = tar::Archive::new(Bounded { reader, left: BYTES_MAX });
    let mut boms = Vec::new();
    for (index, entry) in archive.entries().map_err(wrong)?.enumerate() {
        if index >= BOMS_MAX {
            return Err(format!("its layer with SBOMs has more than {BOMS_MAX} entries"));
        }
        let mut entry = entry.map_err(wrong)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        if entry.size() > BYTES_MAX {
            return Err(too_large());
        }
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let mut raw = Vec::new();
        entry.read_to_end(&mut raw).map_err(wrong)?;
        boms.push(Bom { name: format!("{PREFIX}:{path}"), raw: STANDARD.encode(raw) });
    }
    Ok(boms)
}

/// A reader that fails beyond a number of bytes.
struct Bounded<R> {
    reader: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.left = self
            .left
            .checked_sub(read as u64)
            .ok_or_else(|| std::io::Error::other(format!("it has more than {BYTES_MAX} bytes unpacked")))?;
        Ok(read)
    }
}
