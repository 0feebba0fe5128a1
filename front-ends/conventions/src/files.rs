//! Reads files within a size limit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads a regular file of at most `most` bytes.
pub(crate) fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("the file is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("the file is larger than the maximum of {most} bytes")));
    }
    Ok(bytes)
}
