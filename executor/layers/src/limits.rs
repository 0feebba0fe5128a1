//! Limits on the size of a layer.

/// Bounds of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the uncompressed archive, and bytes of the files that come out of it, holes included.
    pub bytes: u64,
    /// Files, directories, links and whiteouts.
    pub entries: u64,
    /// Bytes of the uncompressed archive for each byte of the blob, beyond [`Limits::free`].
    pub ratio: u64,
    /// Bytes of the uncompressed archive to which the ratio does not apply, so that small layers may compress well.
    pub free: u64,
    /// Bytes of a path: the kernel's own limit.
    pub path: u64,
    /// Bytes of a name in a path: the kernel's own limit.
    pub name: u64,
    /// Bytes of a symbolic link's target.
    pub link: u64,
    /// Bytes of an extended attribute's value: the kernel's own limit.
    pub xattr: u64,
    /// Extended attributes of one entry.
    pub xattrs: u64,
    /// Bytes of an entry's description beyond its header: long names, pax records.
    pub description: u64,
    /// Pieces of a sparse file.
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
    /// These, with no more bytes than `bytes`; 0 changes nothing.
    pub fn within(self, bytes: u64) -> Self {
        if bytes == 0 { self } else { Self { bytes: self.bytes.min(bytes), ..self } }
    }
}
