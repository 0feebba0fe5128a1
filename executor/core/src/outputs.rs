//! Defines the list of a container's outputs, which the shim writes and the daemon reads, and the limits of the list.
//!
//! ```text
//! STATE_DIR/containers/ID/outputs/
//!    0, 1, 2, ...   contents
//!    list.json      list of the outputs; written last and renamed, so that a list refers to complete files only
//! ```
//! Paths of outputs come from the container and are untrusted. Therefore the files have numbers as names, and bytes of
//! a path that are not UTF-8 are escaped ([`escaped`]).

use crate::text::printable;
use serde::{Deserialize, Serialize};

use crate::limits::PATH_MAX;
use crate::record::OutputsRecord;

/// The outputs directory, below the container's state directory.
pub const DIRECTORY: &str = "outputs";
/// File name of the list, in the outputs directory.
pub const LIST: &str = "list.json";
/// Format version of the list. A reader rejects newer versions.
pub const LIST_VERSION: u32 = 1;
/// Maximum number of entries that are examined in a directory and all its subdirectories.
pub const ENTRIES_MAX: usize = 10_000;
/// Maximum nesting depth of directories.
pub const DEPTH_MAX: usize = 128;
/// Maximum number of skipped entries that are listed. Further skipped entries are only counted.
pub const SKIPPED_MAX: usize = 1_000;
/// Maximum size of all paths and reasons in a list, in bytes.
pub const PATHS_BYTES_MAX: usize = 2 << 20;
/// Numbers of bytes and of inodes that outputs leave free on the disk of the state directory, for the ledger and the
/// next container.
pub const DISK_RESERVE: (u64, u64) = (16 << 20, 2_000);
/// Maximum size of a list that is read, in bytes. JSON needs at most six bytes for a byte of a string.
pub const LIST_BYTES_MAX: u64 = 32 << 20;
const _: () = assert!(6 * PATHS_BYTES_MAX + 256 * (ENTRIES_MAX + SKIPPED_MAX) < LIST_BYTES_MAX as usize);

/// A file that was captured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedFile {
    /// Name of the file with the content, in the outputs directory.
    pub number: u32,
    /// Absolute path in the container.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits of the file in the container.
    pub mode: u32,
}

/// An entry that was not captured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedEntry {
    /// Absolute path in the container.
    pub path: String,
    /// Reason, in a few words.
    pub reason: String,
}

/// The list of outputs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutputsList {
    /// Version of the format: [`LIST_VERSION`].
    pub version: u32,
    /// Captured files.
    pub files: Vec<CapturedFile>,
    /// Entries that were not captured, with reasons.
    pub skipped: Vec<SkippedEntry>,
    /// Number of skipped entries that are not listed.
    pub skipped_more: u32,
    /// Bytes of the paths and reasons added so far.
    #[serde(skip)]
    text_bytes: usize,
}

impl Default for OutputsList {
    fn default() -> Self {
        Self { version: LIST_VERSION, files: Vec::new(), skipped: Vec::new(), skipped_more: 0, text_bytes: 0 }
    }
}

impl OutputsList {
    /// Returns the summary for the container's exit record.
    pub fn summary(&self) -> OutputsRecord {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        OutputsRecord {
            files: count(self.files.len()),
            bytes: self.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.size)),
            skipped: count(self.skipped.len()).saturating_add(self.skipped_more),
            failure: None,
        }
    }

    /// Returns true if a captured file with this path still fits into the list.
    pub fn has_room_for(&self, path: &str) -> bool {
        self.files.len() < ENTRIES_MAX && self.text_bytes + path.len() <= PATHS_BYTES_MAX
    }

    /// Adds a captured file, for which [`Self::has_room_for`] returned true.
    pub fn add(&mut self, file: CapturedFile) {
        self.text_bytes += file.path.len();
        self.files.push(file);
    }

    /// Adds an entry that was not captured. If the list is full, the entry is only counted.
    pub fn skip(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        let entry = SkippedEntry { path: path.into(), reason: reason.into() };
        let length = entry.path.len() + entry.reason.len();
        if self.skipped.len() < SKIPPED_MAX && self.text_bytes + length <= PATHS_BYTES_MAX {
            self.text_bytes += length;
            self.skipped.push(entry);
        } else {
            self.skipped_more = self.skipped_more.saturating_add(1);
        }
    }
}

/// Returns a container path as a string if it is UTF-8, absolute and not too long.
pub fn tellable(path: &[u8]) -> Option<&str> {
    std::str::from_utf8(path).ok().filter(|path| path.starts_with('/') && path.len() < PATH_MAX)
}

/// Returns a container path for display. Bytes that are not UTF-8 and harmful characters are escaped; a long path is
/// truncated.
pub fn escaped(path: &[u8]) -> String {
    printable(path, 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_text_are_escaped() {
        assert_eq!(escaped(b"/a/\xff\xfe-\xc3\xa4"), "/a/\\xff\\xfe-ä");
        assert_eq!(escaped("/a\n\u{202e}b".as_bytes()), "/a\\n\\u{202e}b");
        let long = escaped(&[b'x'; 5000]);
        assert!(long.len() == 1027 && long.ends_with("x..."), "{}", long.len());
        assert_eq!(tellable(b"/a b\n"), Some("/a b\n"));
        for bad in [&b"a"[..], b"/\xff", &[b'/'; 4096]] {
            assert_eq!(tellable(bad), None);
        }
    }

    /// The list stays within the size limit for any number and content of paths.
    #[test]
    fn a_list_is_bounded() {
        let mut list = OutputsList::default();
        let path = format!("/{}", "\u{1}".repeat(200));
        while list.has_room_for(&path) {
            list.add(CapturedFile { number: 0, path: path.clone(), size: u64::MAX, mode: 0o7777 });
        }
        for _ in 0..2 * SKIPPED_MAX {
            list.skip(path.clone(), "a symbolic link");
        }
        let reported = serde_json::to_vec(&list).unwrap();
        assert!((reported.len() as u64) < LIST_BYTES_MAX, "{}", reported.len());
        let summary = list.summary();
        assert_eq!((summary.bytes, summary.skipped as usize), (u64::MAX, 2 * SKIPPED_MAX));
        let read: OutputsList = serde_json::from_slice(&reported).unwrap();
        assert_eq!((read.files, read.skipped, read.skipped_more), (list.files, list.skipped, list.skipped_more));

        let mut many = OutputsList::default();
        (0..SKIPPED_MAX + 5).for_each(|_| many.skip("/a", "a socket"));
        assert_eq!((many.skipped.len(), many.skipped_more), (SKIPPED_MAX, 5));
    }
}
