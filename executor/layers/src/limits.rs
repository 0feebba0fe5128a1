//! Limits on a layer.

/// Limits on one layer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of the uncompressed archive, and of the unpacked files including holes.
    pub bytes: u64,
    /// Most files, directories, links and whiteouts.
    pub entries: u64,
    /// Most bytes of the uncompressed archive per byte of the blob, beyond [`Limits::free`].
    pub ratio: u64,
    /// Bytes of the uncompressed archive that are exempt from the ratio, so that small layers may compress well.
    pub free: u64,
    /// Longest path in bytes: the kernel's limit.
    pub path: u64,
    /// Longest path component in bytes: the kernel's limit.
    pub name: u64,
    /// Longest target of a symbolic link in bytes.
    pub link: u64,
    /// Longest value of an extended attribute in bytes: the kernel's limit.
    pub xattr: u64,
    /// Most extended attributes per entry.
    pub xattrs: u64,
    /// Most bytes of an entry's extension headers: long names, pax records.
    pub description: u64,
    /// Most pieces of a sparse file.
    pub pieces: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 64 << 30,
            entries: 1_000_000,
            ratio: 100,
            free: 256 << 20,
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
    /// Lowers the byte limit to `bytes`; 0 changes nothing.
    pub fn within(self, bytes: u64) -> Self {
        if bytes == 0 { self } else { Self { bytes: self.bytes.min(bytes), ..self } }
    }
}
