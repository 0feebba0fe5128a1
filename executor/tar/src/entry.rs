//! An entry of an archive.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    /// Another name of an existing file.
    HardLink,
    Symlink,
    Directory,
    Fifo,
    /// A character device with its major and minor number.
    CharDevice(u32, u32),
    /// A block device with its major and minor number.
    BlockDevice(u32, u32),
}

impl Kind {
    /// Returns true for a character or block device.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::CharDevice(..) | Self::BlockDevice(..))
    }
}

/// Extended attributes: names and values as bytes.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds, less than a second.
    pub nanoseconds: u32,
}

/// An entry, without its content.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path as written in the archive, without NUL.
    pub path: Vec<u8>,
    pub kind: Kind,
    /// Permissions, set-id and sticky bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Modification time.
    pub mtime: Time,
    /// Target of a link as written in the archive, without NUL.
    pub link: Vec<u8>,
    pub xattrs: Xattrs,
    /// Size of a regular file in bytes, including holes; 0 for any other entry.
    pub size: u64,
    /// True if the archive contains only some pieces of the file.
    pub sparse: bool,
}

impl Entry {
    /// Returns true for a regular file whose content is contiguous in the archive. Programs that do not support sparse
    /// files accept only such files.
    pub fn is_plain_file(&self) -> bool {
        self.kind == Kind::File && !self.sparse
    }
}

/// Splits a path into components relative to the root, with or without a leading `/`, and without `.` and `..`. Returns
/// `None` if the path escapes the root.
pub fn components(path: &[u8]) -> Option<Vec<&[u8]>> {
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_stay_below_the_root() {
        let table = [
            ("a/b", Some("a/b")),
            ("./a//b/", Some("a/b")),
            ("/a", Some("a")),
            ("x/../a", Some("a")),
            ("...", Some("...")),
            (".", Some("")),
            ("..", None),
            ("a/../../b", None),
            ("/../a", None),
        ];
        for (path, expected) in table {
            let joined = components(path.as_bytes()).map(|names| names.join(&b'/'));
            assert_eq!(joined.as_deref(), expected.map(str::as_bytes), "{path}");
        }
    }
}
