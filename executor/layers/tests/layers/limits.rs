//! Tests archive bombs: each is refused with the exceeded quantity, the amount, and the limit.

use std::io::Write;

use executor_layers::stream::Compression;
use executor_layers::{Limits, UnpackError};
use executor_tar::TarError;
use flate2::write::GzEncoder;
use tar::EntryType;

use crate::harness::{Layer, Sandbox, diff_id, header};

fn sandbox(limits: Limits) -> Sandbox {
    let mut sandbox = Sandbox::new();
    sandbox.limits = limits;
    sandbox
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Asserts that an archive is refused with a limit below `needed`. The control: it is accepted with `needed` as limit.
fn bounded(what: &str, needed: u64, archive: &[u8], set: impl Fn(&mut executor_tar::Limits, u64)) {
    for (limit, fits) in [(needed, true), (needed - 1, false)] {
        let mut limits = Limits::default();
        set(&mut limits.archive, limit);
        let sandbox = sandbox(limits);
        let before = sandbox.list_outside();
        match sandbox.unpack(&[], archive) {
            Ok(_) if fits => continue,
            Err(UnpackError::Archive(TarError::Limit { what: reported, found, limit: at, .. })) if !fits => {
                assert_eq!((reported, at), (what, limit));
                assert!(found > limit);
            }
            other => panic!("{what}, {limit}: {other:?}"),
        }
        assert!(!sandbox.store.has(&diff_id(archive), &[]));
        assert_eq!(sandbox.list_outside(), before, "a partial layer is left");
    }
}

#[test]
fn every_archive_limit_is_enforced() {
    let files = (0..50).fold(Layer::new(), |layer, index| layer.file(&format!("f{index}"), "x")).bytes();
    bounded("entries", 50, &files, |limits, most| limits.entries = most);
    let length = files.len() as u64;
    bounded("bytes of the uncompressed archive", length, &files, |limits, most| limits.bytes = most);
    let long = Layer::new().file(&"abcdefghi/".repeat(30), "x").bytes();
    bounded("bytes in the name", 300, &long, |limits, most| limits.path = most);
    let name = Layer::new().file(&"n".repeat(200), "x").bytes();
    bounded("bytes in a path component", 200, &name, |limits, most| limits.name = most);
    let link = Layer::new().symlink("l", &"x".repeat(150)).bytes();
    bounded("bytes in the link target", 150, &link, |limits, most| limits.link = most);
    let xattr = Layer::new().records(&[("SCHILY.xattr.user.x", &[7; 500])]).file("f", "").bytes();
    bounded("bytes of an extended attribute", 500, &xattr, |limits, most| limits.xattr = most);
    let names: Vec<String> = (0..9).map(|index| format!("SCHILY.xattr.user.{index}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
    let xattrs = Layer::new().records(&many).file("f", "").bytes();
    bounded("extended attributes", 9, &xattrs, |limits, most| limits.xattrs = most);
    let described = Layer::new().records(&[("comment", &[b'x'; 988])]).file("f", "").bytes();
    bounded("bytes of long names or records", 1002, &described, |limits, most| limits.description = most);
}

/// Holes in a file count for its size, although they use no bytes in the archive and few on disk.
#[test]
fn holes_count_towards_file_size() {
    let mut sparse = header(EntryType::GNUSparse, 0o644, 0);
    sparse.as_gnu_mut().unwrap().set_real_size(1 << 30);
    sparse.as_mut_bytes()[0] = b's';
    sparse.set_cksum();
    let archive = Layer::new().header(&sparse, b"").bytes();
    bounded("bytes of files", 1 << 30, &archive, |limits, most| limits.file_bytes = most);
}

#[test]
fn a_blob_does_not_grow_without_bound() {
    let zeros = Layer::new().raw(EntryType::Regular, "zeros", "", 0o644, &vec![0; 4 << 20]).bytes();
    let blob = gzip(&zeros);
    for (ratio, fits) in [(2000, true), (100, false)] {
        let sandbox = sandbox(Limits { ratio, free: 1 << 20, ..Limits::default() });
        let result = sandbox.unpack_blob(&[], diff_id(&zeros), Compression::Gzip, &blob);
        match &result {
            Ok(_) => assert!(fits),
            Err(error) => {
                assert!(!fits && error.to_string().contains("for a blob of this size"), "{error}");
                let limit = 100 * blob.len() as u64 + (1 << 20);
                assert!(error.to_string().contains(&format!("at most {limit}")), "{error}");
            }
        }
    }
    // Bytes after the end of the archive are limited, too.
    let behind = [Layer::new().file("f", "x").bytes(), vec![0; 4 << 20]].concat();
    let sandbox = sandbox(Limits { ratio: 100, free: 1 << 20, ..Limits::default() });
    let result = sandbox.unpack_blob(&[], diff_id(&behind), Compression::Gzip, &gzip(&behind));
    assert!(matches!(result, Err(UnpackError::Archive(TarError::Limit { .. }))), "{result:?}");
}

/// If an archive has too many extension headers before an entry, it is refused.
#[test]
fn too_many_extension_headers_are_refused() {
    let layer = (0..100).fold(Layer::new(), |layer, _| layer.records(&[("comment", b"x")])).file("f", "").bytes();
    let error = Sandbox::new().unpack(&[], &layer).unwrap_err();
    assert!(error.to_string().contains("9 extension headers before an entry; at most 8"), "{error}");
}
