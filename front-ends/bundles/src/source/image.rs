//! Reads the files of an image in an OCI layout, in a tar archive of a layout, or in the format of `docker save`.
//!
//! Each layer is verified by its digest, then applied in order, with whiteouts. Links and devices are skipped: they occur
//! in images that are based on an operating system, but bundles and catalogs do not need them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use executor_tar::Kind;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::archive::Archive;
use super::{DIRECTORY_MAX, Files, Sink, SourceError, archive, memory_dir, name_within};

/// Maximum size of a manifest, index or configuration, in bytes.
const DOCUMENT_MAX: u64 = 4 << 20;
/// Maximum number of layers of an image.
const LAYERS_MAX: usize = 128;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Manifest {
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Configuration {
    config: Option<Inner>,
    #[serde(default)]
    rootfs: RootFs,
}

#[derive(Default, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inner {
    labels: Option<BTreeMap<String, String>>,
}

/// Reads the files of an image into the sink. Returns the labels and the digest that pins the image.
pub(super) fn open(path: &Path, name: Option<&str>, sink: &mut Sink) -> Result<Files, SourceError> {
    let unpacked;
    let root = if path.is_dir() {
        path
    } else {
        // Unpack the archive first, because layers may precede the manifest. The layers themselves are not unpacked to
        // disk.
        unpacked = unpack_archive(path)?;
        unpacked.path()
    };
    if root.join("index.json").is_file() { layout(root, name, sink) } else { saved(root, name, sink) }
}

/// Unpacks an archive of an image into a temporary directory.
fn unpack_archive(path: &Path) -> Result<tempfile::TempDir, SourceError> {
    let dir = memory_dir()?;
    let mut bytes = 0;
    let mut entries = archive::open(path)?;
    while let Some((name, entry)) = archive::next(&mut entries, path)? {
        if !entry.is_plain_file() || name.is_empty() {
            continue;
        }
        let to = dir.path().join(name);
        let failed = |error| SourceError::Write(to.clone(), error);
        std::fs::create_dir_all(to.parent().unwrap_or(dir.path())).map_err(failed)?;
        let mut file = File::create(&to).map_err(failed)?;
        let content = &mut entries.plain_content().take(DIRECTORY_MAX + 1 - bytes);
        bytes += io::copy(content, &mut file).map_err(failed)?;
        if bytes > DIRECTORY_MAX {
            return Err(SourceError::TooLarge(DIRECTORY_MAX));
        }
    }
    Ok(dir)
}

fn document(path: &Path) -> Result<Vec<u8>, SourceError> {
    let failed = |error| SourceError::Read(path.to_owned(), error);
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > DOCUMENT_MAX {
        return Err(SourceError::Image(format!(
            "{} is larger than the maximum of {DOCUMENT_MAX} bytes",
            path.display()
        )));
    }
    Ok(bytes)
}

fn parsed<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T, SourceError> {
    serde_json::from_slice(bytes)
        .map_err(|error| SourceError::Image(format!("the image's {what} is not valid: {error}")))
}

/// Returns the path of a blob; only SHA-256 is accepted.
fn blob(root: &Path, digest: &str) -> Result<PathBuf, SourceError> {
    match digest.split_once(':') {
        Some(("sha256", hex)) if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Ok(root.join("blobs/sha256").join(hex))
        }
        _ => Err(SourceError::Image(format!("the digest {digest:?} is not a SHA-256 digest"))),
    }
}

/// Reads a document by its digest, and verifies the digest.
fn checked(root: &Path, digest: &str) -> Result<Vec<u8>, SourceError> {
    let bytes = document(&blob(root, digest)?)?;
    if format!("sha256:{}", hex::encode(Sha256::digest(&bytes))) == digest {
        Ok(bytes)
    } else {
        Err(SourceError::Image(format!("the content of the blob {digest} does not match its digest")))
    }
}

fn layout(root: &Path, name: Option<&str>, sink: &mut Sink) -> Result<Files, SourceError> {
    const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];
    let bytes = document(&root.join("index.json"))?;
    let index: Manifest = parsed("index.json", &bytes)?;
    let called = |it: &&Descriptor| match name {
        None => true,
        Some(name) => {
            it.digest == name || NAMES.iter().any(|key| it.annotations.get(*key).is_some_and(|value| value == name))
        }
    };
    let mut found: Vec<&Descriptor> = index.manifests.iter().filter(called).collect();
    if found.len() > 1 {
        found.retain(|it| it.platform.as_ref().is_none_or(is_ours));
    }
    let [descriptor] = found[..] else {
        let names: Vec<&str> =
            index.manifests.iter().flat_map(|it| it.annotations.get(NAMES[0])).map(String::as_str).collect();
        return Err(SourceError::Image(format!(
            "{} has {} matching images; name one of: {}",
            root.display(),
            found.len(),
            names.join(", ")
        )));
    };
    let (pin, mut bytes) = (descriptor.digest.clone(), checked(root, &descriptor.digest)?);
    let mut manifest: Manifest = parsed("manifest", &bytes)?;
    // If the manifest is an index, select the manifest for this platform. Nested indexes are not supported.
    if !manifest.manifests.is_empty() {
        let inner = manifest.manifests.iter().find(|it| it.platform.as_ref().is_none_or(is_ours));
        let inner =
            inner.ok_or_else(|| SourceError::Image("the image has no manifest for this platform".to_owned()))?;
        bytes = checked(root, &inner.digest)?;
        manifest = parsed("manifest", &bytes)?;
    }
    let labels = match &manifest.config {
        Some(config) => labels(&checked(root, &config.digest)?),
        None => BTreeMap::new(),
    };
    check_count(manifest.layers.len())?;
    for layer in &manifest.layers {
        let path = blob(root, &layer.digest)?;
        if layer.media_type.ends_with("zstd") {
            return Err(SourceError::Image("a layer is compressed with zstd, which is not supported".to_owned()));
        }
        let failed = |error| SourceError::Read(path.clone(), error);
        check_layer(File::open(&path).map_err(failed)?, &layer.digest, &path)?;
        apply(&path, sink)?;
    }
    Ok(Files { labels, pin: Some(pin), ..Files::default() })
}

fn is_ours(platform: &Platform) -> bool {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    platform.os == "linux" && platform.architecture == architecture
}

fn labels(configuration: &[u8]) -> BTreeMap<String, String> {
    let configuration: Configuration = serde_json::from_slice(configuration).unwrap_or_default();
    configuration.config.and_then(|it| it.labels).unwrap_or_default()
}

/// Reads an archive of `docker save`, whose manifest names files of the archive.
fn saved(root: &Path, name: Option<&str>, sink: &mut Sink) -> Result<Files, SourceError> {
    let bytes = document(&root.join("manifest.json"))?;
    let images: Vec<Saved> = parsed("manifest.json", &bytes)?;
    let called = |it: &&Saved| name.is_none_or(|name| it.repo_tags.iter().flatten().any(|tag| tag == name));
    let found: Vec<&Saved> = images.iter().filter(called).collect();
    let [image] = found[..] else {
        return Err(SourceError::Image(format!("the archive has {} matching images; name exactly one", found.len())));
    };
    let configuration = document(&root.join(name_within(image.config.as_bytes())?))?;
    let Configuration { rootfs, .. } = parsed("configuration", &configuration)?;
    check_count(image.layers.len())?;
    if rootfs.diff_ids.len() != image.layers.len() {
        return Err(SourceError::Image(format!(
            "the image has {} layers, but its configuration lists {} diff_ids",
            image.layers.len(),
            rootfs.diff_ids.len()
        )));
    }
    // The pin is the digest of the configuration, so the configuration must identify the layers.
    for (layer, diff_id) in image.layers.iter().zip(&rootfs.diff_ids) {
        let path = root.join(name_within(layer.as_bytes())?);
        let failed = |error| SourceError::Read(path.clone(), error);
        check_layer(File::open(&path).and_then(archive::decompressed).map_err(failed)?, diff_id, &path)?;
        apply(&path, sink)?;
    }
    let pin = format!("sha256:{}", hex::encode(Sha256::digest(&configuration)));
    Ok(Files { labels: labels(&configuration), pin: Some(pin), ..Files::default() })
}

fn check_count(layers: usize) -> Result<(), SourceError> {
    if layers > LAYERS_MAX {
        return Err(SourceError::Image(format!("the image has {layers} layers; the maximum is {LAYERS_MAX}")));
    }
    Ok(())
}

/// Returns an error if the content does not have the digest, or is too large.
fn check_layer(content: impl Read, digest: &str, path: &Path) -> Result<(), SourceError> {
    let mut hasher = io::BufWriter::new(Hasher(Sha256::new()));
    let bytes = io::copy(&mut content.take(2 * DIRECTORY_MAX + 1), &mut hasher)
        .map_err(|error| SourceError::Read(path.to_owned(), error))?;
    if bytes > 2 * DIRECTORY_MAX {
        return Err(SourceError::TooLarge(2 * DIRECTORY_MAX));
    }
    let hasher = hasher.into_inner().map_err(|error| SourceError::Read(path.to_owned(), error.into_error()))?;
    if format!("sha256:{}", hex::encode(hasher.0.finalize())) == digest {
        return Ok(());
    }
    Err(SourceError::Image(format!("the content of the layer {digest} does not match its digest")))
}

fn apply(path: &Path, sink: &mut Sink) -> Result<(), SourceError> {
    apply_archive(path, archive::open(path)?, sink)
}

fn apply_archive(path: &Path, mut layer: Archive, sink: &mut Sink) -> Result<(), SourceError> {
    while let Some((name, entry)) = archive::next(&mut layer, path)? {
        let (directory, leaf) = name.rsplit_once('/').unwrap_or(("", &name));
        if leaf == ".wh..wh..opq" {
            sink.remove(directory, true)?;
        } else if let Some(removed) = leaf.strip_prefix(".wh.") {
            let removed = if directory.is_empty() { removed.to_owned() } else { format!("{directory}/{removed}") };
            sink.remove(&removed, false)?;
        } else if entry.is_plain_file() {
            sink.file(&name, &mut layer.plain_content())?;
        } else if entry.kind == Kind::Directory && !name.is_empty() {
            sink.directory_entry(&name)?;
        }
    }
    Ok(())
}

struct Hasher(Sha256);

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the files of an image from its layers into memory or into a directory. The lowest layer is first. The caller
/// has fetched and verified the layers.
///
/// # Errors
/// Returns an error if a layer is broken, too large, or has an unsupported compression.
pub fn from_layers(layers: Vec<File>, to: Option<&Path>) -> Result<Files, SourceError> {
    let mut sink = to.map_or_else(Sink::memory, Sink::directory);
    let path = Path::new("a layer");
    for layer in layers {
        let layer = archive::from_file(layer).map_err(|error| SourceError::Read(path.to_owned(), error))?;
        apply_archive(path, layer, &mut sink)?;
    }
    Ok(sink.into_files(Files::default()))
}

/// Returns the labels of an image from its configuration.
pub fn labels_of(configuration: &[u8]) -> BTreeMap<String, String> {
    labels(configuration)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layers of an archive of `docker save` are identified by its configuration, like the pin of the image.
    #[test]
    fn saved_image_with_other_layers_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let layer = |text: &[u8]| {
            let mut tar = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_ustar();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, "manifests/a.yaml", text).unwrap();
            tar.into_inner().unwrap()
        };
        let digest = |bytes: &[u8]| format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        let read = |layers: usize| {
            let names = vec!["layer.tar"; layers];
            write(
                "manifest.json",
                serde_json::json!([{"Config": "config.json", "Layers": names}]).to_string().as_bytes(),
            );
            let ids = vec![digest(&layer(b"a: 1")); layers.min(LAYERS_MAX)];
            write("config.json", serde_json::json!({"rootfs": {"diff_ids": ids}}).to_string().as_bytes());
            let mut sink = Sink::memory();
            open(dir.path(), None, &mut sink).map(|files| sink.into_files(files))
        };
        write("layer.tar", &layer(b"a: 1"));
        assert_eq!(read(1).unwrap().files["manifests/a.yaml"], b"a: 1");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&layer(b"a: 1")).unwrap();
        write("layer.tar", &gzip.finish().unwrap());
        assert_eq!(read(LAYERS_MAX).unwrap().files["manifests/a.yaml"], b"a: 1");
        let refused = |layers| read(layers).err().unwrap().to_string();
        assert_eq!(refused(LAYERS_MAX + 1), "the image has 129 layers; the maximum is 128");
        write("layer.tar", &layer(b"a: 2"));
        assert!(refused(1).ends_with("does not match its digest"), "{}", refused(1));
        write("config.json", b"{}");
        let mut sink = Sink::memory();
        let error = open(dir.path(), None, &mut sink).err().unwrap().to_string();
        assert_eq!(error, "the image has 1 layers, but its configuration lists 0 diff_ids");
    }
}
