//! Tests that interrupted downloads are resumed, and that resumed data is verified.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use executor_images::ImageError;

use crate::fake::{Content, Fake, Reply, sha256, until};
use crate::shelf::TestStore;

fn layer() -> Vec<u8> {
    (0..1_000_000u32).map(|n| (n % 251) as u8).collect()
}

/// Starts a registry that closes connections after 300,000 bytes of the layer while `broken` is true.
async fn breaking(broken: Arc<AtomicBool>) -> Fake {
    let (layer, digest) = (layer(), sha256(&layer()));
    let fake = Fake::start(move |asked| {
        if !asked.path.ends_with(&digest) || !broken.load(Ordering::SeqCst) {
            return None;
        }
        let range = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let from: usize = range.and_then(|from| from.parse().ok()).unwrap_or(0);
        let end = (from + 300_000).min(layer.len());
        let reply = Reply { body: Content::Cut(layer[from..end].to_vec(), layer.len() - from), ..Reply::ok("") };
        Some(match from {
            0 => reply,
            _ => Reply { status: 206, ..reply }.with("content-range", format!("bytes {from}-999999/1000000")),
        })
    })
    .await;
    fake.put_image("1", &[&self::layer()]);
    fake
}

fn ranges(fake: &Fake) -> Vec<String> {
    let asked = fake.asked.lock().unwrap();
    asked.iter().filter_map(|asked| asked.headers.get("range").cloned()).collect()
}

#[tokio::test]
async fn interrupted_download_resumes_within_pull() {
    let fake = breaking(Arc::new(AtomicBool::new(true))).await;
    let place = TestStore::new();
    place.pull(&fake.reference(":1")).await.unwrap();
    assert_eq!(ranges(&fake), ["bytes=300000-", "bytes=600000-", "bytes=900000-"]);
    place.assert_consistent().await;
}

#[tokio::test]
async fn next_pull_resumes_download_after_restart() {
    let count = Arc::new(AtomicUsize::new(0));
    let (layer, digest, seen) = (layer(), sha256(&layer()), Arc::clone(&count));
    let fake = Fake::start(move |asked| {
        // The registry sends the first 400,000 bytes, then only errors for the rest of that pull.
        (asked.path.ends_with(&digest) && seen.fetch_add(1, Ordering::SeqCst) < 4).then(|| {
            match asked.headers.contains_key("range") {
                false => Reply { body: Content::Cut(layer[..400_000].to_vec(), layer.len()), ..Reply::ok("") },
                true => Reply::status(503),
            }
        })
    })
    .await;
    fake.put_image("1", &[&self::layer()]);
    let place = TestStore::new();
    let error = place.pull(&fake.reference(":1")).await.unwrap_err();
    assert!(matches!(&*error, ImageError::Status { status: 503, .. }), "{error}");
    assert_eq!(place.partials().len(), 1);
    count.store(4, Ordering::SeqCst);
    let place = place.reopened();
    fake.asked.lock().unwrap().clear();
    place.pull(&fake.reference(":1")).await.unwrap();
    assert_eq!(ranges(&fake), ["bytes=400000-"]);
    place.assert_consistent().await;
    assert_eq!(place.partials(), Vec::<String>::new());
}

/// If a file in `ingest` has wrong content (half of a blob, other content of the same size, too many bytes), the
/// content is not used.
#[tokio::test]
async fn partial_download_is_verified_from_first_byte() {
    let kept = [vec![0; 400_000], vec![0; 1_000_000], vec![0; 2_000_000], layer()];
    for kept in kept {
        let fake = Fake::honest().await;
        fake.put_image("1", &[&layer()]);
        let place = TestStore::new();
        let name = format!("{}-1000000.partial", sha256(&layer()).replace(':', "-"));
        std::fs::write(place.dir.path().join("images/ingest").join(name), &kept).unwrap();
        place.pull(&fake.reference(":1")).await.unwrap();
        place.assert_consistent().await;
        let fetched = fake.count(&sha256(&layer()));
        assert_eq!(fetched == 0, kept == layer(), "a complete file is not fetched again");
    }
}

/// If a registry does not support ranges and sends the whole blob, the download starts again.
#[tokio::test]
async fn download_without_range_support_restarts() {
    let (whole, digest) = (layer(), sha256(&layer()));
    let fake = Fake::start(move |asked| asked.path.ends_with(&digest).then(|| Reply::ok(whole.clone()))).await;
    fake.put_image("1", &[&layer()]);
    let place = TestStore::new();
    let name = format!("{}-1000000.partial", sha256(&layer()).replace(':', "-"));
    std::fs::write(place.dir.path().join("images/ingest").join(name), &layer()[..10]).unwrap();
    place.pull(&fake.reference(":1")).await.unwrap();
    place.assert_consistent().await;
}

/// If the client disconnects, the pull ends, the store stays consistent, and received data is kept.
#[tokio::test]
async fn abandoned_pull_ends_and_keeps_data() {
    let stuck = Arc::new(AtomicBool::new(true));
    let (held, digest) = (Arc::clone(&stuck), sha256(&layer()));
    let fake = Fake::start(move |asked| {
        let stalls = asked.path.ends_with(&digest) && held.load(Ordering::SeqCst);
        stalls.then(|| Reply {
            body: Content::Drip(layer()[..9].to_vec(), std::time::Duration::from_secs(3600)),
            ..Reply::ok("")
        })
    })
    .await;
    fake.put_image("1", &[&layer()]);
    let place = TestStore::new();
    let reference = fake.reference(":1");
    let watcher = place.images.pull(&reference, None);
    until(|| fake.count(&sha256(&layer())) > 0).await;
    drop(watcher);
    stuck.store(false, Ordering::SeqCst);
    place.pull(&reference).await.unwrap();
    place.assert_consistent().await;
}

/// If a pull waits for a slow layer, a pull of another image that shares a fetched layer is not delayed. Otherwise two
/// pulls that wait for each other's lower layers would deadlock.
#[tokio::test]
async fn slow_layer_delays_no_other_image() {
    let (slow, shared) = (layer(), b"shared".to_vec());
    let stuck = sha256(&slow);
    let fake = Fake::start(move |asked| {
        let drip = || Content::Drip(layer()[..9].to_vec(), std::time::Duration::from_secs(3600));
        asked.path.ends_with(&stuck).then(|| Reply { body: drip(), ..Reply::ok("") })
    })
    .await;
    fake.put_image("slow", &[&slow, &shared]);
    fake.put_image("fast", &[&shared]);
    // With a shorter limit the slow pull would time out, and the test would not notice that the other pull had waited.
    let place = TestStore::with(|settings| settings.patience = std::time::Duration::from_secs(3600));
    let mut waiting = place.images.pull(&fake.reference(":slow"), None);
    // Wait until the shared layer is fetched and waits for the layer below it.
    let fetched = |state: &executor_images::State| {
        state.progress.layers.iter().any(|layer| layer.stage == executor_images::Stage::Fetched)
    };
    while !fetched(&waiting.next().await.expect("the slow pull goes on")) {}
    let fast = tokio::time::timeout(std::time::Duration::from_secs(30), place.pull(&fake.reference(":fast"))).await;
    fast.expect("it does not wait for the slow pull").unwrap();
    assert_eq!(fake.count(&sha256(&shared)), 1, "the fetched layer is used");
    place.assert_consistent().await;
}
