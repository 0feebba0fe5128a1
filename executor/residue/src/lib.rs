//! Searches for residue of secrets. Used by `agent-cli audit`, and by tests that verify that no residue remains.
//!
//! The input is generated secrets ([`Canary`], [`Needles`]) and places to search: processes ([`Search::process`]:
//! memory, descriptors, command line, environment, mount table), directories ([`Search::files`]), the journal
//! ([`Search::journal`]), all memory of the machine ([`Search::kernel_memory`]). The output is a [`Report`] with the
//! hits and their places, the amount searched, and places that could not be searched, with the reason.
//!
//! # What counts as found
//! The search finds every sequence of [`WINDOW`] bytes that begins at a multiple of [`WINDOW`] in a secret. Therefore,
//! it finds every part of at least 31 bytes, and each half of a secret of 64 bytes. The search finds these sequences
//! unchanged, in base64 and in lower-case hexadecimal. In base64, all three alignments are covered; the URL-safe
//! alphabet needs no needles, because it encodes a [`Canary`], which has only letters and digits, in the same way.
//! Encodings that do not change letters and digits (JSON, percent, shell quoting) need no needles either. Compressed or
//! encrypted copies are not found.
//!
//! # The search does not cause hits
//! [`Needles`] stores no byte of a secret, only keyed hashes of the windows. Pages of the searching process itself are
//! skipped, because its buffers contain the data that it has read.
//!
//! # Limits
//! A search takes time. Data that is moved during the search can be missed or found twice, so search idle targets.
//! Pages that were returned to the kernel belong to no process; only the search of kernel memory covers them.

#![forbid(unsafe_code)]

mod canary;
mod files;
mod journal;
mod kernel;
mod memory;
mod needles;
pub mod process;
mod report;

use zeroize::Zeroizing;

pub use canary::Canary;
pub use kernel::KCORE;
pub use needles::{Needles, WINDOW};
pub use report::{Hit, Place, Report, Unsearched};

/// Number of bytes per read.
const CHUNK: usize = 1 << 20;

/// A search in progress.
#[derive(Debug)]
pub struct Search<'a> {
    needles: &'a Needles,
    report: Report,
    /// The bytes read last, which may contain the secret and are overwritten on drop.
    buffer: Zeroizing<Vec<u8>>,
}

impl<'a> Search<'a> {
    pub fn new(needles: &'a Needles) -> Self {
        Self { needles, report: Report::default(), buffer: Zeroizing::new(vec![0; CHUNK]) }
    }

    /// Finishes the search and returns the report.
    pub fn report(self) -> Report {
        self.report
    }

    /// Searches a stream in chunks, including windows across chunk boundaries. Returns the length of the stream. Hits
    /// are reported with their offset plus `base`.
    fn stream(
        &mut self,
        mut read: impl FnMut(&mut [u8], u64) -> std::io::Result<usize>,
        base: u64,
        place: &dyn Fn() -> Place,
    ) -> std::io::Result<u64> {
        let mut kept = 0;
        let mut at = 0;
        loop {
            let count = match read(&mut self.buffer[kept..], at) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count == 0 {
                return Ok(at);
            }
            let filled = kept + count;
            let begin = base + at - kept as u64;
            let (needles, report) = (self.needles, &mut self.report);
            needles.find(&self.buffer[..filled], |label, offset| report.hit(label, begin + offset as u64, place()));
            at += count as u64;
            // A window across a chunk boundary is found only with the next chunk.
            kept = filled.min(WINDOW - 1);
            self.buffer.copy_within(filled - kept..filled, 0);
        }
    }

    /// Searches bytes, and reports hits at `place`.
    fn bytes(&mut self, bytes: &[u8], place: &Place) {
        let report = &mut self.report;
        self.needles.find(bytes, |label, offset| report.hit(label, offset as u64, place.clone()));
    }
}
