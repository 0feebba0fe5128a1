//! Test server for a convention, a registry with one image, and the files of a test.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::cli::CliOutput;
use crate::dist;
use crate::web::{WebAnswer, WebServer};
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// Files and servers of a test. The server stops when this value is dropped.
pub struct World {
    pub dir: TempDir,
    pub port: u16,
    registry: WebServer,
    certificate: String,
    child: Child,
    _stdin: ChildStdin,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Placeholder line for a registration without a CA bundle.
pub const SYSTEM: &str = "# the system's certificates";

/// Names and expiry of a server's certificate.
pub struct Identity {
    /// DNS names and IP addresses.
    pub names: &'static [&'static str],
    /// Year in which the certificate expires.
    pub until: i32,
}

impl Identity {
    /// A valid certificate.
    pub const GOOD: Self = Self { names: &["127.0.0.1", "localhost"], until: 4000 };
}

/// Makes a self-signed certificate and returns it with its key, as PEM.
pub fn certificate(identity: &Identity) -> (String, String) {
    let names: Vec<String> = identity.names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, "convention");
    params.not_before = date_time_ymd(1990, 1, 1);
    params.not_after = date_time_ymd(identity.until, 1, 1);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

impl World {
    /// Starts a server with a valid certificate.
    pub fn start() -> Self {
        Self::with(&Identity::GOOD)
    }

    /// Starts a server with the certificate of `identity`.
    pub fn with(identity: &Identity) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = certificate(identity);
        fs::write(dir.path().join("ca.pem"), &certificate).unwrap();
        fs::write(dir.path().join("key.pem"), key).unwrap();
        let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/convention_server.py");
        let mut command = Command::new("python3");
        command.arg(server).args(["ca.pem", "key.pem", "log"]).current_dir(dir.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let stdin = child.stdin.take().unwrap();
        let port = line.trim().parse().expect("the server's port");
        Self { dir, port, registry: registry(), certificate, child, _stdin: stdin }
    }

    /// Registers conventions, each as name, path on the server and further lines.
    pub fn register(&self, conventions: &[(&str, &str, &str)]) {
        let text: String = conventions
            .iter()
            .map(|(name, path, more)| {
                let (certificate, port) = (&self.certificate, self.port);
                let own = ["caBundle", "caFile", SYSTEM].iter().any(|key| more.contains(key));
                let more = if own { (*more).to_owned() } else { format!("caBundle = '''{certificate}'''\n{more}") };
                format!("[[convention]]\nname = {name:?}\nurl = \"https://127.0.0.1:{port}/{path}\"\n{more}\n")
            })
            .collect();
        self.write("conventions.toml", &text);
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes `web.yaml`: a deployment that uses the registry's image and sets a variable.
    pub fn web(&self, tag: &str, variable: &str) {
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": 1, "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{
                    "name": "app", "image": self.image(tag), "env": [{"name": "GIVEN", "value": variable}],
                }]},
            }},
        });
        self.write("web.yaml", &object.to_string());
    }

    /// Returns the reference of the registry's image with this tag.
    pub fn image(&self, tag: &str) -> String {
        format!("127.0.0.1:{}/web:{tag}", self.registry.port())
    }

    pub fn registry_port(&self) -> u16 {
        self.registry.port()
    }

    /// Runs `agent-cli convention`.
    pub fn run(&self, arguments: &[&str]) -> CliOutput {
        let mut command = Command::new(dist::binary("agent-cli"));
        command.args(["convention", "--config", "conventions.toml"]).args(arguments).current_dir(self.dir.path());
        command.env_remove("EXECUTOR_CONVENTIONS").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        crate::cli::finish(command.spawn().unwrap())
    }

    /// Runs `apply` on `web.yaml`, which must succeed, and returns the object.
    pub fn applied(&self) -> Value {
        let ran = self.run(&["apply", "--json", "web.yaml"]);
        assert_eq!((ran.status, &*ran.stderr), (0, ""), "{ran:?}");
        ran.json()["items"][0].clone()
    }

    /// Runs `apply` on `web.yaml`, which must fail without output on stdout, and returns the error message.
    pub fn refused(&self) -> String {
        let ran = self.run(&["apply", "web.yaml"]);
        assert_eq!((ran.status, &*ran.stdout), (125, ""), "{ran:?}");
        ran.stderr
    }

    /// Returns the requests that the server received.
    pub fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Starts a registry with the image `web`: tag `1` has bills of materials, tag `2` has none.
fn registry() -> WebServer {
    let files = [("layers/", &b""[..]), ("layers/sbom/app.syft.json", b"{\"artifacts\":[]}")];
    let bills = archive(&files);
    let (with, without) = (image(&bills, true), image(&bills, false));
    WebServer::start(move |_, request| {
        let (_, name) = request.target.rsplit_once('/').unwrap();
        let found = match name {
            "1" => Some((&with[0], true)),
            "2" => Some((&without[0], true)),
            digest => {
                let mut all = with.iter().chain(&without);
                all.find(|content| digest == format!("sha256:{}", sha256(content))).map(|content| (content, false))
            }
        };
        let kind = "application/vnd.oci.image.manifest.v1+json".to_owned();
        match found {
            _ if !request.target.starts_with("/v2/web/") => WebAnswer::Full("404 Not Found", vec![], vec![]),
            None => WebAnswer::Full("404 Not Found", vec![], vec![]),
            Some((content, true)) => WebAnswer::Full("200 OK", vec![("content-type", kind)], content.clone()),
            Some((content, false)) if request.target.contains("/manifests/") => {
                WebAnswer::Full("200 OK", vec![("content-type", kind)], content.clone())
            }
            Some((content, false)) => WebAnswer::ok(content),
        }
    })
}

/// Returns the documents of an image: manifest, configuration, layer.
fn image(layer: &[u8], labelled: bool) -> Vec<Vec<u8>> {
    let descriptor = |kind: &str, content: &[u8]| {
        let digest = format!("sha256:{}", sha256(content));
        json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": content.len()})
    };
    let diff_id = format!("sha256:{}", sha256(layer));
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let labels = if labelled { json!({"io.buildpacks.app.sbom": diff_id}) } else { json!({}) };
    let config = json!({
        "architecture": arch, "os": "linux", "config": {"Labels": labels, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", &config), "layers": [descriptor("layer.v1.tar", layer)],
    });
    vec![manifest.to_string().into_bytes(), config, layer.to_vec()]
}

fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(if path.ends_with('/') { tar::EntryType::Directory } else { tar::EntryType::Regular });
        builder.append_data(&mut header, path, *content).unwrap();
    }
    builder.into_inner().unwrap()
}
