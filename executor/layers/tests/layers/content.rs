//! Tests archives in every common format, and invalid archives.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use executor_layers::stream::Compression;
use executor_layers::{DiffId, UnpackError};
use flate2::write::GzEncoder;
use tar::EntryType;

use crate::harness::{Layer, Sandbox, diff_id};

fn sample() -> Vec<u8> {
    let text = "a line of text\n".repeat(5000);
    Layer::new().dir("d/", 0o755).file("d/text", &text).symlink("l", "d").file("empty", "").bytes()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8], options: &[&str]) -> Vec<u8> {
    let mut child = Command::new("zstd")
        .args(["-q", "-c", "-"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("zstd is installed");
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// If a blob has several members or frames, all of them are read.
#[test]
fn every_compression_gives_the_same_tree() {
    let plain = sample();
    let (one, two) = plain.split_at(plain.len() / 2);
    let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let forms: Vec<(Compression, Vec<u8>)> = vec![
        (Compression::None, plain.clone()),
        (Compression::Gzip, gzip(&plain)),
        (Compression::Gzip, [gzip(one), gzip(two)].concat()),
        (Compression::Zstd, zstd(&plain, &[])),
        (Compression::Zstd, zstd(&plain, &["--no-check", "-19"])),
        (Compression::Zstd, zstd(&plain, &["--ultra", "--long=27"])),
        (Compression::Zstd, [skipped.clone(), zstd(one, &[]), skipped.clone(), zstd(two, &[]), skipped].concat()),
    ];
    let sandbox = Sandbox::new();
    let reference = sandbox.merged(&[sandbox.unpack(&[], &plain).unwrap()]);
    assert_eq!(reference[Path::new("d/text")].content.len(), 75_000);
    for (compression, blob) in forms {
        let sandbox = Sandbox::new();
        let layer = sandbox.unpack_blob(&[], diff_id(&plain), compression, &blob).unwrap();
        assert_eq!(sandbox.merged(&[layer]), reference, "{compression:?}");
    }
}

/// Archives that GNU tar creates are unpacked correctly: GNU and pax formats, with long names and sparse files.
#[test]
fn gnu_tar_archives_are_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    let long = "long-name/".repeat(25);
    std::fs::create_dir_all(tree.join(&long)).unwrap();
    std::fs::write(tree.join(&long).join("file"), "deep").unwrap();
    std::os::unix::fs::symlink("x".repeat(150), tree.join("link")).unwrap();
    std::fs::hard_link(tree.join(&long).join("file"), tree.join("hard")).unwrap();
    let mut sparse = std::fs::File::create(tree.join("sparse")).unwrap();
    use std::os::unix::fs::FileExt;
    for at in 0..40_u64 {
        sparse.write_all_at(b"data", at * 65_536).unwrap(); // more pieces than one header has room for
    }
    sparse.set_len(40 * 65_536).unwrap();
    sparse.flush().unwrap();
    let formats: [&[&str]; 6] = [
        &["--format=gnu"],
        &["--format=gnu", "--sparse"],
        &["--format=posix"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=1.0"],
    ];
    for format in formats {
        let output = Command::new("tar").args(format).arg("-C").arg(&tree).args(["-c", "."]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let sandbox = Sandbox::new();
        let layer = sandbox.unpack(&[], &output.stdout).unwrap_or_else(|error| panic!("{format:?}: {error}"));
        let merged = sandbox.merged(&[layer]);
        let original = crate::harness::listing(&tree);
        assert_eq!(merged.keys().collect::<Vec<_>>(), original.keys().collect::<Vec<_>>(), "{format:?}");
        for (path, item) in original {
            let mut unpacked = merged[&path].clone();
            if format[0] == "--format=gnu" {
                unpacked.mtime.1 = item.mtime.1; // this format has no fractions of seconds
            }
            assert!(unpacked == item, "{format:?} {}: {:?}, {:?}", path.display(), unpacked.mtime, item.mtime);
            // The sparse file is compared, too.
            if path == Path::new("sparse") {
                let root = sandbox.path().join("layers/sha256");
                let layer = std::fs::read_dir(root).unwrap().next().unwrap().unwrap().path().join("fs/sparse");
                assert!(std::fs::read(layer).unwrap() == std::fs::read(tree.join("sparse")).unwrap(), "{format:?}");
            }
        }
    }
}

/// If a blob is truncated or changed, unpacking fails and leaves no file, or the blob still contains the same archive.
#[test]
fn damage_is_reported_and_leaves_nothing() {
    let plain = Layer::new().file("a", "x").dir("d/", 0o755).file("d/b", &"y".repeat(700)).bytes();
    let sandbox = Sandbox::new();
    let before = sandbox.list_outside();
    let mut blobs: Vec<(Compression, Vec<u8>)> = Vec::new();
    for (compression, whole) in
        [(Compression::None, plain.clone()), (Compression::Gzip, gzip(&plain)), (Compression::Zstd, zstd(&plain, &[]))]
    {
        let step = (whole.len() / 40).max(1);
        for end in (0..whole.len()).step_by(step) {
            blobs.push((compression, whole[..end].to_vec()));
            let mut changed = whole.clone();
            changed[end] ^= 0x55;
            blobs.push((compression, changed));
        }
        blobs.push((compression, [whole, b"garbage".to_vec()].concat()));
        blobs.push((compression, b"garbage that is no archive at all, and longer than a header of one. ".repeat(20)));
    }
    for (compression, blob) in blobs {
        let result = sandbox.unpack_blob(&[], diff_id(&plain), compression, &blob);
        // A changed blob may still contain the same archive, because some bits of a gzip header have no meaning.
        if let Err(error) = result {
            assert!(matches!(error, UnpackError::Archive(_) | UnpackError::DiffId { .. }), "{error:?}");
            assert_eq!(sandbox.list_outside(), before);
            assert!(!sandbox.store.has(&diff_id(&plain), &[]));
        } else {
            assert!(compression != Compression::None);
            let taken = sandbox.store.take_out(&diff_id(&plain)).unwrap();
            sandbox.store.clear(&taken).unwrap();
        }
    }
    sandbox.unpack(&[], &plain).unwrap();
}

#[test]
fn layer_with_wrong_digest_is_refused() {
    let (asked, given) = (Layer::new().file("a", "1").bytes(), Layer::new().file("a", "2").bytes());
    let sandbox = Sandbox::new();
    let before = sandbox.list_outside();
    let error = sandbox.unpack_blob(&[], diff_id(&asked), Compression::None, &given).unwrap_err();
    assert!(
        matches!(error, UnpackError::DiffId { expected, found } if expected == diff_id(&asked) && found == diff_id(&given))
    );
    // Bytes after the end of the archive are part of the digest.
    let longer = [given.clone(), vec![0; 512]].concat();
    assert!(sandbox.unpack_blob(&[], diff_id(&given), Compression::None, &longer).is_err());
    assert_eq!(sandbox.list_outside(), before);
    for id in [diff_id(&asked), diff_id(&given)] {
        assert!(!sandbox.store.has(&id, &[]));
    }
    sandbox.unpack_blob(&[], diff_id(&longer), Compression::None, &longer).unwrap();
}

#[test]
fn media_type_determines_compression() {
    let parse = |text: &str| text.parse::<Compression>();
    assert_eq!(parse("application/vnd.oci.image.layer.v1.tar").unwrap(), Compression::None);
    assert_eq!(parse("application/vnd.oci.image.layer.v1.tar+zstd").unwrap(), Compression::Zstd);
    assert_eq!(parse("application/vnd.docker.image.rootfs.diff.tar.gzip").unwrap(), Compression::Gzip);
    for other in ["", "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+bzip2"] {
        assert!(matches!(parse(other), Err(UnpackError::MediaType(_))));
    }
}

#[test]
fn blob_that_is_pipe_is_refused() {
    let (read, _write) = std::io::pipe().unwrap();
    let blob = std::fs::File::from(std::os::fd::OwnedFd::from(read));
    let error = Sandbox::new().unpack_file(&[], DiffId::from_bytes([0; 32]), Compression::None, blob).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn unknown_entry_types_are_refused() {
    for kind in [b'V', b'M', b'D', b'X', b'9', 0xff] {
        let layer = Layer::new().raw(EntryType::new(kind), "x", "", 0o644, b"").bytes();
        let error = Sandbox::new().unpack(&[], &layer).unwrap_err();
        assert!(error.to_string().contains("an unknown entry type"), "{error}");
    }
}
