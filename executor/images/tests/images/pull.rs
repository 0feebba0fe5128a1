//! Tests successful pulls.

use std::sync::Arc;

use executor_images::{ImageError, Policy, Stage};

use crate::fake::{Fake, MANIFEST, arch, config, manifest, sha256};
use crate::shelf::TestStore;

#[tokio::test]
async fn image_layers_are_fetched_once_with_progress() {
    let fake = Fake::honest().await;
    let digest = fake.put_image("1", &[b"lower", b"middle", b"upper"]);
    let place = TestStore::new();
    let reference = fake.reference(":1");
    let mut watcher = place.images.pull(&reference, None);
    let mut last = None;
    while let Some(state) = watcher.next().await {
        last = Some(state);
    }
    let last = last.unwrap();
    assert!(last.progress.layers.iter().all(|layer| layer.stage == Stage::Done && layer.done == layer.size));
    let record = last.outcome.unwrap().unwrap();
    assert_eq!((record.digest.to_string(), record.layers.len()), (digest, 3));
    assert!(record.references.contains_key(&reference.to_string()));
    place.assert_consistent().await;
    assert_eq!(place.partials(), Vec::<String>::new());

    // Another tag with the same layers fetches none of them again.
    let blobs = fake.count("/blobs/");
    fake.put_image("2", &[b"lower", b"middle", b"upper", b"top"]);
    place.pull(&fake.reference(":2")).await.unwrap();
    assert_eq!(fake.count("/blobs/"), blobs + 2, "a configuration and one layer");
    let place = place.reopened();
    assert_eq!(place.images.list().len(), 2);
    place.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn repeated_layer_is_fetched_once() {
    for _ in 0..20 {
        let fake = Fake::honest().await;
        fake.put_image("1", &[b"empty", b"base", b"empty", b"top", b"empty", b"empty"]);
        let place = TestStore::new();
        let reference = fake.reference(":1");
        let pull = tokio::time::timeout(std::time::Duration::from_secs(60), place.pull(&reference));
        let record = pull.await.expect("the pull ends").unwrap();
        assert_eq!(record.layers.len(), 6);
        assert_eq!(fake.count("/blobs/"), 4, "a configuration and three layers");
        assert_eq!(place.partials(), Vec::<String>::new());
        place.assert_consistent().await;
    }
}

#[tokio::test]
async fn host_platform_is_selected_and_digest_pinned() {
    let fake = Fake::honest().await;
    let ours = fake.put_image("ours", &[b"ours"]);
    let other = fake.put_manifest("other", MANIFEST, b"{}");
    let index = fake.put_index("multi", &[(&other, "s390x", 2), (&ours, arch(), fake.size_of("ours"))]);
    let place = TestStore::new();
    let record = place.pull(&fake.reference(":multi")).await.unwrap();
    assert_eq!(record.digest.to_string(), ours);
    assert_eq!(record.index_digest.as_ref().map(ToString::to_string), Some(index.clone()));
    // Both digests find the image locally; the registry is not contacted.
    for digest in [&ours, &index] {
        let reference = fake.reference(&format!("@{digest}"));
        let resolved = place.images.resolve(&reference, Policy::Never, None).await.unwrap();
        assert_eq!(resolved.record.digest.to_string(), ours);
        assert_eq!(resolved.defaults.user, "7");
    }
    let strange = fake.put_index("strange", &[(&other, "s390x", 2)]);
    match &*place.pull(&fake.reference(&format!("@{strange}"))).await.unwrap_err() {
        ImageError::NoPlatform { there, wanted, .. } => {
            assert_eq!((there.join(" "), wanted.clone()), ("linux/s390x".into(), format!("linux/{}", arch())));
        }
        other => panic!("{other}"),
    };
}

/// If an index names no platform, the platform in each configuration decides. Nested indexes are searched, and
/// documents that are not images are skipped.
#[tokio::test]
async fn index_without_platforms_is_searched() {
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    let fake = Fake::honest().await;
    let ours = fake.put_image("ours", &[b"ours"]);
    let foreign = config(&[b"other"], "s390x");
    fake.put_blob(foreign.as_bytes());
    let foreign = fake.put_manifest("foreign", MANIFEST, manifest(foreign.as_bytes(), &[b"other"]).as_bytes());
    let artifact = manifest(b"{}", &[b"x"]).replace("vnd.oci.image.config.v1", "vnd.oci.empty.v1");
    let artifact = fake.put_manifest("artifact", MANIFEST, artifact.as_bytes());
    let entry = |name: &str, media_type: &str, digest: &str| serde_json::json!({"mediaType": media_type, "digest": digest, "size": fake.size_of(name)});
    let index = |tag: &str, entries: Vec<serde_json::Value>| {
        let index = serde_json::json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).to_string();
        fake.put_manifest(tag, INDEX, index.as_bytes())
    };
    let foreign = entry("foreign", MANIFEST, &foreign);
    let inner = index("inner", vec![entry("artifact", MANIFEST, &artifact), entry("ours", MANIFEST, &ours)]);
    let outer = index("outer", vec![foreign.clone(), entry("inner", INDEX, &inner)]);
    let place = TestStore::new();
    let record = place.pull(&fake.reference(":outer")).await.unwrap();
    assert_eq!(record.digest.to_string(), ours);
    assert_eq!(record.index_digest.map(|digest| digest.to_string()), Some(outer));
    // If nothing fits, the error lists the platforms of the configurations.
    index("none", vec![foreign]);
    let error = place.pull(&fake.reference(":none")).await.unwrap_err();
    assert!(matches!(&*error, ImageError::NoPlatform { there, .. } if *there == ["linux/s390x"]), "{error}");
}

#[tokio::test]
async fn pull_policy_controls_registry_requests() {
    let fake = Fake::honest().await;
    let first = fake.put_image("1", &[b"first"]);
    let place = TestStore::new();
    let reference = fake.reference(":1");
    let resolve = |policy| {
        let (images, reference) = (Arc::clone(&place.images), reference.clone());
        async move { images.resolve(&reference, policy, None).await.map(|resolved| resolved.record.digest.to_string()) }
    };
    assert!(matches!(*resolve(Policy::Never).await.unwrap_err(), ImageError::NotHere { .. }));
    assert_eq!(fake.count("/"), 0, "the policy `never` sends no request");
    assert_eq!(resolve(Policy::IfMissing).await.unwrap(), first);
    let second = fake.put_image("1", &[b"second"]);
    assert_eq!(resolve(Policy::IfMissing).await.unwrap(), first);
    assert_eq!(resolve(Policy::Always).await.unwrap(), second);
    assert_eq!(resolve(Policy::Never).await.unwrap(), second, "the tag has moved");
    assert_eq!(place.images.list().iter().filter(|record| !record.references.is_empty()).count(), 1);
    // A layer that was removed from the layer store is fetched again.
    place.shelf.layers.lock().unwrap().clear();
    assert!(matches!(*resolve(Policy::Never).await.unwrap_err(), ImageError::Incomplete { .. }));
    assert_eq!(resolve(Policy::IfMissing).await.unwrap(), second);
    assert!(place.shelf.layers.lock().unwrap().keys().any(|digest| digest.to_string() == sha256(b"second")));
}

#[tokio::test]
async fn concurrent_pulls_of_same_image_are_shared() {
    let fake = Fake::honest().await;
    fake.put_image("1", &[&vec![1; 300_000], b"b"]);
    let place = TestStore::new();
    let reference = fake.reference(":1");
    let all = (0..8).map(|_| {
        let (images, reference) = (Arc::clone(&place.images), reference.clone());
        tokio::spawn(async move { images.resolve(&reference, Policy::IfMissing, None).await.map(drop) })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap().unwrap();
    }
    assert_eq!(fake.count("/manifests/"), 1);
    assert_eq!(fake.count("/blobs/"), 3);
}
