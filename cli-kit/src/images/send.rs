//! Uploads images to executord as archives, for `image import` and for local images that the caller can read but
//! executord cannot.
//!
//! An OCI layout is uploaded as an archive of its index and the blobs that the image may need.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use executor_client::v1::import_header::Form;
use executor_client::v1::{self, ImportHeader};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::failure::Failure;
use crate::session::Session;
use crate::status::ErrorContext as _;
use crate::text::plain;

/// Maximum size of an upload message, in bytes.
const PIECE: usize = 256 << 10;
/// Maximum number of queued messages.
const DEPTH: usize = 4;
/// Maximum size of an index or manifest, in bytes, as in executord.
const DOCUMENT_MAX: u64 = 4 << 20;
/// Maximum number of blobs of a layout.
const BLOBS_MAX: usize = 10_000;
/// Annotations with the name of an index entry (image-spec; containerd).
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

/// An image on this machine's disk.
pub struct OnDisk {
    form: Form,
    is_layout: bool,
    path: PathBuf,
    /// Name of the image in its archive or layout; empty if there is only one image.
    name: String,
}

impl OnDisk {
    /// Parses a reference; `None` if it does not name a file or directory.
    pub fn from_reference(reference: &str) -> Option<Self> {
        let (scheme, rest) = reference.split_once(':')?;
        let (form, is_layout) = match scheme {
            "oci" => (Form::OciArchive, true),
            "oci-archive" => (Form::OciArchive, false),
            "docker-archive" => (Form::DockerArchive, false),
            _ => return None,
        };
        let (path, name) = rest.split_once(':').unwrap_or((rest, ""));
        Some(Self { form, is_layout, path: path.into(), name: name.to_owned() })
    }

    /// Returns true if this process can open the image's first file.
    fn is_readable(&self) -> bool {
        let first = if self.is_layout { self.path.join("index.json") } else { self.path.clone() };
        File::open(first).is_ok()
    }

    fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        match self.is_layout {
            true => layout(&self.path, &self.name, to),
            false => io::copy(&mut File::open(&self.path)?, to).map(drop),
        }
    }
}

/// Returns the image `reference` on disk if executord could not read it (`failure`), but the caller can.
pub(super) fn upload_candidate(failure: &Failure, reference: &str) -> Option<OnDisk> {
    let unreadable = |reason: &str| matches!(reason, "ACCESS_DENIED" | "NOT_FOUND");
    let is_unreadable = failure.violations().iter().any(|violation| unreadable(&violation.reason));
    OnDisk::from_reference(reference).filter(|image| is_unreadable && image.is_readable())
}

/// Uploads a local image, under the name `reference`.
pub(super) async fn send(session: &Session, image: OnDisk, reference: &str) -> Result<v1::Image, Failure> {
    let shown = plain(reference);
    session.output.note(format!("executord cannot read {shown}: uploading the image"));
    let header = ImportHeader { form: image.form.into(), reference: reference.to_owned(), image: image.name.clone() };
    upload(session, &format!("upload {shown}"), header, move |to| image.write(to)).await
}

/// Uploads an archive while `fill` writes it. Returns the imported image.
pub async fn upload(
    session: &Session,
    doing: &str,
    header: ImportHeader,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Result<v1::Image, Failure> {
    let (sender, receiver) = mpsc::channel(DEPTH);
    // Use a separate thread, because `fill` blocks: it may read a pipe.
    let sent = tokio::task::spawn_blocking(move || {
        let mut to = BufWriter::with_capacity(PIECE, Pieces(sender));
        fill(&mut to)?;
        to.flush()
    });
    let answer = session.client.images().import(header, ReceiverStream::new(receiver)).await;
    let sent = sent.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    match sent {
        // If executord closes the stream, its response has the reason.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Usage(format!("{doing}: {error}"))),
        _ => answer.doing(doing),
    }
}

/// A writer that sends each piece of bytes to a queue.
pub struct Pieces(pub mpsc::Sender<Vec<u8>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        self.0.blocking_send(piece.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a layout as an archive. Missing blobs are skipped, because images of other platforms may be missing.
fn layout(directory: &Path, name: &str, to: &mut dyn Write) -> io::Result<()> {
    let mut tar = tar::Builder::new(to);
    let index = document(directory, "index.json")?;
    for name in ["oci-layout", "index.json"] {
        append(&mut tar, directory, name)?;
    }
    let mut open = descriptors(&index, name);
    let mut seen = BTreeSet::new();
    while let Some(digest) = open.pop() {
        let Some(path) = blob(&digest) else { continue };
        if !seen.insert(digest) || !directory.join(&path).exists() {
            continue;
        }
        if seen.len() > BLOBS_MAX {
            return Err(io::Error::other(format!("{} has more than {BLOBS_MAX} blobs", directory.display())));
        }
        append(&mut tar, directory, &path)?;
        // Layers and configurations reference no other blobs.
        if let Ok(manifest) = document(directory, &path) {
            open.extend(descriptors(&manifest, ""));
        }
    }
    tar.finish()
}

fn append(tar: &mut tar::Builder<&mut dyn Write>, directory: &Path, name: &str) -> io::Result<()> {
    let with_path = |error: io::Error| about(&error, &directory.join(name));
    let file = File::open(directory.join(name)).map_err(with_path)?;
    let metadata = file.metadata().map_err(with_path)?;
    if !metadata.is_file() {
        return Err(with_path(io::Error::other("not a regular file")));
    }
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(metadata.len());
    header.set_mode(0o644);
    header.set_mtime(0);
    tar.append_data(&mut header, name, file.take(metadata.len()))
}

/// Adds a path to an error, keeping its kind.
fn about(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Reads an index or a manifest.
fn document(directory: &Path, name: &str) -> io::Result<Value> {
    let path = directory.join(name);
    let mut bytes = Vec::new();
    let file = File::open(&path).map_err(|error| about(&error, &path))?;
    if file.metadata()?.len() > DOCUMENT_MAX {
        return Err(io::Error::other(format!("{} is larger than the maximum of {DOCUMENT_MAX} bytes", path.display())));
    }
    file.take(DOCUMENT_MAX).read_to_end(&mut bytes).map_err(|error| about(&error, &path))?;
    serde_json::from_slice(&bytes).map_err(|error| about(&error.into(), &path))
}

/// Returns the digests in an index or a manifest. If `name` is not empty, skips index entries with other names. Skips
/// entries for other platforms if there are entries for this machine's platform.
fn descriptors(document: &Value, name: &str) -> Vec<String> {
    let list = |key: &str| document.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let called = |entry: &&Value| {
        let annotation = |key: &&str| entry.get("annotations")?.get(key)?.as_str();
        name.is_empty() || NAMES.iter().filter_map(annotation).any(|is| is == name)
    };
    let fits = |entry: &&Value| {
        let Some(platform) = entry.get("platform") else { return true };
        let ours = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        platform.get("os").is_none_or(|os| os == "linux")
            && platform.get("architecture").is_none_or(|arch| arch == ours)
    };
    let entries: Vec<&Value> = list("manifests").iter().filter(called).collect();
    let fitting: Vec<&Value> = entries.iter().copied().filter(fits).collect();
    let entries = if fitting.is_empty() { entries } else { fitting };
    let all = entries.into_iter().chain(document.get("config")).chain(list("layers"));
    all.filter_map(|entry| Some(entry.get("digest")?.as_str()?.to_owned())).collect()
}

/// Returns the path of a blob in a layout; `None` for an invalid digest.
fn blob(digest: &str) -> Option<String> {
    let (algorithm, hex) = digest.split_once(':')?;
    let safe = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (safe(algorithm) && safe(hex)).then(|| format!("blobs/{algorithm}/{hex}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn local_image_references_are_parsed() {
        let parts = |reference: &str| {
            let OnDisk { form, is_layout, path, name } = OnDisk::from_reference(reference)?;
            Some(format!("{} {is_layout} {} {name}", form.as_str_name(), path.display()))
        };
        assert_eq!(parts("oci:/a/b:1.0").as_deref(), Some("FORM_OCI_ARCHIVE true /a/b 1.0"));
        assert_eq!(parts("oci-archive:/a.tar").as_deref(), Some("FORM_OCI_ARCHIVE false /a.tar "));
        assert_eq!(parts("docker-archive:/a.tar:x:1").as_deref(), Some("FORM_DOCKER_ARCHIVE false /a.tar x:1"));
        for other in ["docker://a/b:1", "dir:/x", "host", "debian:12"] {
            assert_eq!(parts(other), None, "{other}");
        }
    }

    /// Only the blobs that the image needs are uploaded.
    #[test]
    fn layout_upload_contains_only_needed_blobs() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, content: String| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        let named = |digest: &str, name: &str| json!({"digest": digest, "annotations": {NAMES[0]: name}});
        put("oci-layout", "{}".into());
        put("index.json", json!({"manifests": [named("sha256:a", "one"), named("sha256:b", "two")]}).to_string());
        let own = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let of =
            |digest: &str, arch: &str| json!({"digest": digest, "platform": {"os": "linux", "architecture": arch}});
        put("blobs/sha256/a", json!({"manifests": [of("sha256:c", own), of("sha256:d", "s390x")]}).to_string());
        for name in ["b", "d"] {
            put(&format!("blobs/sha256/{name}"), "{}".into());
        }
        let layers =
            json!([{"digest": "sha256:f"}, {"digest": "sha256:gone"}, {"digest": "sha256:../../../etc/passwd"}]);
        put("blobs/sha256/c", json!({"config": {"digest": "sha256:e"}, "layers": layers}).to_string());
        put("blobs/sha256/e", "{}".into());
        put("blobs/sha256/f", "\u{1f}compressed".into());
        let sent = |name: &str| {
            let mut bytes = Vec::new();
            layout(dir.path(), name, &mut bytes).unwrap();
            let mut archive = tar::Archive::new(&*bytes);
            let names = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
            names.map(|name| name.replace("blobs/sha256/", "")).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(sent("one"), ["a", "c", "e", "f", "index.json", "oci-layout"]);
        assert_eq!(sent("two"), ["b", "index.json", "oci-layout"]);
        assert_eq!(sent("").len(), 7, "both images, for this machine");
        let missing = layout(Path::new("/nowhere"), "", &mut Vec::new()).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/index.json"), "{missing}");
    }
}
