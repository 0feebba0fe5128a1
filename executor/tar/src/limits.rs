//! Limits on an archive.

/// Maximum compression ratio: uncompressed bytes of an archive per compressed or stored byte, beyond [`FREE`]. The
/// reader sees only uncompressed bytes, so the caller that decompresses enforces the ratio.
pub const RATIO_MAX: u64 = 100;
/// Number of bytes of an uncompressed archive that are exempt from the ratio, so that small archives may compress well.
pub const FREE: u64 = 256 << 20;

/// Limits on the bytes, entries, names and attributes of one archive.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of bytes of the uncompressed archive.
    pub bytes: u64,
    /// Maximum number of bytes of all files, including holes.
    pub file_bytes: u64,
    /// Maximum number of entries.
    pub entries: u64,
    /// Maximum length of a path, in bytes. The default is the kernel's limit (PATH_MAX without the final NUL).
    pub path: u64,
    /// Maximum length of a path component or of an extended attribute's name, in bytes: the kernel's limit. The reader
    /// does not split paths: the caller that splits them enforces the limit for components.
    pub name: u64,
    /// Maximum length of a link target, in bytes.
    pub link: u64,
    /// Maximum length of the value of an extended attribute, in bytes: the kernel's limit.
    pub xattr: u64,
    /// Maximum number of extended attributes per entry.
    pub xattrs: u64,
    /// Maximum number of bytes of an extension header: a long name, a long link, pax records.
    pub description: u64,
    /// Maximum number of data regions of a sparse file.
    pub pieces: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 64 << 30,
            file_bytes: 64 << 30,
            entries: 1_000_000,
            path: 4095,
            name: 255,
            link: 4095,
            xattr: 64 << 10,
            xattrs: 256,
            description: 1 << 20,
            pieces: 256 << 10,
        }
    }
}

impl Limits {
    /// Lowers both limits on bytes to `bytes`; 0 changes nothing.
    pub fn within(self, bytes: u64) -> Self {
        if bytes == 0 {
            return self;
        }
        Self { bytes: self.bytes.min(bytes), file_bytes: self.file_bytes.min(bytes), ..self }
    }

    /// Removes the limits on bytes and entries, for archives that are bounded by the limit of a file system or of a
    /// pipe.
    pub fn without_total(self) -> Self {
        Self { bytes: u64::MAX, file_bytes: u64::MAX, entries: u64::MAX, ..self }
    }
}
