//! Tests rules 4, 5 and 6 of `docs/guides/conventions.md`: images.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use executor_conventions::images::{ImageSource as _, Registries};
use executor_conventions::sbom;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::common::{DIGEST, World, app, nothing};

fn images(of: &[&str], init: &[&str]) -> Value {
    let list = |kind: &str, images: &[&str]| -> Vec<Value> {
        images.iter().enumerate().map(|(at, image)| json!({"name": format!("{kind}{at}"), "image": image})).collect()
    };
    json!({"spec": {"containers": list("c", of), "initContainers": list("i", init)}})
}

#[tokio::test]
async fn rule_4_distinct_images_have_one_sorted_entry() {
    let world = World::default().convention("a", "", nothing);
    world.decorate(&images(&["z", "b", "z"], &["b", "a"])).await.unwrap();
    let sent = world.requests()[0]["spec"]["imageConfig"].clone();
    let names: Vec<&str> = sent.as_array().unwrap().iter().map(|one| one["image"].as_str().unwrap()).collect();
    let pinned = |name: &str| format!("r.example/{name}:latest@{DIGEST}");
    assert_eq!(names, [pinned("a"), pinned("b"), pinned("z")]);
    // A container without an image is skipped.
    let none = json!({"spec": {"containers": [{"name": "app"}, {"name": "b", "image": ""}]}});
    let world = World::default().convention("a", "", nothing);
    world.decorate(&none).await.unwrap();
    assert_eq!(world.requests()[0]["spec"]["imageConfig"], json!([]));
}

#[tokio::test]
async fn rule_5_every_unresolvable_image_is_named() {
    let world = World::default().convention("a", "", nothing);
    let reported = world.refused(&images(&["good", "missing"], &["missing", "missing2"])).await;
    for field in ["spec.containers[c1].image: ", "spec.initContainers[i0].image: ", "spec.initContainers[i1].image: "] {
        assert!(reported.contains(field), "{reported}");
    }
    assert!(reported.lines().count() == 3 && world.requests().is_empty(), "{reported}");
    // If no convention matches the template, no image is resolved.
    let untouched = images(&["missing"], &[]);
    let mut after = World::default().document(&untouched).await;
    after["spec"]["initContainers"] = json!([]);
    after.as_object_mut().unwrap().remove("metadata");
    assert_eq!(after, untouched);
}

/// Writes a layout with an image, and returns the reference of the image.
fn layout(dir: &Path, labels: &Value, layers: &[Vec<u8>]) -> String {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |media_type: &str, content: &[u8]| {
        let digest = sha256(content);
        fs::write(blobs.join(&digest), content).unwrap();
        json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": content.len()})
    };
    let tar = "application/vnd.oci.image.layer.v1.tar+gzip";
    let packed: Vec<Value> = layers.iter().map(|layer| put(tar, &gzip(layer))).collect();
    let diff_ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", sha256(layer))).collect();
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": arch, "os": "linux", "config": {"Labels": labels, "Env": ["A=b"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids}, "future": {"kept": true},
    });
    let config = put("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": packed});
    let entry = put(kind, manifest.to_string().as_bytes());
    fs::write(dir.join("index.json"), json!({"schemaVersion": 2, "manifests": [entry]}).to_string()).unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    format!("oci:{}", dir.display())
}

fn sha256(content: &[u8]) -> String {
    use sha2::Digest as _;
    hex::encode(sha2::Sha256::digest(content))
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn layer(files: &[(&str, &[u8])]) -> Vec<u8> {
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

const SYFT: &str = "layers/sbom/launch/app/sbom.syft.json";

#[tokio::test]
async fn rule_6_labelled_layer_contains_boms() {
    let bills = layer(&[("layers/", b""), (SYFT, b"{\"a\":1}"), ("layers/b.json", b"\xff")]);
    let diff_id = format!("sha256:{}", sha256(&bills));
    let other = layer(&[("bin/app", b"program")]);
    let expected = json!([
        {"name": format!("cnb-app:{SYFT}"), "raw": "eyJhIjoxfQ=="},
        {"name": "cnb-app:layers/b.json", "raw": "/w=="},
    ]);
    let metadata =
        |part: &str| json!({"io.buildpacks.lifecycle.metadata": json!({part: {"sha": diff_id}}).to_string()});
    for (labels, boms) in [
        (json!({"io.buildpacks.app.sbom": diff_id}), &expected),
        (metadata("sbom"), &expected),
        (metadata("bom"), &expected),
        (json!({"io.buildpacks.lifecycle.metadata": "{}"}), &json!([])),
        (json!({"other": diff_id}), &json!([])),
        (Value::Null, &json!([])),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let reference = layout(dir.path(), &labels, &[other.clone(), bills.clone()]);
        let found = Registries::new(None, None).describe(&reference).await.unwrap();
        assert_eq!(&serde_json::to_value(&found.boms).unwrap(), boms, "{labels}");
        // The whole image configuration is forwarded.
        assert_eq!(found.config["future"], json!({"kept": true}));
        assert!(found.image.starts_with(&format!("{reference}@sha256:")), "{}", found.image);
    }
}

#[tokio::test]
async fn rule_6_unreadable_boms_fail() {
    let bills = layer(&[(SYFT, b"{}")]);
    for (labels, why) in [
        (json!({"io.buildpacks.app.sbom": DIGEST}), "the SBOM label names layer sha256:0123"),
        (json!({"io.buildpacks.app.sbom": "sha256:x"}), "the diffID of the SBOM layer has 1 hexadecimal digits"),
        (json!({"io.buildpacks.lifecycle.metadata": "canary"}), "is not valid lifecycle metadata in JSON"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let reference = layout(dir.path(), &labels, std::slice::from_ref(&bills));
        let reported = Registries::new(None, None).describe(&reference).await.unwrap_err();
        assert!(reported.contains(why) && !reported.contains("canary"), "{reported}");
    }
    assert!(sbom::read(&gzip(&bills)[..20]).is_err());
    let many: Vec<(String, &[u8])> = (0..=sbom::BOMS_MAX).map(|n| (format!("f{n}"), &b""[..])).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|(path, content)| (&**path, *content)).collect();
    assert!(sbom::read(&layer(&many)).unwrap_err().contains("1001 entries; at most 1000"));
    // Decompression bomb: a few bytes that expand to many.
    let zeros = vec![0; usize::try_from(sbom::BYTES_MAX).unwrap() + 1];
    let reported = sbom::read(&gzip(&layer(&[("zeros", &zeros)]))).unwrap_err();
    assert!(reported.contains("33554433 bytes of files; at most 33554432"), "{reported}");
}

#[tokio::test]
async fn rule_5_image_on_disk_keeps_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let reference = layout(dir.path(), &Value::Null, &[layer(&[("a", b"")])]);
    let registries = Registries::new(None, None);
    let found = registries.describe(&reference).await.unwrap();
    assert!(found.image.len() > reference.len());
    let reported = registries.describe("docker.io/BAD").await.unwrap_err();
    assert!(reported.contains("BAD"), "{reported}");
    let mut template = app();
    template["spec"]["containers"][0]["image"] = json!(reference);
    let template = serde_json::from_value(template).unwrap();
    let world = World::default().convention("a", "", nothing);
    let after = world.decorate_with(&template, &registries).await.unwrap();
    assert_eq!(after.template.spec.unwrap().containers[0].image.as_deref(), Some(&*reference));
}
