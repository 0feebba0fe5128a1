//! Tests required signatures: which signatures count, where a registry may store them, and that an unsigned image is
//! refused before any layer is fetched.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_images::signatures::{SignaturePolicy, SignatureRule, TrustedKey};
use executor_images::{ImageError, Policy};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SigningKey as _};
use serde_json::{Value, json};

use crate::fake::{Fake, MANIFEST, REPOSITORY, Reply, arch, sha256};
use crate::shelf::TestStore;

const SIMPLE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const SIGNS: &str = "https://sigstore.dev/cosign/sign/v1";
const LAYER: &[u8] = b"the layer";

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
}

fn trusted(key: &KeyPair) -> TrustedKey {
    TrustedKey::parse(key.public_key_pem().as_bytes()).unwrap().remove(0)
}

/// Returns a policy that requires every image to be signed by one of these keys.
fn by(keys: &[&KeyPair], repository: bool) -> SignaturePolicy {
    let keys = keys.iter().map(|key| trusted(key)).collect();
    SignaturePolicy(vec![SignatureRule { images: vec!["*".parse().unwrap()], keys, repository }])
}

fn place(policy: SignaturePolicy) -> TestStore {
    TestStore::with(|settings| settings.signatures = policy)
}

/// Returns a cosign payload.
fn payload(digest: &str, name: &str) -> Vec<u8> {
    let critical = json!({"identity": {"docker-reference": name}, "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature"});
    json!({"critical": critical, "optional": null}).to_string().into_bytes()
}

fn signed(key: &KeyPair, payload: Vec<u8>) -> (Vec<u8>, Value) {
    let signature = STANDARD.encode(key.sign(&payload).unwrap());
    (payload, json!({"dev.cosignproject.cosign/signature": signature}))
}

/// Creates a document with these layers: content, media type and annotations.
fn document(fake: &Fake, layers: &[(Vec<u8>, &str, Value)]) -> Vec<u8> {
    let entry = |(content, kind, annotations): &(Vec<u8>, &str, Value)| json!({"mediaType": kind, "digest": fake.put_blob(content), "size": content.len(), "annotations": annotations});
    let config = json!({"mediaType": "application/vnd.oci.empty.v1+json", "digest": fake.put_blob(b"{}"), "size": 2});
    let layers: Vec<Value> = layers.iter().map(entry).collect();
    json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}).to_string().into_bytes()
}

fn tag(digest: &str) -> String {
    digest.replace(':', "-")
}

/// Stores signatures under the tag that cosign uses.
fn put_simple(fake: &Fake, of: &str, signatures: &[(Vec<u8>, Value)]) {
    let layers: Vec<_> = signatures.iter().map(|(payload, more)| (payload.clone(), SIMPLE, more.clone())).collect();
    fake.put_manifest(&format!("{}.sig", tag(of)), MANIFEST, &document(fake, &layers));
}

/// Stores a document as a referrer of a digest: through the API if `api` is true, else under the tag that registries
/// without the API use.
fn put_referrer(fake: &Fake, of: &str, kind: &str, document: &[u8], api: bool) {
    let digest = fake.put_manifest("x", MANIFEST, document);
    let entry = json!({"mediaType": MANIFEST, "artifactType": kind, "digest": digest, "size": document.len()});
    let index =
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]});
    let name = if api { format!("referrers/{of}") } else { format!("manifests/{}", tag(of)) };
    fake.put(
        &format!("/v2/{REPOSITORY}/{name}"),
        "application/vnd.oci.image.index.v1+json",
        index.to_string().as_bytes(),
    );
}

fn put_bundle(fake: &Fake, of: &str, bundle: &Value, api: bool) {
    let document = document(fake, &[(bundle.to_string().into_bytes(), BUNDLE, json!({}))]);
    put_referrer(fake, of, BUNDLE, &document, api);
}

/// Returns a bundle with a statement.
fn statement(key: &KeyPair, digest: &str, name: &str, predicate: &str) -> Value {
    let subject =
        json!([{"name": name, "digest": {"sha256": digest.trim_start_matches("sha256:")}, "annotations": {}}]);
    let statement = json!({"_type": "https://in-toto.io/Statement/v1", "subject": subject, "predicateType": predicate,
        "predicate": {}});
    let (body, kind) = (statement.to_string(), "application/vnd.in-toto+json");
    let message = format!("DSSEv1 {} {kind} {} {body}", kind.len(), body.len());
    let signature = STANDARD.encode(key.sign(message.as_bytes()).unwrap());
    json!({"mediaType": BUNDLE, "verificationMaterial": {"publicKey": {"hint": "x"}, "tlogEntries": []},
        "dsseEnvelope": {"payload": STANDARD.encode(body), "payloadType": kind, "signatures": [{"sig": signature, "keyid": ""}]}})
}

/// Returns a bundle with a signature of these bytes.
fn message(key: &KeyPair, bytes: &[u8]) -> Value {
    let digest = STANDARD.encode(hex::decode(&sha256(bytes)[7..]).unwrap());
    json!({"mediaType": "application/vnd.dev.sigstore.bundle+json;version=0.3", "verificationMaterial": {},
        "messageSignature": {"messageDigest": {"algorithm": "SHA2_256", "digest": digest},
            "signature": STANDARD.encode(key.sign(bytes).unwrap())}})
}

fn manifest_of(fake: &Fake, digest: &str) -> Vec<u8> {
    let asked = crate::fake::RecordedRequest {
        method: "GET".into(),
        path: format!("/v2/{REPOSITORY}/manifests/{digest}"),
        headers: Default::default(),
        body: String::new(),
    };
    match fake.file(&asked).body {
        crate::fake::Content::Whole(bytes) => bytes,
        _ => panic!("no manifest"),
    }
}

type Put<'a> = &'a dyn Fn(&Fake, &str);

/// A signature counts in each location that a registry may use. A signature by the second key of a rule also counts.
#[tokio::test]
async fn a_signature_counts_wherever_it_is_kept() {
    let (own, other, edwards) = (key(), key(), KeyPair::generate_for(&PKCS_ED25519).unwrap());
    let ways: [(&str, Put<'_>); 9] = [
        ("simple signing", &|fake, of| put_simple(fake, of, &[signed(&own, payload(of, "x"))])),
        ("Ed25519", &|fake, of| put_simple(fake, of, &[signed(&edwards, payload(of, ""))])),
        ("after a signature by another key", &|fake, of| {
            put_simple(fake, of, &[signed(&other, payload(of, "x")), signed(&own, payload(of, "x"))]);
        }),
        ("simple signing as a referrer", &|fake, of| {
            let (payload, more) = signed(&own, payload(of, "x"));
            let document = document(fake, &[(payload, SIMPLE, more)]);
            put_referrer(fake, of, "application/vnd.dev.cosign.artifact.sig.v1+json", &document, true);
        }),
        ("a bundle by the API", &|fake, of| put_bundle(fake, of, &statement(&own, of, "", SIGNS), true)),
        ("a bundle by its tag", &|fake, of| put_bundle(fake, of, &statement(&own, of, "", SIGNS), false)),
        ("an Ed25519 bundle", &|fake, of| put_bundle(fake, of, &statement(&edwards, of, "", SIGNS), true)),
        ("a bundle of the manifest", &|fake, of| put_bundle(fake, of, &message(&own, &manifest_of(fake, of)), true)),
        ("a bundle beside another's signature", &|fake, of| {
            put_simple(fake, of, &[signed(&other, payload(of, "x"))]);
            put_bundle(fake, of, &statement(&own, of, "", SIGNS), true);
        }),
    ];
    for (way, put) in ways {
        let fake = Fake::honest().await;
        let digest = fake.put_image("1", &[LAYER]);
        put(&fake, &digest);
        let place = place(by(&[&edwards, &own], false));
        let pulled = place.pull(&fake.reference(":1")).await;
        assert!(pulled.is_ok(), "{way}: {}", pulled.unwrap_err());
        place.assert_consistent().await;
    }
    // Either the index or the manifest of the image may be signed.
    for from_index in [true, false] {
        let fake = Fake::honest().await;
        let manifest = fake.put_image("one", &[LAYER]);
        let index = fake.put_index("1", &[(&manifest, arch(), fake.size_of("one"))]);
        let of = if from_index { &index } else { &manifest };
        put_simple(&fake, of, &[signed(&own, payload(of, "x"))]);
        place(by(&[&own], false)).pull(&fake.reference(":1")).await.unwrap();
    }
}

/// If an image has no valid signature, only the documents are fetched, and the error contains the reasons.
#[tokio::test]
async fn unsigned_image_is_refused_before_layers() {
    let (own, other) = (key(), key());
    let elsewhere = sha256(b"another image");
    let odd = |kind: &str, of: &str| {
        let critical = json!({"identity": {}, "image": {"docker-manifest-digest": of}, "type": kind});
        json!({"critical": critical}).to_string().into_bytes()
    };
    let twice = |of: &str| {
        let image = format!(r#"{{"docker-manifest-digest":"{elsewhere}","docker-manifest-digest":"{of}"}}"#);
        format!(r#"{{"critical":{{"image":{image},"type":"cosign container image signature"}}}}"#).into_bytes()
    };
    let cases: [(&str, Put<'_>); 17] = [
        ("the registry has no signatures for the image", &|_, _| ()),
        ("no configured key verifies", &|fake, of| put_simple(fake, of, &[signed(&other, payload(of, "x"))])),
        ("another image", &|fake, of| put_simple(fake, of, &[signed(&own, payload(&elsewhere, "x"))])),
        ("duplicate field", &|fake, of| put_simple(fake, of, &[signed(&own, twice(of))])),
        ("not a signature", &|fake, of| put_simple(fake, of, &[signed(&own, odd("something else", of))])),
        ("malformed", &|fake, of| put_simple(fake, of, &[signed(&own, b"{".to_vec())])),
        ("no configured key verifies", &|fake, of| {
            let (_, signature) = signed(&own, payload(of, "x"));
            put_simple(fake, of, &[(payload(of, "y"), signature)]);
        }),
        ("no annotation", &|fake, of| put_simple(fake, of, &[(payload(of, "x"), json!({}))])),
        ("not base64", &|fake, of| {
            put_simple(fake, of, &[(payload(of, "x"), json!({"dev.cosignproject.cosign/signature": "!"}))]);
        }),
        ("the maximum is 65536", &|fake, of| {
            let mut large = payload(of, "x");
            large.resize(70_000, b' ');
            put_simple(fake, of, &[signed(&own, large)]);
        }),
        ("the maximum is 4194304", &|fake, of| {
            let (payload, more) = signed(&own, payload(of, "x"));
            let mut large = document(fake, &[(payload, SIMPLE, more)]);
            large.resize(5 << 20, b' ');
            fake.put_manifest(&format!("{}.sig", tag(of)), MANIFEST, &large);
        }),
        ("more than 64 signatures", &|fake, of| {
            let junk = signed(&other, payload(of, "x"));
            let layers: Vec<_> = (0..64).map(|_| junk.clone()).collect();
            put_simple(fake, of, &layers);
            put_bundle(fake, of, &statement(&own, of, "", SIGNS), true);
        }),
        ("but the content has", &|fake, of| {
            let (payload, more) = signed(&own, payload(of, "x"));
            let document = document(fake, &[(payload.clone(), SIMPLE, more)]);
            let mut other = payload.clone();
            other[0] = b' ';
            fake.put(&format!("/v2/{REPOSITORY}/blobs/{}", sha256(&payload)), "", &other);
            fake.put_manifest(&format!("{}.sig", tag(of)), MANIFEST, &document);
        }),
        ("another image", &|fake, of| put_bundle(fake, of, &statement(&own, &elsewhere, "", SIGNS), true)),
        ("slsa.dev/provenance", &|fake, of| {
            put_bundle(fake, of, &statement(&own, of, "", "https://slsa.dev/provenance/v1"), true);
        }),
        ("another image", &|fake, of| put_bundle(fake, of, &message(&own, b"another manifest"), true)),
        ("no configured key verifies", &|fake, of| put_bundle(fake, of, &statement(&other, of, "", SIGNS), false)),
    ];
    for (why, put) in cases {
        let fake = Fake::honest().await;
        let digest = fake.put_image("1", &[LAYER]);
        put(&fake, &digest);
        let place = place(by(&[&own], false));
        for selector in [":1", &format!("@{digest}")] {
            let error = place.pull(&fake.reference(selector)).await.unwrap_err();
            assert!(matches!(&*error, ImageError::Unsigned { .. }), "{why}: {error}");
            let reported = error.to_string();
            assert!(reported.contains(why) && reported.contains("(images.signed)"), "{why}: {reported}");
        }
        assert_eq!(fake.count(&sha256(LAYER)), 0, "{why}: the layer was requested");
        assert!(place.images.list().is_empty());
        // The control: if a valid signature is added, the image is accepted.
        if why != "more than 64 signatures" {
            put_simple(&fake, &digest, &[signed(&own, payload(&digest, "x"))]);
            place.pull(&fake.reference(":1")).await.unwrap();
        }
    }
}

/// If a registry fails, the error reports the failure, not missing signatures.
#[tokio::test]
async fn registry_failure_is_not_missing_signature() {
    let fake = Fake::start(|asked| asked.path.ends_with(".sig").then(|| Reply::status(503))).await;
    fake.put_image("1", &[LAYER]);
    let error = place(by(&[&key()], false)).pull(&fake.reference(":1")).await.unwrap_err();
    assert!(matches!(*error, ImageError::Status { status: 503, .. }), "{error}");
}

#[tokio::test]
async fn moved_tag_does_not_keep_signature() {
    let own = key();
    let fake = Fake::honest().await;
    let digest = fake.put_image("1", &[LAYER]);
    put_simple(&fake, &digest, &[signed(&own, payload(&digest, "x"))]);
    let place = place(by(&[&own], false));
    let tag = fake.reference(":1");
    place.pull(&tag).await.unwrap();
    let moved = fake.put_image("1", &[b"evil"]);
    // Store the signature of the old image under the tag for signatures of the new image.
    put_simple(&fake, &moved, &[signed(&own, payload(&digest, "x"))]);
    for reference in [&tag, &fake.reference(&format!("@{moved}")), &fake.reference(&format!(":1@{moved}"))] {
        let error = place.pull(reference).await.unwrap_err();
        assert!(matches!(*error, ImageError::Unsigned { .. }), "{error}");
    }
    let kept = place.images.resolve(&tag, Policy::IfMissing, None).await.unwrap();
    assert_eq!(kept.record.digest.to_string(), digest, "the present image is the signed image");
}

/// If an image is present, the signatures that were found when it was fetched must satisfy the current rules.
#[tokio::test]
async fn present_image_must_satisfy_current_keys() {
    let (own, other) = (key(), key());
    let fake = Fake::honest().await;
    let digest = fake.put_image("1", &[LAYER]);
    let (tag, pinned) = (fake.reference(":1"), fake.reference(&format!("@{digest}")));
    let unsigned = TestStore::new();
    unsigned.pull(&tag).await.unwrap();
    let place = unsigned.reopened_with(|settings| settings.signatures = by(&[&own], false));
    let resolve = |place: &TestStore, policy| {
        let (images, tag) = (Arc::clone(&place.images), tag.clone());
        async move { images.resolve(&tag, policy, None).await.map(drop) }
    };
    let error = resolve(&place, Policy::Never).await.unwrap_err();
    assert!(matches!(*error, ImageError::FromElsewhere { .. }), "{error}");
    assert!(matches!(*resolve(&place, Policy::IfMissing).await.unwrap_err(), ImageError::Unsigned { .. }));
    put_simple(&fake, &digest, &[signed(&own, payload(&digest, "x"))]);
    resolve(&place, Policy::IfMissing).await.unwrap();
    let asked = fake.count("/");
    resolve(&place, Policy::Never).await.unwrap();
    place.images.resolve(&pinned, Policy::Never, None).await.unwrap();
    assert_eq!(fake.count("/"), asked, "verified once");
    let place = place.reopened_with(|settings| settings.signatures = by(&[&other], false));
    let error = resolve(&place, Policy::IfMissing).await.unwrap_err();
    assert!(error.to_string().contains("no configured key verifies"), "{error}");
    // The rule does not apply to images of another repository.
    let free = place.reopened_with(|settings| {
        let mut policy = by(&[&other], false);
        policy.0[0].images = vec!["r.example/**".parse().unwrap()];
        settings.signatures = policy;
    });
    resolve(&free, Policy::Never).await.unwrap();
}

/// A signature of another repository counts unless the rule requires the repository's name. Every rule must be
/// satisfied.
#[tokio::test]
async fn a_rule_may_want_the_repositorys_name() {
    let (own, other) = (key(), key());
    let fake = Fake::honest().await;
    let digest = fake.put_image("1", &[LAYER]);
    let name = format!("{}/{REPOSITORY}", fake.address);
    let reference = fake.reference(":1");
    for (named, counts) in [("r.example/team/app", false), ("", false), (&*name, true), (&format!("{name}:1"), true)] {
        put_simple(&fake, &digest, &[signed(&own, payload(&digest, named))]);
        place(by(&[&own], false)).pull(&reference).await.unwrap();
        assert_eq!(place(by(&[&own], true)).pull(&reference).await.is_ok(), counts, "{named:?}");
    }
    let fake = Fake::honest().await;
    let digest = fake.put_image("1", &[LAYER]);
    let both = SignaturePolicy([by(&[&own], false).0, by(&[&other], false).0].concat());
    put_simple(&fake, &digest, &[signed(&own, payload(&digest, ""))]);
    let error = place(both.clone()).pull(&fake.reference(":1")).await.unwrap_err();
    assert!(error.to_string().contains("not satisfy every rule"), "{error}");
    put_simple(&fake, &digest, &[signed(&own, payload(&digest, "")), signed(&other, payload(&digest, ""))]);
    place(both).pull(&fake.reference(":1")).await.unwrap();
}
