//! Tests the operator's policy: images that must not be fetched, and present images that must not be used.

use std::sync::Arc;

use executor_core::image::{ImagePolicy, ImageReference, ImageRules};
use executor_images::{ImageError, ImportFormat, Policy};

use crate::fake::{Fake, Reply, arch, config};
use crate::shelf::TestStore;

fn policy(allow: &[String], import: bool) -> ImagePolicy {
    let rules = ImageRules { allow: Some(allow.to_vec()), allow_import: Some(import), allow_archives: Some(false) };
    ImagePolicy::new(&rules, false).unwrap()
}

/// Returns a pattern for repositories of a registry.
fn image_of(fake: &Fake, path: &str) -> String {
    format!("{}/{path}", fake.address)
}

fn named(fake: &Fake, name: &str) -> ImageReference {
    format!("docker://{}/{name}", fake.address).parse().unwrap()
}

async fn resolved(place: &TestStore, reference: &ImageReference, policy: Policy) -> Result<(), Arc<ImageError>> {
    place.images.resolve(reference, policy, None).await.map(drop)
}

#[tokio::test]
async fn disallowed_repository_causes_no_registry_request() {
    let fake = Fake::honest().await;
    let digest = fake.put_image("1", &[b"a"]);
    let closed = TestStore::with(|settings| {
        settings.policy = policy(&[image_of(&fake, "team/other"), image_of(&fake, "t/**")], false);
    });
    for selector in [":1", &format!("@{digest}"), &format!(":1@{digest}")] {
        let reference = fake.reference(selector);
        assert!(matches!(*closed.pull(&reference).await.unwrap_err(), ImageError::Forbidden(_)), "{selector}");
        for when in [Policy::Always, Policy::IfMissing, Policy::Never] {
            let reported = resolved(&closed, &reference, when).await.unwrap_err().to_string();
            assert!(reported.contains("team/app is not allowed") && reported.contains("(images.allow)"), "{reported}");
        }
    }
    for archive in ["oci:/srv/layout", "oci-archive:/srv/a.tar", "docker-archive:/srv/a.tar"] {
        let reported = resolved(&closed, &archive.parse().unwrap(), Policy::Always).await.unwrap_err().to_string();
        assert!(reported.contains(archive) && reported.contains("(images.allow_archives)"), "{reported}");
    }
    let upload = closed.images.upload().await.unwrap();
    let reported = closed.images.import(upload, ImportFormat::OciArchive, None, None).await.unwrap_err().to_string();
    assert!(reported.contains("(images.allow_import)"), "{reported}");
    assert_eq!(fake.count("/"), 0, "no request was made");
    // The control: a policy that includes the image allows the same pull.
    let open = TestStore::with(|settings| settings.policy = policy(&[image_of(&fake, "team/*")], false));
    open.pull(&fake.reference(":1")).await.unwrap();
    open.assert_consistent().await;
}

#[tokio::test]
async fn manifest_redirects_require_allowed_repository() {
    let other = Fake::honest().await;
    other.put_image("1", &[b"a"]);
    let to = format!("http://{}", other.address);
    for (target, escape) in
        [("/v2/team/app/manifests/1", "team/app"), ("/v2/team/app/../app/manifests/1", ""), ("/1", "")]
    {
        let (location, blobs) = (format!("{to}{target}"), to.clone());
        let fake = Fake::start(move |asked| {
            let is_manifest = asked.path.contains("/manifests/");
            Some(Reply::redirect(if is_manifest { location.clone() } else { format!("{blobs}{}", asked.path) }))
        });
        let fake = fake.await;
        let closed = TestStore::with(|settings| settings.policy = policy(&[image_of(&fake, "**")], false));
        let asked = other.count("/");
        match &*closed.pull(&fake.reference(":1")).await.unwrap_err() {
            ImageError::Redirect { to: reported, why, .. } => {
                assert!(*reported == to && why.contains("(images.allow)"), "{why}");
            }
            error => panic!("{error}"),
        }
        assert_eq!(other.count("/"), asked, "the redirect was not followed");
        // The control: if the policy allows both repositories, the redirect is followed. Blobs may come from any host.
        if !escape.is_empty() {
            let both = [image_of(&fake, "**"), image_of(&other, escape)];
            let open = TestStore::with(|settings| settings.policy = policy(&both, false));
            open.pull(&fake.reference(":1")).await.unwrap();
            let unset = TestStore::new();
            unset.pull(&fake.reference(":1")).await.unwrap();
        }
    }
    // This redirect leads to another repository of the same registry.
    let fake = Fake::start(|asked| {
        (asked.path == "/v2/team/x/manifests/1").then(|| Reply::redirect("/v2/team/app/manifests/1"))
    });
    let fake = fake.await;
    fake.put_image("1", &[b"a"]);
    let closed = TestStore::with(|settings| settings.policy = policy(&[image_of(&fake, "team/x")], false));
    assert!(matches!(*closed.pull(&named(&fake, "team/x:1")).await.unwrap_err(), ImageError::Redirect { .. }));
}

#[tokio::test]
async fn present_image_requires_allowed_origin() {
    let fake = Fake::honest().await;
    let digest = fake.put_image("1", &[b"a"]);
    let (tag, pinned) = (fake.reference(":1"), fake.reference(&format!("@{digest}")));
    let elsewhere = named(&fake, &format!("team/other@{digest}"));
    let all = || policy(&[image_of(&fake, "team/**")], false);

    // An image fetched before there was a policy may be used for its own repository, but not for another repository.
    let place = TestStore::new();
    place.pull(&tag).await.unwrap();
    assert!(
        resolved(&place, &elsewhere, Policy::Never).await.is_ok(),
        "the control: without a policy a digest is enough"
    );
    let place = place.reopened_with(|settings| settings.policy = all());
    let asked = fake.count("/");
    for reference in [&tag, &pinned] {
        resolved(&place, reference, Policy::Never).await.unwrap();
    }
    let error = resolved(&place, &elsewhere, Policy::Never).await.unwrap_err();
    assert!(matches!(*error, ImageError::FromElsewhere { .. }), "{error}");
    assert_eq!(fake.count("/"), asked);
    let error = resolved(&place, &elsewhere, Policy::IfMissing).await.unwrap_err();
    assert!(matches!(*error, ImageError::NotFound { .. }), "the other repository was asked: {error}");

    // This image is imported under the name, or with the digest, of an allowed image.
    let imported = config(&[b"evil"], arch());
    let manifest = serde_json::json!([{"Config": "c.json", "RepoTags": [&tag.to_string()[9..]], "Layers": ["l.tar"]}]);
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in
        [("manifest.json", manifest.to_string().as_bytes()), ("c.json", imported.as_bytes()), ("l.tar", b"evil")]
    {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content).unwrap();
    }
    let place = TestStore::with(|settings| settings.policy = policy(&[image_of(&fake, "team/**")], true));
    let upload = place.images.upload().await.unwrap().write(archive.into_inner().unwrap()).await.unwrap();
    let record = place.images.import(upload, ImportFormat::DockerArchive, None, None).await.unwrap();
    assert!(record.references.contains_key(&tag.to_string()), "{record:?}");
    let pinned = fake.reference(&format!("@{}", record.digest));
    let unlisted: ImageReference = format!("docker://r.example/x@{}", record.digest).parse().unwrap();
    for reference in [&tag, &pinned, &unlisted] {
        resolved(&place, reference, Policy::Never).await.expect("imports are allowed");
    }
    let place = place.reopened_with(|settings| settings.policy = all());
    for reference in [&tag, &pinned] {
        let error = resolved(&place, reference, Policy::Never).await.unwrap_err();
        assert!(matches!(*error, ImageError::FromElsewhere { .. }), "{error}");
    }
    assert!(matches!(*resolved(&place, &unlisted, Policy::Never).await.unwrap_err(), ImageError::Forbidden(_)));
    // After a fetch, the name refers to the registry's image again.
    let used = place.images.resolve(&tag, Policy::IfMissing, None).await.unwrap();
    assert_eq!(used.record.digest.to_string(), digest);
    place.assert_consistent().await;
}
