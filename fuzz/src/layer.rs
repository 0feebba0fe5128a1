//! Target: reads a tar archive from an untrusted source: a layer or an archive of an image, a download, a copy, a
//! bundle.
//!
//! The target checks that entries stay within the limits, and that their contents are in order and inside the input.
//! Writing files needs system calls; tests of `executor-layers` check that files are written only beneath their root.

use std::io::{Cursor, Read as _};

use executor_tar::{Entry, Kind, Limits, Reader};

/// Returns limits that an input of a few kilobytes can reach.
fn limits() -> Limits {
    Limits {
        bytes: 40 << 10,
        file_bytes: 1 << 20,
        entries: 20,
        path: 300,
        name: 100,
        link: 200,
        xattr: 64,
        xattrs: 3,
        description: 700,
        pieces: 40,
    }
}

/// Runs the target of this module.
pub fn run(data: &[u8]) {
    read_pieces(data);
    seek(data);
}

/// Checks that a reader that seeks finds the same entries and returns their contents.
fn seek(data: &[u8]) {
    let mut reading = Reader::new(data, limits());
    let mut seeking = Reader::seeking(Cursor::new(data), limits());
    loop {
        let (one, other) = (reading.next_entry(), seeking.next_entry());
        let (Ok(Some(one)), Ok(Some(other))) = (&one, &other) else {
            assert!(one.is_err() == other.is_err() && !matches!((one, other), (Ok(Some(_)), _) | (_, Ok(Some(_)))));
            return;
        };
        let position = seeking.position();
        assert_eq!((&one.path, one.kind, reading.position()), (&other.path, other.kind, position));
        assert!(position <= limits().bytes, "position {position} exceeds the limit of {} bytes", limits().bytes);
        let mut content = Vec::new();
        if one.is_plain_file() && seeking.plain_content().read_to_end(&mut content).is_ok() {
            let at = position as usize;
            assert_eq!(content, data[at..at + content.len()], "the content differs from the archive at position {at}");
            assert_eq!(content.len() as u64, one.size);
        }
    }
}

fn read_pieces(data: &[u8]) {
    let limits = limits();
    let mut reader = Reader::new(data, limits);
    let mut buffer = [0; 700];
    let (mut entries, mut read) = (0, 0);
    // The reader may read or skip any part of an entry.
    while let Ok(Some(entry)) = reader.next_entry() {
        entries += 1;
        assert!(entries <= data.len() / 512, "{entries} entries are more than the archive has headers");
        assert!(entries as u64 <= limits.entries, "{entries} entries exceed the limit of {}", limits.entries);
        evaluate(&entry, &limits);
        if entries % 3 == 0 {
            continue;
        }
        let mut end = 0;
        while let Ok(Some((at, length))) = reader.content(&mut buffer) {
            assert!(at >= end && length > 0, "a piece at {at} begins before {end}, the end of the previous piece");
            end = at + length as u64;
            assert!(end <= entry.size && entry.kind == Kind::File, "a piece ends at {end}, beyond the end of the file");
            read += length;
        }
    }
    assert!(read <= data.len(), "{read} bytes of content are more than the archive");
    assert!(!matches!(reader.next_entry(), Ok(Some(_))) || entries > 0);
}

fn evaluate(entry: &Entry, limits: &Limits) {
    assert!(entry.path.len() as u64 <= limits.path && entry.link.len() as u64 <= limits.link);
    assert!(!entry.path.contains(&0) && !entry.link.contains(&0));
    assert!(entry.mode <= 0o7777 && entry.mtime.nanoseconds < 1_000_000_000);
    assert!(entry.kind == Kind::File || entry.size == 0, "an entry that is not a file has content");
    assert!(entry.xattrs.len() as u64 <= limits.xattrs);
    for (name, value) in &entry.xattrs {
        assert!(!name.is_empty() && !name.contains(&0) && value.len() as u64 <= limits.xattr);
    }
}
