//! Memory limit for the entry descriptions that the crate `tar` reads: long names, pax records and maps of sparse
//! files. They have no limit of their own and compress to nearly nothing.
//!
//! The limit is an allowance of bytes that is renewed after each entry, so the format is parsed in one place only.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest description of an entry, in bytes.
const DESCRIPTION_MAX: u64 = 1 << 20;
/// Size of a header, and of the unit that contents are padded to.
const BLOCK: u64 = 512;

/// Bytes that may be read before the next entry is known.
#[derive(Debug)]
pub struct Allowance(Arc<AtomicU64>);

impl Allowance {
    /// Allows reading the rest of an entry, whose content has `content` bytes left in the archive, and the description
    /// of the next entry.
    pub fn renew(&self, content: u64) {
        self.0.store(content.saturating_add(2 * BLOCK + DESCRIPTION_MAX), Ordering::Relaxed);
    }
}

/// Archive reader that fails once its [`Allowance`] is used up.
#[derive(Debug)]
pub struct Allowed<R> {
    reader: R,
    left: Arc<AtomicU64>,
}

impl<R> Allowed<R> {
    /// Wraps a reader; the initial allowance is for the first entry.
    pub fn new(reader: R) -> (Self, Allowance) {
        let allowance = Allowance(Arc::default());
        allowance.renew(0);
        (Self { reader, left: Arc::clone(&allowance.0) }, allowance)
    }
}

impl<R: Read> Read for Allowed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::other(format!(
                "names and records of an entry have more than {DESCRIPTION_MAX} bytes"
            )));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.reader.read(&mut buffer[..most])?;
        self.left.store(left.saturating_sub(read as u64), Ordering::Relaxed);
        Ok(read)
    }
}

impl<R: Seek> Seek for Allowed<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowance_is_renewed_after_each_entry() {
        let (mut reader, allowance) = Allowed::new(io::repeat(0));
        let most = 2 * BLOCK + DESCRIPTION_MAX;
        for content in [0, 7, 3 * DESCRIPTION_MAX] {
            allowance.renew(content);
            let copied = io::copy(&mut (&mut reader).take(most + content), &mut io::sink()).unwrap();
            assert_eq!(copied, most + content);
            let refused = reader.read(&mut [0; 1]).unwrap_err().to_string();
            assert!(refused.contains("more than 1048576 bytes"), "{refused}");
        }
    }
}
