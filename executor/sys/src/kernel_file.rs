//! Reads files that the kernel generates, such as those in /proc, /sys and cgroups.
//!
//! Such files report length 0, so the standard library reads them in many small pieces, and for some of them the kernel
//! regenerates the whole content for each piece. This module reads in few pieces.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Size of the first read, in bytes. Most kernel files are smaller.
const USUAL: usize = 4 << 10;

/// Reads a file as bytes.
///
/// # Errors
/// Returns an error if the file cannot be opened or read.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = vec![0; USUAL];
    let mut length = 0;
    loop {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Reads a file as UTF-8.
///
/// # Errors
/// Returns the same errors as [`read`], and `InvalidData` if the content is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_any_length_are_read_completely() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for length in [0, 1, USUAL - 1, USUAL, USUAL + 1, 4 * USUAL, 9 * USUAL + 7] {
            let content: Vec<u8> = (0..length).map(|at| b'a' + (at % 23) as u8).collect();
            std::fs::write(&path, &content).unwrap();
            assert_eq!(read(&path).unwrap(), content);
        }
        let symbols = read_to_string("/proc/self/maps").unwrap();
        assert!(symbols.contains("[stack]"), "a file of the kernel");
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_to_string(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(dir.path().join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
