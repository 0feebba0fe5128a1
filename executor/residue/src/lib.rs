//! The search for residue of secrets, used by `agent-cli audit` and by every test that claims "nothing is left".
//!
//! In go secrets of one's own making ([`Canary`], [`Needles`]) and places: processes ([`Search::process`]: memory,
//! descriptors, command line, environment, mount table), directories ([`Search::files`]), the journal
//! ([`Search::journal`]), all of the machine's memory ([`Search::kernel_memory`]). Out comes a [`Report`]: what was found
//! where, how much was searched, and what could not be searched and why.
//!
//! # What counts as found
//! Any [`WINDOW`] bytes of a secret that begin at a multiple of [`WINDOW`] in it: so every part of 31 bytes or more,
//! and every half of a secret of 64. Each in these forms: as it is, in base64 (all three alignments; for a
//! [`Canary`], whose text is letters and digits, its URL-safe alphabet gives the same), and in lower case hexadecimal.
//! Forms in which letters and digits stay what they are (JSON, percent, shell quoting) need none of their own.
//! Compressed or encrypted copies are not found.
//!
//! # The search is no source of hits
//! [`Needles`] keeps no byte of what it searches for, only keyed hashes of the windows. Pages of the searching
//! process itself are passed over, because its buffers hold what it has read.
//!
//! # Limits
//! A search takes time, and what moves meanwhile can be missed or met twice: search what has come to rest. Pages that
//! were given back to the kernel belong to no process; only the search of kernel memory sees them.

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

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// A search that is under way.
#[derive(Debug)]
pub struct Search<'a> {
    needles: &'a Needles,
    report: Report,
    /// Bytes that were read last. They may contain what was searched for, and are overwritten at the end.
    buffer: Zeroizing<Vec<u8>>,
}

impl<'a> Search<'a> {
    /// Starts a search.
    pub fn new(needles: &'a Needles) -> Self {
        Self { needles, report: Report::default(), buffer: Zeroizing::new(vec![0; CHUNK]) }
    }

    /// Ends, and tells.
    pub fn report(self) -> Report {
        self.report
    }

    /// Searches a stream piece by piece, over the seams too; gives its length. Hits are told by their offset in it, from
    /// `base` on.
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
            // A window that lies across the seam is seen with the next piece, and only there.
            kept = filled.min(WINDOW - 1);
            self.buffer.copy_within(filled - kept..filled, 0);
        }
    }

    /// Searches a few bytes that are there already.
    fn bytes(&mut self, bytes: &[u8], place: &Place) {
        let report = &mut self.report;
        self.needles.find(bytes, |label, offset| report.hit(label, offset as u64, place.clone()));
    }
}
