//! Runs Debian's docker-registry on loopback.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::{Endpoint, auth_file, tool};
use crate::wait;

/// User name for registries that require authentication.
pub const USER: &str = "puller";
/// Password of [`USER`], long enough for a search in memory.
pub const PASSWORD: &str = "canary-registry-pw-8e21f07c5a3b49d6b1c2e87a90d4";

/// Debian's registry on loopback.
pub struct Registry {
    child: Child,
    port: u16,
    closed: bool,
    dir: TempDir,
}

impl Registry {
    /// Starts the registry. If `closed` is true, only [`USER`] has access.
    pub fn start(closed: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let auth = if closed {
            let users = dir.path().join("users");
            fs::write(&users, tool("htpasswd", &["-Bbn", USER, PASSWORD])).expect("write");
            format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", users.display())
        } else {
            String::new()
        };
        Self::serve(dir, port, closed, &auth)
    }

    /// Starts a registry with TLS at a name and port, and returns its certificate as PEM.
    pub fn encrypted(name: &str, port: u16) -> (Self, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        let [certificate, key] = ["certificate", "key"].map(|file| dir.path().join(file));
        fs::write(&certificate, made.cert.pem()).expect("write");
        fs::write(&key, made.signing_key.serialize_pem()).expect("write");
        let tls = format!("  tls:\n    certificate: {}\n    key: {}\n", certificate.display(), key.display());
        (Self::serve(dir, port, false, &tls), made.cert.pem())
    }

    /// Starts the registry with `more` appended to the section `http` of its configuration.
    fn serve(dir: TempDir, port: u16, closed: bool, more: &str) -> Self {
        let config = dir.path().join("config.yml");
        let (store, address) = (dir.path().join("store"), format!("127.0.0.1:{port}"));
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n{more}",
            store.display()
        );
        fs::write(&config, text).expect("write");
        let log = fs::File::create(dir.path().join("log")).expect("a log");
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("docker-registry is installed (`cargo xtask test`)");
        wait::until_ok("the registry accepts connections", || TcpStream::connect(&address));
        Self { child, port, closed, dir }
    }

    /// Stores a signature as cosign does: the payload is a layer, the signature is an annotation of the layer, and the
    /// tag is derived from the digest.
    pub fn put_signature(&self, repository: &str, digest: &str, payload: &[u8], signature: &[u8]) {
        let layout = self.dir.path().join("signature");
        let blobs = layout.join("blobs/sha256");
        fs::create_dir_all(&blobs).expect("mkdir");
        let put = |content: &[u8], more: Value| {
            let digest = hex::encode(Sha256::digest(content));
            fs::write(blobs.join(&digest), content).expect("write");
            let mut entry = json!({"digest": format!("sha256:{digest}"), "size": content.len()});
            entry.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
            entry
        };
        let annotations = json!({"dev.cosignproject.cosign/signature": STANDARD.encode(signature)});
        let simple = "application/vnd.dev.cosign.simplesigning.v1+json";
        let layer = put(payload, json!({"mediaType": simple, "annotations": annotations}));
        let diff_id = layer["digest"].clone();
        let config =
            json!({"architecture": "", "os": "", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff_id]}});
        let config =
            put(config.to_string().as_bytes(), json!({"mediaType": "application/vnd.oci.image.config.v1+json"}));
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]});
        let entry = put(manifest.to_string().as_bytes(), json!({"mediaType": kind}));
        fs::write(layout.join("index.json"), json!({"schemaVersion": 2, "manifests": [entry]}).to_string())
            .expect("write");
        fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write");
        let to = format!("docker://{}", self.name(&format!("{repository}:{}.sig", digest.replace(':', "-"))));
        let from = format!("oci:{}", layout.display());
        tool("skopeo", &["copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false", &from, &to]);
    }

    /// Returns the credentials for skopeo, if this registry requires them.
    pub(super) fn credentials(&self) -> Option<String> {
        self.closed.then(|| format!("{USER}:{PASSWORD}"))
    }

    /// Writes a credentials file as `docker login` does, and returns its path.
    pub fn auth_file(&self) -> PathBuf {
        let path = self.dir.path().join("config.json");
        fs::write(&path, auth_file(self)).expect("write");
        path
    }
}

impl Endpoint for Registry {
    fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
