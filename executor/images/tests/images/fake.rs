//! A test registry: an HTTP/1.1 server on loopback that can send responses that no real server sends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;

pub(crate) const REPOSITORY: &str = "team/app";
const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Returns this machine's architecture, as the image specification names it.
pub(crate) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Waits for at most 60 s until a condition holds.
pub(crate) async fn until(is: impl Fn() -> bool) {
    let waited = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("in time");
}

#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Content,
}

/// A response body and its transmission.
pub(crate) enum Content {
    Whole(Vec<u8>),
    /// Truncated body: holds the bytes that are sent, and the declared content length.
    Cut(Vec<u8>, usize),
    /// A body without a length that never ends.
    Endless,
    /// A body that is sent one byte per interval.
    Drip(Vec<u8>, Duration),
}

impl Reply {
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, headers: Vec::new(), body: Content::Whole(body.into()) }
    }

    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::ok(b"{}") }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn redirect(to: impl Into<String>) -> Self {
        Self::status(307).with("location", to)
    }
}

/// Media type and content of each file, by path.
type Files = HashMap<String, (String, Vec<u8>)>;
type Handler = dyn Fn(&RecordedRequest) -> Option<Reply> + Send + Sync;

/// A server. If the test's handler returns no response to a request, the server responds from its files, as a registry
/// does.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    pub(crate) asked: Arc<Mutex<Vec<RecordedRequest>>>,
    files: Arc<Mutex<Files>>,
}

impl Fake {
    pub(crate) async fn start(handler: impl Fn(&RecordedRequest) -> Option<Reply> + Send + Sync + 'static) -> Self {
        Self::start_with(handler, None).await
    }

    pub(crate) async fn start_with(
        handler: impl Fn(&RecordedRequest) -> Option<Reply> + Send + Sync + 'static,
        tls: Option<tokio_rustls::TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self { address: listener.local_addr().unwrap(), asked: Arc::default(), files: Arc::default() };
        let (served, handler): (_, Arc<Handler>) = (fake.clone(), Arc::new(handler));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (served, handler, tls) = (served.clone(), Arc::clone(&handler), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => served.answer(stream, &*handler).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                served.answer(stream, &*handler).await;
                            }
                        }
                    }
                });
            }
        });
        fake
    }

    /// Starts a registry that behaves correctly.
    pub(crate) async fn honest() -> Self {
        Self::start(|_| None).await
    }

    /// Returns the reference of an image in this registry.
    pub(crate) fn reference(&self, selector: &str) -> executor_core::image::ImageReference {
        format!("docker://{}/{REPOSITORY}{selector}", self.address).parse().unwrap()
    }

    pub(crate) fn put(&self, path: &str, content_type: &str, bytes: &[u8]) {
        self.files.lock().unwrap().insert(path.to_owned(), (content_type.to_owned(), bytes.to_vec()));
    }

    pub(crate) fn put_blob(&self, bytes: &[u8]) -> String {
        let digest = sha256(bytes);
        self.put(&format!("/v2/{REPOSITORY}/blobs/{digest}"), "application/octet-stream", bytes);
        digest
    }

    /// Stores an image with these uncompressed layers under a tag. Returns the digest of its manifest.
    pub(crate) fn put_image(&self, tag: &str, layers: &[&[u8]]) -> String {
        let config = config(layers, arch());
        self.put_blob(config.as_bytes());
        layers.iter().for_each(|layer| drop(self.put_blob(layer)));
        self.put_manifest(tag, MANIFEST, manifest(config.as_bytes(), layers).as_bytes())
    }

    pub(crate) fn put_manifest(&self, tag: &str, content_type: &str, bytes: &[u8]) -> String {
        let digest = sha256(bytes);
        for name in [tag, &digest] {
            self.put(&format!("/v2/{REPOSITORY}/manifests/{name}"), content_type, bytes);
        }
        digest
    }

    /// Stores an index of manifests with platforms under a tag. Returns the digest of the index.
    pub(crate) fn put_index(&self, tag: &str, manifests: &[(&str, &str, usize)]) -> String {
        let entries: Vec<_> = manifests
            .iter()
            .map(|(digest, arch, size)| {
                json!({"mediaType": MANIFEST, "digest": digest, "size": size,
                    "platform": {"os": "linux", "architecture": arch}})
            })
            .collect();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).to_string();
        self.put_manifest(tag, INDEX, index.as_bytes())
    }

    pub(crate) fn size_of(&self, reference: &str) -> usize {
        self.files.lock().unwrap()[&format!("/v2/{REPOSITORY}/manifests/{reference}")].1.len()
    }

    /// Returns the number of requests whose path contains `text`.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| asked.path.contains(text)).count()
    }

    async fn answer<S: AsyncRead + AsyncWrite + Unpin>(&self, mut stream: S, handler: &Handler) {
        let Some(asked) = read(&mut stream).await else { return };
        self.asked.lock().unwrap().push(asked.clone());
        let reply = handler(&asked).unwrap_or_else(|| self.file(&asked));
        let _ = write(&mut stream, reply).await;
        let _ = stream.shutdown().await;
    }

    pub(crate) fn file(&self, asked: &RecordedRequest) -> Reply {
        let files = self.files.lock().unwrap();
        let Some((content_type, bytes)) = files.get(&asked.path) else { return Reply::status(404) };
        let from =
            asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let reply = match from {
            Some(from) if from < bytes.len() => {
                let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                Reply { status: 206, ..Reply::ok(&bytes[from..]) }.with("content-range", range)
            }
            Some(_) => Reply::status(416),
            None => Reply::ok(bytes.as_slice()),
        };
        reply.with("content-type", content_type)
    }
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Option<RecordedRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok().filter(u8::is_ascii)?); // fails for a TLS handshake
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some(RecordedRequest { method, path, headers, body: String::from_utf8(body).ok()? })
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, reply: Reply) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let length = match &reply.body {
        Content::Whole(bytes) => Some(bytes.len()),
        Content::Cut(_, length) => Some(*length),
        Content::Drip(bytes, _) => Some(bytes.len()),
        Content::Endless => None,
    };
    head.extend(length.map(|length| format!("content-length: {length}\r\n")));
    stream.write_all(format!("{head}\r\n").as_bytes()).await?;
    match reply.body {
        Content::Whole(bytes) | Content::Cut(bytes, _) => stream.write_all(&bytes).await?,
        Content::Endless => loop {
            stream.write_all(&[0x61; 4096]).await?;
        },
        Content::Drip(bytes, every) => {
            for byte in bytes {
                stream.write_all(&[byte]).await?;
                stream.flush().await?;
                tokio::time::sleep(every).await;
            }
        }
    }
    stream.flush().await
}

/// Returns the configuration of an image with these layers.
pub(crate) fn config(layers: &[&[u8]], arch: &str) -> String {
    let diff_ids: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
    json!({"architecture": arch, "os": "linux", "config": {"Cmd": ["/bin/sh"], "Env": ["A=1"], "User": "7"},
        "rootfs": {"type": "layers", "diff_ids": diff_ids}})
    .to_string()
}

/// Returns the manifest of an image.
pub(crate) fn manifest(config: &[u8], layers: &[&[u8]]) -> String {
    let layers: Vec<_> =
        layers.iter().map(|layer| json!({"mediaType": TAR, "digest": sha256(layer), "size": layer.len()})).collect();
    json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256(config), "size": config.len()}})
    .to_string()
}
