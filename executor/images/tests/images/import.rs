//! Tests imports of layouts and archives, including invalid archives and archives with malicious names.

use std::path::Path;

use executor_core::image::ImageReference;
use executor_images::{ImageError, ImageRecord, ImportFormat};
use serde_json::json;

use crate::fake::{arch, config, manifest, sha256};
use crate::shelf::TestStore;

/// Type of an archive entry.
enum TestEntry<'a> {
    File(&'a [u8]),
    Symlink(&'a str),
    Hardlink(&'a str),
}

/// Creates a tar archive with unmodified names, some of which the tar library would refuse.
fn tar(entries: &[(&str, TestEntry<'_>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, entry) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o644);
        let (kind, content, link) = match entry {
            TestEntry::File(content) => (tar::EntryType::Regular, *content, ""),
            TestEntry::Symlink(to) => (tar::EntryType::Symlink, &[][..], *to),
            TestEntry::Hardlink(to) => (tar::EntryType::Link, &[][..], *to),
        };
        header.set_entry_type(kind);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

async fn import(
    place: &TestStore,
    archive: &[u8],
    form: ImportFormat,
    name: Option<&str>,
) -> Result<ImageRecord, ImageError> {
    let mut upload = place.images.upload().await?;
    for piece in archive.chunks(1000) {
        upload = upload.write(piece.to_vec()).await?;
    }
    let name = name.map(|name| ImageReference::parse_short(name).unwrap());
    place.images.import(upload, form, None, name.as_ref()).await
}

/// Returns the `manifest.json` of an archive of `docker save`.
fn saved(config: &str, layers: &[&str]) -> String {
    json!([{"Config": config, "RepoTags": ["team/app:1"], "Layers": layers}]).to_string()
}

#[tokio::test]
async fn docker_archive_supports_any_order_and_links() {
    let config = config(&[b"lower", b"upper", b"lower"], arch());
    let manifest = saved("c.json", &["a/layer.tar", "b.tar", "c/layer.tar"]);
    let archive = tar(&[
        ("b.tar", TestEntry::File(b"upper")),
        ("c/layer.tar", TestEntry::Symlink("../a/layer.tar")),
        ("a/layer.tar", TestEntry::Hardlink("x.tar")),
        ("x.tar", TestEntry::File(b"lower")),
        ("./c.json", TestEntry::File(config.as_bytes())),
        ("manifest.json", TestEntry::File(manifest.as_bytes())),
    ]);
    let place = TestStore::new();
    let record = import(&place, &archive, ImportFormat::DockerArchive, None).await.unwrap();
    assert_eq!(record.references.keys().collect::<Vec<_>>(), ["docker://docker.io/team/app:1"]);
    assert_eq!(record.layers.len(), 3);
    place.assert_consistent().await;
    assert_eq!(place.partials(), Vec::<String>::new(), "no part of the archive is kept");
    // An import of the same archive under an explicit name returns the same image.
    let again = import(&place, &archive, ImportFormat::DockerArchive, Some("local/x")).await.unwrap();
    assert_eq!((again.digest, again.references.len()), (record.digest, 2));
}

#[tokio::test]
async fn invalid_archives_are_refused() {
    let good = config(&[b"lower"], arch());
    let strange = config(&[b"lower"], "s390x");
    let file = |text: &'static str| TestEntry::File(text.as_bytes());
    let manifest = saved("c.json", &["a.tar"]);
    let outside = saved("../../../../etc/passwd", &["a.tar"]);
    let absolute = saved("/etc/passwd", &["a.tar"]);
    let two = json!([{"Config": "c.json", "Layers": ["a.tar"]}, {"Config": "c.json", "Layers": ["a.tar"]}]).to_string();
    let archives: Vec<(&str, Vec<u8>)> = vec![
        ("no tar", b"\0hello".to_vec()),
        ("empty", tar(&[])),
        ("compressed", [&[0x1f, 0x8b, 8][..], &[0; 600]].concat()),
        ("no configuration", tar(&[("manifest.json", TestEntry::File(manifest.as_bytes())), ("a.tar", file("lower"))])),
        (
            "a configuration outside",
            tar(&[("manifest.json", TestEntry::File(outside.as_bytes())), ("a.tar", file("lower"))]),
        ),
        ("an absolute name", tar(&[("manifest.json", TestEntry::File(absolute.as_bytes())), ("a.tar", file("lower"))])),
        (
            "a link outside",
            tar(&[
                ("manifest.json", TestEntry::File(manifest.as_bytes())),
                ("c.json", TestEntry::Symlink("/etc/passwd")),
                ("a.tar", TestEntry::Symlink("../../../etc/passwd")),
            ]),
        ),
        (
            "links in a circle",
            tar(&[
                ("manifest.json", TestEntry::File(manifest.as_bytes())),
                ("c.json", TestEntry::File(good.as_bytes())),
                ("a.tar", TestEntry::Symlink("b.tar")),
                ("b.tar", TestEntry::Symlink("a.tar")),
            ]),
        ),
        (
            "another layer than the configuration has",
            tar(&[
                ("manifest.json", TestEntry::File(manifest.as_bytes())),
                ("c.json", TestEntry::File(good.as_bytes())),
                ("a.tar", file("LOWER")),
            ]),
        ),
        (
            "another machine",
            tar(&[
                ("manifest.json", TestEntry::File(manifest.as_bytes())),
                ("c.json", TestEntry::File(strange.as_bytes())),
                ("a.tar", file("lower")),
            ]),
        ),
        (
            "two images",
            tar(&[
                ("manifest.json", TestEntry::File(two.as_bytes())),
                ("c.json", TestEntry::File(good.as_bytes())),
                ("a.tar", file("lower")),
            ]),
        ),
        ("no list", tar(&[("manifest.json", file("{}"))])),
    ];
    for (what, archive) in archives {
        let place = TestStore::new();
        let error = import(&place, &archive, ImportFormat::DockerArchive, None).await.expect_err(what);
        assert!(!format!("{error}").contains("root:"), "{what}: {error}");
        assert!(place.images.list().is_empty() && place.partials().is_empty(), "{what}");
        place.assert_consistent().await;
    }
}

#[tokio::test]
async fn archive_errors_name_count_and_limit() {
    let image = |name: &str| json!({"Config": "c.json", "RepoTags": [name], "Layers": ["a.tar"]});
    let (two, many) = (json!([image("team/a:1"), image("team/b:2")]), saved("c.json", &["a.tar"; 201]));
    let entry = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": sha256(b""), "size": 0});
    let index = json!({"schemaVersion": 2, "manifests": [entry, entry]});
    let names = "contains 2 images (`team/a:1`, `team/b:2`); one is expected: choose one as";
    let table = [
        ("manifest.json", two.to_string(), format!("{names} `docker-archive:PATH:NAME`, or save it alone with")),
        ("manifest.json", many, "the image has 201 layers; the maximum is 127: build it with fewer".to_owned()),
        (
            "index.json",
            index.to_string(),
            "2 images (without names); one is expected: choose one as `oci-arch".to_owned(),
        ),
    ];
    for (name, content, expected) in table {
        let archive = tar(&[(name, TestEntry::File(content.as_bytes()))]);
        let error = import(&TestStore::new(), &archive, ImportFormat::Archive, None).await.unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
    }
}

#[tokio::test]
async fn too_large_or_truncated_archive_is_refused() {
    let config = config(&[b"lower"], arch());
    let manifest = saved("c.json", &["a.tar"]);
    let archive = tar(&[
        ("manifest.json", TestEntry::File(manifest.as_bytes())),
        ("c.json", TestEntry::File(config.as_bytes())),
        ("a.tar", TestEntry::File(b"lower")),
    ]);
    let small = TestStore::with(|settings| settings.image_bytes_max = 1000);
    let error = import(&small, &archive, ImportFormat::DockerArchive, None).await.unwrap_err();
    assert!(matches!(error, ImageError::TooLarge { most: 1000, .. }), "{error}");
    for end in [700, 1600, 2562] {
        let place = TestStore::new();
        let cut = import(&place, &archive[..end], ImportFormat::DockerArchive, None).await;
        assert!(cut.is_err() && place.images.list().is_empty(), "{end}");
    }
    import(&TestStore::new(), &archive, ImportFormat::DockerArchive, None).await.unwrap();
}

/// Creates a layout with one image under a name. Returns the digest of its manifest.
fn layout(dir: &Path, layers: &[&[u8]], name: &str) -> String {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| {
        let digest = sha256(bytes);
        std::fs::write(blobs.join(&digest[7..]), bytes).unwrap();
        digest
    };
    layers.iter().for_each(|layer| drop(put(layer)));
    let config = config(layers, arch());
    put(config.as_bytes());
    let manifest = manifest(config.as_bytes(), layers);
    let digest = put(manifest.as_bytes());
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": manifest.len(),
        "annotations": {"org.opencontainers.image.ref.name": name}}]});
    std::fs::write(dir.join("index.json"), index.to_string()).unwrap();
    std::fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    digest
}

/// If a layer of 32 GiB is one hole, the layer is refused immediately, in a layout and in a Docker archive. The
/// control: a hole below the limit is read, and its digest is wrong.
#[tokio::test]
async fn sparse_layer_is_refused_before_read() {
    for (size, holes) in [(32 << 30, true), (1 << 20, false)] {
        let dir = tempfile::tempdir().unwrap();
        layout(dir.path(), &[b"a"], "v1");
        let config = config(&[b"a"], arch());
        let mut changed: serde_json::Value = serde_json::from_str(&manifest(config.as_bytes(), &[b"a"])).unwrap();
        changed["layers"][0]["size"] = json!(size);
        let changed = changed.to_string();
        let digest = sha256(changed.as_bytes());
        let blobs = dir.path().join("blobs/sha256");
        std::fs::write(blobs.join(&digest[7..]), &changed).unwrap();
        std::fs::File::create(blobs.join(&sha256(b"a")[7..])).unwrap().set_len(size).unwrap();
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": changed.len()}]});
        std::fs::write(dir.path().join("index.json"), index.to_string()).unwrap();
        let place = TestStore::with(|settings| settings.image_bytes_max = 1 << 40);
        let began = std::time::Instant::now();
        let error = place.pull(&reference(dir.path(), "")).await.unwrap_err();
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
        if holes {
            assert!(
                matches!(&*error, ImageError::TooLarge { .. }) && error.to_string().contains("stored on disk"),
                "{error}"
            );
        } else {
            assert!(matches!(&*error, ImageError::WrongDigest { .. }), "{error}");
        }
    }
    let config = config(&[b"lower"], arch());
    let manifest = saved("c.json", &["a.tar"]);
    let archive =
        tar(&[("manifest.json", TestEntry::File(manifest.as_bytes())), ("c.json", TestEntry::File(config.as_bytes()))]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_path("a.tar").unwrap();
    header.set_mode(0o644);
    header.set_size(32 << 30);
    header.set_cksum();
    let listed = &archive[..archive.len() - 1024]; // without the blocks that mark the archive's end
    std::fs::write(file.path(), [listed, header.as_bytes()].concat()).unwrap();
    file.as_file().set_len(listed.len() as u64 + 512 + (32 << 30) + 1024).unwrap();
    let place = TestStore::with(|settings| settings.image_bytes_max = 1 << 40);
    let reference = format!("docker-archive:{}", file.path().display()).parse().unwrap();
    let error = place.pull(&reference).await.unwrap_err();
    assert!(error.to_string().contains("stored on disk"), "{error}");
}

fn reference(dir: &Path, name: &str) -> ImageReference {
    format!("oci:{}{name}", dir.display()).parse().unwrap()
}

#[tokio::test]
async fn layout_is_read_again_on_each_pull() {
    let dir = tempfile::tempdir().unwrap();
    let place = TestStore::new();
    let first = layout(dir.path(), &[b"a", b"b"], "v1");
    for name in ["", ":v1"] {
        let record = place.pull(&reference(dir.path(), name)).await.unwrap();
        assert_eq!(record.digest.to_string(), first);
    }
    let missing = place.pull(&reference(dir.path(), ":v2")).await.unwrap_err();
    assert!(matches!(&*missing, ImageError::NotFound { .. }), "{missing}");
    let second = layout(dir.path(), &[b"a", b"c"], "v1");
    let resolved = place.images.resolve(&reference(dir.path(), ":v1"), executor_images::Policy::IfMissing, None).await;
    assert_eq!(resolved.unwrap().record.digest.to_string(), second);
    place.assert_consistent().await;
}

#[tokio::test]
async fn layout_links_are_refused_and_blobs_verified() {
    type ArchiveChange = (&'static str, fn(&Path));
    let changes: [ArchiveChange; 4] = [
        ("index.json is a link to outside", |dir| {
            std::fs::rename(dir.join("index.json"), dir.parent().unwrap().join("outside.json")).unwrap();
            std::os::unix::fs::symlink("../outside.json", dir.join("index.json")).unwrap();
        }),
        ("blobs are a link to outside", |dir| {
            std::fs::rename(dir.join("blobs"), dir.parent().unwrap().join("outside")).unwrap();
            std::os::unix::fs::symlink(dir.parent().unwrap().join("outside"), dir.join("blobs")).unwrap();
        }),
        ("a layer was changed", |dir| std::fs::write(dir.join("blobs/sha256").join(&sha256(b"a")[7..]), b"A").unwrap()),
        ("a layer is a pipe", |dir| {
            let path = dir.join("blobs/sha256").join(&sha256(b"a")[7..]);
            std::fs::remove_file(&path).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        }),
    ];
    for (what, change) in changes {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("layout");
        layout(&dir, &[b"a"], "v1");
        TestStore::new().pull(&reference(&dir, "")).await.expect("the control");
        change(&dir);
        let place = TestStore::new();
        place.pull(&reference(&dir, "")).await.expect_err(what);
        assert!(place.images.list().is_empty(), "{what}");
    }
}

#[tokio::test]
async fn layout_in_archive_is_imported() {
    let dir = tempfile::tempdir().unwrap();
    let digest = layout(dir.path(), &[b"a", b"b"], "registry.example/team/app:1");
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir_all(".", dir.path()).unwrap();
    let archive = builder.into_inner().unwrap();
    let place = TestStore::new();
    let record = import(&place, &archive, ImportFormat::OciArchive, None).await.unwrap();
    assert_eq!(record.digest.to_string(), digest);
    assert_eq!(record.references.keys().collect::<Vec<_>>(), ["docker://registry.example/team/app:1"]);
    let path = dir.path().join("archive.tar");
    std::fs::write(&path, &archive).unwrap();
    let reference: ImageReference = format!("oci-archive:{}", path.display()).parse().unwrap();
    assert_eq!(place.pull(&reference).await.unwrap().digest, record.digest);
    place.assert_consistent().await;
}

/// If an archive has another format than declared, the error names both formats. An archive of a newer `docker save`
/// has the files of both formats, and may be declared as either.
#[tokio::test]
async fn other_archive_format_is_reported() {
    let place = TestStore::new();
    let entries = [("oci-layout", TestEntry::File(b"{}")), ("index.json", TestEntry::File(b"{}"))];
    let reported = import(&place, &tar(&entries), ImportFormat::DockerArchive, None).await.unwrap_err();
    assert!(
        matches!(reported, ImageError::OtherForm { is: "oci-archive", declared: "docker-archive", .. }),
        "{reported}"
    );
    let entries = [("manifest.json", TestEntry::File(b"[]"))];
    let reported = import(&place, &tar(&entries), ImportFormat::OciArchive, None).await.unwrap_err();
    assert!(
        matches!(reported, ImageError::OtherForm { is: "docker-archive", declared: "oci-archive", .. }),
        "{reported}"
    );
    let entries = [("manifest.json", TestEntry::File(b"[]")), ("index.json", TestEntry::File(b"{}"))];
    let reported = import(&place, &tar(&entries), ImportFormat::DockerArchive, None).await.unwrap_err();
    assert!(!matches!(reported, ImageError::OtherForm { .. }), "{reported}");
}

/// If no format is declared, the format of an archive is detected.
#[tokio::test]
async fn archive_format_is_detected() {
    let place = TestStore::new();
    for (name, why) in [("manifest.json", "contains no image"), ("index.json", "index.json"), ("x", "neither")] {
        let reported =
            import(&place, &tar(&[(name, TestEntry::File(b"[]"))]), ImportFormat::Archive, None).await.unwrap_err();
        assert!(reported.to_string().contains(why), "{name}: {reported}");
    }
}
