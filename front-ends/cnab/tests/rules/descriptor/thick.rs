//! Tests rule 42 of `docs/guides/cnab-rules.md`: thin and thick bundles.

use std::io::{Read as _, Write as _};

use executor_cnab::archive::{self, ArchiveError, ImageSelector};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::common::*;

const INDEX: &[u8] = br#"{"schemaVersion":2,"manifests":[
    {"digest":"sha256:a","size":1,"annotations":{"org.opencontainers.image.ref.name":"example/a:1"}},
    {"digest":"sha256:b","size":1}]}"#;

fn tgz(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for (name, content) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        // `append_data` would not accept an invalid name.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, *content).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

#[test]
fn rule_42_thick_bundles_are_read() {
    assert!(!archive::is_thick(THIN.as_bytes()));
    let thick = tgz(&[
        ("./artifacts/layout/oci-layout", b"{}"),
        ("artifacts/layout/index.json", INDEX),
        ("artifacts/layout/blobs/sha256/aa", b"blob"),
        ("other/README", b"x"),
        ("./bundle.json", THICK.as_bytes()),
    ]);
    assert!(archive::is_thick(&thick));
    assert_eq!(archive::bundle(&*thick).unwrap(), THICK.as_bytes());
    let wanted = |digest, reference| ImageSelector { digest, reference, allow_sole_image: true };
    let index = |wanted| {
        let layout = archive::layout(&*thick, Vec::new(), wanted).unwrap();
        let mut tar = tar::Archive::new(&*layout);
        let entry = tar.entries().unwrap().nth(1).unwrap().unwrap();
        let index: Value = serde_json::from_reader(entry).unwrap();
        (index["manifests"].as_array().unwrap().len(), index["manifests"][0]["digest"].as_str().unwrap().to_owned())
    };
    assert_eq!(index(wanted(Some("sha256:b"), "x")), (1, "sha256:b".into()));
    assert_eq!(index(wanted(None, "example/a:1")), (1, "sha256:a".into()));
    let none = archive::layout(&*thick, Vec::new(), wanted(None, "example/c"));
    assert!(matches!(none, Err(ArchiveError::NoImage(_))));
    let layout = archive::layout(&*thick, Vec::new(), wanted(None, "example/a:1")).unwrap();
    let mut tar = tar::Archive::new(&*layout);
    let names: Vec<String> =
        tar.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
    assert_eq!(names, ["oci-layout", "index.json", "blobs/sha256/aa"]);
}

#[test]
fn rule_42_invalid_thick_bundles_are_refused() {
    let wanted = ImageSelector { digest: None, reference: "x", allow_sole_image: true };
    assert!(matches!(archive::bundle(&*tgz(&[("x", b"")])), Err(ArchiveError::NoBundle)));
    assert!(matches!(archive::bundle(&*tgz(&[("sub/bundle.json", b"{}")])), Err(ArchiveError::NoBundle)));
    let twice = tgz(&[("bundle.json", b"{}"), ("./bundle.json", b"{}")]);
    assert!(matches!(archive::bundle(&*twice), Err(ArchiveError::Twice(_))));
    assert!(matches!(
        archive::layout(&*tgz(&[("bundle.json", b"{}")]), Vec::new(), wanted),
        Err(ArchiveError::NoLayout)
    ));
    for name in ["../x", "/etc/x", "artifacts/layout/../../x"] {
        assert!(matches!(archive::bundle(&*tgz(&[(name, b"")])), Err(ArchiveError::Entry(..))), "{name}");
    }
    let mut cut = tgz(&[("bundle.json", THICK.as_bytes())]);
    cut.truncate(cut.len() / 2);
    assert!(matches!(archive::bundle(&*cut), Err(ArchiveError::Read(_))));
    let noise: Vec<u8> = (0..1_u32 << 16).flat_map(|number| Sha256::digest(number.to_le_bytes())).collect();
    let mut cut = tgz(&[("artifacts/layout/blobs/sha256/aa", &noise)]);
    assert!(matches!(archive::layout(&*cut, Vec::new(), wanted), Err(ArchiveError::NoLayout)), "control failed");
    cut.truncate(cut.len() / 2);
    assert!(matches!(archive::layout(&*cut, Vec::new(), wanted), Err(ArchiveError::Read(_))));
    let mut link = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    link.append_link(&mut header, "artifacts/layout/oci-layout", "/etc/passwd").unwrap();
    let mut stream = link.into_inner().unwrap();
    stream.flush().unwrap();
    let link = stream.finish().unwrap();
    assert!(matches!(archive::bundle(&*link), Err(ArchiveError::Entry(..))));
}

/// If a reader of the layout could treat two names as the same file, the archive is refused.
#[test]
fn rule_42_thick_bundle_ambiguous_name_refused() {
    for name in [
        "artifacts/layout/./index.json",
        "artifacts//layout/index.json",
        "artifacts/layout/index.json/",
        "././bundle.json",
        "artifacts/layout/a\u{1b}[2J",
        "artifacts/layout/a\nb",
        "artifacts/layout/a\u{202e}b",
    ] {
        let refused = archive::bundle(&*tgz(&[("bundle.json", b"{}"), (name, INDEX)]));
        assert!(matches!(refused, Err(ArchiveError::Entry(..))), "{name:?}");
    }
    // The names are equal if case is ignored. U+212A is the Kelvin sign, whose lower case is `k`.
    for (one, other) in [
        ("artifacts/layout/index.json", "./artifacts/layout/index.json"),
        ("artifacts/layout/blobs/sha256/aa", "artifacts/layout/blobs/sha256/AA"),
        ("bundle.json", "bundle.json"),
        ("bundle.json", "Bundle.JSON"),
        ("other/k", "other/\u{212a}"),
    ] {
        let refused = archive::bundle(&*tgz(&[(one, INDEX), (other, INDEX)]));
        assert!(matches!(refused, Err(ArchiveError::Twice(_))), "{one} {other}: {refused:?}");
    }
    // Control: a directory may occur twice, and different names are different files.
    archive::bundle(&*tgz(&[("bundle.json", b"{}"), ("other/k", b""), ("other/k\u{301}", b"")])).unwrap();
}

/// If a name is too long, it is refused in every encoding of long names, and the error shows the start of the name.
#[test]
fn rule_42_thick_bundle_long_name_refused() {
    let with = |length: usize, pax: bool| {
        let name = "d/".repeat(length / 2);
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        let mut header = tar::Header::new_ustar();
        header.set_size(2);
        if pax {
            tar.append_pax_extensions([("path", name.trim_end_matches('/').as_bytes())]).unwrap();
            tar.append_data(&mut header, "x", &b"{}"[..]).unwrap();
        } else {
            let mut header = tar::Header::new_gnu();
            header.set_size(2);
            tar.append_data(&mut header, name.trim_end_matches('/'), &b"{}"[..]).unwrap();
        }
        tar.append_data(&mut header, "bundle.json", &b"{}"[..]).unwrap();
        archive::bundle(&*tar.into_inner().unwrap().finish().unwrap())
    };
    for pax in [false, true] {
        with(archive::NAME_MAX, pax).unwrap();
        let refused = with(archive::NAME_MAX + 4, pax).unwrap_err();
        let ArchiveError::Read(why) = &refused else { panic!("{refused:?}") };
        assert!(why.to_string().contains("4099 bytes in the name; at most 4096"), "{why}");
        assert!(why.to_string().len() < 400, "{why}");
    }
}

/// If an extended header contains a name with NUL or invalid UTF-8, the archive is refused.
#[test]
fn rule_42_thick_bundle_name_record_refused() {
    for name in [&b"artifacts/layout/a\0b"[..], b"artifacts/layout/\xff", b"/etc/x", b"a/../../x", b""] {
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        tar.append_pax_extensions([("path", name)]).unwrap();
        tar.append_data(&mut header, "x", &b""[..]).unwrap();
        let refused = archive::bundle(&*tar.into_inner().unwrap().finish().unwrap());
        let expected = matches!(refused, Err(ArchiveError::Entry(..) | ArchiveError::NoBundle | ArchiveError::Read(_)));
        assert!(expected, "{name:?}: {refused:?}");
    }
}

/// If a name or an extended header is extremely long, it is refused, although it compresses to a few bytes.
#[test]
fn rule_42_thick_bundle_endless_name_refused() {
    for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader] {
        let long = |bytes: u64| {
            let mut stream = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(bytes);
            header.set_cksum();
            stream.write_all(header.as_bytes()).unwrap();
            std::io::copy(&mut std::io::repeat(b'a').take(bytes), &mut stream).unwrap();
            stream.finish().unwrap()
        };
        let refused = archive::bundle(&*long(64 << 20)).unwrap_err();
        let ArchiveError::Read(why) = &refused else { panic!("{kind:?}: {refused:?}") };
        assert!(why.to_string().contains("67108864 bytes of long names"), "{kind:?}: {why}");
    }
}
