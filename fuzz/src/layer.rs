//! An uncompressed layer of an image: a tar archive from an untrusted source.
//!
//! Entries are returned within the limits, their contents in order and inside their files. That they are written only
//! beneath their root is a matter of system calls, and of `executor-layers`' own tests.

use executor_layers::Limits;
use executor_layers::archive::{Entry, Kind, Reader};

/// Low enough to be reached by an input of a few kilobytes.
fn limits() -> Limits {
    Limits { path: 300, name: 100, link: 200, xattr: 64, xattrs: 3, description: 700, pieces: 40, ..Limits::default() }
}

/// Runs the target of this module.
pub fn run(data: &[u8]) {
    let limits = limits();
    let mut reader = Reader::new(data, limits);
    let mut buffer = [0; 700];
    let (mut entries, mut read) = (0, 0);
    // The reader may read or skip any part of an entry.
    while let Ok(Some(entry)) = reader.next_entry() {
        entries += 1;
        assert!(entries <= data.len() / 512, "more entries than headers");
        evaluate(&entry, &limits);
        if entries % 3 == 0 {
            continue;
        }
        let mut end = 0;
        while let Ok(Some((at, length))) = reader.content(&mut buffer) {
            assert!(at >= end && length > 0, "a piece before the end of the previous one");
            end = at + length as u64;
            assert!(end <= entry.size && entry.kind == Kind::File, "a piece outside its file");
            read += length;
        }
    }
    assert!(read <= data.len(), "more content than bytes");
    assert!(!matches!(reader.next_entry(), Ok(Some(_))) || entries > 0);
}

fn evaluate(entry: &Entry, limits: &Limits) {
    assert!(entry.path.len() as u64 <= limits.path && entry.link.len() as u64 <= limits.link);
    assert!(!entry.path.contains(&0) && !entry.link.contains(&0));
    assert!(entry.mode <= 0o7777 && entry.mtime.nanoseconds < 1_000_000_000);
    assert!(entry.kind == Kind::File || entry.size == 0, "only a file has a content");
    assert!(entry.xattrs.len() as u64 <= limits.xattrs);
    for (name, value) in &entry.xattrs {
        assert!(!name.is_empty() && !name.contains(&0) && value.len() as u64 <= limits.xattr);
    }
}
