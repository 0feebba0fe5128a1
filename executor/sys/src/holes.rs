//! Finds holes in sparse files. Reading a hole costs as much as reading stored bytes.
//!
//! A sparse file of a terabyte without content is created instantly and takes many minutes to read. Therefore files
//! from untrusted sources are checked for holes before they are read. A file system without hole support reports the
//! whole file as stored.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Returns the first range of data at or after offset `at`, or `None` if only a hole follows. Moves the file position.
///
/// # Errors
/// Returns an error if the descriptor is not a regular file or the lookup fails.
pub fn next_stored(file: impl AsFd, at: u64) -> io::Result<Option<Range<u64>>> {
    let start = match seek(&file, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        found => found?,
    };
    Ok(Some(start..seek(&file, SeekFrom::Hole(start))?.max(start + 1)))
}

/// Checks that a part of a file does not consist mostly of holes. The part may have `ratio` bytes for each stored byte,
/// plus `free` bytes. If the part is longer, returns the permitted number of bytes, otherwise `None`. Stops as early as
/// possible. Moves the file position.
///
/// # Errors
/// Returns the same errors as [`next_stored`].
pub fn excess(file: impl AsFd, part: Range<u64>, ratio: u64, free: u64) -> io::Result<Option<u64>> {
    let length = part.end.saturating_sub(part.start);
    let most = |stored: u64| stored.saturating_mul(ratio).saturating_add(free);
    let (mut stored, mut at) = (0, part.start);
    while most(stored) < length {
        match next_stored(&file, at)? {
            Some(data) if data.start < part.end => {
                stored += data.end.min(part.end) - data.start;
                at = data.end;
            }
            _ => return Ok(Some(most(stored))),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// If a part consists mostly of holes, it is reported, regardless of its size and the position of its stored bytes.
    #[test]
    fn sparse_part_is_reported() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(excess(&file, 0..1 << 40, 100, 1 << 20).unwrap(), Some(1 << 20));
        file.write_all_at(&[1; 1 << 20], 1 << 39).unwrap();
        assert_eq!(next_stored(&file, 5).unwrap(), Some(1 << 39..(1 << 39) + (1 << 20)));
        assert_eq!(excess(&file, 0..1 << 40, 100, 1 << 20).unwrap(), Some(101 << 20));
        assert_eq!(excess(&file, (1 << 39) - (99 << 20)..(1 << 39) + (1 << 20), 100, 0).unwrap(), None);
        assert_eq!(
            excess(&file, 0..1 << 20, 100, 1 << 20).unwrap(),
            None,
            "holes within the free amount are not reported"
        );
        assert_eq!(excess(&file, 1 << 39..(1 << 39) + (1 << 20), 1, 0).unwrap(), None, "the part is stored completely");
    }
}
