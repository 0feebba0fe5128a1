//! Images created by other tools: umoci builds them, skopeo copies them, and Debian's docker-registry serves them.

mod app;
mod debian;
mod furnish;
mod gate;
mod handmade;
mod holding;
mod registry;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tempfile::TempDir;

pub use debian::CHANGED;
pub use furnish::{change, change_again, furnish, mode};
pub use gate::Gate;
pub use handmade::{HandmadeLayer, HandmadeLayout, arch};
pub use holding::Holding;
pub use registry::{PASSWORD, Registry, USER};

use crate::layers::Blob;

/// Image in an OCI layout, and the tree from which its next layer is created.
pub struct Image {
    /// Directory with the trees and archives, and with the layout unless the layout is shared.
    home: TempDir,
    layout: PathBuf,
    tag: String,
}

/// Server on loopback that behaves like a registry.
pub trait Endpoint {
    fn port(&self) -> u16;

    /// Returns the full reference of an image on this server.
    fn name(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port())
    }
}

/// Returns the value of the `Authorization` header for [`USER`].
fn basic() -> String {
    format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")))
}

/// Returns the content of a Docker `config.json` with the credentials of [`USER`].
pub fn auth_file(registry: &dyn Endpoint) -> String {
    let auth = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    format!(r#"{{"auths":{{"127.0.0.1:{}":{{"auth":"{auth}"}}}}}}"#, registry.port())
}

pub(crate) fn tool(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let done = done.unwrap_or_else(|error| panic!("{program}: {error} (`cargo xtask test` installs it)"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

impl Image {
    /// Creates an image without layers, tagged `1`, in a layout of its own.
    #[allow(clippy::new_without_default)] // external programs create files on disk
    pub fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let layout = home.path().join("layout");
        Self::made(home, layout, "1")
    }

    /// Creates an image without layers in a layout that other images may share.
    pub fn in_layout(layout: &Path, tag: &str) -> Self {
        Self::made(tempfile::tempdir().expect("a directory"), layout.to_owned(), tag)
    }

    fn made(home: TempDir, layout: PathBuf, tag: &str) -> Self {
        let image = Self { home, layout, tag: tag.into() };
        // executord reads layouts and archives with its own privileges.
        image.readable(true);
        if !image.layout.exists() {
            tool("umoci", &["init", "--layout", &image.layout.display().to_string()]);
        }
        tool("umoci", &["new", "--image", &image.tagged()]);
        tool("umoci", &["unpack", "--image", &image.tagged(), &image.path("bundle")]);
        image
    }

    /// Returns the name of the image for umoci: `LAYOUT:TAG`.
    fn tagged(&self) -> String {
        format!("{}:{}", self.layout.display(), self.tag)
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    /// Returns the tree from which the next layer is created.
    pub fn root(&self) -> PathBuf {
        self.home.path().join("bundle/rootfs")
    }

    /// Copies the content of a directory into the tree from which the next layer is created.
    pub fn copy(&self, from: &Path) {
        self.copy_to(from, "");
    }

    /// Copies the content of a directory into a directory of the tree from which the next layer is created.
    pub fn copy_to(&self, from: &Path, to: &str) {
        let to = self.root().join(to);
        fs::create_dir_all(&to).expect("mkdir");
        tool("cp", &["-a", &format!("{}/.", from.display()), &to.display().to_string()]);
    }

    /// Creates a layer from the changes in the tree since the last layer.
    pub fn commit(&self) {
        tool("umoci", &["repack", "--refresh-bundle", "--image", &self.tagged(), &self.path("bundle")]);
    }

    /// Adds an archive as a layer, unchanged.
    pub fn add(&self, archive: &[u8]) {
        let path = self.path("layer.tar");
        fs::write(&path, archive).expect("write");
        tool("umoci", &["raw", "add-layer", "--image", &self.tagged(), &path]);
    }

    /// Changes the image's configuration with options of umoci.
    pub fn config(&self, options: &[&str]) {
        tool("umoci", &[&["config", "--image", &self.tagged()], options].concat());
    }

    /// Unpacks the image with umoci and returns the tree.
    pub fn unpacked(&self) -> PathBuf {
        let fresh = self.home.path().join("fresh");
        if !fresh.exists() {
            tool("umoci", &["unpack", "--image", &self.tagged(), &self.path("fresh")]);
        }
        fresh.join("rootfs")
    }

    fn json(&self, digest: &str) -> Value {
        serde_json::from_slice(&fs::read(self.blob(digest)).expect("a blob")).expect("JSON")
    }

    fn blob(&self, digest: &str) -> PathBuf {
        self.layout.join("blobs").join(digest.replace(':', "/"))
    }

    /// Returns the digest of the image's manifest.
    pub fn digest(&self) -> String {
        let index = fs::read(self.layout.join("index.json")).expect("an index");
        let index: Value = serde_json::from_slice(&index).expect("JSON");
        let named = |entry: &&Value| entry["annotations"]["org.opencontainers.image.ref.name"] == *self.tag;
        let entry = index["manifests"].as_array().expect("a list").iter().find(named);
        entry.expect("the index has the tag")["digest"].as_str().expect("a digest").to_owned()
    }

    /// Returns the layers of the image, as stored in the layout.
    pub fn blobs(&self) -> Vec<Blob> {
        let manifest = self.json(&self.digest());
        let config = self.json(manifest["config"]["digest"].as_str().expect("a digest"));
        let layers = manifest["layers"].as_array().expect("a list").iter();
        let layers = layers.zip(config["rootfs"]["diff_ids"].as_array().expect("a list"));
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let blob = |(layer, diff_id): (&Value, &Value)| Blob {
            diff_id: text(diff_id),
            media_type: text(&layer["mediaType"]),
            file: File::open(self.blob(&text(&layer["digest"]))).expect("a blob"),
        };
        layers.map(blob).collect()
    }

    /// Makes the layout and the archives readable by all users if `open` is true, otherwise only by their owner.
    pub fn readable(&self, open: bool) {
        // umoci creates files that only their owner can read. The modes inside the trees are part of the image and stay
        // unchanged.
        let home = self.home.path();
        fs::set_permissions(home, fs::Permissions::from_mode(if open { 0o755 } else { 0o700 })).expect("chmod");
        let files = fs::read_dir(home).expect("a directory").flatten().map(|entry| entry.path());
        let archives = files.filter(|path| path.extension().is_some_and(|extension| extension == "tar"));
        let mode = if open { "a+rX" } else { "go-rwx" };
        for path in archives.chain([self.layout.clone()]).filter(|path| path.exists()) {
            tool("chmod", &["-R", mode, &path.display().to_string()]);
        }
    }

    /// Returns the reference of the layout for skopeo and for requests.
    pub fn layout(&self) -> String {
        format!("oci:{}", self.tagged())
    }

    /// Copies the image under `name` into an archive of format `form` (`docker-archive` or `oci-archive`) and returns
    /// its path.
    pub fn archive(&self, form: &str, name: &str) -> String {
        let path = self.path(&format!("{form}.tar"));
        let to = if name.is_empty() { format!("{form}:{path}") } else { format!("{form}:{path}:{name}") };
        tool("skopeo", &["copy", "--quiet", "--insecure-policy", &self.layout(), &to]);
        path
    }

    /// Pushes the image to a registry and returns its digest there.
    pub fn push(&self, registry: &Registry, name: &str) -> String {
        let to = format!("docker://{}", registry.name(name));
        let mut arguments = vec!["copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"];
        let credentials = registry.credentials();
        if let Some(credentials) = &credentials {
            arguments.extend(["--dest-creds", credentials]);
        }
        let file = self.path("digest");
        let (layout, option) = (self.layout(), format!("--digestfile={file}"));
        arguments.extend([&*option, &layout, &to]);
        tool("skopeo", &arguments);
        fs::read_to_string(file).expect("a digest").trim().to_owned()
    }
}

/// Runs `skopeo inspect` with a template such as `{{.Digest}}`.
pub fn inspect(reference: &str, credentials: Option<&str>, template: &str) -> String {
    let mut arguments = vec!["inspect", "--tls-verify=false", "--format", template];
    arguments.extend(credentials.iter().flat_map(|credentials| ["--creds", credentials]));
    tool("skopeo", &[&arguments[..], &[reference]].concat()).trim().to_owned()
}

/// Returns the number of unpacked layers in a state directory.
pub fn layers(state_dir: &Path) -> usize {
    fs::read_dir(state_dir.join("layers/sha256")).map_or(0, Iterator::count)
}
