//! Tests mirrors of registries, and a proxy for connections to registries.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::image::ImageReference;
use executor_images::{Credentials, ImageError, Mirrors, Proxy, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::fake::{Content, Fake, RecordedRequest, Reply, sha256};
use crate::shelf::TestStore;
use crate::tls::server;

const PASSWORD: &str = "canary-proxy-5b1e";
/// Header value for the user name and password `user:canary-proxy-5b1e`.
const BASIC: &str = "Basic dXNlcjpjYW5hcnktcHJveHktNWIxZQ==";

fn layer() -> Vec<u8> {
    (0..1_000_000u32).map(|n| (n % 251) as u8).collect()
}

/// Creates a store with mirrors for a registry.
fn mirrored(registry: &str, mirrors: &[String], change: impl FnOnce(&mut Settings)) -> TestStore {
    TestStore::with(|settings| {
        let mirrors = mirrors.iter().map(|mirror| mirror.parse().unwrap()).collect();
        settings.mirrors = vec![Mirrors { registry: registry.to_owned(), mirrors }];
        change(settings);
    })
}

#[tokio::test]
async fn mirror_answers_below_its_path() {
    let mirror = Fake::honest().await;
    mirror.put_image("1", &[b"a", b"b"]);
    let place = mirrored("registry.test", &[format!("{}/team", mirror.address)], |_| ());
    let reference: ImageReference = "docker://registry.test/app:1".parse().unwrap();
    let record = place.pull(&reference).await.unwrap();
    assert!(record.references.contains_key("docker://registry.test/app:1"), "{:?}", record.references);
    place.assert_consistent().await;
    // The control: another registry has no mirror.
    let error = place.pull(&"docker://other.test/app:1".parse().unwrap()).await.unwrap_err();
    assert!(matches!(&*error, ImageError::Connection { .. }), "{error}");
}

#[tokio::test]
async fn faulty_mirrors_are_passed_over() {
    let digest = sha256(&layer());
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let empty = Fake::honest().await;
    let lies = Fake::start(move |asked| asked.path.ends_with(&digest).then(|| Reply::ok(vec![0; 1_000_000]))).await;
    let slow = Fake::start(|_| {
        Some(Reply { body: Content::Drip(b"slow".to_vec(), Duration::from_secs(3600)), ..Reply::ok("") })
    })
    .await;
    let digest = sha256(&layer());
    let breaks = Fake::start(move |asked| {
        let cut = || Content::Cut(layer()[..300_000].to_vec(), 1_000_000);
        asked.path.ends_with(&digest).then(|| match asked.headers.contains_key("range") {
            false => Reply { body: cut(), ..Reply::ok("") },
            true => Reply::status(404),
        })
    })
    .await;
    let registry = Fake::honest().await;
    for fake in [&lies, &breaks, &registry] {
        fake.put_image("1", &[&layer()]);
    }
    let mirrors =
        [closed, empty.address, lies.address, slow.address, breaks.address].map(|address| address.to_string());
    let place =
        mirrored(&registry.address.to_string(), &mirrors, |settings| settings.patience = Duration::from_secs(1));
    place.pull(&registry.reference(":1")).await.unwrap();
    place.assert_consistent().await;
    for mirror in [&empty, &lies, &slow, &breaks] {
        assert!(mirror.count("/") > 0, "each mirror is asked");
    }
    let asked = registry.asked.lock().unwrap();
    let ranges: Vec<&String> = asked.iter().filter_map(|asked| asked.headers.get("range")).collect();
    assert_eq!(ranges, ["bytes=300000-"], "bytes from the previous mirror are not fetched again");
}

#[tokio::test]
async fn mirror_sees_no_credentials_of_requests() {
    let wants = |asked: &RecordedRequest| {
        let refused = || Reply::status(401).with("WWW-Authenticate", "Basic realm=\"x\"");
        (asked.headers.get("authorization").map(String::as_str) != Some(BASIC)).then(refused)
    };
    let (mirror, registry) = (Fake::start(wants).await, Fake::start(wants).await);
    for fake in [&mirror, &registry] {
        fake.put_image("1", &[b"a"]);
    }
    let place = mirrored(&registry.address.to_string(), &[mirror.address.to_string()], |_| ());
    let credentials = || Credentials::basic("user", PASSWORD.to_owned().into()).ok();
    place.pull_as(&registry.reference(":1"), credentials()).await.unwrap();
    let shown = |fake: &Fake| {
        let asked = fake.asked.lock().unwrap();
        asked.iter().filter(|asked| asked.headers.contains_key("authorization")).count()
    };
    assert!(mirror.count("/") > 0 && shown(&registry) > 0);
    assert_eq!(shown(&mirror), 0);
    // The control: if the operator's file has credentials for the mirror, the credentials are sent.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let auth = BASIC.strip_prefix("Basic ").unwrap();
    std::fs::write(&path, format!(r#"{{"auths": {{"{}": {{"auth": "{auth}"}}}}}}"#, mirror.address)).unwrap();
    let place = mirrored(&registry.address.to_string(), &[mirror.address.to_string()], |settings| {
        settings.docker_config = Some(path);
    });
    place.pull(&registry.reference(":1")).await.unwrap();
    assert!(shown(&mirror) > 0);
}

/// Starts a proxy that connects every host to one address. Returns the proxy's address, and the recorded request heads.
async fn tunnel(to: std::net::SocketAddr, password: bool) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, heads) = (format!("http://{}", listener.local_addr().unwrap()), Arc::<Mutex<Vec<String>>>::default());
    let seen = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let refused = password && !head.contains(BASIC);
            seen.lock().unwrap().push(head);
            if refused {
                let _ = client.write_all(b"HTTP/1.1 407 X\r\n\r\n").await;
                continue;
            }
            tokio::spawn(async move {
                client.write_all(b"HTTP/1.1 200 X\r\n\r\n").await.unwrap();
                let mut server = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address, heads)
}

#[tokio::test]
async fn encrypted_registry_is_reached_through_proxy() {
    let (tls, pem) = server(&["registry.test"]);
    let registry = Fake::start_with(|_| None, Some(tls)).await;
    registry.put_image("1", &[b"a", b"b"]);
    let dir = tempfile::tempdir().unwrap();
    let (ca, credentials) = (dir.path().join("ca.pem"), dir.path().join("proxy"));
    std::fs::write(&ca, pem).unwrap();
    std::fs::write(&credentials, format!("user:{PASSWORD}\n")).unwrap();
    let (address, heads) = tunnel(registry.address, true).await;
    let with = |file: Option<std::path::PathBuf>| {
        TestStore::with(|settings| {
            settings.ca_file = Some(ca.clone());
            settings.proxy = Some(Proxy::new(&address, file, &[]).unwrap());
        })
    };
    let reference: ImageReference = "docker://registry.test/team/app:1".parse().unwrap();
    let refused = with(None).pull(&reference).await.unwrap_err().to_string();
    assert!(refused.contains("authorization required"), "{refused}");
    let missing = with(Some(dir.path().join("none"))).pull(&reference).await.unwrap_err().to_string();
    assert!(missing.contains("the proxy's credentials"), "{missing}");
    heads.lock().unwrap().clear();
    with(Some(credentials)).pull(&reference).await.unwrap();
    let heads = heads.lock().unwrap();
    assert!(!heads.is_empty() && heads.iter().all(|head| head.starts_with("CONNECT registry.test:443 ")), "{heads:?}");
}

#[tokio::test]
async fn plain_registry_is_reached_through_proxy() {
    // The proxy is a second registry that receives absolute URLs.
    let registry = Fake::honest().await;
    registry.put_image("1", &[b"a", b"b"]);
    let files = registry.clone();
    let proxy = Fake::start(move |asked| {
        let path = asked.path.strip_prefix("http://registry.test:5000")?.to_owned();
        Some(files.file(&RecordedRequest { path, ..asked.clone() }))
    })
    .await;
    let place = TestStore::with(|settings| {
        settings.insecure_registries.push("registry.test".into());
        settings.proxy = Some(Proxy::new(&format!("http://{}", proxy.address), None, &[]).unwrap());
    });
    place.pull(&"docker://registry.test:5000/team/app:1".parse().unwrap()).await.unwrap();
    place.assert_consistent().await;
    assert_eq!(proxy.count("http://registry.test:5000/v2/team/app/manifests/1"), 1);
}

#[tokio::test]
async fn redirect_through_proxy_to_address_is_refused() {
    for address in ["10.1.2.3", "169.254.169.254", "127.0.0.1"] {
        let proxy = Fake::start(move |_| Some(Reply::redirect(format!("http://{address}/blob")))).await;
        let place = TestStore::with(|settings| {
            settings.insecure_registries.push("registry.test".into());
            settings.proxy = Some(Proxy::new(&format!("http://{}", proxy.address), None, &[]).unwrap());
        });
        let error = place.pull(&"docker://registry.test/team/app:1".parse().unwrap()).await.unwrap_err();
        assert!(matches!(&*error, ImageError::Redirect { .. }), "{address}: {error}");
        assert_eq!(proxy.count("/blob"), 0);
    }
}
