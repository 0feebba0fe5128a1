//! Tests with malicious archives. Each is refused with an error that names the fault, or its valid part is read.
//!
//! The callers decide which types and destinations of entries are allowed, so paths and links that escape are
//! returned as written, and `components` refuses them. The callers have tests of their policies.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test; the lint does not treat helpers as tests

use std::io::{self, Cursor, Read as _};

use executor_tar::{Entry, Kind, Limits, Reader, TarError, components};
use tar::{Builder, Header};

const BLOCK: usize = 512;
/// Blocks of zeros that end an archive.
const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// Builds a header block with unmodified names; `change` edits it before the checksum is computed.
fn header(kind: u8, path: &str, link: &str, size: u64, change: impl FnOnce(&mut [u8; BLOCK])) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(size);
    let bytes = header.as_mut_bytes();
    bytes[156] = kind;
    bytes[..path.len()].copy_from_slice(path.as_bytes());
    bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
    change(bytes);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// Returns a regular file with its padding.
fn file(path: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = header(b'0', path, "", content.len() as u64, |_| {});
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// Returns an extension header with its content. The size field of the header has the value `size`.
fn extension(kind: u8, content: &[u8], size: u64) -> Vec<u8> {
    let mut bytes = header(kind, "././@LongLink", "", size, |_| {});
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

fn record(content: &[u8]) -> Vec<u8> {
    [extension(b'x', content, content.len() as u64), file("f", b"x"), END.to_vec()].concat()
}

fn entry(kind: u8, path: &str, link: &str) -> Vec<u8> {
    [header(kind, path, link, 0, |_| {}), END.to_vec()].concat()
}

/// Reads all entries with their contents.
fn read<R: io::Read>(mut reader: Reader<R>) -> Result<Vec<Entry>, TarError> {
    let (mut entries, mut buffer) = (Vec::new(), [0; 300]);
    while let Some(entry) = reader.next_entry()? {
        while reader.content(&mut buffer)?.is_some() {}
        entries.push(entry);
    }
    Ok(entries)
}

/// Reads an archive with contents, skipping contents by reading, and skipping contents by seeking. Checks that all
/// results agree.
fn outcome(archive: &[u8]) -> Result<Vec<Entry>, String> {
    fn skip<R: io::Read>(mut reader: Reader<R>) -> Result<usize, String> {
        let mut count = 0;
        while reader.next_entry().map_err(|error| error.to_string())?.is_some() {
            count += 1;
        }
        assert!(matches!(reader.next_entry(), Ok(None)), "entries after the end");
        Ok(count)
    }
    let read = read(Reader::new(archive, Limits::default())).map_err(|error| error.to_string());
    let counts =
        [skip(Reader::new(archive, Limits::default())), skip(Reader::seeking(Cursor::new(archive), Limits::default()))];
    for count in counts {
        assert_eq!(count, read.as_ref().map(Vec::len).map_err(Clone::clone));
    }
    read
}

#[test]
fn hostile_archive_is_refused() {
    let whole = [file("a", b"content"), END.to_vec()].concat();
    let number = |at: usize, field: &'static [u8]| {
        let bytes = header(b'0', "n", "", 0, |bytes| bytes[at..at + field.len()].copy_from_slice(field));
        [bytes, END.to_vec()].concat()
    };
    let mut checksum = whole.clone();
    checksum[0] ^= 1;
    let sparse = |size: &str, map: &str| {
        let records: String = [("GNU.sparse.size", size), ("GNU.sparse.map", map)]
            .iter()
            .map(|(key, value)| {
                let length = key.len() + value.len() + 5;
                format!("{length} {key}={value}\n")
            })
            .collect();
        record(records.as_bytes())
    };
    let long = "2097152 bytes of long names or records; at most 1048576";
    let table: [(&str, Vec<u8>, &str); 29] = [
        ("truncated header", whole[..100].to_vec(), "truncated"),
        ("truncated content", whole[..BLOCK + 3].to_vec(), "truncated"),
        ("truncated padding", whole[..BLOCK + 100].to_vec(), "truncated"),
        ("no archive", b"text ".repeat(200), "wrong checksum"),
        ("wrong checksum", checksum, "wrong checksum"),
        (
            "negative size",
            number(124, &[0xff; 12]),
            "`n`: the archive is damaged: the size in the header is not a number",
        ),
        ("huge size", number(124, &[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), "bytes of files"),
        ("size that overflows", number(124, &[0xbf; 12]), "the size in the header is not a number"),
        ("size in words", number(124, b"many"), "the size in the header is not a number"),
        ("size that is not octal", number(124, b"00000000009"), "the size in the header is not a number"),
        ("owner of 64 bits", number(108, &[0x80, 0, 0, 1, 0, 0, 0, 0]), "does not fit into 32 bits"),
        ("endless name", extension(b'L', b"", u64::MAX >> 2), "bytes of long names or records"),
        ("long name of 2 MiB", extension(b'L', &[b'a'; 2 << 20], 2 << 20), long),
        ("long link of 2 MiB", extension(b'K', &[b'a'; 2 << 20], 2 << 20), long),
        ("records of 2 MiB", extension(b'x', &[b'a'; 2 << 20], 2 << 20), long),
        ("global records of 2 MiB", extension(b'g', &[b'a'; 2 << 20], 2 << 20), long),
        (
            "long name and no entry",
            [extension(b'L', b"long", 4), END.to_vec()].concat(),
            "no entry follows the last extension header",
        ),
        ("extension headers only", extension(b'L', b"long", 4).repeat(20), "9 extension headers before"),
        ("record without length", record(b"path=x\n"), "a record without length, key or end"),
        ("record beyond the header", record(b"99 path=x\n"), "a record without length, key or end"),
        ("record without key", record(b"5 =x\n"), "a record without length, key or end"),
        ("record with a huge length", record(b"99999999999999999999 path=x\n"), "a record without length, key or end"),
        ("record with a negative size", record(b"11 size=-1\n"), "not a number"),
        ("name with NUL", record(b"12 path=a\0b\n"), "a name with a NUL byte"),
        ("pieces beyond the file", sparse("1", "5,1"), "overlap or exceed"),
        ("pieces of another length", sparse("9", "0,9"), "do not add up"),
        ("odd map", sparse("9", "0,1,2"), "an invalid map"),
        ("zeros in the middle", [file("a", b"x"), vec![0; BLOCK], whole.clone()].concat(), "an empty block between"),
        ("unknown type", entry(b'V', "v", ""), "`v` has an unknown entry type: 0x56"),
    ];
    for (what, archive, words) in table {
        let refused = outcome(&archive).expect_err(what);
        assert!(refused.contains(words), "{what}: {refused}");
        assert!(refused.len() < 400, "{what}: {refused}");
    }
    assert_eq!(outcome(&whole).unwrap().len(), 1, "the control");
}

/// Each entry is returned with its kind, and with its path and link as written. `components` refuses paths that escape
/// the root.
#[test]
fn entry_is_returned_as_written() {
    let table: [(&str, Vec<u8>, Kind, &str, bool); 12] = [
        ("parent", entry(b'0', "../x", ""), Kind::File, "../x", false),
        ("parent within", entry(b'0', "a/../x", ""), Kind::File, "a/../x", true),
        ("two parents", entry(b'0', "a/../../x", ""), Kind::File, "a/../../x", false),
        ("absolute", entry(b'0', "/etc/passwd", ""), Kind::File, "/etc/passwd", true),
        ("old file", entry(0, "a", ""), Kind::File, "a", true),
        ("old directory", entry(0, "a/", ""), Kind::Directory, "a/", true),
        ("hard link", entry(b'1', "a", "../../x"), Kind::HardLink, "a", true),
        ("symbolic link", entry(b'2', "a", "/x"), Kind::Symlink, "a", true),
        ("character device", entry(b'3', "a", ""), Kind::CharDevice(0, 0), "a", true),
        ("block device", entry(b'4', "a", ""), Kind::BlockDevice(0, 0), "a", true),
        ("pipe", entry(b'6', "a", ""), Kind::Fifo, "a", true),
        ("contiguous file", entry(b'7', "a", ""), Kind::File, "a", true),
    ];
    for (what, archive, kind, path, inside) in table {
        let entries = outcome(&archive).unwrap_or_else(|error| panic!("{what}: {error}"));
        let [entry] = &entries[..] else { panic!("{what}: {entries:?}") };
        assert_eq!((entry.kind, &*entry.path), (kind, path.as_bytes()), "{what}");
        assert_eq!(components(&entry.path).is_some(), inside, "{what}");
    }
    let linked = outcome(&entry(b'1', "a", "../../x")).unwrap();
    assert!(components(&linked[0].link).is_none());
}

/// Only a file has content, and bytes after the end of an archive are not part of the archive.
#[test]
fn bytes_after_archive_end_are_ignored() {
    let one = file("a", b"x");
    let table = [
        ("no end", one.clone(), 1),
        ("empty", Vec::new(), 0),
        ("one block of zeros", [one.clone(), vec![0; BLOCK]].concat(), 1),
        ("garbage after the end", [&one[..], &END, b"garbage"].concat(), 1),
        ("archive after the end", [&one[..], &END, &one].concat(), 1),
        ("directory with a size", [header(b'5', "d", "", 99, |_| {}), one.clone(), END.to_vec()].concat(), 2),
        ("hard link with a size", [header(b'1', "l", "a", 99, |_| {}), one, END.to_vec()].concat(), 2),
    ];
    for (what, archive, count) in table {
        assert_eq!(outcome(&archive).map(|entries| entries.len()), Ok(count), "{what}");
    }
}

/// If a total exceeds its limit, the error contains the total and the limit. The control: an archive at the limit is
/// read.
#[test]
fn totals_are_bounded() {
    let archive = [file("a", &[1; 700]), file("b", &[2; 300]), END.to_vec()].concat();
    let bytes = archive.len() as u64;
    let limits = Limits::default();
    let table = [
        ("entries", 2, Limits { entries: 2, ..limits }, Limits { entries: 1, ..limits }),
        ("bytes of files", 1000, Limits { file_bytes: 1000, ..limits }, Limits { file_bytes: 999, ..limits }),
        ("bytes of the uncompressed archive", bytes, Limits { bytes, ..limits }, Limits { bytes: bytes - 1, ..limits }),
    ];
    for (what, found, enough, short) in table {
        assert_eq!(read(Reader::new(&*archive, enough)).unwrap().len(), 2, "{what}");
        let refused = read(Reader::new(&*archive, short)).unwrap_err().to_string();
        assert!(refused.contains(&format!("{found} {what}; at most {}", found - 1)), "{refused}");
    }
    // The stream has no end.
    let start = header(b'0', "a", "", 1 << 40, |_| {});
    let endless = io::Read::chain(&*start, io::repeat(0));
    let refused = read(Reader::new(endless, Limits { file_bytes: u64::MAX, bytes: 1 << 20, ..limits })).unwrap_err();
    assert!(matches!(refused, TarError::Limit { limit: 1_048_576, .. }), "{refused}");
}

#[test]
fn plain_content_is_a_stream() {
    let mut builder = Builder::new(Vec::new());
    for (name, content) in [("a", "first"), ("b", ""), ("c", "third")] {
        let mut header = Header::new_ustar();
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    let archive = builder.into_inner().unwrap();
    let mut reader = Reader::seeking(Cursor::new(&*archive), Limits::default());
    let mut found = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        let at = reader.position() as usize;
        let mut content = String::new();
        reader.plain_content().read_to_string(&mut content).unwrap();
        assert_eq!(content.as_bytes(), &archive[at..at + entry.size as usize]);
        found.push(content);
    }
    assert_eq!(found, ["first", "", "third"]);
    // Holes are not part of a stream.
    let mut sparse = header(b'S', "s", "", 0, |bytes| bytes[483..494].copy_from_slice(b"00000100000"));
    sparse.extend_from_slice(&END);
    let mut reader = Reader::new(&*sparse, Limits::default());
    let entry = reader.next_entry().unwrap().unwrap();
    assert!(entry.sparse && !entry.is_plain_file() && entry.size == 0o100_000);
    assert!(reader.plain_content().read(&mut [0; 8]).is_err());
}
