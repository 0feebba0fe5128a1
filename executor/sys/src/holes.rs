//! Holes of files: bytes that nobody stored, which cost whoever reads them as much as others do.
//!
//! A file of a terabyte that holds nothing takes a moment to make and many minutes to read. So what others wrote is looked
//! over for its holes before it is read. A file system that does not know them says that all of a file is stored.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// The next part of a file that is stored, from `at` on; nothing where only holes follow. Moves the file's position.
///
/// # Errors
/// Not a regular file; the disk.
pub fn next_stored(file: impl AsFd, at: u64) -> io::Result<Option<Range<u64>>> {
    let start = match seek(&file, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        found => found?,
    };
    Ok(Some(start..seek(&file, SeekFrom::Hole(start))?.max(start + 1)))
}

/// Most bytes that a part of a file with so much stored of it may have, where it has more: `ratio` for each byte that is
/// stored, and `free` besides. Looks no further than it must. Moves the file's position.
///
/// # Errors
/// As [`next_stored`].
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

    /// Whatever the size, and wherever its few bytes are.
    #[test]
    fn what_is_mostly_holes_is_told() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(excess(&file, 0..1 << 40, 100, 1 << 20).unwrap(), Some(1 << 20));
        file.write_all_at(&[1; 1 << 20], 1 << 39).unwrap();
        assert_eq!(next_stored(&file, 5).unwrap(), Some(1 << 39..(1 << 39) + (1 << 20)));
        assert_eq!(excess(&file, 0..1 << 40, 100, 1 << 20).unwrap(), Some(101 << 20));
        assert_eq!(excess(&file, (1 << 39) - (99 << 20)..(1 << 39) + (1 << 20), 100, 0).unwrap(), None);
        assert_eq!(excess(&file, 0..1 << 20, 100, 1 << 20).unwrap(), None, "what is free is free");
        assert_eq!(excess(&file, 1 << 39..(1 << 39) + (1 << 20), 1, 0).unwrap(), None, "all of it is stored");
    }
}
