//! Tests a malicious registry: each kind of wrong response causes its own error, and the store stays consistent.

use std::sync::Arc;
use std::time::Duration;

use executor_images::ImageError;

use crate::fake::{Content, Fake, REPOSITORY, RecordedRequest, Reply, arch, config, manifest, sha256};
use crate::shelf::TestStore;

const LAYER: &[u8] = &[7; 5000];

/// Starts a registry that has a good image under the tag `1`, but responds to requests for the upper layer with
/// `answer`.
async fn with_layer(answer: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static) -> Fake {
    let layer = sha256(LAYER);
    let fake = Fake::start(move |asked| asked.path.ends_with(&layer).then(|| answer(asked))).await;
    fake.put_image("1", &[b"lower", LAYER]);
    fake
}

async fn reported(place: &TestStore, fake: &Fake) -> Arc<ImageError> {
    let error = place.pull(&fake.reference(":1")).await.unwrap_err();
    assert!(place.images.list().is_empty(), "no image is listed");
    assert!(!place.shelf.layers.lock().unwrap().keys().any(|digest| digest.to_string() == sha256(LAYER)));
    place.assert_consistent().await;
    error
}

/// Returns true if the partial layer was kept for resuming.
fn is_kept(place: &TestStore) -> bool {
    place.partials().iter().any(|name| name.contains(&sha256(LAYER)[7..]))
}

/// The control: if the same registry sends correct responses, the image is accepted.
#[tokio::test]
async fn correct_layer_is_accepted() {
    let fake = with_layer(|_| Reply::ok(LAYER)).await;
    let place = TestStore::new();
    place.pull(&fake.reference(":1")).await.unwrap();
    place.assert_consistent().await;
}

/// If a registry declares a digest for a manifest fetched by tag, the digest is checked.
#[tokio::test]
async fn wrong_declared_digest_is_refused() {
    let answer = |declared: fn(&[u8]) -> String| async move {
        let image = manifest(config(&[LAYER], arch()).as_bytes(), &[LAYER]);
        let fake = Fake::start(move |asked| {
            let reply = Reply::ok(image.clone()).with("Docker-Content-Digest", declared(image.as_bytes()));
            asked.path.ends_with("/manifests/1").then_some(reply)
        })
        .await;
        fake.put_image("good", &[LAYER]);
        TestStore::new().pull(&fake.reference(":1")).await.map(drop)
    };
    answer(sha256).await.unwrap();
    let wrong = answer(|_| sha256(b"another")).await.unwrap_err();
    assert!(matches!(&*wrong, ImageError::WrongDigest { .. }), "{wrong}");
    let malformed = answer(|_| "sha256:no".into()).await.unwrap_err();
    assert!(matches!(&*malformed, ImageError::Malformed { .. }), "{malformed}");
}

#[tokio::test]
async fn layer_with_changed_content_is_refused() {
    let mut other = LAYER.to_vec();
    other[4999] = 8;
    let fake = with_layer(move |_| Reply::ok(other.clone())).await;
    let place = TestStore::new();
    let error = reported(&place, &fake).await;
    assert!(
        matches!(&*error, ImageError::WrongDigest { declared, .. } if declared.to_string() == sha256(LAYER)),
        "{error}"
    );
    assert!(!is_kept(&place), "invalid data is not kept");
}

#[tokio::test]
async fn truncated_layer_is_refused() {
    let fake = with_layer(|_| Reply { body: Content::Cut(LAYER[..1000].to_vec(), 5000), ..Reply::ok("") }).await;
    let place = TestStore::new();
    let error = reported(&place, &fake).await;
    // The registry sends the first 1,000 bytes each time, and never more.
    assert!(matches!(&*error, ImageError::Truncated { declared: 5000, got: 1000, .. }), "{error}");
    assert!(is_kept(&place), "valid data is kept for resuming");
    let fake = with_layer(|_| Reply::ok(&LAYER[..1000])).await;
    assert!(matches!(&*reported(&TestStore::new(), &fake).await, ImageError::Truncated { got: 1000, .. }));
}

#[tokio::test]
async fn longer_or_endless_layer_is_refused() {
    for longer in [true, false] {
        let fake = with_layer(move |_| {
            let body = if longer { Content::Whole([LAYER, b"x"].concat()) } else { Content::Endless };
            Reply { body, ..Reply::ok("") }
        })
        .await;
        let place = TestStore::new();
        let error = reported(&place, &fake).await;
        assert!(matches!(&*error, ImageError::Longer { declared: 5000, .. }), "{error}");
        assert!(!is_kept(&place));
    }
}

#[tokio::test]
async fn endless_documents_are_refused() {
    for what in ["/manifests/", "/blobs/"] {
        let fake = Fake::start(move |asked| {
            asked.path.contains(what).then(|| Reply { body: Content::Endless, ..Reply::ok("") })
        })
        .await;
        fake.put_image("1", &[LAYER]);
        let error = reported(&TestStore::new(), &fake).await;
        assert!(matches!(&*error, ImageError::TooLarge { most: 0x40_0000, .. }), "{what}: {error}");
    }
}

#[tokio::test]
async fn manifest_with_wrong_digest_is_refused() {
    let fake = Fake::honest().await;
    fake.put_image("1", &[b"a"]);
    let other = sha256(b"another");
    let (config, path) = (config(&[b"a"], "amd64"), format!("/v2/{REPOSITORY}/manifests/{other}"));
    fake.put(&path, "application/vnd.oci.image.manifest.v1+json", manifest(config.as_bytes(), &[b"a"]).as_bytes());
    let error = TestStore::new().pull(&fake.reference(&format!("@{other}"))).await.unwrap_err();
    assert!(matches!(&*error, ImageError::WrongDigest { declared, .. } if declared.to_string() == other), "{error}");
}

#[tokio::test]
async fn redirect_is_limited_by_reach() {
    // A redirect to a host that is as near as the registry is followed (such as a blob store on the same host).
    let store = Fake::honest().await;
    store.put("/signed?x=y", "application/octet-stream", LAYER);
    let to = format!("http://{}/signed?x=y", store.address);
    let fake = with_layer(move |_| Reply::redirect(to.clone())).await;
    TestStore::new().pull(&fake.reference(":1")).await.unwrap();
    assert_eq!(store.count("/signed"), 1);

    for (to, word) in [
        ("http://169.254.169.254/latest/meta-data/", "link-local"),
        ("http://10.0.0.1/x", "private"),
        ("http://[fe80::1]/x", "link-local"),
        ("file:///etc/passwd", "not an absolute"),
        ("http://user:secret@127.0.0.1/x", "contains a user name"),
    ] {
        let fake = with_layer(move |_| Reply::redirect(to)).await;
        let error = reported(&TestStore::new(), &fake).await;
        assert!(matches!(&*error, ImageError::Redirect { why, .. } if why.contains(word)), "{to}: {error}");
        assert!(!error.to_string().contains("secret") && !error.to_string().contains("meta-data"), "{error}");
    }
    let fake = with_layer(|asked| Reply::redirect(asked.path.clone())).await;
    let error = reported(&TestStore::new(), &fake).await;
    assert!(matches!(&*error, ImageError::Redirect { why, .. } if why.contains("too many")), "{error}");
}

#[tokio::test]
async fn slow_layer_download_fails() {
    // 1,000 bytes per half second are required. The registry sends 20 bytes per second, or nothing.
    for body in [Some(Duration::from_millis(50)), None] {
        let fake = with_layer(move |_| {
            let body = match body {
                Some(every) => Content::Drip(LAYER.to_vec(), every),
                None => Content::Drip(LAYER.to_vec(), Duration::from_secs(3600)),
            };
            Reply { body, ..Reply::ok("") }
        })
        .await;
        let place = TestStore::with(|settings| {
            (settings.patience, settings.bytes_least) = (Duration::from_millis(500), 1000);
        });
        let error = reported(&place, &fake).await;
        assert!(matches!(&*error, ImageError::TooSlow { bytes, least: 1000, .. } if *bytes < 1000), "{error}");
    }
}

#[tokio::test]
async fn image_above_size_limit_is_refused() {
    let fake = with_layer(|_| Reply::ok(LAYER)).await;
    let place = TestStore::with(|settings| settings.image_bytes_max = 5004);
    let error = reported(&place, &fake).await;
    assert!(matches!(&*error, ImageError::TooLarge { is: 5005, most: 5004, .. }), "{error}");
    assert_eq!(fake.count(&sha256(LAYER)), 0, "the image is refused before its layer is fetched");
}

#[tokio::test]
async fn pull_failures_have_error_kinds() {
    let fake = Fake::honest().await;
    let error = reported(&TestStore::new(), &fake).await;
    assert!(matches!(&*error, ImageError::NotFound { .. }), "{error}");
    let fake = with_layer(|_| Reply::status(500)).await;
    let error = reported(&TestStore::new(), &fake).await;
    assert!(matches!(&*error, ImageError::Status { status: 500, .. }), "{error}");
    assert_eq!(fake.count(&sha256(LAYER)), 3, "the request is repeated");
    let gone = format!("docker://127.0.0.1:{}/a", closed_port().await).parse().unwrap();
    let error = TestStore::new().pull(&gone).await.unwrap_err();
    assert!(matches!(&*error, ImageError::Connection { .. }), "{error}");
}

async fn closed_port() -> u16 {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}
