//! Tests retention and removal of images.

use std::time::Duration;

use executor_images::{ImageError, Policy, PruneRules};

use crate::fake::{Fake, MANIFEST, arch, config, manifest};
use crate::shelf::TestStore;

#[tokio::test]
async fn image_is_removed_with_last_name() {
    let fake = Fake::honest().await;
    let digest = fake.put_image("1", &[b"shared", b"own"]);
    fake.put_image("same", &[b"shared", b"own"]);
    fake.put_image("other", &[b"shared"]);
    let place = TestStore::new();
    for tag in [":1", ":same", ":other"] {
        place.pull(&fake.reference(tag)).await.unwrap();
    }
    assert_eq!(place.images.list().len(), 2);
    let name = |tag: &str| fake.reference(tag).to_string();
    assert!(!place.images.remove(&name(":1"), false, |_| None).await.unwrap().1);
    assert!(matches!(place.images.find(&name(":1")), Err(ImageError::NotFound { .. })));
    let error = place.images.remove(&name(":same"), false, |_| Some("web-1".into())).await.unwrap_err();
    assert!(matches!(&error, ImageError::InUse { by, .. } if by == "container web-1"), "{error}");
    // Remove the image by a prefix of its digest.
    let (record, gone) = place.images.remove(&digest[7..19], false, |_| None).await.unwrap();
    assert!(gone && record.digest.to_string() == digest);
    assert_eq!(place.shelf.layers.lock().unwrap().len(), 1, "the shared layer stays");
    let place = place.reopened();
    assert_eq!(place.images.list().len(), 1);
    place.assert_consistent().await;
    assert!(matches!(place.images.remove("nope", false, |_| None).await, Err(ImageError::NotFound { .. })));
}

/// CRI rules C38 and C40: the digest of a configuration finds and removes an image with all its names.
#[tokio::test]
async fn digest_of_configuration_finds_image() {
    let fake = Fake::honest().await;
    let place = TestStore::new();
    fake.put_image("1", &[b"a"]);
    fake.put_image("same", &[b"a"]);
    fake.put_image("other", &[b"b"]);
    // This is another manifest with the same configuration.
    let manifest = manifest(config(&[b"a"], arch()).as_bytes(), &[b"a"]);
    fake.put_manifest("again", MANIFEST, format!("{manifest} ").as_bytes());
    let mut pulled = Vec::new();
    for tag in [":1", ":same", ":other", ":again"] {
        pulled.push(place.pull(&fake.reference(tag)).await.unwrap());
    }
    let id = pulled[0].config_digest.to_string();
    assert!(pulled[3].config_digest == pulled[0].config_digest && pulled[3].digest != pulled[0].digest);
    for text in [&id, &id[7..], &id[7..15]] {
        assert_eq!(place.images.find(text).unwrap().digest, pulled[3].digest, "the image that was pulled last");
    }
    for image in [&pulled[3], &pulled[0]] {
        let (record, removed) = place.images.remove(&id, false, |_| None).await.unwrap();
        assert!(removed && record.digest == image.digest, "{record:?}");
    }
    assert!(matches!(place.images.find(&id), Err(ImageError::NotFound { .. })));
    assert_eq!(place.images.list().len(), 1, "the control: another configuration stays");
}

/// A pull replaces a corrupt document. As a control, the image cannot be used before.
#[tokio::test]
async fn pull_replaces_corrupt_document() {
    let fake = Fake::honest().await;
    fake.put_image("1", &[b"a"]);
    let (place, reference) = (TestStore::new(), fake.reference(":1"));
    let pulled = place.pull(&reference).await.unwrap();
    let file = pulled.config_digest.to_string().replace(':', "-");
    std::fs::write(place.dir.path().join("images/documents").join(file), "{}").unwrap();
    let resolve = || place.images.resolve(&reference, Policy::Never, None);
    let error = resolve().await.err().unwrap();
    assert!(matches!(&*error, ImageError::Incomplete { .. }), "control failed: {error}");
    place.pull(&reference).await.unwrap();
    resolve().await.unwrap();
}

#[tokio::test]
async fn image_in_use_is_not_removed() {
    let fake = Fake::honest().await;
    fake.put_image("1", &[b"a"]);
    let (place, reference) = (TestStore::new(), fake.reference(":1"));
    let resolved = place.images.resolve(&reference, Policy::IfMissing, None).await.unwrap();
    let name = reference.to_string();
    assert!(matches!(place.images.remove(&name, false, |_| None).await, Err(ImageError::InUse { .. })));
    let all = PruneRules { unused_for: Some(Duration::ZERO), ..PruneRules::default() };
    let pruned = place.images.prune(all, |_| None).await.unwrap();
    assert!(pruned.images.is_empty() && pruned.in_use == 1);
    drop(resolved);
    assert_eq!(place.images.prune(all, |_| Some("c".into())).await.unwrap().in_use, 1);
    let dry = place.images.prune(PruneRules { dry_run: true, ..all }, |_| None).await.unwrap();
    assert_eq!((dry.images.len(), dry.layers, place.images.list().len()), (1, 1, 1));
    let pruned = place.images.prune(all, |_| None).await.unwrap();
    assert_eq!((pruned.images.len(), pruned.layers), (1, 1));
    assert!(place.images.list().is_empty() && place.shelf.layers.lock().unwrap().is_empty());
}

/// If an image is removed by force while a container uses it, its layers stay until the container exits.
#[tokio::test]
async fn mounted_layer_stays_until_container_ends() {
    let fake = Fake::honest().await;
    fake.put_image("1", &[b"a"]);
    let place = TestStore::new();
    let record = place.pull(&fake.reference(":1")).await.unwrap();
    place.shelf.mounted.lock().unwrap().push(record.layers[0].diff_id.clone());
    assert!(place.images.remove(&fake.reference(":1").to_string(), false, |_| None).await.unwrap().1);
    assert_eq!(place.shelf.layers.lock().unwrap().len(), 1);
    let place = place.reopened();
    place.shelf.mounted.lock().unwrap().clear();
    assert_eq!(place.images.prune(PruneRules::default(), |_| None).await.unwrap().layers, 1);
    assert!(place.shelf.layers.lock().unwrap().is_empty());
}

#[tokio::test]
async fn images_beyond_budget_are_removed() {
    let fake = Fake::honest().await;
    let place = TestStore::with(|settings| settings.bytes_budget = 2500);
    for tag in ["1", "2", "3"] {
        fake.put_image(tag, &[&[tag.as_bytes()[0]; 1000]]);
        place.pull(&fake.reference(&format!(":{tag}"))).await.unwrap();
        place.images.keep_to_budget(|_| None).await.unwrap();
    }
    assert_eq!(place.images.list().len(), 2);
    assert!(place.images.find(&fake.reference(":1").to_string()).is_err(), "the oldest image was removed");
    place.assert_consistent().await;
}

/// After a crash, unfinished files, records without documents, and documents without records are ignored.
#[tokio::test]
async fn leftovers_of_crash_are_ignored() {
    let fake = Fake::honest().await;
    fake.put_image("1", &[b"a"]);
    fake.put_image("2", &[b"b"]);
    let place = TestStore::new();
    let one = place.pull(&fake.reference(":1")).await.unwrap();
    place.pull(&fake.reference(":2")).await.unwrap();
    let dir = place.dir.path().join("images");
    let name = |digest: &dyn ToString| digest.to_string().replace(':', "-");
    let record = std::fs::read(dir.join("records").join(format!("{}.json", name(&one.digest)))).unwrap();
    std::fs::write(dir.join(format!("records/{}.json.new", name(&one.digest))), &record[..40]).unwrap();
    std::fs::write(dir.join(format!("records/sha256-{}.json", "0".repeat(64))), &record).unwrap();
    std::fs::write(dir.join("records/nonsense.json"), b"{}").unwrap();
    std::fs::write(dir.join(format!("documents/sha256-{}", "0".repeat(64))), b"{}").unwrap();
    std::fs::write(dir.join("ingest/upload-1234"), b"half an archive").unwrap();
    std::fs::remove_file(dir.join("documents").join(name(&one.config_digest))).unwrap();
    let place = place.reopened();
    assert_eq!(place.images.list().len(), 1);
    place.assert_consistent().await;
    for sub in ["records", "documents", "ingest"] {
        let left = std::fs::read_dir(dir.join(sub)).unwrap().count();
        assert_eq!(
            left,
            match sub {
                "records" => 1,
                "documents" => 2,
                _ => 0,
            },
            "{sub}"
        );
    }
    // A document that was modified on disk is detected.
    let two = place.images.find(&fake.reference(":2").to_string()).unwrap();
    std::fs::write(dir.join("documents").join(name(&two.config_digest)), b"{}").unwrap();
    assert!(place.images.configuration(&two).await.is_err());
}
