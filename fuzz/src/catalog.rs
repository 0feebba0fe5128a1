//! Target: splits any bytes into the documents of an operator catalog and parses them, within limits.

use executor_bundles::catalog::blob;
use executor_bundles::catalog::split::Documents;

/// Parses the input as a catalog of operators.
pub fn run(data: &[u8]) {
    let mut documents = Documents::new(data);
    let mut last = 0;
    while let Ok(Some(document)) = documents.next() {
        let end = document.offset + document.bytes.len() as u64;
        assert!(
            document.offset >= last && end <= data.len() as u64,
            "a document overlaps the previous document or exceeds the file"
        );
        let start = usize::try_from(document.offset).unwrap_or_default();
        assert!(
            data[start..].starts_with(&document.bytes),
            "a document differs from the bytes at the offset in the file"
        );
        last = end;
        let Ok(text) = std::str::from_utf8(&document.bytes) else { continue };
        if let Ok(blob) = blob::read(document.form, text) {
            assert!(!blob.meta().0.is_empty(), "an object has an empty schema");
        }
    }
}
