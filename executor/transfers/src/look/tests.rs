//! Tests file formats, and archives that must not be unpacked.

use std::io::{Cursor, Write as _};

use ::zip::write::SimpleFileOptions;
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::*;
use crate::job::{Report, Unpack};

const MOST: u64 = 1 << 30;

fn file(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

/// Creates an archive with one entry, whose names are not modified.
fn archive_of(kind: EntryType, path: &str, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
    header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut archive = Builder::new(Vec::new());
    archive.append(&header, content).unwrap();
    archive.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zip_of(path: &str, content: &[u8], mode: u32) -> Vec<u8> {
    let mut archive = ::zip::ZipWriter::new(Cursor::new(Vec::new()));
    archive.start_file(path, SimpleFileOptions::default().unix_permissions(mode)).unwrap();
    archive.write_all(content).unwrap();
    archive.finish().unwrap().into_inner()
}

fn look_at(content: &[u8], checksum: Option<(ChecksumAlgorithm, &str)>) -> Result<FileFormat, String> {
    let checksum = checksum.map(|(algorithm, value)| Checksum { algorithm, value: value.to_owned() });
    let asked = InspectJob { checksum, unpacked_bytes_max: MOST };
    match inspect(&asked, &file(content)) {
        Ok(Report::Looked { form, bytes }) => {
            assert_eq!(bytes, content.len() as u64);
            Ok(form)
        }
        Ok(other) => panic!("{other:?}"),
        Err(failure) => Err(failure.why),
    }
}

#[test]
fn forms_are_known_by_their_content() {
    let archive = archive_of(EntryType::Regular, "a", "", b"x");
    assert_eq!(look_at(&archive, None), Ok(FileFormat::Tar));
    assert_eq!(look_at(&gzip(&archive), None), Ok(FileFormat::TarGzip));
    assert_eq!(look_at(&zip_of("a", b"x", 0o644), None), Ok(FileFormat::Zip));
    for content in [&b""[..], b"x", b"PK", b"\x1f\x8b", &gzip(b"no archive"), &[7; 4096]] {
        assert_eq!(look_at(content, None), Ok(FileFormat::File), "{content:?}");
    }
}

#[test]
fn checksums_are_compared() {
    let sums = [
        (ChecksumAlgorithm::Md5, "900150983cd24fb0d6963f7d28e17f72"),
        (ChecksumAlgorithm::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
        (ChecksumAlgorithm::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ];
    for (algorithm, sum) in sums {
        assert_eq!(look_at(b"abc", Some((algorithm, sum))), Ok(FileFormat::File));
        let reported = look_at(b"abd", Some((algorithm, sum))).unwrap_err();
        assert!(reported.contains(algorithm.name()) && reported.contains(sum), "{reported}");
    }
}

#[test]
fn entries_outside_directory_are_refused() {
    let regular = |path: &str| archive_of(EntryType::Regular, path, "", b"x");
    let table = [
        (regular("../x"), "escapes the directory"),
        (regular("a/../../x"), "escapes the directory"),
        (regular("/etc/passwd"), "escapes the directory"),
        (archive_of(EntryType::Link, "a", "../../etc/shadow", b""), "which escapes the directory"),
        (archive_of(EntryType::Link, "a", "/etc/shadow", b""), "which escapes the directory"),
        (archive_of(EntryType::Char, "null", "", b""), "device node"),
        (archive_of(EntryType::Block, "disk", "", b""), "device node"),
    ];
    for (archive, words) in table {
        for content in [archive.clone(), gzip(&archive)] {
            let reported = look_at(&content, None).unwrap_err();
            assert!(reported.contains(words), "{words}: {reported}");
        }
    }
    // A symbolic link may have any target, because no file is written through a link.
    assert_eq!(look_at(&archive_of(EntryType::Symlink, "a", "/etc", b""), None), Ok(FileFormat::Tar));
    let reported = look_at(&zip_of("../x", b"x", 0o644), None).unwrap_err();
    assert!(reported.contains("escapes the directory"), "{reported}");
}

#[test]
fn bombs_are_refused() {
    let zeros = vec![0; 300 << 20];
    let bomb = gzip(&archive_of(EntryType::Regular, "zeros", "", &zeros));
    let reported = look_at(&bomb, None).unwrap_err();
    assert!(reported.contains("far more bytes"), "{reported}");
    let asked = InspectJob { checksum: None, unpacked_bytes_max: 1000 };
    let reported = inspect(&asked, &file(&zip_of("a", &[0; 2000], 0o644))).unwrap_err().why;
    assert!(reported.contains("2000 bytes or more") && reported.contains("the maximum is 1000"), "{reported}");
    let cut = &archive_of(EntryType::Regular, "a", "", &[1; 2000])[..1024];
    let reported = look_at(cut, None).unwrap_err();
    assert!(reported.contains("damaged"), "{reported}");
}

/// Creates a zip archive whose central directory has `entries` entries without names, and whose end record declares
/// `counted` entries.
fn zip_of_many(entries: u32, counted: u64) -> Vec<u8> {
    const HEADER: usize = 46;
    let mut archive = b"PK\x03\x04".to_vec();
    archive.resize(30, 0);
    let start = archive.len() as u64;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(b"PK\x01\x02");
    (0..entries).for_each(|_| archive.extend_from_slice(&header));
    let (length, end) = (u64::from(entries) * HEADER as u64, archive.len() as u64);
    archive.extend_from_slice(b"PK\x06\x06");
    archive.extend_from_slice(&44_u64.to_le_bytes());
    archive.extend_from_slice(&[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    [counted, counted, length, start].iter().for_each(|number| archive.extend_from_slice(&number.to_le_bytes()));
    archive.extend_from_slice(b"PK\x06\x07\0\0\0\0");
    archive.extend_from_slice(&end.to_le_bytes());
    archive.extend_from_slice(&1_u32.to_le_bytes());
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    archive.extend_from_slice(&[0xff; 12]);
    archive.extend_from_slice(&[0; 2]);
    archive
}

#[test]
fn zip_of_too_many_entries_fails() {
    // Only the first entries are valid. A reader that read the other entries as well would report a damaged archive.
    let mut archive = zip_of_many(1_000_001, 1_000_001);
    archive[30 + 46 * 1000..30 + 46 * 1_000_001].fill(0);
    let reported = look_at(&archive, None).unwrap_err();
    assert!(reported.contains("has 1000001 entries; at most 1000000"), "{reported}");
}

#[test]
fn zip_with_lying_end_record_fails() {
    for counted in [11, 1_000_000, u64::MAX] {
        let reported = look_at(&zip_of_many(10, counted), None).unwrap_err();
        assert!(reported.contains("damaged") || reported.contains("entries; at most"), "{counted}: {reported}");
    }
    assert_eq!(look_at(&zip_of_many(10, 10), None), Ok(FileFormat::Zip), "the control");
}

#[test]
fn every_form_becomes_a_tar_archive() {
    let archive = archive_of(EntryType::Regular, "name", "", b"content");
    let table = [
        (archive.clone(), FileFormat::Tar),
        (gzip(&archive), FileFormat::TarGzip),
        (zip_of("name", b"content", 0o644), FileFormat::Zip),
        (b"content".to_vec(), FileFormat::File),
    ];
    for (content, form) in table {
        let out = tempfile::NamedTempFile::new().unwrap();
        let asked = Unpack { form, name: "name".into(), unpacked_bytes_max: MOST };
        crate::unpack::unpack(&asked, &file(&content), out.reopen().unwrap()).unwrap();
        let mut read = tar::Archive::new(out.reopen().unwrap());
        let mut entries = read.entries().unwrap();
        let mut entry = entries.next().unwrap().unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!((entry.path().unwrap().to_str(), &*text), (Some("name"), "content"), "{form:?}");
        assert_eq!(entry.header().mode().unwrap(), 0o644, "{form:?}");
    }
}
