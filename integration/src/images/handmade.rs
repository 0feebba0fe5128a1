//! Images in OCI layouts written byte by byte, for configurations and indexes that common build tools do not write.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// OCI layout that executord can read.
pub struct HandmadeLayout {
    dir: TempDir,
}

/// An uncompressed layer.
#[derive(Clone, Default)]
pub struct HandmadeLayer(Vec<(String, Item)>);

#[derive(Clone)]
enum Item {
    Directory,
    File(Vec<u8>),
    Symlink(String),
}

impl HandmadeLayer {
    /// Creates a layer with the static busybox, its most common names, and the directories that a container needs.
    pub fn busybox() -> Self {
        let rootfs = crate::rootfs::Rootfs::busybox();
        let program = fs::read(rootfs.path().join("bin/busybox")).expect("busybox");
        let mut layer = Self::default();
        for name in ["bin", "dev", "proc", "sys", "tmp"] {
            layer = layer.directory(name);
        }
        layer.0.push(("bin/busybox".into(), Item::File(program)));
        let programs = ["cat", "echo", "id", "ls", "pwd", "sh", "sleep", "stat", "touch", "true"];
        programs.iter().fold(layer, |layer, name| layer.symlink(&format!("bin/{name}"), "busybox"))
    }

    /// Adds a directory with mode 0755.
    pub fn directory(mut self, path: &str) -> Self {
        self.0.push((path.into(), Item::Directory));
        self
    }

    /// Adds a file with mode 0755.
    pub fn file(mut self, path: &str, content: &str) -> Self {
        self.0.push((path.into(), Item::File(content.as_bytes().to_vec())));
        self
    }

    pub fn symlink(mut self, path: &str, to: &str) -> Self {
        self.0.push((path.into(), Item::Symlink(to.into())));
        self
    }

    fn archive(&self) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (path, item) in &self.0 {
            let mut header = Header::new_ustar();
            header.set_path(path).expect("a short path");
            header.set_mode(0o755);
            let content: &[u8] = match item {
                Item::Directory => {
                    header.set_entry_type(EntryType::Directory);
                    &[]
                }
                Item::File(content) => content,
                Item::Symlink(to) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_link_name(to).expect("a short target");
                    &[]
                }
            };
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content).expect("append");
        }
        builder.into_inner().expect("an archive")
    }
}

impl HandmadeLayout {
    /// Creates a layout without images.
    #[allow(clippy::new_without_default)] // creates a directory
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        fs::create_dir_all(dir.path().join("blobs/sha256")).expect("mkdir");
        fs::write(dir.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write");
        Self { dir }
    }

    /// Creates a layout with one image for the architecture of this machine.
    pub fn from_image(config: &Value, layers: &[HandmadeLayer]) -> Self {
        let layout = Self::new();
        let manifest = layout.manifest(arch(), config, layers);
        layout.set_index(&[manifest]);
        layout
    }

    /// Adds an image and returns the descriptor of its manifest, without a platform. Sets the image's environment to
    /// `PATH=/bin`.
    pub fn manifest(&self, architecture: &str, config: &Value, layers: &[HandmadeLayer]) -> Value {
        let archives: Vec<Vec<u8>> = layers.iter().map(HandmadeLayer::archive).collect();
        let diff_ids: Vec<String> = archives.iter().map(|archive| digest(archive)).collect();
        let mut config = config.clone();
        config["Env"] = json!(["PATH=/bin"]);
        let configuration = json!({"architecture": architecture, "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        let layers: Vec<Value> =
            archives.iter().map(|archive| self.blob("application/vnd.oci.image.layer.v1.tar", archive)).collect();
        let configuration = self.blob("application/vnd.oci.image.config.v1+json", configuration.to_string().as_bytes());
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": configuration, "layers": layers});
        self.blob(MANIFEST, manifest.to_string().as_bytes())
    }

    /// Adds an index and returns its descriptor.
    pub fn index(&self, manifests: &[Value]) -> Value {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
        self.blob(INDEX, index.to_string().as_bytes())
    }

    /// Replaces the list of images in the layout.
    pub fn set_index(&self, manifests: &[Value]) {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        fs::write(self.dir.path().join("index.json"), index.to_string()).expect("write");
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Returns the reference of the layout's image for a request.
    pub fn reference(&self) -> String {
        format!("oci:{}", self.dir.path().display())
    }

    fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        fs::write(self.dir.path().join("blobs").join(digest.replace(':', "/")), bytes).expect("write");
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Returns the architecture of this machine as named in images.
pub fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
