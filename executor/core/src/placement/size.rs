//! Computes the size of the secret file system.

use serde::{Deserialize, Serialize};

use crate::plan::{PlannedFile, PlannedProcess, PlannedTransfer};

/// Size of the secret file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSize {
    /// Size in bytes, a multiple of the page size.
    pub bytes: u64,
    /// Number of files, directories and links.
    pub inodes: u64,
}

impl VolumeSize {
    /// Adds the space for one more file of this size, in a separate directory.
    #[must_use]
    pub fn and_a_file_of(self, bytes: u64, page: u64) -> Self {
        Self { bytes: self.bytes + bytes.div_ceil(page).max(1) * page, inodes: self.inodes + 2 }
    }
}

/// Returns the size of a file system that holds all contents twice, plus a reserve. The two copies are the old and the
/// new generation during a rotation, or the current and the original content of writable files. The size is counted in
/// pages: 90,000 files of one byte are within a byte limit of 1 MB, but need 352 MiB for each copy. The links to a
/// generation need as many directories as the generation.
pub fn volume_size(files: &[PlannedFile], page: u64) -> VolumeSize {
    let VolumeSize { bytes, inodes } = content_size(files, page);
    // A long link target needs a page. Each file may have one long link, and a second one while the link is replaced.
    VolumeSize { bytes: 2 * bytes + (16 + 2 * files.len() as u64) * page, inodes: 4 * inodes + 64 }
}

/// Returns the size that the steps of a tree of actions need: files, payloads, URLs, and links to the container's own
/// files.
pub fn steps_size(
    (processes, transfers): (&[PlannedProcess], &[PlannedTransfer]),
    payloads: u64,
    own_files: usize,
    page: u64,
) -> VolumeSize {
    // Each transfer has a directory with its URL.
    let urls = transfers.len() as u64;
    let mut size = VolumeSize { bytes: payloads + (4 + 2 * urls) * page, inodes: 8 + 4 * urls };
    for process in processes {
        let VolumeSize { bytes, inodes } = content_size(&process.files, page);
        let links = if process.files.is_empty() { 0 } else { own_files as u64 };
        size.bytes += bytes + (4 + links) * page;
        // Each link may need separate directories.
        size.inodes += inodes + 8 + 4 * links;
    }
    size
}

/// Returns the size of one generation: pages, files and directories, without the links to the generation.
pub fn content_size(files: &[PlannedFile], page: u64) -> VolumeSize {
    let pages: u64 = files.iter().map(|file| file.size.div_ceil(page).max(1)).sum();
    let directories: u64 = files.iter().map(|file| file.path.components().count() as u64).sum();
    VolumeSize { bytes: pages * page, inodes: files.len() as u64 + directories }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_counts_pages() {
        let many: Vec<_> = (0..90_000).map(|i| PlannedFile::private(format!("/s/{i}"), 1, "")).collect();
        assert!(volume_size(&many, 4096).bytes >= 355 << 20);
        assert!(volume_size(&many, 4096).inodes > 180_000);
        let one = [PlannedFile::private("/s/a", 4097, "")];
        assert_eq!(volume_size(&one, 4096).bytes, (2 * 2 + 16 + 2) * 4096);
    }
}
